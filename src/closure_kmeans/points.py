"""The rows as the algorithm sees them: in the order of a first tree, so that neighbours lie near each other in memory.

The rows keep the dtype they came in. Only float32 rows that are whole numbers from 0 to 255, as SIFT descriptors are,
are held as bytes: that changes nothing but the memory they take. Trees are grown over a few principal coordinates of
the rows, or over the rows themselves.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from closure_kmeans import kernels
from closure_kmeans.arrays import empty_rows
from closure_kmeans.files import check_uncut
from closure_kmeans.parallel import Threads
from closure_kmeans.trees import (
    DATA_SAMPLE,
    RandomPartition,
    cut_evenly,
    grow_partition,
    principal_axes,
    unite_leaves,
)
from closure_kmeans.vectors.rows import Rows

# Values widened at a time: some megabytes.
BLOCK_VALUES = 1 << 20
# Cells of the first tree that are kept together for the first iteration: fewer clusters than a leaf will have, so that
# it takes less than half as long. Few cells would make too few groups for many threads to share.
CELLS_TOGETHER, FEW_CELLS = 32, 2000
# Values mixed at a time: they take eight bytes each, several times over.
HASHED_VALUES = 1 << 16


class Points(NamedTuple):
    """All that an iteration needs to know of the data. float16 rows are held as their bits."""

    rows: NDArray[Any]  # (n, d) in their own dtype
    mean: NDArray[Any]  # (d,) subtracted wherever a row is read; its dtype is the precision
    weights: NDArray[Any]  # (n,), or (1,) where all rows weigh the same
    coordinates: NDArray[Any]  # (n, d') what trees are grown over
    origin: NDArray[Any]  # (d',) the mean of the coordinates
    spherical: bool = False  # whether the rows, and so the centres, have length one


def precision(dtype: DTypeLike) -> type[np.float32] | type[np.float64]:
    """What a dtype is computed in: float64 in itself, all narrower ones in float32."""
    return np.float64 if np.dtype(dtype) == np.float64 else np.float32


def rows_per_block(X: Rows, n_values: int = BLOCK_VALUES) -> int:
    """How many rows have so many values: enough for a block of work, few enough to be widened at a time."""
    return -(-n_values // int(X.shape[1]))


def shifted(X: NDArray[Any], mean: NDArray[Any]) -> NDArray[Any]:
    """A widened, shifted copy of some rows."""
    check_uncut(X)
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is found by its norm
        rows: NDArray[Any] = np.subtract(X, mean, dtype=mean.dtype, order="C")
    return rows


def squares_to(rows: NDArray[Any], point: NDArray[Any]) -> NDArray[Any]:
    """The squared distance of each row to a point."""
    dtype = precision(rows.dtype)
    squares = np.empty(len(rows), dtype)
    for first in range(0, len(rows), rows_per_block(rows)):
        apart = shifted(rows[first : first + rows_per_block(rows)], point.astype(dtype))
        squares[first : first + len(apart)] = np.einsum("ij,ij->i", apart, apart)
    return squares


def heights(rows: NDArray[Any], direction: NDArray[Any]) -> NDArray[Any]:
    """How far each row lies in a direction: copies of a row lie equally far.

    A product of matrices would not do: BLAS sums the last rows in another order than the first.
    """
    products: NDArray[Any] = np.einsum("ij,j->i", rows, direction)
    return products


def as_numbers(rows: NDArray[Any]) -> NDArray[Any]:
    """Stored rows in the dtype they came in."""
    return rows.view(np.float16) if rows.dtype == np.uint16 else rows


def unit_rows(X: NDArray[Any], name: str = "X", numbers: range | None = None) -> NDArray[Any]:
    """The rows divided by their lengths, in the precision of their dtype. Values that overflow are left to others.

    An error calls the rows by ``name``, and by their ``numbers`` if they are some of many.
    """
    numbers = range(len(X)) if numbers is None else numbers
    result = np.empty(X.shape, precision(X.dtype))
    for first in range(0, len(X), rows_per_block(X)):
        check_uncut(X)
        block = X[first : first + rows_per_block(X)].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.sqrt(np.einsum("ij,ij->i", block, block))
        if (lengths == 0).any():
            raise ValueError(
                f"the rows of {name} must have a direction for metric='cosine', "
                f"but row {numbers[first + int((lengths == 0).argmax())]} is zero"
            )
        lengths[~np.isfinite(lengths)] = 1
        result[first : first + len(block)] = block / lengths[:, np.newaxis]
    return result


def hash_rows(X: Rows, first: int = 0, last: int | None = None) -> NDArray[np.uint64]:
    """A number for each of some rows, the same for equal rows and another for others: a sum of its mixed words."""
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


def arrange_points(
    X: NDArray[Any],
    weights: NDArray[Any],
    n_cells: int,
    n_axes: int | None,
    rng: np.random.Generator,
    threads: Threads,
) -> tuple[Points, RandomPartition]:
    """Lay the rows out in the order of a first tree, cut at ``n_cells`` cells.

    Returns the points and the tree; point i is row ``tree.members[i]`` of X, and cell j holds the points from
    ``tree.starts[j]`` on.
    """
    dtype = precision(X.dtype)
    check_uncut(X)
    sample = X[np.sort(rng.choice(len(X), min(len(X), DATA_SAMPLE), replace=False))].astype(dtype)
    mean = mean_of(sample)
    centred = shifted(sample, mean)
    check_values(X, np.einsum("ij,ij->i", centred, centred))
    axes, origin = None, mean
    if n_axes is not None and n_axes < X.shape[1]:
        axes = principal_axes(centred, n_axes, int(rng.integers(2**31)))
        origin = np.zeros(axes.shape[1], dtype)
    may_be_bytes = X.dtype == np.float32 and are_bytes(sample)
    held, coordinates, norms = measure_points(X, mean, axes, may_be_bytes, threads)
    check_values(X, 4 * norms)  # as large as a squared distance can be
    check_weights(weights, norms)
    tree = grow_partition(coordinates, origin, n_cells, rng, threads)
    rows = reorder(held, tree.members, threads)
    del held  # before the coordinates are copied
    points = Points(
        rows=rows,
        mean=mean,
        weights=weights[tree.members] if len(weights) > 1 else weights,
        coordinates=rows if axes is None else reorder(coordinates, tree.members, threads),
        origin=origin,
    )
    return points, tree


def measure_points(
    X: NDArray[Any], mean: NDArray[Any], axes: NDArray[Any] | None, may_be_bytes: bool, threads: Threads
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The rows as they are held, their coordinates, and the squared norms of the rows less the mean."""
    norms = np.empty(len(X), mean.dtype)
    coordinates = empty_rows((len(X), 0 if axes is None else axes.shape[1]), mean.dtype)
    in_bytes = empty_rows((len(X) if may_be_bytes else 0, X.shape[1]), np.uint8)
    widened = np.dtype(np.float32) if X.dtype == np.float16 else X.dtype

    def measure(first: int, last: int) -> bool:
        check_uncut(X)
        rows = np.require(X[first:last], widened, ["A", "C", "W"])  # of one kind, or code is compiled for each
        block = np.empty(rows.shape, mean.dtype)
        fits: bool = kernels.measure_rows(rows, mean, block, norms[first:last], in_bytes[first:last])
        if axes is not None:
            np.dot(block, axes, out=coordinates[first:last])
        return fits

    if all(threads.for_each_block(measure, len(X), rows_per_block(X))):
        held = in_bytes
    else:
        held = X.view(np.uint16) if X.dtype == np.float16 else X
    return held, np.ascontiguousarray(held) if axes is None else coordinates, norms


