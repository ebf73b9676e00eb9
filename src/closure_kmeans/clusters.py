"""Clusters as arrays, the update step, and the refilling of clusters that lost all their points."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import _kernels
from closure_kmeans._parallel import Threads
from closure_kmeans.partition import grow_partition
from closure_kmeans.points import Points


class Clusters(NamedTuple):
    """What the assignment step reads and the update step writes. Centres are relative to the points' mean."""

    centers: NDArray[Any]  # (k, d)
    norms: NDArray[Any]  # (k,) squared norms of the centres
    sizes: NDArray[np.float64]  # (k,) total weight of the members
    errors: NDArray[np.float64]  # (k,) sum of the members' weighted squared distances

    @property
    def inertia(self) -> float:
        """The objective of equation 1."""
        return float(self.errors.sum())


def make_clusters(centers: NDArray[Any]) -> Clusters:
    """Clusters that have centres and no members yet."""
    k = len(centers)
    return Clusters(centers, np.einsum("ij,ij->i", centers, centers), np.zeros(k), np.zeros(k))


def update(
    points: Points, labels: NDArray[np.int32], n_clusters: int, rng: np.random.Generator, threads: Threads
) -> Clusters:
    """The update step: the mean of every cluster; ``labels`` change where an empty cluster had to be refilled."""
    members, starts = _kernels.group_by_label(labels, n_clusters)
    clusters = make_clusters(np.zeros((n_clusters, points.rows.shape[1]), points.mean.dtype))
    threads.for_each_block(partial(_kernels.update_clusters, points, members, starts, clusters), n_clusters)
    while True:
        empty = np.flatnonzero(starts[:-1] == starts[1:])
        if len(empty) == 0:
            return clusters
        changed = refill(points, labels, clusters, members, starts, empty, rng, threads)
        members, starts = _kernels.group_by_label(labels, n_clusters)
        for cluster in changed:
            _kernels.update_clusters(points, members, starts, clusters, cluster, cluster + 1)


def refill(
    points: Points,
    labels: NDArray[np.int32],
    clusters: Clusters,
    members: NDArray[np.int32],
    starts: NDArray[np.int64],
    empty: NDArray[np.int64],
    rng: np.random.Generator,
    threads: Threads,
) -> NDArray[np.int64]:
    """Split the clusters of largest error in two, one for each empty cluster, as far as there are such clusters."""
    divisible = np.flatnonzero(np.diff(starts) > 1)
    largest_first = divisible[np.argsort(-clusters.errors[divisible], kind="stable")]
    donors = largest_first[: len(empty)]
    filled = empty[: len(donors)]
    for donor, cluster in zip(donors, filled, strict=True):
        group = members[starts[donor] : starts[donor + 1]]
        halves = grow_partition(points.coordinates[group], points.origin, 2, rng, threads)
        labels[group[halves.members[halves.starts[1] :]]] = cluster
    return np.concatenate([donors, filled])
