"""Stores of the rows: in memory, on disk or on Dask.

``closure.py`` uses the rows only through the protocol ``Store``. All stores rotate the same buffers of centres, and
assign points by the same function, which takes points in memory: all of them, a slab or a partition.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Generic, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from closure_kmeans import kernels
from closure_kmeans.clusters import Clusters
from closure_kmeans.iteration import Clustering, Labels
from closure_kmeans.method import Method
from closure_kmeans.neighborhoods import LeavesOf, Neighborhoods
from closure_kmeans.parallel import Threads
from closure_kmeans.points import (
    EQUALLY_NEAR,
    Points,
    as_numbers,
    empty_rows,
    rows_per_block,
    shifted,
    squared_distances,
)
from closure_kmeans.trees import RandomPartition

# Rows that show the accuracy of an assignment: it is known to half a percent or better.
ACCURACY_ROWS = 500
# Centres in one matrix product with these rows; both fit into the second-level cache.
ACCURACY_CENTERS = 512
# Cluster sizes between which the extrapolation factor rises from 0 to 1: extrapolation would empty smaller clusters.
EXTRAPOLATE_FROM, EXTRAPOLATE_FULLY = 10, 50


class Rule(NamedTuple):
    """How points move in an assignment."""

    hartigan: bool = False  # Hartigan's rule: a move must lower the distortion, the shift of both centres included
    ahead: bool = False  # points are assigned to the extrapolated centres
    max_size: float = np.inf  # of a cluster, in rows or their weight
    part: int = 1  # each mover moves with probability 1 / part
    seed: int = 0  # of this random choice


class Assigned(NamedTuple, Generic[Labels]):
    """Outcome of an assignment and the update after it."""

    labels: Labels
    n_active: int  # points that changed their cluster
    n_pairs: int  # tested pairs of point and candidate
    clusters: Clusters  # without penalties


class CenterBuffers:
    """Memory for the centres of an iteration, of the one before and of the next, which take turns.

    With many clusters the centres are large, and new memory takes as long as the arithmetic. With ``keep_previous`` a
    state keeps the centres of the iteration before, for extrapolation.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, *, keep_previous: bool) -> None:
        self._shape, self._dtype = shape, dtype
        self._keep_previous = keep_previous
        self._next: NDArray[Any] | None = None

    @property
    def next(self) -> NDArray[Any]:
        """Memory for the extrapolated centres and, once the points are assigned to these, for the updated ones."""
        if self._next is None:
            self._next = empty_rows(self._shape, self._dtype)
        return self._next

    def release(self) -> None:
        """Free the memory of the next centres, unless a state still holds it."""
        self._next = None

    def rotate(self, state: Clustering[Labels], labels: Labels, clusters: Clusters) -> Clustering[Labels]:
        """The state after ``state``, whose centres are in ``next``; the oldest are overwritten next."""
        if not self._keep_previous:
            self._next = state.clusters.centers
            return Clustering(labels, clusters)
        self._next = state.previous
        return Clustering(labels, clusters, state.clusters.centers)


class Store(Protocol[Labels, LeavesOf]):
    """All that the algorithm knows of the rows."""

    n_points: int
    offset: NDArray[Any]  # (d,) that centres are relative to, in the precision of the arithmetic
    sample: NDArray[Any]  # some rows, spread over the data, as the metric sees them
    buffers: CenterBuffers  # of which ``assign`` writes to the next one

    def tree_labels(self) -> Labels:
        """The leaves of the first tree as clusters (section 4.3)."""

    def begin(self, labels: Labels) -> Clustering[Labels]:
        """The state of the first labels, which may change: no cluster is empty."""

    def neighborhoods(self, method: Method, target_accuracy: float, *, from_tree: bool) -> Neighborhoods[LeavesOf]:
        """The neighbourhoods that a method asks for; ``from_tree``: the start is the leaves of the first tree."""

    def assign(self, state: Clustering[Labels], leaves: list[LeavesOf], rule: Rule) -> Assigned[Labels]:
        """Assign each point to the best of the clusters of its neighbours, and update the clusters, none of them empty.

        The new centres are in a buffer that the next call overwrites, unless the outcome is accepted.
        """

    def accept(self, state: Clustering[Labels], labels: Labels, clusters: Clusters) -> Clustering[Labels]:
        """The state after ``state``, from the outcome of the last assignment."""
        return self.buffers.rotate(state, labels, clusters)

    def accuracy(self, state: Clustering[Labels]) -> float:
        """The share of a sample of points that are assigned to the nearest of all centres."""

    def user_centers(self, clusters: Clusters) -> NDArray[Any]:
        """The centres with the offset added back; the memory of the next centres is free before."""
        self.buffers.release()
        centers: NDArray[Any] = clusters.centers + self.offset
        return centers

    def user_labels(self, labels: Labels) -> NDArray[np.int32]:
        """The labels in the order of the user's rows."""


