"""Larger than memory: the points lie on disk, and an iteration reads them in slabs.

A pass reads slabs that fit in memory, one after the other, and grows its trees inside a slab. A slab is made of cells
of the layout that are neighbours: a fresh tree over the cells, cut at as many leaves as there are slabs, is the upper
part of the pass's trees, so that the borders differ from pass to pass. Nor is a border one for clusters: the centres
near a slab are entered into its trees as points, so that their clusters are candidates in the leaves that they fall
into.

In memory are the labels, the centres and one slab. Sums run over the slabs in their order, and over the points of a
slab in theirs: the result is the same on any number of threads.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import kernels
from closure_kmeans.balance import admit
from closure_kmeans.closure import Reassigned, Rule, assign_by_closures
from closure_kmeans.clusters import Clusters, empty_clusters, move_onto_sphere, refill_empty
from closure_kmeans.iteration import Clustering
from closure_kmeans.layout import StoredPoints, along, blocks_of, forget, load_slab, sample_rows, slab_memory
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points, as_numbers, grow_leaves
from closure_kmeans.quantizer import MANY_CENTERS, SAMPLE_ROWS, build_quantizer, nearest_centers, quantize
from closure_kmeans.trees import RandomPartition, grow_partition
from closure_kmeans.vectors.rows import Rows

# How many of the nearest cells a centre is entered into, and for how many centres these are looked up at a time.
NEAR_CELLS, BLOCK_CENTERS = 8, 128
# Fewer where so many pairs of centre and cell would be passed: these are held at a time, however many cells there are.
BLOCK_PAIRS = 1 << 21


class SlabPartition(NamedTuple):
    """A random partition that is yet to be grown, slab by slab, always in the same way."""

    slabs: RandomPartition  # of the cells
    leaf_size: int
    seed: int
    open_to_all: bool = False


class Slab(NamedTuple):
    """Which part of the data is looked at together."""

    pieces: list[slice]  # of the file
    entered: NDArray[np.int32]  # the clusters whose centres are near

    @property
    def n_points(self) -> int:
        """The points in the pieces."""
        return sum(piece.stop - piece.start for piece in self.pieces)


class Totals(NamedTuple):
    """What the means of the clusters are computed from, summed up over slabs in double precision."""

    sums: NDArray[np.float64]  # (k, d) of the rows
    sizes: NDArray[np.float64]  # (k,) of the weights
    squares: NDArray[np.float64]  # (k,) of the rows' squared lengths


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

    threads.for_each_block(find, len(coordinates), max(1, min(BLOCK_CENTERS, BLOCK_PAIRS // len(cells))))
    return near


def list_slabs(stored: StoredPoints, slabs: RandomPartition, near: NDArray[np.int32]) -> list[Slab]:
    """The slabs of a pass, given the cells that each centre is near to."""
    listed = []
    for first, last in pairwise(slabs.starts.tolist()):
        cells = np.sort(slabs.members[first:last])
        pieces = [slice(*stored.cell_starts[cell : cell + 2].tolist()) for cell in cells]
        listed.append(Slab(pieces, np.flatnonzero(np.isin(near, cells).any(axis=1)).astype(np.int32)))
    return listed


def assign_and_update(
    stored: StoredPoints,
    state: Clustering,
    clusters: Clusters,
    partitions: list[SlabPartition],
    rule: Rule,
    threads: Threads,
    spare: list[NDArray[Any]],
    last_use: bool,
    max_size: float | None = None,
) -> Reassigned:
    """What ``closure.assign_and_update`` does, slab by slab."""
    (partition,) = partitions
    labels, n_clusters = state.labels, len(clusters.centers)
    center_coordinates = along(clusters.centers, stored.axes)
    slabs = list_slabs(stored, partition.slabs, nearest_cells(stored.cells, center_coordinates, threads))
    memory = slab_memory(stored.points, stored.axes, max(slab.n_points + len(slab.entered) for slab in slabs))
    new_labels = np.empty_like(labels)
    totals = no_totals(*clusters.centers.shape)
    sizes = clusters.sizes.copy()
    n_pairs = 0
    for number, slab in enumerate(slabs):
        size = slab.n_points
        points = load_slab(stored.points, stored.axes, slab.pieces, memory, threads, len(slab.entered))
        points.coordinates[size:] = center_coordinates[slab.entered]
        rng = np.random.default_rng([partition.seed, number])
        leaves = grow_leaves(points, rng, threads, partition.leaf_size)
        old = np.concatenate([*(labels[piece] for piece in slab.pieces), slab.entered])
        new, n_tested = assign_by_closures(points, clusters, old, [leaves], rule, threads)
        if max_size is not None:
            admit(old[:size], new[:size], points.weights[:size], sizes, max_size)
        place = 0
        for piece in slab.pieces:
            new_labels[piece] = new[place : place + piece.stop - piece.start]
            place += piece.stop - piece.start
        n_pairs += n_tested
        add_slab(points, new[:size], totals, threads)
    del memory, points
    if last_use:
        spare.append(clusters.centers)
    updated = finish_update(stored, new_labels, totals, n_clusters, threads, spare)
    return Reassigned(new_labels, int(np.count_nonzero(new_labels != labels)), n_pairs, updated)


def begin(stored: StoredPoints, labels: NDArray[np.int32], n_clusters: int, threads: Threads) -> Clustering:
    """The state of given labels."""
    totals = no_totals(n_clusters, stored.points.rows.shape[1])
    memory = slab_memory(stored.points, stored.axes, stored.slab_size)
    for slab in blocks_of(len(labels), stored.slab_size):
        points = load_slab(stored.points, stored.axes, [slab], memory, threads)
        add_slab(points, labels[slab], totals, threads)
    del memory, points
    return Clustering(labels, finish_update(stored, labels, totals, n_clusters, threads, []))


def no_totals(n_clusters: int, n_features: int) -> Totals:
    """Where sums begin."""
    return Totals(np.zeros((n_clusters, n_features)), np.zeros(n_clusters), np.zeros(n_clusters))


def add_slab(slab: Points, labels: NDArray[np.int32], totals: Totals, threads: Threads) -> None:
    """Add the points of a slab to the sums of their clusters."""
    members, starts = kernels.group_by_label(labels, len(totals.sizes))
    threads.for_each_block(partial(kernels.add_to_totals, slab, members, starts, totals), len(totals.sizes))


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
    refill_empty(stored.points, labels, clusters, *kernels.group_by_label(labels, n_clusters))
    forget(stored.points.rows)
    return clusters


def means_of(points: Points, totals: Totals, threads: Threads, spare: list[NDArray[Any]] | None = None) -> Clusters:
    """The clusters of given sums; the centres of empty ones are nowhere."""
    clusters = empty_clusters(points, len(totals.sizes), spare)

    def finish(first: int, last: int) -> None:
        kernels.finish_clusters(totals, clusters, first, last)
        if points.spherical:
            move_onto_sphere(clusters, points.mean, np.arange(first, last))

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
    sample = sample_rows(X, SAMPLE_ROWS, spherical)
    quantizer = build_quantizer(centers, mean, sample, threads) if len(centers) > MANY_CENTERS else None
    for slab in slabs:
        rows = as_numbers(stored.points.rows[slab])
        if quantizer is None:
            labels[slab], _ = nearest_centers(rows, centers, mean, threads)
        else:
            labels[slab], _ = quantize(rows, quantizer, threads)
        forget(stored.points.rows)
    return labels
