"""Larger than memory: the points lie on disk, and an iteration reads them in slabs.

The rows are laid out once, in a temporary file, in the order of a first tree: neighbours lie near each other, and
consecutive pieces of the file are cells of the space. A pass reads slabs that fit in memory, one after the other, and
grows its trees inside a slab. A slab is made of cells that are neighbours: a fresh tree over the cells, cut at as many
leaves as there are slabs, is the upper part of the pass's trees, so that the borders differ from pass to pass. Nor is
a border one for clusters: the centres near a slab are entered into its trees as points, so that their clusters are
candidates in the leaves that they fall into.

In memory are the labels, the centres and one slab. Sums run over the slabs in their order, and over the points of a
slab in theirs: the result is the same on any number of threads.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from closure_kmeans import _compiled as _kernels
from closure_kmeans._parallel import Threads
from closure_kmeans.closure import Reassigned, assign_by_closures
from closure_kmeans.clusters import Clusters, empty_clusters, move_onto_sphere, refill_empty
from closure_kmeans.iteration import Clustering
from closure_kmeans.partition import RandomPartition, grow_partition, principal_axes
from closure_kmeans.points import (
    Points,
    are_bytes,
    as_numbers,
    check_values,
    grow_leaves,
    mean_of,
    precision,
    rows_per_block,
    shifted,
    unit_rows,
)
from closure_kmeans.quantizer import MANY_CENTERS, SAMPLE_ROWS, build_quantizer, nearest_centers, quantize
from closure_kmeans.vectors.rows import Rows

# Cells in the file, and at the least in a slab; and how many of the nearest ones a centre is entered into.
N_CELLS, CELLS_PER_SLAB, NEAR_CELLS = 512, 16, 8
# Rows that show the principal directions and the cells of the first layout.
LAYOUT_SAMPLE = 32 * N_CELLS
# Bytes that each point takes in memory all the time: its label, its new one, its place in a list of members.
BYTES_PER_POINT = 12
# Bytes that each point of a slab takes beyond its row and coordinates: for the tree and the assignment.
BYTES_PER_SLAB_POINT = 48
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


class SlabPartition(NamedTuple):
    """A random partition that is yet to be grown, slab by slab, always in the same way."""

    slabs: RandomPartition  # of the cells
    leaf_size: int
    seed: int
    open_to_all: bool = False


class Totals(NamedTuple):
    """What the means of the clusters are computed from, summed up over slabs in double precision."""

    sums: NDArray[np.float64]  # (k, d) of the rows
    sizes: NDArray[np.float64]  # (k,) of the weights
    squares: NDArray[np.float64]  # (k,) of the rows' squared lengths


def count_slab_points(memory: int, n_points: int, n_features: int, dtype: np.dtype[Any], n_axes: int | None) -> int:
    """How many points a slab may have for all to stay within so many bytes beyond the centres."""
    width = np.dtype(precision(dtype)).itemsize
    n_coordinates = n_features if n_axes is None else min(n_axes, n_features)
    per_point = n_features * dtype.itemsize + n_coordinates * width + BYTES_PER_SLAB_POINT
    slab_size = (memory - BYTES_PER_POINT * n_points) // per_point
    if slab_size < min(SMALLEST_SLAB, n_points):
        least = BYTES_PER_POINT * n_points + per_point * SMALLEST_SLAB
        raise ValueError(
            f"memory_limit must be at least {least:,} bytes for {n_points:,} x {n_features} {dtype} rows, "
            f"got {memory:,}"
        )
    return min(int(slab_size), n_points)


# -- the layout --------------------------------------------------------------------------------------------------------


def on_disk(shape: tuple[int, ...], dtype: DTypeLike, folder: str | os.PathLike[str] | None) -> NDArray[Any]:
    """An array in a temporary file, which is gone when the array is, however the process ends."""
    with tempfile.TemporaryFile(dir=folder, prefix="closure-kmeans-") as file:
        if hasattr(os, "posix_fallocate"):  # a full disk shows now, as an error
            os.posix_fallocate(file.fileno(), 0, int(np.prod(shape)) * np.dtype(dtype).itemsize)
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
    dtype = precision(X.dtype)
    sample: NDArray[Any] = read(X, slice(0, n_points, -(-n_points // LAYOUT_SAMPLE)), spherical).astype(dtype)
    mean, axes, cells = learn_cells(sample, N_CELLS, n_axes, rng, threads)
    cell_of, in_bytes = sort_into_cells(X, mean, axes, cells, spherical, are_bytes(sample), threads)
    order, _ = _kernels.group_by_label(cell_of, len(cells))
    del cell_of
    stored_dtype = np.dtype(np.uint8 if in_bytes else dtype if spherical else X.dtype)
    stored_dtype = np.dtype(np.uint16) if stored_dtype == np.float16 else stored_dtype
    rows = on_disk((n_points, n_features), stored_dtype, folder)
    scatter(X, order, rows, spherical)
    stored_order = on_disk((n_points,), np.int32, folder)
    stored_order[:] = order
    del order
    points = Points(rows, mean, np.ones(1), rows, mean, spherical)
    stored = StoredPoints(points, stored_order, axes, cells, np.zeros(1, np.int64), slab_size)
    stored, labels = refine_layout(stored, n_clusters, rng, threads)
    if len(weights) > 1:
        stored_weights = on_disk((n_points,), np.float64, folder)
        for block in blocks_of(n_points, slab_size):
            stored_weights[block] = weights[stored.order[block]]
        stored = stored._replace(points=stored.points._replace(weights=stored_weights))
    return stored, labels


def learn_cells(
    sample: NDArray[Any], n_cells: int, n_axes: int | None, rng: np.random.Generator, threads: Threads
) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any]]:
    """What a sample of rows tells of all: their mean, the axes of their coordinates, and cells to sort them into."""
    with np.errstate(over="ignore", invalid="ignore"):
        good = np.isfinite(np.einsum("ij,ij->i", sample, sample))
    sample = sample[good] if good.any() else np.zeros_like(sample)  # which rows are bad is found as they are sorted
    mean = mean_of(sample)
    axes = None
    if n_axes is not None and n_axes < sample.shape[1]:
        axes = principal_axes(sample - mean, n_axes, int(rng.integers(2**31)))
    return mean, axes, sample_cells(along(shifted(sample, mean), axes), n_cells, rng, threads)


def read(X: Rows, some: slice, spherical: bool) -> NDArray[Any]:
    """Some rows as they count."""
    rows = np.ascontiguousarray(X[some])
    return unit_rows(rows) if spherical else rows


def blocks_of(n_items: int, size: int) -> list[slice]:
    """Consecutive slices."""
    return [slice(first, min(first + size, n_items)) for first in range(0, n_items, size)]


def along(vectors: NDArray[Any], axes: NDArray[Any] | None) -> NDArray[Any]:
    """What trees are grown over: the coordinates of vectors, which are relative to the mean."""
    return vectors if axes is None else vectors @ axes


def sample_cells(coordinates: NDArray[Any], n_cells: int, rng: np.random.Generator, threads: Threads) -> NDArray[Any]:
    """The middles of the leaves of a tree over a sample, in its order."""
    n_cells = min(n_cells, len(coordinates))
    origin = np.zeros_like(coordinates[0])
    tree = grow_partition(coordinates, origin, n_cells, rng, threads)
    return middles_of(coordinates, tree.members, tree.starts)


def middles_of(coordinates: NDArray[Any], members: NDArray[np.int32], starts: NDArray[np.int64]) -> NDArray[Any]:
    """The means of consecutive groups of members."""
    sums = np.add.reduceat(coordinates[members], starts[:-1])
    middles: NDArray[Any] = sums / np.diff(starts)[:, np.newaxis].astype(sums.dtype)
    return middles


def cut_into_cells(
    coordinates: NDArray[Any], members: NDArray[np.int32], n_cells: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Cut points in the order of a tree into equal pieces: where these begin and end, and their middles."""
    cuts = np.unique(np.linspace(0, len(members), n_cells + 1).astype(np.int64))
    return cuts, middles_of(coordinates, members, cuts)


