"""Arguments and options shared by commands, and their types. Imports only Click."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

STANDARD = "-"  # standard input or output, which hold an .npy file
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

Command = TypeVar("Command", bound=Callable[..., Any])

# Kinds of arguments.


class FileOrFolder(click.Path):
    """A path to a file or a folder, but not to a pipe or a device, whose opening may block."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check the kind of file without opening it."""
        path = super().convert(value, param, ctx)
        if self.allow_dash and path == STANDARD:
            if sys.stdin is None:
                self.fail("standard input is closed", param, ctx)
        elif os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            self.fail(f"'{os.fsdecode(path)}' must be a file or a folder, but is a pipe, socket or device", param, ctx)
        return path


class PathOrUrl(FileOrFolder):
    """A path that must exist, or a URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check a path; return a URL unchanged."""
        return value if "://" in str(value) else super().convert(value, param, ctx)


EXISTING = FileOrFolder(exists=True)
EXISTING_FILE = FileOrFolder(exists=True, dir_okay=False)
EXISTING_FOLDER = FileOrFolder(exists=True, file_okay=False, path_type=Path)
EXISTING_OR_STANDARD = FileOrFolder(exists=True, allow_dash=True)


def duration(text: str) -> float:
    """Parse a duration such as 90, 90s, 5m or 1.5h, in seconds."""
    match = re.fullmatch(r"(\d+\.?\d*)([smhd]?)", text)
    if match is None:
        raise click.BadParameter(f"'{text}' is not a duration: expected for example 90, 90s, 5m or 1.5h")
    return float(match[1]) * SECONDS[match[2]]


# Options.


def _silence(context: click.Context, _: click.Parameter, quiet: bool) -> bool:
    if quiet:
        logger = logging.getLogger("closure_kmeans")
        context.call_on_close(partial(logger.setLevel, logger.level))
        logger.setLevel("ERROR")
    return quiet


name = click.option("--name", help="Dataset of an HDF5 file or column of a Parquet file.")
threads = click.option("--n-threads", type=click.IntRange(1), show_default="all cores", help="Number of threads.")
seed = click.option(
    "--random-state", type=click.IntRange(0, 2**32 - 1), default=0, help="Seed of the random number generator."
)
quiet = click.option("-q", "--quiet", is_flag=True, callback=_silence, help="Print errors only.")
json = click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")


def output(
    *names: str, suffixes: tuple[str, ...], standard: bool = False, **settings: Any
) -> Callable[[Command], Command]:
    """An option that names an output file, checked before the work begins; ``-`` is standard output, if allowed."""

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
            raise click.BadParameter(f"the folder '{path.parent}' is not writable")
        if path.exists() and not path.is_file():
            raise click.BadParameter(f"'{text}' exists and is not a regular file")
        return text

    return click.option(*names, type=check, metavar="FILE", **settings)


def numbers(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """An option of whole numbers, separated by commas."""

    def read(text: str) -> list[int]:
        try:
            return [int(part) for part in text.split(",")]
        except ValueError:
            raise click.BadParameter(f"'{text}' must be whole numbers separated by commas") from None

    return click.option(*names, type=read, metavar="N,N,...", **settings)


def together(name: str, kind: Any, *options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Pass arguments and options to the command as one named tuple, ``name``."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def call(**values: Any) -> Any:
            fields = {field: values.pop(field) for field in kind._fields}
            return command(**values, **{name: kind(**fields)})

        for option in reversed(options):
            call = option(call)
        return call

    return decorate


class Manner(NamedTuple):
    """Options of all commands: threads and output."""

    n_threads: int | None
    as_json: bool
    quiet: bool

    @property
    def shows_progress(self) -> bool:
        """Whether to show progress, on standard error; with ``--json`` only if that is a terminal."""
        return not self.quiet and (not self.as_json or (sys.stderr is not None and sys.stderr.isatty()))


manner = together("manner", Manner, threads, json, quiet)


# Commands.


class InOrder(click.Group):
    """A group that lists its commands in the order of definition."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Names of the commands."""
        return list(self.commands)


def example(*lines: str) -> str:
    """Epilog of a command's help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
