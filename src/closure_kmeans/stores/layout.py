"""A layout of the rows on disk, for data larger than memory.

The rows are laid out once, in a temporary file, in the order of a first tree: the rows of a piece of the file are
neighbours. A slab, which is all that is ever in memory, is some pieces.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from closure_kmeans.parallel import Threads
from closure_kmeans.points import (
    Points,
    are_bytes,
    as_numbers,
    check_uncut,
    check_values,
    check_weights,
    empty_rows,
    forget,
    mean_of,
    precision,
    rows_per_block,
    shifted,
)
from closure_kmeans.spherical import unit_rows
from closure_kmeans.trees import grow_partition, principal_axes
from closure_kmeans.vectors.rows import Rows

# Pieces of the file, and the fewest in a slab.
N_PIECES, PIECES_PER_SLAB = 512, 16
# Most rows of the sample from which principal directions and pieces are learned.
LAYOUT_SAMPLE = 32 * N_PIECES
# Memory per point throughout the fit: its first label, its label, its new one, its place in a list of members; and its
# weight, if it has one.
BYTES_PER_POINT, BYTES_PER_WEIGHT = 16, 8
# Memory per point of a slab beyond its row and coordinates: for the tree and the assignment.
BYTES_PER_SLAB_POINT = 48
# Temporaries of the threads.
WORKSPACE = 4 << 20
# Values converted to float at a time; keeps temporaries within WORKSPACE.
WIDENED_VALUES = 1 << 17
# Fewest points of a slab: a tree over fewer costs more than it gains.
SMALLEST_SLAB = 1024
# Nearest pieces into which a centre is entered, and centres for which they are looked up at a time.
NEAR_PIECES, BLOCK_CENTERS = 8, 128
# Fewer centres at a time where there would be more pairs of centre and piece than this.
BLOCK_PAIRS = 1 << 21


class Plan(NamedTuple):
    """A plan for laying the rows out, learned from a sample of them."""

    offset: NDArray[Any]  # (d,) the mean of the rows
    axes: NDArray[Any] | None  # (d, d') directions of the coordinates; None for the rows themselves
    pieces: NDArray[Any]  # (n_pieces, d') the middles of pieces to sort the rows into, in coordinates
    spherical: bool  # whether rows are L2-normalised
    may_be_bytes: bool  # whether the rows may be whole numbers that can be held as bytes


def count_slab_points(X: Rows, memory: int, n_axes: int | None, *, spherical: bool, weighted: bool) -> int:
    """The largest slab for which a fit stays within ``memory`` bytes beyond the centres.

    Chunks or row groups, which are read as a whole, must not exceed the limit; two of them are held beyond it.
    """
    n_points, n_features = X.shape
    width = np.dtype(precision(X.dtype)).itemsize
    dtype = np.dtype(precision(X.dtype) if spherical else X.dtype)
    n_coordinates = n_features if n_axes is None else min(n_axes, n_features)
    always = WORKSPACE + n_points * (BYTES_PER_POINT + (BYTES_PER_WEIGHT if weighted else 0))
    per_point = n_features * dtype.itemsize + n_coordinates * width + BYTES_PER_SLAB_POINT
    slab_size = (memory - always) // per_point
    if slab_size < min(SMALLEST_SLAB, n_points):
        least = always + per_point * min(SMALLEST_SLAB, n_points)
        raise ValueError(
            f"memory_limit must be at least {least:,} bytes for {n_points:,} x {n_features} {dtype} rows, "
            f"got {memory:,}"
        )
    group_bytes = getattr(X, "group_bytes", 0)
    if group_bytes > memory:
        raise ValueError(
            f"memory_limit must be at least {group_bytes:,} bytes for rows in chunks or row groups of this size, "
            f"got {memory:,}"
        )
    return min(int(slab_size), n_points)


# -- the layout --------------------------------------------------------------------------------------------------------


def on_disk(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array in an unlinked temporary file, which is removed with the array, however the process ends."""
    with tempfile.TemporaryFile(prefix="closure-kmeans-") as file:
        if hasattr(os, "posix_fallocate"):  # a full disk raises here
            n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
            try:
                os.posix_fallocate(file.fileno(), 0, n_bytes)
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"the folder for temporary files (TMPDIR) must have room for {n_bytes:,} bytes, but "
                    f"'{tempfile.gettempdir()}': {error.strerror}",
                ) from error
        return np.memmap(file, dtype, "w+", shape=shape)


