"""Hierarchical k-means (HKM, Nistér and Stewénius 2006): a tree of clusters, each split into a few by k-means.

All nodes of a level are split at once: an iteration assigns each point to the nearest child of its node, so that the
candidates of a point are the siblings of its cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans import validation as check
from closure_kmeans.baselines import kernels
from closure_kmeans.baselines.flat import move, opened
from closure_kmeans.clusters import group_by_label, update
from closure_kmeans.estimator import LocalKMeans, Problem, fitted_attributes
from closure_kmeans.iteration import Clustering, Recorder, Step, alternate
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.points import Points, as_numbers, hash_rows, precision, shifted, squared_distances
from closure_kmeans.search import CenterIndex
from closure_kmeans.stores.memory import LocalState, MemoryStore

# Before the names of the arrays of a tree in a file.
LEVELS = "levels_."


class TreeLevel(NamedTuple):
    """The nodes of one level of the tree."""

    centers: NDArray[Any]  # (n_nodes, d)
    starts: NDArray[np.int64]  # (n_nodes of the level above + 1,) node v there has children starts[v]:starts[v + 1]


class Copies(NamedTuple):
    """Distinct rows, each by its first occurrence; copies always share a node."""

    points: NDArray[np.int64]  # (m,) one point for each different row
    weights: NDArray[np.float64]  # (m,) of all its copies


class TreeIndex(CenterIndex):
    """The centres of a tree: a row descends it, to the nearest child of each node."""

    levels: list[TreeLevel]

    def _set(self, centers: NDArray[Any], sample: NDArray[Any] | None, offset: NDArray[Any] | None) -> None:
        super()._set(centers, sample, offset)
        self.levels = []

    def find(self, rows: NDArray[Any], exact: bool = False) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """The cluster that each row comes to, or with ``exact`` the nearest of all; and the squared distance."""
        if exact or not self.levels:  # the centres of a tree may have been replaced
            return super().find(rows, exact)
        labels = self.paths(rows)[:, -1]
        centers = self.centers.astype(precision(rows.dtype))
        return labels, squared_distances(rows, centers, np.zeros_like(centers[0]), labels)

    def paths(self, rows: NDArray[Any]) -> NDArray[np.int32]:
        """The nodes that each row comes to, an (n, depth) array."""
        stored = rows.view(np.uint16) if rows.dtype == np.float16 else rows
        paths = np.zeros((len(rows), len(self.levels) + 1), np.int32, order="F")  # the root first
        with Threads(count_threads(self.n_threads)) as threads:
            for level, (centers, starts) in enumerate(self.levels):
                centers = centers.astype(precision(rows.dtype))
                nearest = partial(kernels.nearest_children, stored, np.zeros_like(centers[0]), centers, starts)
                threads.for_each_block(partial(nearest, paths[:, level], paths[:, level + 1]), len(rows))
        return paths[:, 1:]

    def pack(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and facts for a file: the tree, beside those of the centres."""
        arrays, facts = super().pack()
        names = [(f"{LEVELS}{i}.", level) for i, level in enumerate(self.levels)]
        arrays |= {f"{name}starts": level.starts for name, level in names}
        arrays |= {f"{name}centers": level.centers for name, level in names[:-1]}  # the last are the clusters
        return arrays, facts

    @classmethod
    def unpack(
        cls, centers: NDArray[Any], arrays: dict[str, NDArray[Any]], facts: dict[str, Any]
    ) -> tuple[Self, dict[str, NDArray[Any]]]:
        """Index from the arrays of a file, and the others; ``ValueError`` if the tree does not fit the centres."""
        index, arrays = super().unpack(centers, arrays, facts)
        n_levels = sum(name.endswith(".starts") for name in arrays)
        arrays[f"{LEVELS}{n_levels - 1}.centers"] = centers
        for i in range(n_levels):
            level = TreeLevel(arrays.pop(f"{LEVELS}{i}.centers"), arrays.pop(f"{LEVELS}{i}.starts"))
            check_level(i, level, 1 if i == 0 else len(index.levels[-1].centers), centers)
            index.levels.append(level)
        return index, arrays


