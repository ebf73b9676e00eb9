"""The assignment step for points in memory (section 3.1), the same for all stores."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import kernels
from closure_kmeans.arrays import empty_rows
from closure_kmeans.clusters import Clusters
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points, rows_per_block
from closure_kmeans.stores import Rule
from closure_kmeans.trees import RandomPartition


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
