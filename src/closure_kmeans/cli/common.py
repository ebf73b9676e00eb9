"""Shared by the commands: kinds of arguments, and messages."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from closure_kmeans.base import BaseKMeans
from closure_kmeans.compiler import LOGGER
from closure_kmeans.files import check_room
from closure_kmeans.vectors import FileFormatError, Vectors, is_shard, open_vectors, save_vectors

# Bytes in a file: of a label, of a distance, and of where the rows of a cluster start.
LABEL, DISTANCE, START = (np.dtype(kind).itemsize for kind in (np.int32, np.float64, np.int64))
STANDARD = "-"  # standard input or output, which hold an .npy file
# The exit code that shells have for an interrupt.
INTERRUPTED = 130
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
# Rows that are assigned together, and labels that are counted together.
BATCH_ROWS, COUNTED_LABELS = 1 << 18, 1 << 24

# Kinds of arguments.


class Interrupted(KeyboardInterrupt):
    """An interrupt with a message that says how to go on."""


class FileOrFolder(click.Path):
    """A path to a file or a folder, never to a pipe or a device, which to open may take for ever."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Look at what is there, without opening it."""
        path = super().convert(value, param, ctx)
        if self.allow_dash and path == STANDARD:
            if sys.stdin is None:
                self.fail("standard input is closed", param, ctx)
        elif os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            self.fail(
                f"'{os.fsdecode(path)}' must be a file or a folder, but is a pipe, a socket or a device", param, ctx
            )
        return path


EXISTING = FileOrFolder(exists=True)
EXISTING_FILE = FileOrFolder(exists=True, dir_okay=False)
EXISTING_FOLDER = FileOrFolder(exists=True, file_okay=False, path_type=Path)
EXISTING_OR_STANDARD = FileOrFolder(exists=True, allow_dash=True)

Command = TypeVar("Command", bound=Callable[..., Any])


def duration(text: str) -> float:
    """Seconds, from a time such as 90, 90s, 5m or 1.5h."""
    match = re.fullmatch(r"(\d+\.?\d*)([smhd]?)", text)
    if match is None:
        raise click.BadParameter(f"'{text}' is no time such as 90, 90s, 5m or 1.5h")
    return float(match[1]) * SECONDS[match[2]]


def numbers(text: str) -> list[int]:
    """Whole numbers, separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"'{text}' must be whole numbers separated by commas") from None


def some_of(allowed: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Some of several words, separated by commas."""

    def choose(text: str) -> list[str]:
        for one in text.split(","):
            if one not in allowed:
                raise click.BadParameter(f"'{one}' must be one of {', '.join(allowed)}")
        return text.split(",")

    return choose


def output_option(
    *names: str, suffixes: tuple[str, ...], standard: bool = False, **settings: Any
) -> Callable[[Command], Command]:
    """An option that names a file to write, looked at before hours of work; ``-`` only where it may be given."""

    def check(text: str) -> str:
        path = Path(text)
        if text == STANDARD and standard:
            if sys.stdout is None:
                raise click.BadParameter("standard output is closed")
            return text
        if path.suffix.lower() not in suffixes:
            raise click.BadParameter(f"the name must end in {' or '.join(suffixes)}, got '{path.name}'")
        if not path.absolute().parent.is_dir():
            raise click.BadParameter(f"the folder '{path.parent}' does not exist")
        if not os.access(path.absolute().parent, os.W_OK):
            raise click.BadParameter(f"the folder '{path.parent}' cannot be written to")
        if path.exists() and not path.is_file():
            raise click.BadParameter(f"'{text}' exists and is no file")
        return text

    return click.option(*names, type=check, metavar="FILE", **settings)


