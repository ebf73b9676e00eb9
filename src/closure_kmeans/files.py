"""File helpers: the common error, atomic replacement, optional libraries."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

# Windows errors of a file that is open or mapped by any process, and can be neither replaced nor removed.
HELD = (5, 32, 1224)
PACKAGE = __name__.partition(".")[0]


class FileFormatError(ValueError):
    """A file is truncated, damaged or of another kind.

    The message states the file and the rule.

    See Also
    --------
    closure_kmeans.vectors.open_vectors : Opens files of vectors.
    closure_kmeans.load : Loads models.

    Examples
    --------
    >>> issubclass(FileFormatError, ValueError)
    True
    """


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line outside this package that led here."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == PACKAGE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


@contextmanager
def reading(path: Path | str, kind: str) -> Iterator[None]:
    """Convert any exception that a library raises about a file to ``FileFormatError``."""
    try:
        yield
    except FileFormatError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FileFormatError(f"'{path}' cannot be read as {kind}: {reason}") from error


def file_size(path: Path, minimum: int) -> int:
    """Size of a file, which must be at least ``minimum`` bytes."""
    size = path.stat().st_size
    if not path.is_file():
        raise FileFormatError(f"'{path}' must be a file")
    if size < minimum:
        is_empty = "is empty" if size == 0 else f"has {size} bytes"
        raise FileFormatError(f"'{path}' must have at least {minimum} bytes, but {is_empty}")
    return size


def check_room(sizes: dict[Path, int]) -> None:
    """Check before long work that files of these sizes fit on their disks, in addition to the files they replace."""
    needed: dict[int, int] = {}
    for path, n_bytes in sizes.items():
        folder = path.resolve().parent
        disk, usage = folder.stat().st_dev, shutil.disk_usage(folder)
        needed[disk] = needed.get(disk, 0) + n_bytes
        if needed[disk] > usage.free and usage.total > 0:  # some network file systems report 0
            others = "" if needed[disk] == n_bytes else f", {needed[disk]:,} with the other files to write"
            raise OSError(
                errno.ENOSPC, f"'{path}' needs {n_bytes:,} bytes{others}, but '{folder}' has {usage.free:,} free"
            )


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace a file atomically: yields a temporary path in the same folder, which is renamed to ``path`` at the end.

    On an error the old file is unchanged and the temporary one is removed. A symbolic link is kept and its target is
    replaced. Folders and devices are not replaced. Windows does not replace a file that is mapped: ``tensors.unmap``.
    """
    target = path.resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, f"'{path}' could not be written: the folder '{path.parent}' does not exist"
        )
    if target.exists() and not target.is_file():
        raise FileExistsError(errno.EEXIST, f"'{path}' could not be written: it exists and is not a regular file")
    beside = target.with_name(f".{target.name}.{uuid4().hex[:8]}{target.suffix}")
    try:
        beside.touch(exist_ok=False)
        mode = beside.stat().st_mode  # libraries may change it
        yield beside
        beside.chmod(mode)
        _sync(beside)
        _replace(beside, target)
        _sync(target.parent)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            held = getattr(error, "winerror", None) in HELD
            advice = "; close the arrays and programs that have it open or mapped" if held else ""
            raise type(error)(
                error.errno, f"'{path}' could not be written: {error.strerror or error}{advice}"
            ) from error
        raise


def _replace(beside: Path, target: Path) -> None:
    """Rename a file over another one; on Windows, after closing maps of it that wait for the garbage collector."""
    try:
        beside.replace(target)
    except PermissionError:
        gc.collect()
        beside.replace(target)


def unfinished(path: Path) -> Iterator[Path]:
    """Temporary files that killed processes left while replacing ``path``."""
    return path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * 8}{escape(path.suffix)}")


@contextmanager
def unless_held() -> Iterator[None]:
    """Remove a file that is not needed again: on Windows it stays while it is open or mapped elsewhere."""
    try:
        yield
    except PermissionError as error:
        if getattr(error, "winerror", None) not in HELD:
            raise


def _sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def library(name: str, extra: str, purpose: str) -> Any:
    """Import an optional dependency."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {name.partition('.')[0]}: pip install 'closure-kmeans[{extra}]'") from error
