"""Rows in memory, in the order of a first tree, so that neighbours lie near each other.

The rows keep the dtype that they came in. Only float32 rows of whole numbers from 0 to 255, as SIFT descriptors are,
are held as bytes: that changes nothing but the memory they take. Trees are grown over a few principal coordinates of
the rows, or over the rows themselves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import kernels
from closure_kmeans.balance import admit
from closure_kmeans.clusters import Clusters, extrapolate, sample_accuracy, update
from closure_kmeans.iteration import CenterBuffers, Clustering
from closure_kmeans.kept import KeptNeighborhoods
from closure_kmeans.method import Method
from closure_kmeans.nearest import SAMPLE_ROWS
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
    map_of,
    mean_of,
    precision,
    rows_per_block,
    shifted,
)
from closure_kmeans.spherical import with_means
from closure_kmeans.stores import Assigned, Rule, Store
from closure_kmeans.trees import (
    DATA_SAMPLE,
    AllClusters,
    LeavesOf,
    Neighborhoods,
    RandomPartition,
    fresh_neighborhoods,
    grow_leaves,
    grow_partition,
    principal_axes,
    suitable_leaf_size,
    unite_leaves,
)

# Up to this many clusters, points are tested with all of them: a leaf has about as many candidates.
FEW_CLUSTERS = 128
# Leaves of the first tree in a group of the first iteration: fewer clusters than a normal leaf has, so that it takes
# less than half as long. Only above FEW_LEAVES clusters, so that there are enough groups for all threads.
LEAVES_TOGETHER, FEW_LEAVES = 32, 2000

LocalState: TypeAlias = Clustering[NDArray[np.int32]]


class LocalStore(Store[NDArray[np.int32], LeavesOf]):
    """The parts that stores on one machine share: labels in an array, and centres that take turns in memory.

    The points are in the order of a first tree; ``order`` has the user's row of each. With ``look_back`` a state keeps
    the centres of the iteration before, for extrapolation.
    """

    def __init__(
        self,
        points: Points,
        order: NDArray[np.int32],
        n_clusters: int,
        *,
        look_back: bool,
        rng: np.random.Generator,
        threads: Threads,
    ) -> None:
        self.points, self.order, self.n_clusters = points, order, n_clusters
        self.rng, self.threads = rng, threads
        self.n_points, self.offset = len(order), points.offset
        shape = n_clusters, points.rows.shape[1]
        self.buffers = CenterBuffers(shape, points.offset.dtype, keep_previous=look_back)

    @abstractmethod
    def blocks(self) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield slices of points, and their rows."""

    def target(self, state: LocalState, rule: Rule) -> Clusters:
        """The clusters that points are assigned to: with their present or with extrapolated centres."""
        if not rule.ahead or state.previous is None:
            return state.clusters
        return extrapolate(state.clusters, state.previous, self.n_points, self.buffers.next, self.threads)

    def accuracy(self, state: LocalState) -> float:
        """The share of a sample of points that are assigned to the nearest of all centres."""
        return sample_accuracy(self.points, state.clusters.centers, state.labels, self.threads)

    def user_labels(self, labels: NDArray[np.int32]) -> NDArray[np.int32]:
        """The labels in the order of the user's rows."""
        ordered = np.empty(self.n_points, np.int32)
        ordered[self.order] = labels
        return ordered