def together(name: str, kind: Any, *options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Arguments and options that reach the command as one value, ``name``, whose fields they are."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def call(**values: Any) -> Any:
            fields = {field: values.pop(field) for field in kind._fields}
            return command(**values, **{name: kind(**fields)})

        for option in reversed(options):
            call = option(call)
        return call

    return decorate


def keep_apart(inputs: list[str | None], outputs: list[str | None]) -> None:
    """No file that is written may be one that is read, or be written twice: one of the two would be lost.

    No output may go into a folder of vectors: it would be read as vectors.
    """
    taken = {Path(path).resolve() for path in inputs if path not in (None, STANDARD)}
    for path in outputs:
        if path in (None, STANDARD):
            continue
        place = Path(path).resolve()
        if place in taken:
            raise click.UsageError(
                f"'{path}' would be overwritten: what is written must differ from all else named here"
            )
        if place.parent in taken and is_shard(place.name):
            raise click.UsageError(
                f"'{path}' would become one of the files of vectors in '{place.parent}': name another folder"
            )
        taken.add(place)


def check_outputs(sizes: dict[str | None, int]) -> None:
    """There must be room for the files that will be written, of so many bytes."""
    check_room({Path(path): n_bytes for path, n_bytes in sizes.items() if path not in (None, STANDARD)})


def example(*lines: str) -> str:
    """Epilog of a command's help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


class PathOrUrl(FileOrFolder):
    """A path that must exist, or a URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A URL stays as it is."""
        return value if "://" in str(value) else super().convert(value, param, ctx)


def with_vectors(command: Command) -> Command:
    """The argument VECTORS, and the option that says which vectors in the file."""
    return _with_vectors(EXISTING_OR_STANDARD, command)


def with_vectors_anywhere(command: Command) -> Command:
    """The same where VECTORS may be a URL."""
    return _with_vectors(PathOrUrl(exists=True, allow_dash=True), command)


def _with_vectors(path: click.Path, command: Command) -> Command:
    command = click.option("--name", help="Data set of an HDF5 file, or column of a Parquet file.")(command)
    return click.argument("vectors", type=path)(command)


def with_threads(command: Command) -> Command:
    """Add the option --n-threads."""
    return click.option("--n-threads", type=click.IntRange(1), show_default="all cores", help="Number of threads.")(
        command
    )


def with_seed(command: Command) -> Command:
    """Add the option --random-state."""
    kind = click.IntRange(0, 2**32 - 1)
    return click.option("--random-state", type=kind, default=0, show_default=True, help="Seed of the randomness.")(
        command
    )


def with_quiet(command: Command) -> Command:
    """The option --quiet."""

    def silence(context: click.Context, _: click.Parameter, quiet: bool) -> bool:
        if quiet:
            context.call_on_close(partial(LOGGER.setLevel, LOGGER.level))
            LOGGER.setLevel("ERROR")
        return quiet

    return click.option("-q", "--quiet", is_flag=True, callback=silence, help="Show nothing but errors.")(command)


def with_json(command: Command) -> Command:
    """The option --json."""
    return click.option("--json", "as_json", is_flag=True, help="Write JSON to standard output, for machines.")(command)


@contextmanager
def long_work() -> Iterator[None]:
    """Warnings are lines of text, and SIGTERM, by which services and jobs are ended politely, is an interrupt, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: click.echo(f"Warning: {message}", err=True)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


class Manner(NamedTuple):
    """How a command works and speaks."""

    n_threads: int | None
    as_json: bool
    quiet: bool

    @property
    def shows_progress(self) -> bool:
        """Whether somebody looks on."""
        return not (self.quiet or self.as_json)


with_manner = together("manner", Manner, with_threads, with_json, with_quiet)


def read_vectors(source: str, name: str | None = None) -> NDArray[Any] | Vectors:
    """Open vectors; those of standard input must be an ``.npy`` file."""
    if source != STANDARD:
        return open_vectors(source, name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "standard-input.npy"
        try:
            with path.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        except OSError as error:
            raise OSError(error.errno, f"standard input could not be kept in '{folder}': {error.strerror}") from error
        try:
            return np.array(open_vectors(path))
        except FileFormatError as error:
            raise FileFormatError(str(error).replace(f"'{path}'", "standard input")) from error


def write_array(target: str, array: NDArray[Any]) -> None:
    """Write an ``.npy`` file, also to standard output."""
    if target == STANDARD:
        whole = io.BytesIO()  # NumPy asks a file for its position, which a pipe has not
        np.lib.format.write_array(whole, array, allow_pickle=False)
        left = whole.getbuffer()
        while left:  # without a buffer, as Python may be told to write, a part may be all that is written at a time
            left = left[sys.stdout.buffer.write(left) :]
        sys.stdout.buffer.flush()
    else:
        save_vectors(target, array)


def assign(
    model: BaseKMeans,
    rows: NDArray[Any] | Vectors,
    *,
    labels: NDArray[np.int32] | None = None,
    exact: bool = False,
    distances: bool = True,
    quiet: bool,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest centre of each row, and the squared distance to it if wanted; some rows at a time, with a bar.

    ``labels`` are the clusters if they are known already.
    """
    known, labels = labels is not None, np.empty(len(rows), np.int32) if labels is None else labels
    squares = np.empty(len(rows) if distances else 0)
    with tqdm(total=len(rows), desc="assigning", unit=" rows", unit_scale=True, disable=quiet or None) as bar:
        for first in range(0, len(rows), BATCH_ROWS):
            batch = slice(first, min(first + BATCH_ROWS, len(rows)))
            block = np.asarray(rows[batch])
            try:
                if not known:
                    labels[batch] = model.predict(block, exact=exact)
                if distances:
                    squares[batch] = model.squared_distances(block, labels[batch])
            except ValueError as error:  # names a row of the batch
                raise ValueError(f"{error} (rows are counted from {first} on)" if first else str(error)) from error
            bar.update(len(block))
    return labels, squares


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[float], None]]:
    """Show a bar; yield what moves it on by one iteration, given the distortion."""
    with tqdm(desc=description, total=total) as bar:

        def advance(distortion: float) -> None:
            bar.set_postfix_str(f"distortion {distortion:,.0f}", refresh=False)
            bar.update()

        yield advance
        bar.total = bar.n  # done, even if before the last iteration
        bar.refresh()


class Share(float):
    """A part of a whole, which people read in percent."""


def report(facts: dict[str, Any], *, as_json: bool) -> None:
    """Facts as a table, or as one line of JSON."""
    if as_json:
        click.echo(json.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:{width}}  {readable(value)}")


def readable(value: Any) -> str:
    """A value as people write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Share):
        return f"{value:.1%}"
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {readable(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(readable, value))
    return "-" if value is None else str(value)


def size_summary(labels: NDArray[np.int32], n_clusters: int) -> dict[str, int]:
    """How many rows the clusters have."""
    sizes = np.zeros(n_clusters, np.int64)
    for first in range(0, len(labels), COUNTED_LABELS):  # they may be more than memory holds, and are widened here
        sizes += np.bincount(labels[first : first + COUNTED_LABELS], minlength=n_clusters)
    return {
        "smallest": int(sizes.min()),
        "median": int(np.median(sizes)),
        "largest": int(sizes.max()),
        "empty": int((sizes == 0).sum()),
    }
