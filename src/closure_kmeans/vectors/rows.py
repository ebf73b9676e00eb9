"""Rows that are read on demand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from closure_kmeans.files import FileFormatError, reading
from closure_kmeans.points import check_uncut, unmasked

# Bytes per block when all rows are read.
BLOCK_BYTES = 1 << 24
# Small chunks are read in groups of this many bytes: opening a file takes longer than reading a small chunk.
GROUP_BYTES = 1 << 20
# Cache of the last groups: at least two, since threads that read blocks in order may be in neighbouring groups.
KEPT_GROUPS, KEPT_BYTES = 2, 1 << 23
# Names listed in an error, at most.
LISTED_NAMES = 10


class Rows(Protocol):
    """Protocol of rows: a two-dimensional array that can be sliced."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, and width."""

    @property
    def dtype(self) -> Any:
        """Type of the values."""

    def __getitem__(self, rows: slice, /) -> Any:
        """Some consecutive rows."""


class Group(NamedTuple):
    """Rows that are stored and read as a unit: chunks of HDF5 and zarr, or a row group of Parquet."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    read: Callable[[], Any]


def by_chunks(rows: Any, label: str) -> Vectors:
    """Read chunked rows in groups of whole chunks; other rows are a single part."""
    chunks = getattr(rows, "chunks", None)
    if not chunks or not isinstance(chunks[0], int):  # Dask has tuples
        return Vectors([rows], [label])
    n_rows, width = rows.shape
    dtype = np.dtype(rows.dtype)
    size = chunks[0] * max(1, GROUP_BYTES // (chunks[0] * width * dtype.itemsize))
    some = [slice(first, min(first + size, n_rows)) for first in range(0, n_rows, size)]
    groups = [Group((part.stop - part.start, width), dtype, partial(rows.__getitem__, part)) for part in some]
    return Vectors(groups, [label] * len(groups))


class Vectors:
    """Rows of one or several files, read on demand.

    Slices return copies as NumPy arrays. ``np.asarray`` and ``fit`` read all rows. The last groups are cached: rows
    that several threads read in order, block by block, are read once. Usually made by ``open_vectors``.

    Parameters
    ----------
    parts : sequence of arrays
        Two-dimensional arrays of equal width and dtype, or objects with ``shape``, ``dtype`` and slicing.
    labels : list of str
        Name of each part, for errors.

    Attributes
    ----------
    shape : tuple of int
        Number of rows and their width.
    dtype : dtype
        Type of the values.
    group_bytes : int
        Size of the largest group, which is read as a whole.

    See Also
    --------
    open_vectors : Open files and folders.

    Examples
    --------
    >>> rows = Vectors([np.zeros((3, 2)), np.ones((2, 2))], ["first", "second"])
    >>> rows.shape, rows[2:4].tolist()
    ((5, 2), [[0.0, 0.0], [1.0, 1.0]])
    """

    def __init__(self, parts: Sequence[Rows | Group], labels: list[str]) -> None:
        self._parts: list[Rows | Group] = []
        self._labels: list[str] = []
        for part, label in zip(parts, labels, strict=True):
            self._parts += part._parts if isinstance(part, Vectors) else [part]
            self._labels += part._labels if isinstance(part, Vectors) else [label]
        first = self._parts[0]
        for part, label in zip(self._parts, self._labels, strict=True):
            check_kind(label, part.shape, np.dtype(part.dtype))
            for what, own, expected in (
                ("width", part.shape[1], first.shape[1]),
                ("dtype", np.dtype(part.dtype), np.dtype(first.dtype)),
            ):
                if own != expected:
                    raise FileFormatError(
                        f"'{label}' must have the {what} of '{self._labels[0]}', {expected}, but has {own}"
                    )
        self._starts = np.cumsum([0] + [part.shape[0] for part in self._parts]).tolist()
        self._kept: dict[int, NDArray[Any]] = {}  # cached groups by number, oldest first
        self._turn = Lock()
        self.shape: tuple[int, int] = (self._starts[-1], int(first.shape[1]))
        self.dtype = np.dtype(first.dtype)
        self.ndim = 2
        longest = max((part.shape[0] for part in self._parts if isinstance(part, Group)), default=0)
        self.group_bytes = longest * self.shape[1] * self.dtype.itemsize
        self._n_kept = max(KEPT_GROUPS, KEPT_BYTES // max(1, self.group_bytes))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_kept", "_turn")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _kept={}, _turn=Lock())

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<Vectors {self.shape[0]} x {self.shape[1]} {self.dtype}, {self._labels[0]}>"

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        if not isinstance(rows, slice):
            raise TypeError(f"vectors are read by slices of rows, got {type(rows).__name__}")
        wanted = range(*rows.indices(len(self)))
        if wanted.step < 1:
            raise ValueError(f"slices of vectors must go forward, got a step of {wanted.step}")
        result = np.empty((len(wanted), self.shape[1]), self.dtype)
        self._read(wanted, result)
        return result

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("vectors that are read from a file cannot become an array without a copy")
        result = np.empty(self.shape, dtype or self.dtype)
        n_rows = max(1, BLOCK_BYTES // (self.shape[1] * self.dtype.itemsize))
        for first in range(0, len(self), n_rows):
            block = result[first : first + n_rows]
            self._read(range(first, first + len(block)), block)
        return result

    def _read(self, wanted: range, result: NDArray[Any]) -> None:
        """Read rows into ``result``, part by part."""
        done = 0
        while done < len(wanted):
            number = bisect_right(self._starts, wanted[done]) - 1
            begin, end = self._starts[number : number + 2]
            rows = slice(wanted[done] - begin, min(wanted.stop, end) - begin, wanted.step)
            block = self._read_part(number, rows)
            result[done : done + len(block)] = block
            done += len(block)

    def _read_part(self, number: int, rows: slice) -> NDArray[Any]:
        part, label = self._parts[number], self._labels[number]
        check_uncut(part)
        with reading(Path(label), "vectors"):
            read = self._group(number, part)[rows] if isinstance(part, Group) else np.asanyarray(part[rows])
        block = np.asarray(unmasked(f"'{label}'", read))  # may be a masked array
        expected = (len(range(rows.start, rows.stop, rows.step)), self.shape[1])
        if block.shape != expected:
            first = self._starts[number] + rows.start
            raise FileFormatError(f"'{label}' must hold {expected} values at row {first}, but holds {block.shape}")
        return block

    def _group(self, number: int, group: Group) -> NDArray[Any]:
        """Read a whole group, or take it from the cache. The lock is needed by Parquet readers."""
        with self._turn:
            if number not in self._kept:
                if len(self._kept) == self._n_kept:
                    del self._kept[next(iter(self._kept))]  # before reading, to limit memory
                self._kept[number] = np.asanyarray(group.read())
            return self._kept[number]


def check_kind(label: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Check that vectors are two-dimensional, numeric and not empty."""
    if len(shape) != 2:
        raise FileFormatError(f"'{label}' must have two dimensions, but has shape {tuple(shape)}")
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise FileFormatError(f"'{label}' must hold integers or floating-point numbers, but holds {dtype}")
    n_rows, width = shape
    if n_rows < 1 or width < 1:
        raise FileFormatError(f"'{label}' must have rows and columns, but is {n_rows} x {width}")


def default_name(
    label: Path | str, kind: str, found: list[str], usual: list[str], how: str = "read, by name (--name)"
) -> str | None:
    """The first usual name or the only one that was found; None if nothing was found."""
    if len(found) > 1 and not usual:
        raise FileFormatError(f"'{label}' must be told which of its {kind} to {how}: {listed(found)}")
    return next(iter([*usual, *found]), None)


def listed(names: list[str]) -> str:
    """First names of a list, for an error of one line."""
    more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    return (", ".join(map(repr, names[:LISTED_NAMES])) or "none") + more
