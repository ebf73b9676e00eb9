"""The points on disk, for data larger than memory.

The rows are laid out once, in a temporary file, in the order of a first tree: neighbours lie near each other, and
consecutive pieces of the file are cells of the space. Of the file only slabs are ever in memory, some pieces each.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from closure_kmeans.arrays import empty_rows
from closure_kmeans.files import check_uncut, map_of
from closure_kmeans.parallel import Threads
from closure_kmeans.points import (
    Points,
    are_bytes,
    as_numbers,
    check_values,
    check_weights,
    mean_of,
    precision,
    rows_per_block,
    shifted,
    unit_rows,
)
from closure_kmeans.trees import cut_evenly, grow_partition, principal_axes
from closure_kmeans.vectors.rows import Rows

# Cells in the file, and at the least in a slab.
N_CELLS, CELLS_PER_SLAB = 512, 16
# Rows that show the principal directions and the cells of the first layout, at most.
LAYOUT_SAMPLE = 32 * N_CELLS
# Bytes that each point takes in memory all the time: its first label, its label, its new one, its place in a list of
# members; and its weight, if it has one.
BYTES_PER_POINT, BYTES_PER_WEIGHT = 16, 8
# Bytes that each point of a slab takes beyond its row and coordinates: for the tree and the assignment.
BYTES_PER_SLAB_POINT = 48
# Bytes that threads need to work in.
WORKSPACE = 4 << 20
# Values widened at a time, so that they do.
WIDENED_VALUES = 1 << 17
# A slab must be worth a tree.
SMALLEST_SLAB = 1024


class StoredPoints(NamedTuple):
    """The points on disk. ``points`` has memory maps for its rows and weights, and no coordinates."""

    points: Points
    order: NDArray[np.int32]  # (n,) the user's row at each place, on disk
    axes: NDArray[Any] | None  # (d, d') what coordinates are taken along; None for the rows themselves
    cells: NDArray[Any]  # (n_cells, d') the middles of consecutive pieces of the file, in coordinates
    cell_starts: NDArray[np.int64]  # (n_cells + 1,) where the pieces begin
    slab_size: int  # how many points fit in memory


class SlabMemory(NamedTuple):
    """What one slab after the other is read into."""

    rows: NDArray[Any]  # (largest slab, d)
    coordinates: NDArray[Any]  # (largest slab, d')


def count_slab_points(
    memory: int, n_points: int, n_features: int, dtype: np.dtype[Any], n_axes: int | None, *, weighted: bool
) -> int:
    """How many points a slab may have for all to stay within so many bytes beyond the centres."""
    width = np.dtype(precision(dtype)).itemsize
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
    return min(int(slab_size), n_points)


def check_groups(X: Rows, memory: int) -> None:
    """Groups of rows that are read as a whole are held beyond the limit, two at most, but must be below it."""
    n_bytes = getattr(X, "group_bytes", 0)
    if n_bytes > memory:
        raise ValueError(
            f"memory_limit must be at least {n_bytes:,} bytes for rows in chunks or row groups of this size, "
            f"got {memory:,}"
        )


# -- the layout --------------------------------------------------------------------------------------------------------


def on_disk(shape: tuple[int, ...], dtype: DTypeLike, folder: str | os.PathLike[str] | None) -> NDArray[Any]:
    """An array in a temporary file, which is gone when the array is, however the process ends."""
    with tempfile.TemporaryFile(dir=folder, prefix="closure-kmeans-") as file:
        if hasattr(os, "posix_fallocate"):  # a full disk shows now, as an error
            n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
            try:
                os.posix_fallocate(file.fileno(), 0, n_bytes)
            except OSError as error:
                place = os.fspath(folder or tempfile.gettempdir())
                raise OSError(
                    error.errno, f"scratch must have room for {n_bytes:,} bytes, but '{place}': {error.strerror}"
                ) from error
        return np.memmap(file, dtype, "w+", shape=shape)


def lay_out(
    X: Rows,
    weights: NDArray[Any],
    n_clusters: int,
    slab_size: int,
    *,
    n_axes: int | None,
    spherical: bool,
    folder: str | os.PathLike[str] | None,
    rng: np.random.Generator,
    threads: Threads,
) -> tuple[StoredPoints, NDArray[np.int32]]:
    """Lay the rows out on disk in the order of a first tree; also the labels of its cells, ``n_clusters`` of them.

    The tree's upper part is that of a sample, and each row goes to the nearest cell of it; below, each slab has a tree
    of its own.
    """
    n_points, n_features = X.shape
    mean, axes, cells, may_be_bytes = look_at_sample(X, slab_size, n_axes, spherical, rng, threads)
    cell_of, norms, in_bytes = sort_into_cells(X, mean, axes, cells, spherical, may_be_bytes, threads)
    check_weights(weights, norms)
    del norms
    stored_dtype = np.dtype(np.uint8 if in_bytes else mean.dtype if spherical else X.dtype)
    stored_dtype = np.dtype(np.uint16) if stored_dtype == np.float16 else stored_dtype
    rows = on_disk((n_points, n_features), stored_dtype, folder)
    order = on_disk((n_points,), np.int32, folder)
    scatter(X, cell_of, len(cells), rows, order, slab_size, spherical)
    del cell_of
    points = Points(rows, mean, weights[:1], rows, mean, spherical)  # until the places of others are known
    stored = StoredPoints(points, order, axes, cells, np.zeros(1, np.int64), slab_size)
    stored, labels = refine_layout(stored, n_clusters, rng, threads)
    if len(weights) > 1:
        stored_weights = on_disk((n_points,), np.float64, folder)
        for block in blocks_of(n_points, slab_size):
            stored_weights[block] = weights[stored.order[block]]
        stored = stored._replace(points=stored.points._replace(weights=stored_weights))
    return stored, labels


def read(X: Rows, some: slice, spherical: bool) -> NDArray[Any]:
    """Some rows as they count."""
    check_uncut(X)
    rows = np.ascontiguousarray(X[some])
    return unit_rows(rows, numbers=range(*some.indices(X.shape[0]))) if spherical else rows


def sample_rows(X: Rows, n_rows: int, spherical: bool) -> NDArray[Any]:
    """At most so many rows, spread over the data, as they count."""
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
    """What trees are grown over: the coordinates of vectors, which are relative to the mean."""
    return vectors if axes is None else vectors @ axes


def look_at_sample(
    X: Rows, slab_size: int, n_axes: int | None, spherical: bool, rng: np.random.Generator, threads: Threads
) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any], bool]:
    """What a sample of rows shows: their mean, principal axes and cells, and whether they may be held as bytes."""
    n_rows = max(SMALLEST_SLAB, min(LAYOUT_SAMPLE, slab_size // 8))
    sample: NDArray[Any] = sample_rows(X, n_rows, spherical).astype(precision(X.dtype))
    may_be_bytes = are_bytes(sample)
    return *learn_cells(sample, N_CELLS, n_axes, rng, threads), may_be_bytes


def learn_cells(
    sample: NDArray[Any], n_cells: int, n_axes: int | None, rng: np.random.Generator, threads: Threads
) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any]]:
    """What a sample of rows tells of all: their mean, the axes of their coordinates, and cells to sort them into.

    The cells are the middles of the leaves of a tree, in its order. The sample is moved to its mean.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        good = np.isfinite(np.einsum("ij,ij->i", sample, sample))
    if not good.all():  # which rows are bad is found as they are sorted
        sample = sample[good] if good.any() else np.zeros_like(sample)
    mean = mean_of(sample)
    sample -= mean
    axes = None
    if n_axes is not None and n_axes < sample.shape[1]:
        axes = principal_axes(sample, n_axes, int(rng.integers(2**31)))
    coordinates = along(sample, axes)
    tree = grow_partition(coordinates, np.zeros_like(coordinates[0]), min(n_cells, len(coordinates)), rng, threads)
    return mean, axes, middles_of(coordinates, tree.members, tree.starts)


