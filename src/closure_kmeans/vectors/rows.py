"""Rows that are read when they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from closure_kmeans._arrays import unmasked
from closure_kmeans._files import FileFormatError, reading

# Bytes read at a time where all rows are read.
BLOCK_BYTES = 1 << 24
# Names that an error lists.
LISTED_NAMES = 10


class Rows(Protocol):
    """The least that rows must be: an array of two dimensions of which slices can be taken."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, and their width."""

    @property
    def dtype(self) -> Any:
        """What the values are."""

    def __getitem__(self, rows: slice, /) -> Any:
        """Some consecutive rows."""


class Vectors:
    """Rows in one or more parts that follow each other, read as they are asked for.

    Slices are NumPy arrays. ``np.asarray`` reads all rows, and so does ``fit``.

    Parameters
    ----------
    parts : list of Rows
        Parts of equal width and dtype.
    labels : list of str
        What to call each part in an error.

    Examples
    --------
    >>> rows = Vectors([np.zeros((3, 2)), np.ones((2, 2))], ["first", "second"])
    >>> rows.shape, rows[2:4].tolist()
    ((5, 2), [[0.0, 0.0], [1.0, 1.0]])
    """

    def __init__(self, parts: list[Rows], labels: list[str]) -> None:
        for part, label in zip(parts, labels, strict=True):
            check_kind(label, part.shape, np.dtype(part.dtype))
            for what, own, first in (
                ("width", part.shape[1], parts[0].shape[1]),
                ("dtype", np.dtype(part.dtype), np.dtype(parts[0].dtype)),
            ):
                if own != first:
                    raise FileFormatError(f"'{label}' must have the {what} of '{labels[0]}', {first}, but has {own}")
        self._parts = parts
        self._labels = labels
        self._starts = np.cumsum([0] + [part.shape[0] for part in parts]).tolist()
        self.shape: tuple[int, int] = (self._starts[-1], int(parts[0].shape[1]))
        self.dtype = np.dtype(parts[0].dtype)
        self.ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<Vectors {self.shape[0]} x {self.shape[1]} {self.dtype}, {self._labels[0]}>"

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        if not isinstance(rows, slice):
            raise TypeError(f"vectors are read by slices of rows, got {type(rows).__name__}")
        first, last, step = rows.indices(len(self))
        if step < 1:
            raise ValueError(f"slices of vectors must go forward, got a step of {step}")
        pieces = [np.empty((0, self.shape[1]), self.dtype)]
        for part, label, begin in zip(self._parts, self._labels, self._starts, strict=False):
            skip = max(0, -(-(begin - first) // step)) * step
            inside = slice(first + skip - begin, min(last - begin, part.shape[0]), step)
            if inside.start < inside.stop:
                pieces.append(_read(part, inside, label))
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("vectors that are read from a file cannot become an array without a copy")
        result = np.empty(self.shape, dtype or self.dtype)
        n_rows = max(1, BLOCK_BYTES // (self.shape[1] * self.dtype.itemsize))
        for first in range(0, len(self), n_rows):
            result[first : first + n_rows] = self[first : first + n_rows]
        return result


def _read(part: Rows, rows: slice, label: str) -> NDArray[Any]:
    with reading(Path(label), "vectors"):
        read = np.asanyarray(part[rows])  # a masked array stays one
    block = np.asarray(unmasked(f"'{label}'", read))
    expected = (len(range(rows.start, rows.stop, rows.step)), part.shape[1])
    if block.shape != expected:
        raise FileFormatError(f"'{label}' must hold {expected} values at row {rows.start}, but holds {block.shape}")
    return block


def check_kind(label: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Vectors are rows of numbers, at least one of each."""
    if len(shape) != 2:
        raise FileFormatError(f"'{label}' must have two dimensions, but has shape {tuple(shape)}")
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise FileFormatError(f"'{label}' must hold integers or floating-point numbers, but holds {dtype}")
    n_rows, width = shape
    if n_rows < 1 or width < 1:
        raise FileFormatError(f"'{label}' must have rows and columns, but is {n_rows} x {width}")


def listed(names: list[str]) -> str:
    """The first of some names, for an error of one line."""
    more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    return (", ".join(map(repr, names[:LISTED_NAMES])) or "none") + more
