"""Balanced clusters: an upper bound on the cluster size, enforced by penalties (dual ascent).

Full clusters accept no points. The penalty of a cluster is added to the squared distance of each point to its centre.
It grows from iteration to iteration while the cluster is full, so that border points, which lose least, move to
neighbouring clusters and make room for others; otherwise it falls, never below zero. This is dual ascent on the
Lagrangian of k-means with an upper bound on the sizes. Without penalties full clusters could not exchange points.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.clusters import Clusters

# The penalty of a cluster of this share of the largest size stays as it is.
NEARLY_FULL = 0.9
# Rise of the penalty in an iteration at twice that size, as a part of the mean squared distance of the cluster.
STEP = 0.2
# Tolerated relative rounding error of a sum of weights.
ROUNDING = 1e-9


def check_max_size(max_size: float, weights: NDArray[np.float64], n_rows: int, n_clusters: int) -> None:
    """Raise unless an upper bound on the cluster size leaves room for all rows, each in one cluster as a whole."""
    weights = np.broadcast_to(weights, n_rows)
    weights = weights[weights > 0]
    room = max_size * (1 + ROUNDING)
    mean = float(weights.sum() / n_clusters)
    if room < mean:
        raise ValueError(f"max_size must be at least the mean size of a cluster, {mean:g}, got {max_size:g}")
    if room < weights.max():
        raise ValueError(
            f"max_size must be at least the weight of the heaviest row, {weights.max():g}, got {max_size:g}"
        )
    lightest = float(weights.min())
    n_each = math.floor(room / lightest)
    if n_each * n_clusters < len(weights):
        raise ValueError(
            f"max_size must leave room for all {len(weights)} rows: {n_clusters} clusters of at most {max_size:g} hold "
            f"{n_each} whole rows each; it must be at least {-(-len(weights) // n_clusters) * lightest:g}"
        )


def adapt_penalties(clusters: Clusters, max_size: float) -> Clusters:
    """Adapt the penalties to the sizes."""
    demand = np.minimum(clusters.sizes / (NEARLY_FULL * max_size) - 1, 1)
    step = STEP * clusters.errors / clusters.sizes
    return clusters._replace(penalties=np.maximum(0, clusters.penalties + step * demand))


def admit(
    labels: NDArray[np.int32],
    new_labels: NDArray[np.int32],
    weights: NDArray[Any],
    sizes: NDArray[np.float64],
    max_size: float,
) -> None:
    """Undo moves into clusters that would exceed the largest size, the last of their points first.

    ``new_labels`` and ``sizes`` change accordingly. A point that stays counts again in its old cluster, so that this is
    repeated until no cluster has accepted too many points. A cluster that was too large before accepts none.
    """
    moved = np.flatnonzero(labels != new_labels)
    old, new = labels[moved], new_labels[moved]
    weight = np.broadcast_to(weights, len(labels))[moved].astype(np.float64)
    sizes += np.bincount(new, weight, len(sizes)) - np.bincount(old, weight, len(sizes))
    while True:
        waiting = np.flatnonzero((sizes > max_size)[new])
        if len(waiting) == 0:
            return
        last_first = waiting[::-1][np.argsort(new[waiting[::-1]], kind="stable")]
        before = np.cumsum(weight[last_first]) - weight[last_first]
        first_of_cluster = np.searchsorted(new[last_first], new[last_first])
        before -= before[first_of_cluster]
        refused = last_first[before < (sizes - max_size)[new[last_first]]]
        sizes += np.bincount(old[refused], weight[refused], len(sizes))
        sizes -= np.bincount(new[refused], weight[refused], len(sizes))
        new_labels[moved[refused]] = old[refused]
        stay = np.delete(np.arange(len(moved)), refused)
        moved, old, new, weight = moved[stay], old[stay], new[stay], weight[stay]
