"""Points: rows in their own dtype, shifted when they are read; and functions over blocks of rows."""

from __future__ import annotations

import math
import mmap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from closure_kmeans.files import FileFormatError

if TYPE_CHECKING:
    from closure_kmeans.vectors.rows import Rows

# Values converted to float at a time: some megabytes.
BLOCK_VALUES = 1 << 20
# Values hashed at a time; the temporaries take eight bytes a value, several times.
HASHED_VALUES = 1 << 16
# Distances that differ by no more than this factor are equal but for rounding.
EQUALLY_NEAR = 1 + 1e-9
# Bytes of a cache line, or a multiple of it.
ALIGNMENT = 64


class WeightedRows(NamedTuple):
    """The fields of ``Points`` that kernels read; kernels are compiled for each combination of their types."""

    rows: NDArray[Any]
    offset: NDArray[Any]
    weights: NDArray[Any]


class Points(NamedTuple):
    """Points in memory. Rows of float16 are held as their bits."""

    rows: NDArray[Any]  # (n, d) in their own dtype
    offset: NDArray[Any]  # (d,) subtracted wherever a row is read; its dtype is the precision
    weights: NDArray[Any]  # (n,), or (1,) where all rows weigh the same
    coordinates: NDArray[Any]  # (n, d') coordinates over which trees are grown
    origin: NDArray[Any]  # (d',) the mean of the coordinates
    spherical: bool = False  # whether the rows, and so the centres, have length one

    @property
    def weighted_rows(self) -> WeightedRows:
        """The fields that kernels read."""
        return WeightedRows(self.rows, self.offset, self.weights)


def precision(dtype: DTypeLike) -> type[np.float32] | type[np.float64]:
    """The floating-point type of the arithmetic: float64 for float64, float32 for all narrower types."""
    return np.float64 if np.dtype(dtype) == np.float64 else np.float32


