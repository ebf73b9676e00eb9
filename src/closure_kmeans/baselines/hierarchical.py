"""Hierarchical k-means (HKM, Nistér and Stewénius 2006): a tree of clusters, each split into a few by k-means.

All nodes of a level are split at once: an iteration assigns each point to the nearest child of its node, so that the
candidates of a point are the siblings of its cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans import validation as check
from closure_kmeans.base import BaseKMeans, Outcome
from closure_kmeans.baselines import kernels
from closure_kmeans.baselines.flat import move
from closure_kmeans.clusters import update
from closure_kmeans.iteration import Clustering, Iteration, Step, alternate
from closure_kmeans.kernels import group_by_label
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.points import Points, as_numbers, hash_rows, precision, shifted
from closure_kmeans.quantizer import sample_accuracy, squared_distances
from closure_kmeans.recorder import Recorder


class Level(NamedTuple):
    """The nodes of one level of the tree."""

    centers: NDArray[Any]  # (n_nodes, d)
    starts: NDArray[np.int64]  # (n_nodes of the level above + 1,) node v there has children starts[v]:starts[v + 1]


class Copies(NamedTuple):
    """Which rows there are, of those that occur several times the first; copies always share a node."""

    points: NDArray[np.int64]  # (m,) one point for each different row
    weights: NDArray[np.float64]  # (m,) of all its copies


class HierarchicalKMeans(BaseKMeans):
    """Hierarchical k-means: every cluster is split into ``branching`` clusters, ``depth`` times.

    The leaves of the tree are the clusters. There are ``branching ** depth`` of them, or fewer where a node has fewer
    different rows than it should have children; none is empty. The seeds of a node's children are random rows of it.

    Parameters
    ----------
    branching : int, default=10
        Children of a node.
    depth : int, default=2
        Levels of the tree below its root.
    max_iter : int, default=100
        Largest number of iterations in a level.
    tol : float, default=5e-4
        A level is done when the distortion changes by less than this part of itself in an iteration.

    The other parameters are those of :class:`~closure_kmeans.ClosureKMeans` of the same names. A fit that is ended
    early, by ``max_time``, a callback or an interrupt, leaves a tree of fewer levels.

    Attributes
    ----------
    levels_ : list of Level
        The tree, from the root's children down: ``centers`` are the nodes of a level, and node v of the level above
        has the children from ``starts[v]`` up to ``starts[v + 1]``. The last level's centres are ``cluster_centers_``.

    The other attributes are those of :class:`~closure_kmeans.ClosureKMeans` too.

    References
    ----------
    D. Nistér, H. Stewénius: Scalable recognition with a vocabulary tree. CVPR 2006.

    Examples
    --------
    >>> from closure_kmeans.baselines import HierarchicalKMeans
    >>> from closure_kmeans.datasets import load_sift
    >>> X = load_sift()
    >>> model = HierarchicalKMeans(branching=6, depth=3, random_state=0).fit(X)
    >>> model.cluster_centers_.shape
    (216, 128)
    >>> model.paths(X).shape
    (20000, 3)
    """

    def __init__(
        self,
        branching: int = 10,
        depth: int = 2,
        *,
        max_iter: int = 100,
        tol: float = 5e-4,
        max_time: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        callback: Callable[[Iteration], Any] | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            max_iter=max_iter,
            tol=tol,
            max_time=max_time,
            tree_dims=None,  # it starts from no tree
            random_state=random_state,
            n_jobs=n_jobs,
            callback=callback,
            verbose=verbose,
        )
        self.branching = branching
        self.depth = depth

    def _check_parameters(self) -> None:
        check.parameters(self)
        check.integer("branching", self.branching, 2)
        check.integer("depth", self.depth, 1)

    def _start(self) -> tuple[int, str | ArrayLike]:
        return 1, "tree"  # the root

    @property
    def _most_iterations(self) -> int:
        return self.depth * self.max_iter

    def _cluster(
        self, points: Points, labels: NDArray[np.int32], rng: np.random.Generator, record: Recorder, threads: Threads
    ) -> Outcome:
        states = [Clustering(labels, update(points, labels, 1, threads))]  # the root, and one for each level
        levels: list[Level] = []
        reasons: list[str] = []
        try:
            copies = find_copies(points)
            while len(levels) < self.depth and (not reasons or reasons[-1] in ("converged", "max_iter")):
                n_before = len(record.history)
                start, starts = split_nodes(points, states[-1], self.branching, copies, rng, threads)
                state, reason = self._improve(points, start, states[-1].labels, starts, record, threads)
                reasons.append(reason)
                if len(record.history) > n_before:  # else it was interrupted before there was anything to keep
                    states.append(state)
                    levels.append(Level(state.clusters.centers + points.mean, starts))
        except KeyboardInterrupt:
            reasons.append("interrupted")
        stopped_by = "max_iter" if reasons[-1] == "converged" and "max_iter" in reasons else reasons[-1]
        return Outcome(states[-1], stopped_by, {"levels_": levels})

    def _improve(
        self,
        points: Points,
        start: Clustering,
        nodes: NDArray[np.int32],
        starts: NDArray[np.int64],
        record: Recorder,
        threads: Threads,
    ) -> tuple[Clustering, str]:
        """K-means in every node at once."""
        n_pairs = int(np.diff(starts)[nodes].sum())

        def take_step(state: Clustering) -> Step:
            labels = assign_children(points, state.clusters.centers, nodes, starts, threads)
            return move(points, state, labels, n_pairs, threads)

        return alternate(
            start,
            take_step,
            max_iter=self.max_iter,
            tol=self.tol,
            measure_accuracy=partial(sample_accuracy, points, threads),
            on_iteration=record,
        )

    def paths(self, X: ArrayLike) -> NDArray[np.int32]:
        """The nodes that each row comes to as it descends the tree, an (n, depth) array.

        Column l holds nodes of ``levels_[l]``, numbered from 0 in each level; the last column is what ``predict``
        gives.
        """
        return self._descend(self._check(X), self.levels_)

    def predict(self, X: ArrayLike, *, exact: bool = False) -> NDArray[np.int32]:
        """The cluster that each row comes to as it descends the tree: the nearest child, level by level.

        ``exact=True`` gives the nearest of all clusters instead, which need not be the same.
        """
        return super().predict(X, exact=exact)

    def _nearest(self, rows: NDArray[Any], exact: bool = False) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        if exact:
            return super()._nearest(rows, exact)
        labels = self._descend(rows, self.levels_)[:, -1]
        centers = self.cluster_centers_.astype(precision(rows.dtype))
        return labels, squared_distances(rows, centers, np.zeros_like(centers[0]), labels)

    def _labels_of(self, rows: NDArray[Any], fitted: dict[str, Any]) -> NDArray[np.int32]:
        return self._descend(rows, fitted["levels_"])[:, -1]

    def _stored_arrays(self) -> dict[str, NDArray[Any]]:
        names = [(f"levels_.{i}.", level) for i, level in enumerate(self.levels_)]
        starts: dict[str, NDArray[Any]] = {f"{name}starts": level.starts for name, level in names}
        return starts | {f"{name}centers": level.centers for name, level in names[:-1]}  # the last are the clusters

    def _restored(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        n_levels = sum(name.endswith(".starts") for name in arrays)
        arrays[f"levels_.{n_levels - 1}.centers"] = arrays["cluster_centers_"]
        levels: list[Level] = []
        for i in range(n_levels):
            level = Level(arrays.pop(f"levels_.{i}.centers"), arrays.pop(f"levels_.{i}.starts"))
            check_level(i, level, 1 if i == 0 else len(levels[-1].centers), arrays["cluster_centers_"])
            levels.append(level)
        return {"levels_": levels}

    def _descend(self, rows: NDArray[Any], levels: list[Level]) -> NDArray[np.int32]:
        stored = rows.view(np.uint16) if rows.dtype == np.float16 else rows
        paths = np.zeros((len(rows), len(levels) + 1), np.int32, order="F")  # the root first
        with Threads(count_threads(self.n_jobs)) as threads:
            for level, (centers, starts) in enumerate(levels):
                centers = centers.astype(precision(rows.dtype))
                nearest = partial(kernels.nearest_children, stored, np.zeros_like(centers[0]), centers, starts)
                threads.for_each_block(partial(nearest, paths[:, level], paths[:, level + 1]), len(rows))
        return paths[:, 1:]


def check_level(number: int, level: Level, n_parents: int, clusters: NDArray[Any]) -> None:
    """A level from elsewhere must be one: finite centres, and children of every node above."""
    centers, starts = level
    if centers.ndim != 2 or centers.shape[1:] != clusters.shape[1:] or centers.dtype != clusters.dtype:
        raise ValueError(f"the centres of level {number} must be like those of the clusters")
    if not np.isfinite(centers).all():
        raise ValueError(f"the centres of level {number} must be finite")
    if starts.dtype != np.int64 or starts.shape != (n_parents + 1,):
        raise ValueError(f"level {number} must say of {n_parents} nodes where their children begin")
    if starts[0] != 0 or starts[-1] != len(centers) or (np.diff(starts) < 1).any():
        raise ValueError(f"the {len(centers)} nodes of level {number} must be the children of those above, in order")


def find_copies(points: Points) -> Copies:
    """Find the different rows, in the order in which they occur."""
    _, first, row = np.unique(hash_rows(points.rows), return_index=True, return_inverse=True)
    weights = np.zeros(len(first))
    np.add.at(weights, row, points.weights)
    order = np.argsort(first)
    return Copies(first[order], weights[order])


def split_nodes(
    points: Points, parents: Clustering, branching: int, copies: Copies, rng: np.random.Generator, threads: Threads
) -> tuple[Clustering, NDArray[np.int64]]:
    """Split every node by random rows of it: the children, and where each node's begin.

    A node gets as many children as it has different rows, and at most ``branching``.
    """
    n_nodes = len(parents.clusters.centers)
    # Drawn one after the other in proportion to their weights, as a start from random rows is.
    drawn = copies.points[np.argsort(rng.exponential(size=len(copies.points)) / copies.weights, kind="stable")]
    members, begins = group_by_label(parents.labels[drawn], n_nodes)
    n_children = np.minimum(np.diff(begins), branching)
    starts = np.append(0, np.cumsum(n_children))
    places = np.arange(starts[-1]) + np.repeat(begins[:-1] - starts[:-1], n_children)
    seeds = shifted(as_numbers(points.rows[drawn[members[places]]]), points.mean)
    labels = assign_children(points, seeds, parents.labels, starts, threads)
    return Clustering(labels, update(points, labels, len(seeds), threads)), starts


def assign_children(
    points: Points, centers: NDArray[Any], nodes: NDArray[np.int32], starts: NDArray[np.int64], threads: Threads
) -> NDArray[np.int32]:
    """The nearest child of each point's node. None is left empty."""
    labels = np.empty_like(nodes)
    nearest = partial(kernels.nearest_children, points.rows, points.mean, centers, starts, nodes, labels)
    threads.for_each_block(nearest, len(nodes))
    empty = np.flatnonzero(np.bincount(labels, minlength=len(centers)) == 0)
    for node in np.unique(np.searchsorted(starts, empty, side="right") - 1):
        family = np.flatnonzero(nodes == node)
        refill_family(points, labels, family, starts[node], starts[node + 1], threads)
    return labels


def refill_family(
    points: Points, labels: NDArray[np.int32], family: NDArray[np.int64], first: int, last: int, threads: Threads
) -> None:
    """Split the children of largest error where others have no points, among the points of one node."""
    weights = points.weights[family] if len(points.weights) > 1 else points.weights
    own_labels = (labels[family] - first).astype(np.int32)
    update(points._replace(rows=points.rows[family], weights=weights), own_labels, last - first, threads)
    labels[family] = own_labels + first
