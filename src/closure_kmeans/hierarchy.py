"""Clusters of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from closure_kmeans import validation as check
from closure_kmeans.base import BaseKMeans


class Level(NamedTuple):
    """Clusters of the clusters of the level below."""

    parents: NDArray[np.int32]  # (n_below,) the cluster of this level that each cluster of the level below is in
    centers: NDArray[np.floating]  # (n_clusters, d)
    sizes: NDArray[np.float64]  # (n_clusters,) number of rows in each, or their weight


def cluster_centers(model: BaseKMeans, like: BaseKMeans, levels: Sequence[int]) -> list[Level]:
    """Cluster the centres of a model, and those again; ``like`` is an estimator with the parameters for it."""
    check_is_fitted(model, "cluster_centers_")
    if not np.iterable(levels):
        raise TypeError(f"levels must be a sequence of integers, such as [{levels}], got {levels!r}")
    centers, sizes = np.asarray(model.cluster_centers_), np.asarray(model.cluster_sizes_)
    hierarchy: list[Level] = []
    for n_clusters in levels:
        check.integer("levels", n_clusters, 1)
        if n_clusters >= len(centers):
            raise ValueError(
                f"levels must have fewer clusters than the level below, which has {len(centers)}, got {n_clusters}"
            )
        above = like.set_params(n_clusters=n_clusters).fit(centers, sample_weight=sizes)
        centers, sizes = above.cluster_centers_, above.cluster_sizes_
        hierarchy.append(Level(above.labels_, centers, sizes))
    return hierarchy
