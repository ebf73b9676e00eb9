"""Sums over parts of the data, from which the clusters are computed: of slabs on disk, or of partitions on Dask."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import kernels
from closure_kmeans.clusters import Clusters, empty_clusters, group_by_label
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points
from closure_kmeans.spherical import move_onto_sphere


class Totals(NamedTuple):
    """Sums over the points of each cluster, in double precision."""

    sums: NDArray[np.float64]  # (k, d) of the rows
    sizes: NDArray[np.float64]  # (k,) of the weights
    squares: NDArray[np.float64]  # (k,) of the rows' squared lengths


def no_totals(n_clusters: int, n_features: int) -> Totals:
    """Zero sums."""
    return Totals(np.zeros((n_clusters, n_features)), np.zeros(n_clusters), np.zeros(n_clusters))


def add_points(points: Points, labels: NDArray[np.int32], totals: Totals, threads: Threads) -> None:
    """Add some points to the sums of their clusters."""
    members = group_by_label(labels, len(totals.sizes))
    add = partial(kernels.rows.add_to_totals, points.weighted_rows, *members, totals)
    threads.for_each_block(add, len(totals.sizes))


def means_of(points: Points, totals: Totals, threads: Threads, out: NDArray[Any] | None = None) -> Clusters:
    """The clusters of given sums; the centres of empty ones are undefined. ``out`` is memory for the centres."""
    clusters = empty_clusters(points, len(totals.sizes), out)

    def finish(first: int, last: int) -> None:
        kernels.rows.finish_clusters(totals, clusters, first, last)
        if points.spherical:
            move_onto_sphere(clusters, points.offset, np.arange(first, last))

    threads.for_each_block(finish, len(totals.sizes))
    return clusters