class MemoryStore(LocalStore[RandomPartition]):
    """Rows in memory: ``X``, L2-normalised if ``spherical``; the other parameters as above."""

    def __init__(
        self,
        X: NDArray[Any],
        weights: NDArray[Any],
        n_clusters: int,
        *,
        tree_dims: int | None,
        spherical: bool = False,
        look_back: bool = False,
        rng: np.random.Generator,
        threads: Threads,
    ) -> None:
        points, self.tree = arrange_points(X, weights, n_clusters, tree_dims, rng, threads)
        points = points._replace(spherical=spherical)
        super().__init__(points, self.tree.members, n_clusters, look_back=look_back, rng=rng, threads=threads)
        check_uncut(X)
        self.sample = X[:: -(-len(X) // SAMPLE_ROWS)].copy()
        forget(X)  # X is not read again

    def tree_labels(self) -> NDArray[np.int32]:
        """The leaves of the first tree as clusters (section 4.3)."""
        return np.repeat(np.arange(len(self.tree.starts) - 1, dtype=np.int32), np.diff(self.tree.starts))

    def blocks(self) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield slices of points, and their rows."""
        yield slice(0, self.n_points), as_numbers(self.points.rows)

    def begin(self, labels: NDArray[np.int32]) -> LocalState:
        """The state of given labels, which change where a cluster has no points."""
        return Clustering(labels, update(self.points, labels, self.n_clusters, self.threads))

    def grow(self, leaf_size: int) -> RandomPartition:
        """A random partition of the points into leaves of at most ``leaf_size``."""
        return grow_leaves(self.points.coordinates, self.points.origin, leaf_size, self.rng, self.threads)

    def neighborhoods(
        self, method: Method, target_accuracy: float, *, from_tree: bool
    ) -> Neighborhoods[RandomPartition]:
        """The neighbourhoods that a method asks for; ``from_tree``: the start is the leaves of the first tree."""
        k = self.n_clusters
        if method.neighborhoods == "all" or (method.neighborhoods == "auto" and k <= FEW_CLUSTERS):
            return AllClusters(self.n_points)
        if method.neighborhoods == "kept":
            leaf_size = method.leaf_size or suitable_leaf_size(self.n_points, k)
            return KeptNeighborhoods(
                self.grow, leaf_size, method.max_trees, adaptive=method.adaptive, min_fall=method.min_fall
            )
        over_start = from_tree and method.leaf_size is None and k > FEW_LEAVES
        first = self.grow_over_start(-(-k // LEAVES_TOGETHER)) if over_start else None
        return fresh_neighborhoods(self.grow, self.n_points, k, method, target_accuracy, first=first)

    def grow_over_start(self, n_leaves: int) -> RandomPartition:
        """A random partition of whole leaves of the first tree, grown over the first point of each leaf."""
        starts = self.tree.starts
        firsts = self.points.coordinates[starts[:-1]]
        return unite_leaves(starts, grow_partition(firsts, self.points.origin, n_leaves, self.rng, self.threads))

    def assign(self, state: LocalState, leaves: list[RandomPartition], rule: Rule) -> Assigned[NDArray[np.int32]]:
        """Assign each point to the best of the clusters of its neighbours, and update the clusters that changed."""
        labels = state.labels
        new_labels, n_pairs = assign_by_closures(
            self.points, self.target(state, rule), labels, leaves, rule, self.threads
        )
        if rule.max_size < np.inf:
            admit(labels, new_labels, self.points.weights, state.clusters.sizes.copy(), rule.max_size)
        before = (labels, state.clusters)
        updated = update(self.points, new_labels, self.n_clusters, self.threads, self.buffers.next, before)
        return Assigned(new_labels, int(np.count_nonzero(new_labels != labels)), n_pairs, updated)


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
    """Assign the points of the leaves ``first <= leaf < last`` of one partition: see the kernel."""
    n_clusters = len(clusters.sizes)
    largest = n_clusters if partition.open_to_all else int(np.diff(partition.starts[first : last + 1]).max())
    memory = kernels.tiles.leaf_memory(clusters, min(largest, n_clusters), len(points.weights) > 1)
    return kernels.tiles.assign_leaves(
        points.weighted_rows, clusters, labels, partition, hartigan, new_labels, scores, memory, first, last
    )


def arrange_points(
    X: NDArray[Any],
    weights: NDArray[Any],
    n_leaves: int,
    n_axes: int | None,
    rng: np.random.Generator,
    threads: Threads,
) -> tuple[Points, RandomPartition]:
    """Order the rows by a first tree of ``n_leaves`` leaves.

    Returns the points and the tree; point i is row ``tree.members[i]`` of X, and leaf j holds the points from
    ``tree.starts[j]`` on.
    """
    dtype = precision(X.dtype)
    check_uncut(X)
    sample = X[np.sort(rng.choice(len(X), min(len(X), DATA_SAMPLE), replace=False))].astype(dtype)
    offset = mean_of(sample)
    centred = shifted(sample, offset)
    check_values(X, np.einsum("ij,ij->i", centred, centred))
    axes, origin = None, offset
    if n_axes is not None and n_axes < X.shape[1]:
        axes = principal_axes(centred, n_axes, int(rng.integers(2**31)))
        origin = np.zeros(axes.shape[1], dtype)
    may_be_bytes = X.dtype == np.float32 and are_bytes(sample)
    held, coordinates, norms = measure_points(X, offset, axes, may_be_bytes, threads)
    check_values(X, 4 * norms)  # a squared distance is at most 4 times the largest squared norm
    check_weights(weights, norms)
    tree = grow_partition(coordinates, origin, n_leaves, rng, threads)
    rows = reorder(held, tree.members, threads)
    del held  # before the coordinates are copied
    points = Points(
        rows=rows,
        offset=offset,
        weights=weights[tree.members] if len(weights) > 1 else weights,
        coordinates=rows if axes is None else reorder(coordinates, tree.members, threads),
        origin=origin,
    )
    return points, tree


def measure_points(
    X: NDArray[Any], offset: NDArray[Any], axes: NDArray[Any] | None, may_be_bytes: bool, threads: Threads
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Compute the stored rows, their coordinates, and the squared norms of the rows less the offset."""
    norms = np.empty(len(X), offset.dtype)
    coordinates = empty_rows((len(X), 0 if axes is None else axes.shape[1]), offset.dtype)
    in_bytes = empty_rows((len(X) if may_be_bytes else 0, X.shape[1]), np.uint8)

    def measure(first: int, last: int) -> bool:
        check_uncut(X)
        block = shifted(X[first:last], offset)
        norms[first:last] = np.einsum("ij,ij->i", block, block)
        if axes is not None:
            np.dot(block, axes, out=coordinates[first:last])
        forget(X)
        fits = may_be_bytes and are_bytes(X[first:last])
        if fits:
            in_bytes[first:last] = X[first:last]
        return fits

    if all(threads.for_each_block(measure, len(X), rows_per_block(X))):
        held = in_bytes
    else:
        held = X.view(np.uint16) if X.dtype == np.float16 else X
    return held, np.ascontiguousarray(held) if axes is None else coordinates, norms


def reorder(rows: NDArray[Any], order: NDArray[np.int32], threads: Threads) -> NDArray[Any]:
    """The rows in a given order, as a new array; those of a memory map are read once, block by block."""
    result = empty_rows(rows.shape, rows.dtype)
    mapped = map_of(rows) is not None
    places = np.empty_like(order) if mapped else order
    if mapped:
        places[order] = np.arange(len(order), dtype=order.dtype)

    def copy(first: int, last: int) -> None:
        check_uncut(rows)
        if mapped:
            result[places[first:last]] = rows[first:last]
            forget(rows)
        elif rows.flags.c_contiguous:  # np.take would copy all strided rows
            np.take(rows, order[first:last], axis=0, out=result[first:last], mode="clip")
        else:
            result[first:last] = rows[order[first:last]]

    threads.for_each_block(copy, len(rows), rows_per_block(rows))
    return result
