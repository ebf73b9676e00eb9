"""Arrays: memory that begins at a cache line, memory maps whose file has shrunk, the largest values."""

from __future__ import annotations

import math
from mmap import ALLOCATIONGRANULARITY
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from closure_kmeans.files import FileFormatError

# Bytes of a cache line, or a multiple of it.
ALIGNMENT = 64


def empty_rows(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Memory for rows that begins with a cache line: a row of whole lines then touches no other.

    What NumPy gives begins anywhere, and to fetch 128 bytes takes three lines.
    """
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(n_bytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    rows: NDArray[Any] = memory[first : first + n_bytes].view(dtype).reshape(shape)
    return rows


def unmasked(name: str, array: Any) -> Any:
    """What was given, but a masked array as a plain one: nothing may be masked, for the values below would count."""
    if not isinstance(array, np.ma.MaskedArray):
        return array
    n_masked = int(np.sum(array.mask))
    if n_masked:
        raise ValueError(f"{name} must not have masked values, got {n_masked}: fill them in, or leave out their rows")
    return np.asarray(array)


def largest(values: NDArray[Any], n: int) -> NDArray[np.int64]:
    """Where the largest values are, at most so many, the largest first; of equal ones the first. NaN is the smallest.

    >>> largest(np.array([5, 1, 7, 5]), 3)
    array([2, 0, 3])
    """
    negative = -values
    among = np.arange(len(values))
    if 0 < n < len(values):  # to sort them all would take longer
        least = np.partition(negative, n - 1)[n - 1]
        among = among if np.isnan(least) else np.flatnonzero(negative <= least)
    return among[np.argsort(negative[among], kind="stable")[:n]]


def map_of(array: Any) -> Any:
    """Memory map that an array is a view of, or None."""
    while array is not None and getattr(array, "_mmap", None) is None:
        array = getattr(array, "base", None)
    return array


def check_uncut(array: Any) -> None:
    """Raise if the file of a memory map has shrunk: reading beyond its end would kill the process by SIGBUS.

    Called before each block of rows; takes about a microsecond. A file that shrinks while a block is read is not
    detected.
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