def lay_out(
    X: Rows, weights: NDArray[Any], plan: Plan, slab_size: int, threads: Threads
) -> tuple[Points, NDArray[np.int32]]:
    """Write the rows to disk, piece after piece, and which of the user's rows they are.

    Half a slab is read at a time, and adds some rows to each piece. The weights are checked, and not yet laid out.
    """
    piece_of, norms, in_bytes = sort_into_pieces(X, plan, threads)
    check_weights(weights, norms)
    del norms
    dtype = np.dtype(np.uint8 if in_bytes else plan.offset.dtype if plan.spherical else X.dtype)
    rows = on_disk(X.shape, np.uint16 if dtype == np.float16 else dtype)
    order = on_disk((len(piece_of),), np.int32)
    n_pieces = len(plan.pieces)
    sizes = np.bincount(piece_of, minlength=n_pieces)
    ends = np.cumsum(sizes) - sizes
    for chunk in blocks_of(len(piece_of), -(-slab_size // 2)):
        some = read(X, chunk, plan.spherical)
        some = some.view(np.uint16) if some.dtype == np.float16 else some
        by_piece = np.argsort(piece_of[chunk], kind="stable")
        added = np.bincount(piece_of[chunk], minlength=n_pieces)
        for piece, group in enumerate(np.split(by_piece, np.cumsum(added)[:-1])):
            places = slice(ends[piece], ends[piece] + len(group))
            rows[places] = some[group]
            order[places] = chunk.start + group
        ends += added
        forget(X)
        forget(rows)
    return Points(rows, plan.offset, weights[:1], rows, plan.offset, plan.spherical), order


def read(X: Rows, some: slice, spherical: bool) -> NDArray[Any]:
    """Read some rows; L2-normalise them if ``spherical``."""
    check_uncut(X)
    rows = np.ascontiguousarray(X[some])
    return unit_rows(rows, numbers=range(*some.indices(X.shape[0]))) if spherical else rows


def sample_of(X: Rows, n_rows: int, spherical: bool) -> NDArray[Any]:
    """At most ``n_rows`` evenly spaced rows, L2-normalised if ``spherical``."""
    step = -(-X.shape[0] // n_rows)
    sample = []
    for block in blocks_of(X.shape[0], 128 * step):
        sample.append(read(X, slice(block.start, block.stop, step), spherical).copy())
        forget(X)
    return np.concatenate(sample)


def blocks_of(n_items: int, size: int) -> list[slice]:
    """Consecutive slices."""
    return [slice(first, min(first + size, n_items)) for first in range(0, n_items, size)]


def along(vectors: NDArray[Any], axes: NDArray[Any] | None) -> NDArray[Any]:
    """The coordinates, over which trees are grown, of vectors relative to the offset."""
    return vectors if axes is None else vectors @ axes


def look_at_sample(
    X: Rows, slab_size: int, n_axes: int | None, spherical: bool, rng: np.random.Generator, threads: Threads
) -> Plan:
    """A plan for rows that are read in slabs."""
    n_rows = max(SMALLEST_SLAB, min(LAYOUT_SAMPLE, slab_size // 8))
    return learn_plan(sample_of(X, n_rows, spherical), N_PIECES, n_axes, spherical, rng, threads)


def learn_plan(
    sample: NDArray[Any],
    n_pieces: int,
    n_axes: int | None,
    spherical: bool,
    rng: np.random.Generator,
    threads: Threads,
) -> Plan:
    """Learn a plan from a sample, L2-normalised for cosine. The pieces are the leaves of a tree, in its order."""
    may_be_bytes = sample.dtype == np.float32 and not spherical and are_bytes(sample)
    sample = sample.astype(precision(sample.dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        good = np.isfinite(np.einsum("ij,ij->i", sample, sample))
    if not good.all():  # errors name the rows when they are sorted
        sample = sample[good] if good.any() else np.zeros_like(sample)
    offset = mean_of(sample)
    sample -= offset
    axes = None
    if n_axes is not None and n_axes < sample.shape[1]:
        axes = principal_axes(sample, n_axes, int(rng.integers(2**31)))
    coordinates = along(sample, axes)
    tree = grow_partition(coordinates, np.zeros_like(coordinates[0]), min(n_pieces, len(coordinates)), rng, threads)
    return Plan(offset, axes, middles_of(coordinates, tree.members, tree.starts), spherical, may_be_bytes)


def middles_of(coordinates: NDArray[Any], order: NDArray[np.int32], starts: NDArray[np.int64]) -> NDArray[Any]:
    """The means of consecutive groups of points, given in some order."""
    return np.array([coordinates[order[low:high]].mean(axis=0) for low, high in pairwise(starts.tolist())])


def cut_into_pieces(
    coordinates: NDArray[Any], order: NDArray[np.int32], n_pieces: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Cut points in the order of a tree into equal pieces: the offsets of the pieces, and their middles."""
    cuts = np.unique(np.linspace(0, len(order), n_pieces + 1).astype(np.int64))
    return cuts, middles_of(coordinates, order, cuts)


def count_pieces(n_slabs: int) -> int:
    """The number of pieces that each slab is cut into."""
    return max(PIECES_PER_SLAB, N_PIECES // n_slabs)


def sort_into_pieces(X: Rows, plan: Plan, threads: Threads) -> tuple[NDArray[np.int32], NDArray[Any], bool]:
    """Check all rows; the nearest piece of each, its squared length, and whether all can be held as bytes."""
    piece_of, norms = np.empty(X.shape[0], np.int32), np.empty(X.shape[0], plan.offset.dtype)
    piece_norms = np.einsum("ij,ij->i", plan.pieces, plan.pieces)

    def sort(first: int, last: int) -> bool:
        rows = read(X, slice(first, last), plan.spherical)
        block = shifted(rows, plan.offset)
        np.einsum("ij,ij->i", block, block, out=norms[first:last])
        check_values(rows, 4 * norms[first:last], first)  # as large as a squared distance can be
        scores = along(block, plan.axes) @ plan.pieces.T
        scores *= -2
        scores += piece_norms
        piece_of[first:last] = scores.argmin(axis=1)
        forget(X)
        return plan.may_be_bytes and are_bytes(rows)

    in_bytes = threads.for_each_block(sort, len(piece_of), min(512, rows_per_block(X, WIDENED_VALUES)))
    return piece_of, norms, all(in_bytes)


# -- slabs -------------------------------------------------------------------------------------------------------------


class SlabReader:
    """Reads one slab after the other into the same memory, and computes its coordinates, along ``axes``.

    The rows and weights of ``points`` may be memory maps; ``largest`` counts the centres that are entered, too.
    """

    def __init__(self, points: Points, axes: NDArray[Any] | None, largest: int, threads: Threads) -> None:
        self._points, self._axes, self._threads = points, axes, threads
        n_features = points.rows.shape[1]
        n_coordinates = n_features if axes is None else axes.shape[1]
        self._rows = empty_rows((largest, n_features), points.rows.dtype)
        self._coordinates = empty_rows((largest, n_coordinates), points.offset.dtype)

    def read(self, pieces: list[slice], n_entered: int = 0) -> Points:
        """Some pieces of the file, with places for the centres that are entered as points."""
        points = self._points
        size = sum(piece.stop - piece.start for piece in pieces)
        rows, coordinates = self._rows[: size + n_entered], self._coordinates[: size + n_entered]
        gather(points.rows, pieces, rows)
        rows[size:] = 0

        def project(first: int, last: int) -> None:
            coordinates[first:last] = along(shifted(as_numbers(rows[first:last]), points.offset), self._axes)

        self._threads.for_each_block(project, size, rows_per_block(rows, WIDENED_VALUES))
        weights = points.weights
        if len(weights) > 1:
            weights = np.ones(len(rows))
            gather(points.weights, pieces, weights)
        return Points(rows, points.offset, weights, coordinates, np.zeros_like(coordinates[0]), points.spherical)


def places_of(pieces: list[slice]) -> Iterator[tuple[slice, slice]]:
    """Pieces of the file, and their slices in a slab, where they are consecutive."""
    end = 0
    for piece in pieces:
        begin, end = end, end + piece.stop - piece.start
        yield piece, slice(begin, end)


def gather(array: NDArray[Any], pieces: list[slice], out: NDArray[Any]) -> None:
    """Copy pieces of an array on disk to the beginning of another, one after the other."""
    for piece, place in places_of(pieces):
        out[place] = array[piece]
        forget(array)


def nearest_pieces(
    pieces: NDArray[Any], coordinates: NDArray[Any], threads: Threads, n_near: int = NEAR_PIECES
) -> NDArray[np.int32]:
    """The pieces nearest to each centre, given the coordinates of centres and the middles of pieces."""
    n_near = min(n_near, len(pieces))
    norms = np.einsum("ij,ij->i", pieces, pieces)
    near = np.empty((len(coordinates), n_near), np.int32)

    def find(first: int, last: int) -> None:
        scores = norms - 2 * coordinates[first:last] @ pieces.T
        near[first:last] = np.argpartition(scores, n_near - 1, axis=1)[:, :n_near]

    threads.for_each_block(find, len(coordinates), max(1, min(BLOCK_CENTERS, BLOCK_PAIRS // len(pieces))))
    return near
