"""What all readers and writers of files share: their one error, whole files or none, maps, and optional libraries."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from importlib import import_module
from mmap import ALLOCATIONGRANULARITY
from pathlib import Path
from typing import Any
from uuid import uuid4


class FileFormatError(ValueError):
    """A file is not what it should be: cut, damaged or of another kind. The message names the file and the rule."""


@contextmanager
def reading(path: Path | str, kind: str) -> Iterator[None]:
    """Turn whatever another library raises about a file into our own error."""
    try:
        yield
    except FileFormatError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FileFormatError(f"'{path}' cannot be read as {kind}: {reason}") from error


def file_size(path: Path, minimum: int) -> int:
    """The size of a file that must have at least so many bytes."""
    size = path.stat().st_size
    if not path.is_file():
        raise FileFormatError(f"'{path}' must be a file")
    if size < minimum:
        is_empty = "is empty" if size == 0 else f"has {size} bytes"
        raise FileFormatError(f"'{path}' must have at least {minimum} bytes, but {is_empty}")
    return size


def check_room(sizes: dict[Path, int]) -> None:
    """Check before long work that files of so many bytes will fit on their disks, beside those that they replace."""
    needed: dict[int, int] = {}
    for path, n_bytes in sizes.items():
        folder = path.resolve().parent
        disk, usage = folder.stat().st_dev, shutil.disk_usage(folder)
        needed[disk] = needed.get(disk, 0) + n_bytes
        if needed[disk] > usage.free and usage.total > 0:  # some network file systems do not tell, and have 0
            others = "" if needed[disk] == n_bytes else f", {needed[disk]:,} with the other files to write"
            raise OSError(
                errno.ENOSPC, f"'{path}' needs {n_bytes:,} bytes{others}, but '{folder}' has {usage.free:,} free"
            )


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write to. At the end the new file takes the place of the old one, whole or not at all.

    If anything goes wrong the old file stays as it was, and the new one is removed. A link stays a link; a folder or a
    device is not replaced.
    """
    target = path.resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"'{path}' could not be written: there is no folder '{path.parent}'")
    if target.exists() and not target.is_file():
        raise FileExistsError(errno.EEXIST, f"'{path}' could not be written: it exists and is no file")
    beside = target.with_name(f".{target.name}.{uuid4().hex[:8]}{target.suffix}")
    try:
        beside.touch(exist_ok=False)
        mode = beside.stat().st_mode  # the user's own, whatever a library makes of it
        yield beside
        beside.chmod(mode)
        _sync(beside)
        beside.replace(target)
        _sync(target.parent)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            raise type(error)(error.errno, f"'{path}' could not be written: {error.strerror or error}") from error
        raise


def map_of(array: Any) -> Any:
    """The memory map that an array is a view of, or None; a copy of a map has none."""
    while array is not None and getattr(array, "_mmap", None) is None:
        array = getattr(array, "base", None)
    return array


def check_uncut(array: Any) -> None:
    """Raise if the file of a memory map has shrunk: reading beyond its end would end the process by SIGBUS.

    Called before each block of rows that is read; takes about a microsecond. A file that shrinks within a block is
    not noticed in time.
    """
    mapped = map_of(array)
    if mapped is None:
        return
    mapped_from = mapped.offset - mapped.offset % ALLOCATIONGRANULARITY
    expected, size = mapped_from + len(mapped._mmap), mapped._mmap.size()
    if size < expected:
        raise FileFormatError(
            f"'{mapped.filename}' must keep its {expected} bytes while it is memory-mapped, but has {size}: "
            "replace a file that is in use by renaming a new one over it"
        )


def unfinished(path: Path) -> Iterator[Path]:
    """What kills have left behind of files that were to take the place of ``path``."""
    return path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * 8}{escape(path.suffix)}")


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def library(name: str, extra: str, purpose: str) -> Any:
    """Import a library that only one part of the package needs."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {name.partition('.')[0]}: pip install 'closure-kmeans[{extra}]'") from error