@dataclass(eq=False, repr=False)
class HierarchicalKMeans(LocalKMeans):
    """Hierarchical k-means (HKM): every cluster is split into ``branching`` clusters, ``depth`` times.

    The leaves of the tree are the clusters. There are ``branching ** depth`` of them, or fewer if a node has fewer
    distinct rows than children; none is empty. The children of a node start from random rows of it. A fit that is ended
    early, by ``max_time``, a callback or an interrupt, has fewer levels.

    Parameters
    ----------
    branching : int, default=10
        Number of children of a node.
    depth : int, default=2
        Number of levels below the root.
    max_iter : int, default=100
        Maximum number of iterations in each level.
    tol : float, default=5e-4
        A level is finished when an iteration changes the distortion by less than this fraction.
    max_time, random_state, n_threads, callback, verbose : see ClosureKMeans
        As in :class:`~closure_kmeans.ClosureKMeans`.

    Attributes
    ----------
    levels_ : list of TreeLevel
        The tree, from the children of the root down: ``centers`` are the nodes of a level, and node v of the level
        above has the children ``starts[v]`` to ``starts[v + 1] - 1``. The centres of the last level are
        ``cluster_centers_``.
    cluster_centers_, cluster_sizes_, labels_, inertia_, n_iter_, history_, stopped_by_ : see ClosureKMeans
        As in :class:`~closure_kmeans.ClosureKMeans`.

    See Also
    --------
    closure_kmeans.ClosureKMeans.hierarchy : Clusters the clusters of a model, from fine to coarse.
    sklearn.cluster.BisectingKMeans : Splits one cluster after the other.

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

    index_class = TreeIndex

    branching: int = 10
    depth: int = 2

    @property
    def center_index_(self) -> TreeIndex:
        """Search index of the centres, with the tree.

        See Also
        --------
        levels_ : The tree itself.

        Examples
        --------
        >>> from closure_kmeans.baselines import HierarchicalKMeans
        >>> model = HierarchicalKMeans(branching=2, depth=1, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> model.center_index_.nearest([[2.0]])[1].tolist()
        [2.25]
        """
        return cast(TreeIndex, super().center_index_)

    @property
    def levels_(self) -> list[TreeLevel]:
        """The tree, from the children of the root down.

        See Also
        --------
        paths : The nodes that rows pass.

        Examples
        --------
        >>> from closure_kmeans.baselines import HierarchicalKMeans
        >>> from closure_kmeans.datasets import load_sift
        >>> model = HierarchicalKMeans(branching=4, depth=3, random_state=0).fit(load_sift()[:2000])
        >>> [len(level.centers) for level in model.levels_]
        [4, 16, 64]
        """
        return self.center_index_.levels

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check.integer("branching", self.branching, 2)
        check.integer("depth", self.depth, 1)

    def _solve(self, problem: Problem) -> dict[str, Any]:
        with opened(self, problem, 1, None, self.depth * self.max_iter) as (store, record):
            state, levels, stopped_by = self._split(store, record)
            centers = levels[-1].centers if levels else store.offset[np.newaxis]
            fitted = fitted_attributes(store, state, stopped_by, record, centers)
            index = TreeIndex.of(centers, sample=store.sample)
            index.levels = levels
            fitted["_index"] = [index]
            return fitted

    def _split(self, store: MemoryStore, record: Recorder) -> tuple[LocalState, list[TreeLevel], str]:
        """Split the root, and the nodes of each level, until the tree is as deep as it should be."""
        points, threads = store.points, store.threads
        states = [store.begin(store.tree_labels())]  # the root, and one for each level
        levels: list[TreeLevel] = []
        reasons: list[str] = []
        try:
            copies = find_copies(points)
            while len(levels) < self.depth and (not reasons or reasons[-1] in ("converged", "max_iter")):
                n_before = len(record.history)
                start, starts = split_nodes(points, states[-1], self.branching, copies, store.rng, threads)
                state, reason = self._improve(store, start, states[-1].labels, starts, record)
                reasons.append(reason)
                if len(record.history) > n_before:  # else it was interrupted before there was anything to keep
                    states.append(state)
                    levels.append(TreeLevel(state.clusters.centers + points.offset, starts))
        except KeyboardInterrupt:
            reasons.append("interrupted")
        stopped_by = "max_iter" if reasons[-1] == "converged" and "max_iter" in reasons else reasons[-1]
        return states[-1], levels, stopped_by

    def _improve(
        self,
        store: MemoryStore,
        start: LocalState,
        nodes: NDArray[np.int32],
        starts: NDArray[np.int64],
        record: Recorder,
    ) -> tuple[LocalState, str]:
        """K-means in every node at once."""
        points, threads = store.points, store.threads
        n_pairs = int(np.diff(starts)[nodes].sum())

        def take_step(state: LocalState, number: int) -> Step[NDArray[np.int32]]:
            labels = assign_children(points, state.clusters.centers, nodes, starts, threads)
            return move(points, state, labels, n_pairs, threads)

        state, reason = alternate(
            start, take_step, max_iter=self.max_iter, tol=self.tol, measure_accuracy=store.accuracy, on_iteration=record
        )
        if reason == "max_iter":
            record.complete(lambda: store.accuracy(state))
        return state, reason

    def paths(self, X: ArrayLike) -> NDArray[np.int32]:
        """Find the nodes that each row passes, by descending the tree.

        Parameters
        ----------
        X : (n, d) array
            Rows.

        Returns
        -------
        (n, depth) array of int32
            Column l holds nodes of ``levels_[l]``, numbered from 0 in each level; the last column is the result of
            ``predict``.

        See Also
        --------
        predict : The leaves only.

        Examples
        --------
        >>> from closure_kmeans.baselines import HierarchicalKMeans
        >>> from closure_kmeans.datasets import load_sift
        >>> X = load_sift()[:2000]
        >>> model = HierarchicalKMeans(branching=4, depth=3, random_state=0).fit(X)
        >>> bool((model.paths(X)[:, -1] == model.predict(X)).all())
        True
        """
        rows = self._check(X)
        return self.center_index_.paths(rows)

    def predict(self, X: ArrayLike, *, exact: bool = False) -> NDArray[np.int32]:
        """Find the cluster of each row by descending the tree, to the nearest child at each level.

        Parameters
        ----------
        X : (n, d) array
            Rows.
        exact : bool, default=False
            Whether to find the nearest of all centres instead, which can be another one.

        Returns
        -------
        (n,) array of int32
            Index of the cluster of each row.

        See Also
        --------
        paths : The nodes of all levels.

        Examples
        --------
        >>> from closure_kmeans.baselines import HierarchicalKMeans
        >>> model = HierarchicalKMeans(branching=2, depth=1, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> model.cluster_centers_[model.predict([[2.0]])].tolist()
        [[0.5]]
        """
        return super().predict(X, exact=exact)


def check_level(number: int, level: TreeLevel, n_parents: int, clusters: NDArray[Any]) -> None:
    """Raise unless a loaded level is valid: finite centres, and children of every node above."""
    centers, starts = level
    if centers.ndim != 2 or centers.shape[1:] != clusters.shape[1:] or centers.dtype != clusters.dtype:
        raise ValueError(f"the centres of level {number} must have the width and dtype of the clusters")
    if not np.isfinite(centers).all():
        raise ValueError(f"the centres of level {number} must be finite")
    if starts.dtype != np.int64 or starts.shape != (n_parents + 1,):
        raise ValueError(f"level {number} must have the offsets of the children of {n_parents} nodes")
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
    points: Points, parents: LocalState, branching: int, copies: Copies, rng: np.random.Generator, threads: Threads
) -> tuple[LocalState, NDArray[np.int64]]:
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
    seeds = shifted(as_numbers(points.rows[drawn[members[places]]]), points.offset)
    labels = assign_children(points, seeds, parents.labels, starts, threads)
    return Clustering(labels, update(points, labels, len(seeds), threads)), starts


def assign_children(
    points: Points, centers: NDArray[Any], nodes: NDArray[np.int32], starts: NDArray[np.int64], threads: Threads
) -> NDArray[np.int32]:
    """The nearest child of each point's node. None is left empty."""
    labels = np.empty_like(nodes)
    nearest = partial(kernels.nearest_children, points.rows, points.offset, centers, starts, nodes, labels)
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
