"""Clusters of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from closure_kmeans import validation as check
from closure_kmeans.model import FittedModel

# Parameters that the fits of the levels take over.
SHARED = ("metric", "target_accuracy", "method", "max_iter", "tol", "max_time", "random_state", "n_threads", "verbose")


class Level(NamedTuple):
    """One level of ``hierarchy``: clusters of the clusters of the level below.

    See Also
    --------
    closure_kmeans.ClosureKMeans.hierarchy : Returns a list of levels.

    Examples
    --------
    >>> from closure_kmeans import ClosureKMeans
    >>> from closure_kmeans.datasets import load_sift
    >>> model = ClosureKMeans(n_clusters=200, random_state=0).fit(load_sift()[:2000])
    >>> (level,) = model.hierarchy([20])
    >>> level.parents.shape, level.centers.shape, float(level.sizes.sum())
    ((200,), (20, 128), 2000.0)
    """

    parents: NDArray[np.int32]  # (n_below,) the cluster of this level that each cluster of the level below is in
    centers: NDArray[np.floating]  # (n_clusters, d)
    sizes: NDArray[np.float64]  # (n_clusters,) number of rows in each, or their weight


class ClustersOfClusters(FittedModel):
    """Adds ``hierarchy`` to an estimator."""

    def hierarchy(self, levels: Sequence[int]) -> list[Level]:
        """Cluster the clusters, level by level, by the same method and parameters.

        A centre has the weight of the rows of its cluster, so that the centres of a level are the means of all rows
        below them.

        Parameters
        ----------
        levels : sequence of int
            Number of clusters in each level, from fine to coarse, each less than in the level below.

        Returns
        -------
        list of Level
            For each level ``parents``, the cluster of this level that each cluster of the level below belongs to (in
            the first level, each cluster of the model), and its ``centers`` and ``sizes``.

        See Also
        --------
        closure_kmeans.baselines.HierarchicalKMeans : Top-down hierarchy.

        Examples
        --------
        >>> from closure_kmeans import ClosureKMeans
        >>> from closure_kmeans.datasets import load_sift
        >>> model = ClosureKMeans(n_clusters=1000, random_state=0).fit(load_sift())
        >>> fine, coarse = model.hierarchy([100, 10])
        >>> fine.parents.shape, coarse.parents.shape
        ((1000,), (100,))
        >>> in_coarse = coarse.parents[fine.parents[model.labels_]]  # of each row
        """
        from closure_kmeans.estimator import ClosureKMeans

        check_is_fitted(self, "cluster_centers_")
        if not np.iterable(levels):
            raise TypeError(f"levels must be a sequence of integers, such as [{levels}], got {levels!r}")
        own = self.get_params(deep=False)
        like = ClosureKMeans(**{name: own[name] for name in SHARED})
        centers, sizes = np.asarray(self.cluster_centers_), np.asarray(self.cluster_sizes_)
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
