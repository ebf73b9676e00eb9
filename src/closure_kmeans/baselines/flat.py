"""Flat k-means with any assignment, and exact assignment: Lloyd's algorithm."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans import validation as check
from closure_kmeans.clusters import Clusters, update
from closure_kmeans.estimator import LocalKMeans, Problem, fitted_attributes, is_tree
from closure_kmeans.iteration import Clustering, Recorder, Step, alternate
from closure_kmeans.nearest import nearest_centers
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.points import Points, as_numbers
from closure_kmeans.starts import start_labels
from closure_kmeans.stores.memory import LocalState, MemoryStore

# Maps clusters and labels to new labels and the number of compared pairs of point and centre.
Assign: TypeAlias = Callable[[Clusters, NDArray[np.int32]], tuple[NDArray[np.int32], int]]


@dataclass(eq=False, repr=False)
class FlatKMeans(LocalKMeans):
    """Flat k-means; subclasses define the assignment."""

    n_clusters: int = 2
    _: KW_ONLY
    init: Literal["tree", "random"] | ArrayLike = "tree"
    tree_dims: int | None = 16

    # Parameters of ``ApproximateKMeans``. Other assignments need no trees, and take no point to a farther centre.
    n_trees = 0
    refined = True

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check.integer("n_clusters", self.n_clusters, 1)
        check.integer("tree_dims", self.tree_dims, 1, optional=True)

    @abstractmethod
    def _assignment(self, points: Points, rng: np.random.Generator, threads: Threads) -> Assign:
        """Prepare the assignment of the points, which is then called in each iteration."""

    def _solve(self, problem: Problem) -> dict[str, Any]:
        with opened(self, problem, self.n_clusters, self.tree_dims, self.max_iter) as (store, record):
            points, threads = store.points, store.threads
            start = problem.init
            state = store.begin(store.tree_labels() if is_tree(start) else start_labels(start, store))
            assign = self._assignment(points, store.rng, threads)

            def take_step(state: LocalState, number: int) -> Step[NDArray[np.int32]]:
                labels, n_pairs = assign(state.clusters, state.labels)
                return move(points, state, labels, n_pairs, threads, n_trees=self.n_trees, may_rise=not self.refined)

            reason = record.count_start(state, self.n_clusters) if np.ndim(self.init) == 2 else None
            if reason is None:
                state, reason = alternate(
                    state,
                    take_step,
                    n_done=len(record.history),
                    max_iter=self.max_iter,
                    tol=self.tol,
                    measure_accuracy=store.accuracy,
                    on_iteration=record,
                )
            if reason == "max_iter":
                record.complete(lambda: store.accuracy(state))
            return fitted_attributes(store, state, reason, record)


@contextmanager
def opened(
    model: LocalKMeans, problem: Problem, n_clusters: int, tree_dims: int | None, max_iter: int
) -> Iterator[tuple[MemoryStore, Recorder]]:
    """Open the store of the rows and the recorder of a fit of at most ``max_iter`` iterations."""
    rows, weights, _, began, _ = problem
    check.enough_rows(n_clusters, rows)
    check.memory(n_clusters, rows, tree_dims)
    rng = check.generator(model.random_state)
    with Threads(count_threads(model.n_threads)) as threads, Recorder(model, began, len(rows), max_iter) as record:
        yield MemoryStore(rows, weights, n_clusters, tree_dims=tree_dims, rng=rng, threads=threads), record


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
    """Exact k-means: every point is compared with every centre.

    Points and centres are processed in blocks, so that memory does not grow with their product.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters, k.
    init, tree_dims, max_iter, tol, max_time, random_state, n_threads, callback, verbose : see ClosureKMeans
        As in :class:`~closure_kmeans.ClosureKMeans`; ``tree_dims`` as in its :class:`~closure_kmeans.Method`.

    Attributes
    ----------
    cluster_centers_, cluster_sizes_, labels_, inertia_, n_iter_, history_, stopped_by_ : see ClosureKMeans
        As in :class:`~closure_kmeans.ClosureKMeans`.

    See Also
    --------
    closure_kmeans.ClosureKMeans : Faster for many clusters.
    sklearn.cluster.KMeans : Exact k-means with other starts, for dense and sparse rows.

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