def sort_into_cells(
    X: Rows,
    mean: NDArray[Any],
    axes: NDArray[Any] | None,
    cells: NDArray[Any],
    spherical: bool,
    look: bool,
    threads: Threads,
) -> tuple[NDArray[np.int32], bool]:
    """The nearest cell of each row, and whether all rows can be held as bytes. All values are looked at."""
    cell_of = np.empty(X.shape[0], np.int32)
    norms = np.einsum("ij,ij->i", cells, cells)
    look = look and X.dtype == np.float32 and not spherical

    def sort(first: int, last: int) -> bool:
        rows = read(X, slice(first, last), spherical)
        block = shifted(rows, mean)
        check_values(rows, 4 * np.einsum("ij,ij->i", block, block), first)
        coordinates = along(block, axes)
        cell_of[first:last] = np.argmin(norms - 2 * coordinates @ cells.T, axis=1)
        forget(X)
        return look and are_bytes(rows)

    in_bytes = threads.for_each_block(sort, len(cell_of), min(1024, rows_per_block_of(X)))
    return cell_of, all(in_bytes)


def rows_per_block_of(X: Rows) -> int:
    """How many rows to widen at a time."""
    return rows_per_block(np.empty((0, X.shape[1]), np.uint8))


def scatter(X: Rows, order: NDArray[np.int32], rows: NDArray[Any], spherical: bool) -> None:
    """Write the rows to their places on disk."""
    places = np.empty_like(order)
    places[order] = np.arange(len(order), dtype=np.int32)
    for block in blocks_of(len(order), rows_per_block_of(X)):
        some = read(X, block, spherical)
        rows[places[block]] = some.view(np.uint16) if some.dtype == np.float16 else some
        forget(X)
        forget(rows)