def middles_of(coordinates: NDArray[Any], order: NDArray[np.int32], starts: NDArray[np.int64]) -> NDArray[Any]:
    """The means of consecutive groups of points, given in some order."""
    return np.array([coordinates[order[low:high]].mean(axis=0) for low, high in pairwise(starts.tolist())])


def cut_into_cells(
    coordinates: NDArray[Any], order: NDArray[np.int32], n_cells: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Cut points in the order of a tree into equal pieces: where these begin and end, and their middles."""
    cuts = np.unique(np.linspace(0, len(order), n_cells + 1).astype(np.int64))
    return cuts, middles_of(coordinates, order, cuts)


def sort_into_cells(
    X: Rows,
    mean: NDArray[Any],
    axes: NDArray[Any] | None,
    cells: NDArray[Any],
    spherical: bool,
    may_be_bytes: bool,
    threads: Threads,
) -> tuple[NDArray[np.int32], NDArray[Any], bool]:
    """The nearest cell of each row, its squared length, and whether all rows can be held as bytes.

    All values are looked at.
    """
    cell_of, norms = np.empty(X.shape[0], np.int32), np.empty(X.shape[0], mean.dtype)
    cell_norms = np.einsum("ij,ij->i", cells, cells)
    look = may_be_bytes and X.dtype == np.float32 and not spherical

    def sort(first: int, last: int) -> bool:
        rows = read(X, slice(first, last), spherical)
        block = shifted(rows, mean)
        np.einsum("ij,ij->i", block, block, out=norms[first:last])
        check_values(rows, 4 * norms[first:last], first)  # as large as a squared distance can be
        scores = along(block, axes) @ cells.T
        scores *= -2
        scores += cell_norms
        cell_of[first:last] = scores.argmin(axis=1)
        forget(X)
        return look and are_bytes(rows)

    in_bytes = threads.for_each_block(sort, len(cell_of), min(512, rows_per_block(X, WIDENED_VALUES)))
    return cell_of, norms, all(in_bytes)


def scatter(
    X: Rows,
    cell_of: NDArray[np.int32],
    n_cells: int,
    rows: NDArray[Any],
    order: NDArray[np.int32],
    slab_size: int,
    spherical: bool,
) -> None:
    """Write the rows to their places on disk, cell after cell: half a slab is read, and adds some to each cell."""
    sizes = np.bincount(cell_of, minlength=n_cells)
    ends = np.cumsum(sizes) - sizes
    for chunk in blocks_of(len(cell_of), -(-slab_size // 2)):
        some = read(X, chunk, spherical)
        some = some.view(np.uint16) if some.dtype == np.float16 else some
        by_cell = np.argsort(cell_of[chunk], kind="stable")
        added = np.bincount(cell_of[chunk], minlength=n_cells)
        for cell, group in enumerate(np.split(by_cell, np.cumsum(added)[:-1])):
            places = slice(ends[cell], ends[cell] + len(group))
            rows[places] = some[group]
            order[places] = chunk.start + group
        ends += added
        forget(X)
        forget(rows)


def refine_layout(
    stored: StoredPoints, n_clusters: int, rng: np.random.Generator, threads: Threads
) -> tuple[StoredPoints, NDArray[np.int32]]:
    """Order each slab by a tree of its own, whose leaves are the first clusters, and divide the file into cells."""
    n_points = len(stored.order)
    n_slabs = -(-n_points // stored.slab_size)
    borders = cut_evenly(n_points, n_slabs)
    labels = np.empty(n_points, np.int32)
    memory = slab_memory(stored.points, stored.axes, stored.slab_size)
    middles, starts = [], [np.zeros(1, np.int64)]
    for i, (first, last) in enumerate(pairwise(borders.tolist())):
        slab = load_slab(stored.points, stored.axes, [slice(first, last)], memory, threads)
        first_label, last_label = n_clusters * i // n_slabs, n_clusters * (i + 1) // n_slabs
        n_leaves = min(max(1, last_label - first_label), last - first)
        tree = grow_partition(slab.coordinates, slab.origin, n_leaves, rng, threads)
        labels[first:last] = first_label + np.repeat(np.arange(n_leaves, dtype=np.int32), np.diff(tree.starts))
        for block in blocks_of(last - first, rows_per_block(slab.rows, WIDENED_VALUES)):
            stored.points.rows[first + block.start : first + block.stop] = slab.rows[tree.members[block]]
        stored.order[first:last] = stored.order[first:last][tree.members]
        cuts, found = cut_into_cells(slab.coordinates, tree.members, max(CELLS_PER_SLAB, N_CELLS // n_slabs))
        middles.append(found)
        starts.append(first + cuts[1:])
        forget(stored.points.rows)
    return stored._replace(cells=np.concatenate(middles), cell_starts=np.concatenate(starts)), labels


def forget(array: Any) -> None:
    """Give the pages of a memory map back: what is on disk need not stay in memory."""
    mapped = map_of(array)
    if mapped is not None and mapped.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):  # a private copy would be lost
        mapped._mmap.madvise(mmap.MADV_DONTNEED)


# -- slabs -------------------------------------------------------------------------------------------------------------


def slab_memory(points: Points, axes: NDArray[Any] | None, n_points: int) -> SlabMemory:
    """Room for a slab of so many of the points."""
    n_features = points.rows.shape[1]
    n_coordinates = n_features if axes is None else axes.shape[1]
    return SlabMemory(
        empty_rows((n_points, n_features), points.rows.dtype), empty_rows((n_points, n_coordinates), points.mean.dtype)
    )


def load_slab(
    points: Points,
    axes: NDArray[Any] | None,
    pieces: list[slice],
    memory: SlabMemory,
    threads: Threads,
    n_entered: int = 0,
) -> Points:
    """The points in some pieces of the file, and places for the centres that are entered, in memory."""
    size = sum(piece.stop - piece.start for piece in pieces)
    rows, coordinates = memory.rows[: size + n_entered], memory.coordinates[: size + n_entered]
    gather(points.rows, pieces, rows)
    rows[size:] = 0

    def project(first: int, last: int) -> None:
        coordinates[first:last] = along(shifted(as_numbers(rows[first:last]), points.mean), axes)

    threads.for_each_block(project, size, rows_per_block(rows, WIDENED_VALUES))
    weights = points.weights
    if len(weights) > 1:
        weights = np.ones(len(rows))
        gather(points.weights, pieces, weights)
    return Points(rows, points.mean, weights, coordinates, np.zeros_like(coordinates[0]), points.spherical)


def gather(array: NDArray[Any], pieces: list[slice], out: NDArray[Any]) -> None:
    """Copy pieces of an array on disk to the beginning of another, one after the other."""
    place = 0
    for piece in pieces:
        out[place : place + piece.stop - piece.start] = array[piece]
        place += piece.stop - piece.start
        forget(array)
