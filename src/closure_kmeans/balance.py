"""Balanced clusters: room is limited, and has a price.

A cluster admits points as long as it has room. Membership costs a point the squared distance to the centre, plus the
cluster's penalty: the price of room, found as in a market. It grows from iteration to iteration while the cluster is
full, so that the points on its border, which lose least, go to its neighbours and make room for others; and it falls
again, never below zero, when the cluster is not (dual ascent on the Lagrangian of k-means with an upper bound on the
sizes). Without a price full clusters could not exchange their points.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.clusters import Clusters

# A cluster of this share of the largest size keeps its price.
NEARLY_FULL = 0.9
# How much the price rises in an iteration at twice that size, as a part of the cluster's mean squared distance.
STEP = 0.2


def adapt_penalties(clusters: Clusters, max_size: float) -> Clusters:
    """Clusters whose penalties follow their sizes."""
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
    """Send back those who moved to clusters that have no room for them, the last of the points first.

    ``new_labels`` change accordingly, and ``sizes`` become those after the move. Who is sent back takes up room again
    where it came from: that is looked at again, until all have found theirs. A cluster that was too large before
    admits nobody.
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
