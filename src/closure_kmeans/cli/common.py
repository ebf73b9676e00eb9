"""Helpers of the commands: reading, assigning and writing rows, checks of files, reports."""

from __future__ import annotations

import io
import json
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from closure_kmeans.cli.options import STANDARD
from closure_kmeans.estimator import BaseKMeans
from closure_kmeans.files import check_room
from closure_kmeans.vectors import FileFormatError, Vectors, is_shard, open_vectors, save_vectors

# Bytes in a file: of a label, of a distance, and of where the rows of a cluster start.
LABEL, DISTANCE, START = (np.dtype(kind).itemsize for kind in (np.int32, np.float64, np.int64))
# Rows that are assigned together, and labels that are counted together.
BATCH_ROWS, COUNTED_LABELS = 1 << 18, 1 << 24


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
                f"'{path}' would be overwritten: outputs must differ from the inputs and from each other"
            )
        if place.parent in taken and is_shard(place.name):
            raise click.UsageError(
                f"'{path}' would be read as one of the files of vectors in '{place.parent}': use another folder"
            )
        taken.add(place)


def check_outputs(sizes: dict[str | None, int]) -> None:
    """Check the free disk space for output files of given sizes."""
    check_room({Path(path): n_bytes for path, n_bytes in sizes.items() if path not in (None, STANDARD)})


@contextmanager
def long_work() -> Iterator[None]:
    """Show warnings as lines of text, and treat SIGTERM as an interrupt."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: click.echo(f"Warning: {message}", err=True)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


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
            raise OSError(error.errno, f"standard input could not be copied to '{folder}': {error.strerror}") from error
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
                raise ValueError(f"{error} (row numbers relative to row {first})" if first else str(error)) from error
            bar.update(len(block))
    return labels, squares


class Share(float):
    """A fraction, printed in percent."""


def underscored(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts with underscores in their names, for JSON."""
    return {name.replace(" ", "_"): value for name, value in facts.items()}


def report(facts: dict[str, Any], *, as_json: bool) -> None:
    """Facts as a table, or as one line of JSON."""
    if as_json:
        click.echo(json.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:{width}}  {readable(value)}")


def readable(value: Any) -> str:
    """Format a value for a table."""
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
    """Summary of the cluster sizes."""
    sizes = np.zeros(n_clusters, np.int64)
    for first in range(0, len(labels), COUNTED_LABELS):  # they may be more than memory holds, and are widened here
        sizes += np.bincount(labels[first : first + COUNTED_LABELS], minlength=n_clusters)
    return {
        "smallest": int(sizes.min()),
        "median": int(np.median(sizes)),
        "largest": int(sizes.max()),
        "empty": int((sizes == 0).sum()),
    }