def mean_of(sample: NDArray[Any]) -> NDArray[Any]:
    """The mean, rounded if all values are whole: whole numbers stay whole, so that their products are exact."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean: NDArray[Any] = sample.mean(axis=0)
    return np.rint(mean) if (sample == np.rint(sample)).all() else mean


def grow_leaves(points: Points, rng: np.random.Generator, threads: Threads, leaf_size: int) -> RandomPartition:
    """A random partition of the points into leaves of at most ``leaf_size``."""
    n_leaves = -(-len(points.rows) // leaf_size)
    return grow_partition(points.coordinates, points.origin, n_leaves, rng, threads)


def group_cells(points: Points, n_cells: int, rng: np.random.Generator, threads: Threads) -> RandomPartition | None:
    """A random partition of the points that keeps the cells of the first tree whole, and neighbouring cells together.

    The tree for it has one point of each cell, and takes no time beside one that has them all. None for few cells.
    """
    if n_cells <= FEW_CELLS:
        return None
    starts, n_groups = cut_evenly(len(points.rows), n_cells), -(-n_cells // CELLS_TOGETHER)
    return unite_leaves(starts, grow_partition(points.coordinates[starts[:-1]], points.origin, n_groups, rng, threads))


def reorder(rows: NDArray[Any], order: NDArray[np.int32], threads: Threads) -> NDArray[Any]:
    """The rows in a given order, as a new array."""
    result = empty_rows(rows.shape, rows.dtype)

    def copy(first: int, last: int) -> None:
        check_uncut(rows)
        if rows.flags.c_contiguous:  # it would copy them all otherwise
            np.take(rows, order[first:last], axis=0, out=result[first:last], mode="clip")
        else:
            result[first:last] = rows[order[first:last]]

    threads.for_each_block(copy, len(rows), rows_per_block(rows))
    return result


def are_bytes(X: NDArray[Any]) -> bool:
    """Whether all values are whole numbers from 0 to 255."""
    with np.errstate(invalid="ignore"):
        return bool((X.astype(np.uint8) == X).all())


def check_weights(weights: NDArray[Any], norms: NDArray[Any]) -> None:
    """The largest objective there could be must be a finite number."""
    with np.errstate(over="ignore"):
        total = np.einsum("i,i", np.broadcast_to(weights, len(norms)), norms, dtype=np.float64)
    if not np.isfinite(total):
        raise ValueError(
            "the squares of the values of X, times sample_weight, must not overflow float64 in sum: "
            f"the largest square is {norms.max():.6g}, the largest weight {weights.max():.6g}"
        )


def check_values(X: NDArray[Any], derived: NDArray[Any], first: int = 0) -> None:
    """What was computed from the values shows at once whether all are finite, and their squares too.

    ``first`` is the number of the first row.
    """
    if np.isfinite(derived).all():
        return
    largest = np.array([np.abs(row.astype(derived.dtype)).max() for row in X])
    finite = np.isfinite(largest)
    if not finite.all():
        raise ValueError(f"X must not contain NaN or infinity, but row {first + np.flatnonzero(~finite)[0]} does")
    row = int(largest.argmax())
    raise ValueError(
        f"the squares of the values of X must not overflow {derived.dtype}, "
        f"but row {first + row} holds {largest[row]:.6g}: "
        "scale the data" + (" or pass float64" if derived.dtype == np.float32 else "")
    )
