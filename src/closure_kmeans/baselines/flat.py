"""Flat k-means with any assignment, and exact assignment: Lloyd's algorithm."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans import validation as check
from closure_kmeans.base import LocalKMeans, Problem, fitted_attributes
from closure_kmeans.clusters import Clusters, update
from closure_kmeans.iteration import Clustering, Iteration, Step, alternate
from closure_kmeans.nearest import nearest_centers
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.points import Points, as_numbers
from closure_kmeans.recorder import Recorder
from closure_kmeans.starts import start_labels
from closure_kmeans.stores.memory import LocalState, MemoryStore

# From clusters and the points' labels to new labels, and the number of pairs of point and centre that were compared.
Assign: TypeAlias = Callable[[Clusters, NDArray[np.int32]], tuple[NDArray[np.int32], int]]


class FlatKMeans(LocalKMeans):
    """Flat k-means; subclasses define the assignment."""

    def __init__(
        self,
        n_clusters: int = 2,
        *,
        init: Literal["tree", "random"] | ArrayLike = "tree",
        max_iter: int = 100,
        tol: float = 5e-4,
        max_time: float | None = None,
        tree_dims: int | None = 16,
        random_state: int | np.random.RandomState | None = None,
        n_threads: int | None = None,
        callback: Callable[[Iteration], Any] | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.max_time = max_time
        self.tree_dims = tree_dims
        self.random_state = random_state
        self.n_threads = n_threads
        self.callback = callback
        self.verbose = verbose

    def _check_parameters(self) -> None:
        check.parameters(self)
        check.integer("n_clusters", self.n_clusters, 1)
        check.tree_dims(self.tree_dims)

    @abstractmethod
    def _assignment(self, points: Points, rng: np.random.Generator, threads: Threads) -> Assign:
        """Prepare the assignment of the points, which is then called in each iteration."""

    @property
    def _may_rise(self) -> bool:
        """Whether an assignment may take a point to a centre that is farther than its own."""
        return False

    @property
    def _n_trees(self) -> int:
        return 0

    def _solve(self, problem: Problem) -> dict[str, Any]:
        rows, weights, init, began = problem
        check.enough_rows(self.n_clusters, rows)
        check.memory(self.n_clusters, rows, self.tree_dims)
        rng = check.generator(self.random_state)
        with (
            Threads(count_threads(self.n_threads)) as threads,
            Recorder(self, began, len(rows), self.max_iter) as record,
        ):
            store = MemoryStore(rows, weights, self.n_clusters, tree_dims=self.tree_dims, rng=rng, threads=threads)
            labels = start_labels(init, store)
            assign = self._assignment(store.points, rng, threads)
            state, stopped_by = self._improve(store, store.begin(labels), assign, record)
            return fitted_attributes(store, state, store.user_centers(state.clusters), stopped_by, record)

    def _improve(
        self, store: MemoryStore, start: LocalState, assign: Assign, record: Recorder
    ) -> tuple[LocalState, str]:
        def take_step(state: LocalState, number: int) -> Step[NDArray[np.int32]]:
            labels, n_pairs = assign(state.clusters, state.labels)
            return move(
                store.points,
                state,
                labels,
                n_pairs,
                store.threads,
                n_trees=self._n_trees,
                may_rise=self._may_rise,
            )

        reason = record.count_start(start, self.n_clusters) if np.ndim(self.init) == 2 else None
        if reason is not None:
            return start, reason
        return alternate(
            start,
            take_step,
            n_done=len(record.history),
            max_iter=self.max_iter,
            tol=self.tol,
            measure_accuracy=store.accuracy,
            on_iteration=record,
        )


def move(
    points: Points,
    state: LocalState,
    labels: NDArray[np.int32],
    n_pairs: int,
    threads: Threads,
    *,
    n_trees: int = 0,
    may_rise: bool = False,
) -> Step[NDArray[np.int32]]:
    """Update the centres after an assignment. If the distortion rises though it may not, by rounding, nothing moves."""
    before = (state.labels, state.clusters)
    clusters = update(points, labels, len(state.clusters.centers), threads, before=before)
    if clusters.inertia > state.clusters.inertia and not may_rise:
        return Step(state, 0, n_pairs, n_trees)
    n_active = int(np.count_nonzero(labels != state.labels))
    return Step(Clustering(labels, clusters), n_active, n_pairs, n_trees)


class LloydKMeans(FlatKMeans):
    """Exact k-means: every point is compared with every centre, in blocks of both.

    The parameters and the attributes are those of :class:`~closure_kmeans.ClosureKMeans` of the same names; the start
    is the same for the same seed.

    Examples
    --------
    >>> from closure_kmeans.baselines import LloydKMeans
    >>> from closure_kmeans.datasets import load_sift
    >>> model = LloydKMeans(n_clusters=100, random_state=0).fit(load_sift()[:2000])
    >>> model.history_[0].n_candidates
    100.0
    """

    def _assignment(self, points: Points, rng: np.random.Generator, threads: Threads) -> Assign:
        rows = as_numbers(points.rows)

        def assign(clusters: Clusters, labels: NDArray[np.int32]) -> tuple[NDArray[np.int32], int]:
            nearest, _ = nearest_centers(rows, clusters.centers, points.offset, threads)
            return nearest, len(rows) * len(clusters.centers)

        return assign
