"""Flat k-means but for the assignment, and the exact assignment: Lloyd's algorithm."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans.base import BaseKMeans, Outcome
from closure_kmeans.clusters import Clusters, update
from closure_kmeans.iteration import Clustering, Iteration, Step, alternate
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points, as_numbers
from closure_kmeans.quantizer import nearest_centers, sample_accuracy
from closure_kmeans.recorder import Recorder

# From clusters and the points' labels to new labels, and the number of pairs of point and centre that were compared.
Assign: TypeAlias = Callable[[Clusters, NDArray[np.int32]], tuple[NDArray[np.int32], int]]


class FlatKMeans(BaseKMeans):
    """K-means but for the assignment."""

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
        n_jobs: int | None = None,
        callback: Callable[[Iteration], Any] | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            max_iter=max_iter,
            tol=tol,
            max_time=max_time,
            tree_dims=tree_dims,
            random_state=random_state,
            n_jobs=n_jobs,
            callback=callback,
            verbose=verbose,
        )
        self.n_clusters = n_clusters
        self.init = init

    @abstractmethod
    def _assignment(self, points: Points, rng: np.random.Generator, threads: Threads) -> Assign:
        """What assigns the points in each iteration; all that is done once is done here."""

    @property
    def _may_rise(self) -> bool:
        """Whether an assignment may take a point to a centre that is farther than its own."""
        return False

    @property
    def _n_trees(self) -> int:
        return 0

    def _cluster(
        self, points: Points, labels: NDArray[np.int32], rng: np.random.Generator, record: Recorder, threads: Threads
    ) -> Outcome:
        assign = self._assignment(points, rng, threads)

        def take_step(state: Clustering) -> Step:
            labels, n_pairs = assign(state.clusters, state.labels)
            return move(points, state, labels, n_pairs, threads, n_trees=self._n_trees, may_rise=self._may_rise)

        start = Clustering(labels, update(points, labels, self.n_clusters, threads))
        reason = self._count_start(start, len(labels), record)
        if reason is not None:
            return Outcome(start, reason, {})
        state, stopped_by = alternate(
            start,
            take_step,
            n_done=len(record.history),
            max_iter=self.max_iter,
            tol=self.tol,
            measure_accuracy=partial(sample_accuracy, points, threads),
            on_iteration=record,
        )
        return Outcome(state, stopped_by, {})


def move(
    points: Points,
    state: Clustering,
    labels: NDArray[np.int32],
    n_pairs: int,
    threads: Threads,
    *,
    n_trees: int = 0,
    may_rise: bool = False,
) -> Step:
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
            nearest, _ = nearest_centers(rows, clusters.centers, points.mean, threads)
            return nearest, len(rows) * len(clusters.centers)

        return assign