def refine_layout(
    stored: StoredPoints, n_clusters: int, rng: np.random.Generator, threads: Threads
) -> tuple[StoredPoints, NDArray[np.int32]]:
    """Order each slab by a tree of its own, whose leaves are the first clusters, and divide the file into cells."""
    n_points = len(stored.order)
    n_slabs = -(-n_points // stored.slab_size)
    borders = np.arange(n_slabs + 1) * n_points // n_slabs
    labels = np.empty(n_points, np.int32)
    middles, starts = [], [np.zeros(1, np.int64)]
    for i, (first, last) in enumerate(pairwise(borders.tolist())):
        slab = load_slab(stored.points, stored.axes, [slice(first, last)], threads)
        first_label, last_label = n_clusters * i // n_slabs, n_clusters * (i + 1) // n_slabs
        n_leaves = min(max(1, last_label - first_label), last - first)
        tree = grow_partition(slab.coordinates, slab.origin, n_leaves, rng, threads)
        labels[first:last] = first_label + np.repeat(np.arange(n_leaves, dtype=np.int32), np.diff(tree.starts))
        for block in blocks_of(last - first, rows_per_block(slab.rows)):
            stored.points.rows[first + block.start : first + block.stop] = slab.rows[tree.members[block]]
        stored.order[first:last] = stored.order[first:last][tree.members]
        cuts, found = cut_into_cells(slab.coordinates, tree.members, max(CELLS_PER_SLAB, N_CELLS // n_slabs))
        middles.append(found)
        starts.append(first + cuts[1:])
        forget(stored.points.rows)
    return stored._replace(cells=np.concatenate(middles), cell_starts=np.concatenate(starts)), labels


def forget(array: Any) -> None:
    """Give the pages of a memory map back: what is on disk need not stay in memory."""
    while array is not None and not hasattr(array, "_mmap"):
        array = getattr(array, "base", None)
    if array is not None and array.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):  # a private copy would be lost
        array._mmap.madvise(mmap.MADV_DONTNEED)


# -- a pass ------------------------------------------------------------------------------------------------------------


def load_slab(
    points: Points, axes: NDArray[Any] | None, pieces: list[slice], threads: Threads, n_spare: int = 0
) -> Points:
    """The points in some pieces of the file, with room for some more, in memory."""
    size = sum(piece.stop - piece.start for piece in pieces)
    rows = np.zeros((size + n_spare, points.rows.shape[1]), points.rows.dtype)
    n_coordinates = rows.shape[1] if axes is None else axes.shape[1]
    coordinates = np.empty((len(rows), n_coordinates), points.mean.dtype)

    gather(points.rows, pieces, rows)

    def project(begin: int, end: int) -> None:
        coordinates[begin:end] = along(shifted(as_numbers(rows[begin:end]), points.mean), axes)

    threads.for_each_block(project, size, rows_per_block(rows))
    forget(points.rows)
    weights = points.weights
    if len(weights) > 1:
        weights = gather(weights, pieces, np.ones(len(rows)))
    return Points(rows, points.mean, weights, coordinates, np.zeros_like(coordinates[0]), points.spherical)


def gather(array: NDArray[Any], pieces: list[slice], out: NDArray[Any]) -> NDArray[Any]:
    """Copy pieces of an array to the beginning of another, one after the other."""
    place = 0
    for piece in pieces:
        out[place : place + piece.stop - piece.start] = array[piece]
        place += piece.stop - piece.start
    return out


def draw_slabs(stored: StoredPoints, rng: np.random.Generator, threads: Threads, leaf_size: int) -> SlabPartition:
    """A random partition of the points: first of the cells into slabs."""
    cells_per_slab = max(1, stored.slab_size // int(np.diff(stored.cell_starts).max()))
    n_slabs = -(-len(stored.cells) // cells_per_slab)
    tree = grow_partition(stored.cells, np.zeros_like(stored.cells[0]), n_slabs, rng, threads)
    return SlabPartition(tree, leaf_size, int(rng.integers(2**63)))


def nearest_cells(
    cells: NDArray[Any], coordinates: NDArray[Any], threads: Threads, n_near: int = NEAR_CELLS
) -> NDArray[np.int32]:
    """The cells that are nearest to each centre, given its coordinates."""
    n_near = min(n_near, len(cells))
    norms = np.einsum("ij,ij->i", cells, cells)
    near = np.empty((len(coordinates), n_near), np.int32)

    def find(first: int, last: int) -> None:
        scores = norms - 2 * coordinates[first:last] @ cells.T
        near[first:last] = np.argpartition(scores, n_near - 1, axis=1)[:, :n_near]

    threads.for_each_block(find, len(coordinates), 512)
    return near


def assign_and_update(
    stored: StoredPoints,
    clusters: Clusters,
    labels: NDArray[np.int32],
    partitions: list[SlabPartition],
    hartigan: bool,
    threads: Threads,
    spare: list[NDArray[Any]],
    last_use: bool,
) -> Reassigned:
    """What ``closure.assign_and_update`` does, slab by slab."""
    (partition,) = partitions
    n_clusters = len(clusters.centers)
    center_coordinates = along(clusters.centers, stored.axes)
    near = nearest_cells(stored.cells, center_coordinates, threads)
    new_labels = np.empty_like(labels)
    totals = no_totals(*clusters.centers.shape)
    n_pairs = 0
    for number, (first, last) in enumerate(pairwise(partition.slabs.starts.tolist())):
        cells = np.sort(partition.slabs.members[first:last])
        pieces = [slice(*stored.cell_starts[cell : cell + 2].tolist()) for cell in cells]
        entered = np.flatnonzero(np.isin(near, cells).any(axis=1)).astype(np.int32)
        slab = load_slab(stored.points, stored.axes, pieces, threads, len(entered))
        size = len(slab.rows) - len(entered)
        slab.coordinates[size:] = center_coordinates[entered]
        rng = np.random.default_rng([partition.seed, number])
        old = np.concatenate([*(labels[piece] for piece in pieces), entered])
        leaves = grow_leaves(slab, rng, threads, partition.leaf_size)
        new, n_tested = assign_by_closures(slab, clusters, old, [leaves], hartigan, threads)
        place = 0
        for piece in pieces:
            new_labels[piece] = new[place : place + piece.stop - piece.start]
            place += piece.stop - piece.start
        n_pairs += n_tested
        add_slab(slab, new[:size], totals, threads)
    if last_use:
        spare.append(clusters.centers)
    updated = finish_update(stored, new_labels, totals, n_clusters, threads, spare)
    return Reassigned(new_labels, int(np.count_nonzero(new_labels != labels)), n_pairs, updated)


def begin(stored: StoredPoints, labels: NDArray[np.int32], n_clusters: int, threads: Threads) -> Clustering:
    """The state of given labels."""
    totals = no_totals(n_clusters, stored.points.rows.shape[1])
    for slab in blocks_of(len(labels), stored.slab_size):
        add_slab(load_slab(stored.points, stored.axes, [slab], threads), labels[slab], totals, threads)
    return Clustering(labels, finish_update(stored, labels, totals, n_clusters, threads, []))


def no_totals(n_clusters: int, n_features: int) -> Totals:
    """Where sums begin."""
    return Totals(np.zeros((n_clusters, n_features)), np.zeros(n_clusters), np.zeros(n_clusters))


def add_slab(slab: Points, labels: NDArray[np.int32], totals: Totals, threads: Threads) -> None:
    """Add the points of a slab to the sums of their clusters."""
    members, starts = _kernels.group_by_label(labels, len(totals.sizes))
    threads.for_each_block(partial(_kernels.add_to_totals, slab, members, starts, totals), len(totals.sizes))


def finish_update(
    stored: StoredPoints,
    labels: NDArray[np.int32],
    totals: Totals,
    n_clusters: int,
    threads: Threads,
    spare: list[NDArray[Any]],
) -> Clusters:
    """The clusters of given sums, none of them empty; ``labels`` change accordingly."""
    clusters = means_of(stored.points, totals, threads, spare)
    refill_empty(stored.points, labels, clusters, *_kernels.group_by_label(labels, n_clusters))
    forget(stored.points.rows)
    return clusters


def means_of(points: Points, totals: Totals, threads: Threads, spare: list[NDArray[Any]] | None = None) -> Clusters:
    """The clusters of given sums; the centres of empty ones are nowhere."""
    clusters = empty_clusters(points, len(totals.sizes), spare)

    def finish(first: int, last: int) -> None:
        _kernels.finish_clusters(totals, clusters, first, last)
        if points.spherical:
            move_onto_sphere(clusters, points.mean, first, last)

    threads.for_each_block(finish, len(totals.sizes))
    return clusters


# -- the start ---------------------------------------------------------------------------------------------------------


def start_labels(
    init: NDArray[Any], stored: StoredPoints, X: Rows, spherical: bool, threads: Threads
) -> NDArray[np.int32]:
    """Labels of the points by given labels or centres."""
    n_points = len(stored.order)
    labels = np.empty(n_points, np.int32)
    slabs = blocks_of(n_points, stored.slab_size)
    if init.ndim == 1:
        for slab in slabs:
            labels[slab] = init[stored.order[slab]]
        return labels
    mean = stored.points.mean
    centers = (init - mean).astype(mean.dtype)
    sample = read(X, slice(0, n_points, -(-n_points // SAMPLE_ROWS)), spherical)
    quantizer = build_quantizer(centers, mean, sample, threads) if len(centers) > MANY_CENTERS else None
    for slab in slabs:
        rows = as_numbers(stored.points.rows[slab])
        if quantizer is None:
            labels[slab], _ = nearest_centers(rows, centers, mean, threads)
        else:
            labels[slab], _ = quantize(rows, quantizer, threads)
        forget(stored.points.rows)
    return labels
