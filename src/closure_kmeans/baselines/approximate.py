"""Approximate k-means (AKM, Philbin et al. 2007): the nearest centre by a forest of k-d trees over the centres.

The forest is grown again in every iteration. A tree cuts a node at the mean of one of the dimensions in which it
spreads most, drawn at random, down to single centres. All trees are searched together: one queue holds the branches not
taken, and the nearest is followed next, until a given number of centres has been met. Refined AKM (RAKM, Philbin 2010)
leaves a point with its centre if the search finds no nearer one, so that the distortion never rises.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import validation as check
from closure_kmeans.baselines import kernels
from closure_kmeans.baselines.flat import Assign, FlatKMeans
from closure_kmeans.clusters import Clusters
from closure_kmeans.nearest import search_block
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points, as_numbers, rows_per_block, shifted


class Forest(NamedTuple):
    """Binary trees whose leaves are single centres, one tree after the other.

    A tree of k leaves has 2 k - 1 nodes, depth first: the first child of a node is the node behind it.
    """

    axes: NDArray[np.int32]  # (n_trees * (2 k - 1),) dimension in which a node is cut, or -1 for a leaf
    cuts: NDArray[Any]  # (n_trees * (2 k - 1),) where it is cut; the first child lies below
    others: NDArray[np.int32]  # (n_trees * (2 k - 1),) the second child, or of a leaf its centre


@dataclass(eq=False, repr=False, kw_only=True)
class ApproximateKMeans(FlatKMeans):
    """Approximate k-means (AKM, RAKM): a forest of k-d trees over the centres finds the candidates of a point.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters, k.
    n_candidates : int, default=50
        Number of centres that a point is compared with. k or more make it exact.
    n_trees : int, default=8
        Number of trees in the forest.
    refined : bool, default=False
        Whether the current centre of a point is one of its candidates (RAKM). Otherwise the distortion can rise.
    init, tree_dims, max_iter, tol, max_time, random_state, n_threads, callback, verbose : see ClosureKMeans
        As in :class:`~closure_kmeans.ClosureKMeans`; ``tree_dims`` as in its :class:`~closure_kmeans.Method`.

    Attributes
    ----------
    cluster_centers_, cluster_sizes_, labels_, inertia_, n_iter_, history_, stopped_by_ : see ClosureKMeans
        As in :class:`~closure_kmeans.ClosureKMeans`.

    See Also
    --------
    closure_kmeans.ClosureKMeans : K-means by cluster closures.
    LloydKMeans : Exact k-means.

    References
    ----------
    J. Philbin, O. Chum, M. Isard, J. Sivic, A. Zisserman: Object retrieval with large vocabularies and fast spatial
    matching. CVPR 2007.

    J. Philbin: Scalable object retrieval in very large image collections. PhD thesis, Oxford 2010.

    Examples
    --------
    >>> from closure_kmeans.baselines import ApproximateKMeans
    >>> from closure_kmeans.datasets import load_sift
    >>> model = ApproximateKMeans(n_clusters=100, refined=True, random_state=0).fit(load_sift()[:2000])
    >>> model.history_[0].n_candidates
    50.0
    """

    n_candidates: int = 50
    n_trees: int = 8
    refined: bool = False

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for name in ("n_candidates", "n_trees"):
            check.integer(name, getattr(self, name), 1)
        check.boolean("refined", self.refined)

    def _assignment(self, points: Points, rng: np.random.Generator, threads: Threads) -> Assign:
        rows = as_numbers(points.rows)

        def assign(clusters: Clusters, labels: NDArray[np.int32]) -> tuple[NDArray[np.int32], int]:
            forest = grow_forest(clusters.centers, self.n_trees, rng, threads)
            own = labels if self.refined else None
            return search_forest(rows, clusters.centers, points.offset, forest, self.n_candidates, own, threads)

        return assign


def grow_forest(centers: NDArray[Any], n_trees: int, rng: np.random.Generator, threads: Threads) -> Forest:
    """Grow random trees over all centres."""
    size = n_trees * (2 * len(centers) - 1)
    forest = Forest(np.empty(size, np.int32), np.zeros(size, centers.dtype), np.empty(size, np.int32))
    orders = rng.permuted(np.tile(np.arange(len(centers), dtype=np.int32), (n_trees, 1)), axis=1)
    grow = partial(kernels.grow_trees, centers, orders, rng.random(size), forest)
    threads.for_each_block(grow, n_trees, 1)
    return forest


def search_forest(
    X: NDArray[Any],
    centers: NDArray[Any],
    offset: NDArray[Any],
    forest: Forest,
    n_candidates: int,
    own: NDArray[np.int32] | None,
    threads: Threads,
) -> tuple[NDArray[np.int32], int]:
    """The nearest of the candidates of each row, and the number of pairs of row and candidate.

    ``own`` names a first candidate of each row, to be kept unless another is nearer. The centres are relative to
    ``offset``, which is subtracted from the rows.
    """
    labels = np.empty(len(X), np.int32)
    first_candidates = np.full(len(X), -1, np.int32) if own is None else own

    def search(first: int, last: int) -> int:
        rows = shifted(X[first:last], offset)
        ours = first_candidates[first:last]
        return kernels.search_forest(rows, centers, forest, n_candidates, ours, labels[first:last], 0, len(rows))

    n_pairs = sum(threads.for_each_block(search, len(X), search_block(len(X), rows_per_block(X), threads)))
    return labels, n_pairs