def rows_per_block(X: Rows, n_values: int = BLOCK_VALUES) -> int:
    """The number of rows with ``n_values`` values, which are converted to float at a time."""
    return -(-n_values // int(X.shape[1]))


def shifted(X: NDArray[Any], offset: NDArray[Any]) -> NDArray[Any]:
    """A copy of some rows less an offset, in the precision of the offset."""
    check_uncut(X)
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is found by its norm
        rows: NDArray[Any] = np.subtract(X, offset, dtype=offset.dtype, order="C")
    return rows


def squared_distances(
    X: NDArray[Any], centers: NDArray[Any], offset: NDArray[Any], labels: NDArray[Any]
) -> NDArray[np.float64]:
    """The squared distance of each row to the centre of its label, in double precision."""
    distances = np.empty(len(X))
    for first in range(0, len(X), rows_per_block(X)):
        block = slice(first, first + rows_per_block(X))
        difference = shifted(X[block], offset).astype(np.float64) - centers[labels[block]]
        distances[block] = np.einsum("ij,ij->i", difference, difference)
    return distances


def heights(rows: NDArray[Any], direction: NDArray[Any]) -> NDArray[Any]:
    """The projection of each row on a direction, equal for copies of a row.

    Not a product of matrices: BLAS sums the last rows in another order than the first.
    """
    products: NDArray[Any] = np.einsum("ij,j->i", rows, direction)
    return products


def as_numbers(rows: NDArray[Any]) -> NDArray[Any]:
    """View stored rows in their original dtype: float16 is stored as its bits."""
    return rows.view(np.float16) if rows.dtype == np.uint16 else rows


def hash_rows(X: Rows, first: int = 0, last: int | None = None) -> NDArray[np.uint64]:
    """A 64-bit hash of each row from ``first`` to ``last``: a sum of its mixed words. Equal rows have equal hashes."""
    width = X.shape[1] * X.dtype.itemsize
    word = np.dtype(f"u{math.gcd(width, 8)}")
    rng = np.random.default_rng(0)
    mixer, *coefficients = rng.integers(2**63, size=1 + width // word.itemsize, dtype=np.uint64) * 2 + 1
    last = X.shape[0] if last is None else min(last, X.shape[0])
    hashes = np.empty(last - first, np.uint64)
    n_rows = rows_per_block(X, HASHED_VALUES)
    for begin in range(first, last, n_rows):
        end = min(begin + n_rows, last)
        check_uncut(X)
        same_zeros = np.ascontiguousarray(X[begin:end]) + X.dtype.type(0)  # -0 and 0 are the same number
        words = (same_zeros.view(word).astype(np.uint64) + np.uint64(1)) * mixer
        words ^= words >> np.uint64(31)
        hashes[begin - first : end - first] = words @ np.array(coefficients)
    return hashes


def mean_of(sample: NDArray[Any]) -> NDArray[Any]:
    """The mean of a sample; rounded if all values are whole numbers, so that their products stay exact."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean: NDArray[Any] = sample.mean(axis=0)
    return np.rint(mean) if (sample == np.rint(sample)).all() else mean


def are_bytes(X: NDArray[Any]) -> bool:
    """Whether all values are whole numbers from 0 to 255."""
    with np.errstate(invalid="ignore"):
        return bool((X.astype(np.uint8) == X).all())


def check_weights(weights: NDArray[Any], norms: NDArray[Any]) -> None:
    """Raise if the largest possible objective overflows."""
    with np.errstate(over="ignore"):
        total = np.einsum("i,i", np.broadcast_to(weights, len(norms)), norms, dtype=np.float64)
    if not np.isfinite(total):
        raise ValueError(
            "the squares of the values of X, times sample_weight, must not overflow float64 in sum: "
            f"the largest square is {norms.max():.6g}, the largest weight {weights.max():.6g}"
        )


def check_values(X: NDArray[Any], derived: NDArray[Any], first: int = 0, name: str = "X") -> None:
    """Raise if a value ``derived`` from each row is not finite: a row or its square is not. ``first`` is its number."""
    if np.isfinite(derived).all():
        return
    largest = np.array([np.abs(row.astype(derived.dtype)).max() for row in X])
    finite = np.isfinite(largest)
    if not finite.all():
        raise ValueError(f"{name} must not contain NaN or infinity, but row {first + np.flatnonzero(~finite)[0]} does")
    row = int(largest.argmax())
    raise ValueError(
        f"the squares of the values of {name} must not overflow {derived.dtype}, "
        f"but row {first + row} holds {largest[row]:.6g}: "
        "scale the data" + (" or pass float64" if derived.dtype == np.float32 else "")
    )


def empty_rows(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Allocate rows aligned to a cache line; by NumPy's own alignment a row of 128 bytes may span three lines."""
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(n_bytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    rows: NDArray[Any] = memory[first : first + n_bytes].view(dtype).reshape(shape)
    return rows


def unmasked(name: str, array: Any) -> Any:
    """Convert a masked array to a plain one; raise if any value is masked."""
    if not isinstance(array, np.ma.MaskedArray):
        return array
    n_masked = int(np.sum(array.mask))
    if n_masked:
        raise ValueError(f"{name} must not have masked values, got {n_masked}: fill them, or remove their rows")
    return np.asarray(array)


def largest(values: NDArray[Any], n: int) -> NDArray[np.int64]:
    """Indices of the ``n`` largest values in descending order; the first of equal ones. NaN counts as the smallest.

    >>> largest(np.array([5, 1, 7, 5]), 3)
    array([2, 0, 3])
    """
    negative = -values
    among = np.arange(len(values))
    if 0 < n < len(values):  # faster than sorting all
        least = np.partition(negative, n - 1)[n - 1]
        among = among if np.isnan(least) else np.flatnonzero(negative <= least)
    return among[np.argsort(negative[among], kind="stable")[:n]]


def map_of(array: Any) -> Any:
    """Memory map that an array is a view of, or None."""
    while array is not None and getattr(array, "_mmap", None) is None:
        array = getattr(array, "base", None)
    return array


def forget(array: Any) -> None:
    """Drop the pages of a memory map from memory."""
    mapped = map_of(array)
    if mapped is not None and mapped.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):  # a private copy would be lost
        mapped._mmap.madvise(mmap.MADV_DONTNEED)


def check_uncut(array: Any) -> None:
    """Raise if the file of a memory map has shrunk: reading beyond its end would kill the process by SIGBUS.

    Called before each block of rows; takes about a microsecond. A file that shrinks while a block is read is not
    detected.
    """
    mapped = map_of(array)
    if mapped is None:
        return
    mapped_from = mapped.offset - mapped.offset % mmap.ALLOCATIONGRANULARITY
    expected, size = mapped_from + len(mapped._mmap), mapped._mmap.size()
    if size < expected:
        raise FileFormatError(
            f"'{mapped.filename}' must keep its {expected} bytes while it is memory-mapped, but has {size}: "
            "replace a file that is in use by renaming a new one over it"
        )
