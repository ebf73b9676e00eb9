"""Balanced clusters: a soft penalty on those that are too large.

Membership of a cluster costs a point the squared distance to its centre, plus the cluster's penalty. The penalty of a
cluster above the wanted size grows from iteration to iteration, and shrinks again, never below zero, once it is small
enough: the points on its border, which lose least, go to its neighbours. It is the price of room in a cluster, found as
in a market (dual ascent on the Lagrangian of k-means with an upper bound on the sizes).
"""

from __future__ import annotations

import numpy as np

from closure_kmeans.clusters import Clusters

# How much dearer a cluster of twice the wanted size becomes in an iteration, as a part of the mean squared distance.
STEP = 0.1
# A bound on that, for clusters that are many times too large.
LARGEST_EXCESS = 1.0
# Prices aim a little below the wanted size: those that aimed at it would hover around it.
AIM = 0.97


def adapt_penalties(clusters: Clusters, max_size: float) -> Clusters:
    """Clusters whose penalties follow their sizes."""
    excess = np.minimum(clusters.sizes / (AIM * max_size) - 1, LARGEST_EXCESS)
    step = STEP * clusters.inertia / clusters.sizes.sum()
    return clusters._replace(penalties=np.maximum(0, clusters.penalties + step * excess))


def are_balanced(clusters: Clusters, max_size: float | None) -> bool:
    """Whether no cluster is larger than wanted."""
    return max_size is None or bool(clusters.sizes.max() <= max_size)