def assign_by_closures(
    points: Points,
    clusters: Clusters,
    labels: NDArray[np.int32],
    leaves: list[RandomPartition],
    rule: Rule,
    threads: Threads,
) -> tuple[NDArray[np.int32], int]:
    """Assign each point to the best of the clusters whose closures hold it (section 3.1).

    A closure is the union of the neighbourhoods of its points, and these are leaves: so the candidates of a point are
    the clusters that share a leaf with it, and the best over all partitions is the best of each partition's best.
    Returns the new labels and the number of pairs of point and candidate that were tested.
    """
    if rule.hartigan and points.spherical:
        clusters = with_means(clusters, points.offset, threads)
    new_labels = labels.copy()
    scores = np.full(len(labels), np.inf, points.offset.dtype)
    n_pairs = 0
    for partition in leaves:
        assign = partial(assign_leaves, points, clusters, labels, partition, rule.hartigan, new_labels, scores)
        n_pairs += sum(threads.for_each_block(assign, len(partition.starts) - 1))
    if rule.part > 1:
        movers = np.flatnonzero(new_labels != labels)
        stay = movers[np.random.default_rng([rule.seed, rule.part]).integers(rule.part, size=len(movers)) > 0]
        new_labels[stay] = labels[stay]
    return new_labels, n_pairs


def assign_leaves(
    points: Points,
    clusters: Clusters,
    labels: NDArray[np.int32],
    partition: RandomPartition,
    hartigan: bool,
    new_labels: NDArray[np.int32],
    scores: NDArray[Any],
    first: int,
    last: int,
) -> int:
    """Assign the points of some leaves of one partition, as the kernel says."""
    n_clusters = len(clusters.sizes)
    largest = n_clusters if partition.open_to_all else int(np.diff(partition.starts[first : last + 1]).max())
    memory = kernels.tiles.leaf_memory(clusters, min(largest, n_clusters), len(points.weights) > 1)
    return kernels.tiles.assign_leaves(
        points.weighted_rows, clusters, labels, partition, hartigan, new_labels, scores, memory, first, last
    )


def sample_accuracy(points: Points, centers: NDArray[Any], labels: NDArray[np.int32], threads: Threads) -> float:
    """The share of a sample of points, spread over the data, whose cluster has the nearest of all centres.

    Of several centres that are equally near, any one counts.
    """
    sample = slice(None, None, -(-len(points.rows) // ACCURACY_ROWS))
    given = as_numbers(points.rows[sample])
    rows = shifted(given, points.offset)
    everyone = np.arange(len(rows))

    def search(first: int, last: int) -> tuple[NDArray[Any], NDArray[Any]]:
        some = centers[first:last]
        scores = np.einsum("ij,ij->i", some, some) - 2 * (rows @ some.T)
        found = scores.argmin(axis=1)
        return scores[everyone, found], first + found

    blocks = threads.for_each_block(search, len(centers), ACCURACY_CENTERS)
    best = np.argmin([scores for scores, _ in blocks], axis=0)
    nearest = np.array([found for _, found in blocks])[best, everyone]
    own, smallest = (squared_distances(given, centers, points.offset, each) for each in (labels[sample], nearest))
    return float(np.mean(own <= smallest * EQUALLY_NEAR))


def with_means(clusters: Clusters, offset: NDArray[Any], threads: Threads) -> Clusters:
    """Replace unit-length centres by the means of their clusters, by which points on the sphere move (Hartigan's rule).

    The mean of a cluster of directions has the length 1 - error / (2 size). By the exact gain of a direction, points
    far from all others prefer the clusters whose sum is shortest; all of them move there at once and undo each other.
    Moves by the means do not, and end at a lower spherical distortion.
    """
    lengths = (1 - clusters.errors / (2 * clusters.sizes)).astype(offset.dtype)[:, np.newaxis]
    centers = empty_rows(clusters.centers.shape, offset.dtype)

    def shorten(first: int, last: int) -> None:
        some = slice(first, last)
        np.add(clusters.centers[some], offset, out=centers[some])
        centers[some] *= lengths[some]
        centers[some] -= offset

    threads.for_each_block(shorten, len(centers), rows_per_block(centers))
    return clusters._replace(centers=centers)


def extrapolate(
    clusters: Clusters, previous: NDArray[Any], n_points: int, out: NDArray[Any], threads: Threads
) -> Clusters:
    """Extrapolate each centre by up to its last displacement.

    ``out`` is memory for them. ``norms`` stay those of the centres as they were updated.
    """
    sizes = clusters.sizes * (n_points / clusters.sizes.sum())  # in points, whatever their weights
    reach = ((sizes - EXTRAPOLATE_FROM) / (EXTRAPOLATE_FULLY - EXTRAPOLATE_FROM)).clip(0, 1)
    reach = reach.astype(previous.dtype)[:, np.newaxis]
    if reach.max() == 0:
        return clusters

    def move(first: int, last: int) -> None:
        some = slice(first, last)
        np.subtract(clusters.centers[some], previous[some], out=out[some])
        out[some] *= reach[some]
        out[some] += clusters.centers[some]

    threads.for_each_block(move, len(out), rows_per_block(out))
    return clusters._replace(centers=out)
