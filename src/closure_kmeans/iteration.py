"""K-means as "assign by anything": the loop that all methods share, its state and its records.

The methods differ only in how they assign the points: to the best of the clusters of their neighbours (``closure.py``),
of all clusters, or of some that an index finds (``baselines``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from numpy.typing import DTypeLike, NDArray

from closure_kmeans.clusters import Clusters
from closure_kmeans.compiler import WATCH
from closure_kmeans.points import empty_rows

if TYPE_CHECKING:
    from closure_kmeans.estimator import BaseKMeans

# Labels of all points: an array, or the version of files that hold them.
Labels = TypeVar("Labels")

# Iterations between two measurements of the accuracy: each costs a small part of an iteration.
ACCURACY_EVERY = 10


class Iteration(NamedTuple):
    """Record of an iteration.

    See Also
    --------
    ClosureKMeans : Keeps the records as ``history_``.

    Examples
    --------
    >>> from closure_kmeans import ClosureKMeans
    >>> model = ClosureKMeans(2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
    >>> last = model.history_[-1]
    >>> last.iteration == model.n_iter_, last.inertia == model.inertia_
    (True, True)
    """

    iteration: int  # from 1
    seconds: float  # since the fit began, set-up included
    inertia: float  # the objective: sum of the squared distances to the centres
    n_active: int  # points that changed their cluster
    n_trees: int  # trees whose leaves were the neighbourhoods
    n_candidates: float  # clusters tested for a point, on average; one met in two trees counts twice
    accuracy: float | None  # share of a sample of points assigned to their nearest centre, where it was measured


class Clustering(NamedTuple, Generic[Labels]):
    """The state that an iteration improves."""

    labels: Labels
    clusters: Clusters
    previous: NDArray[Any] | None = None  # (k, d) centres of the iteration before, if extrapolation needs them


class CenterBuffers:
    """Buffers for the centres of the current, the previous and the next iteration, which rotate.

    With many clusters the centres are large, and allocation takes as long as the arithmetic. With ``keep_previous`` a
    state keeps the centres of the iteration before, for extrapolation.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, *, keep_previous: bool) -> None:
        self._shape, self._dtype = shape, dtype
        self._keep_previous = keep_previous
        self._next: NDArray[Any] | None = None

    @property
    def next(self) -> NDArray[Any]:
        """Buffer for the extrapolated centres and, after the assignment to them, for the updated ones."""
        if self._next is None:
            self._next = empty_rows(self._shape, self._dtype)
        return self._next

    def release(self) -> None:
        """Free the buffer of the next centres."""
        self._next = None

    def rotate(self, state: Clustering[Labels], labels: Labels, clusters: Clusters) -> Clustering[Labels]:
        """The state after ``state``, whose centres are in ``next``; the oldest are overwritten next."""
        if not self._keep_previous:
            self._next = state.clusters.centers
            return Clustering(labels, clusters)
        self._next = state.previous
        return Clustering(labels, clusters, state.clusters.centers)


class Step(NamedTuple, Generic[Labels]):
    """Outcome of an iteration."""

    state: Clustering[Labels]
    n_active: int
    n_pairs: int  # tested pairs of point and candidate
    n_trees: int
    damped: bool = False  # only a part of the movers moved: a small fall is then no convergence


# Records an iteration, given its outcome, the accuracy if it was measured, and whether the fit has converged. Returns a
# reason to stop, or None.
OnIteration = Callable[[Step[Any], float | None, bool], str | None]
# Enlarges the neighbourhoods if an iteration used them up (see ``Neighborhoods``); whether they are larger now.
Expand = Callable[[float, bool, float | None], bool]


def alternate(
    state: Clustering[Labels],
    take_step: Callable[[Clustering[Labels], int], Step[Labels]],
    *,
    n_done: int = 0,
    max_iter: int,
    tol: float,
    measure_accuracy: Callable[[Clustering[Labels]], float] | None,
    on_iteration: OnIteration,
    expand: Expand = lambda fall, settled, accuracy: False,
) -> tuple[Clustering[Labels], str]:
    """Take steps, each an assignment and an update, until the distortion no longer changes.

    ``take_step`` is given the state and the number of the iteration, which is ``n_done + 1`` for the first. The
    accuracy is measured every ``ACCURACY_EVERY`` iterations and whenever the fit has settled; at ``max_iter`` by
    ``Recorder.complete``. Returns the last state and the reason why it is the last. An interrupt ends the loop, too:
    the iteration under way is dropped.
    """
    try:
        for number in range(n_done + 1, max_iter + 1):
            before = state.clusters.inertia
            step = take_step(state, number)
            fall = 1 - step.state.clusters.inertia / before if before > 0 else 0.0
            settled = step.n_active == 0 or (abs(fall) < tol and not step.damped)
            accuracy = None
            if measure_accuracy is not None and (settled or number % ACCURACY_EVERY == 0):
                accuracy = measure_accuracy(step.state)
            expanded = expand(fall, settled, accuracy)
            converged = settled and not expanded
            state = step.state
            reason = on_iteration(step, accuracy, converged)
            if reason is not None or converged:
                return state, reason or "converged"
    except KeyboardInterrupt:
        return state, "interrupted"
    return state, "max_iter"


class Keeper(Protocol):
    """Protocol of what saves a fit while it runs: a checkpoint, or the shared folder of a fit on Dask."""

    @property
    def history(self) -> list[Iteration]:
        """The saved iterations of a resumed fit."""

    def note(self, state: Clustering[Any], history: list[Iteration], converged: bool) -> None:
        """Take the state after an iteration."""

    def finish(self) -> None:
        """Save the last state at the end of the fit, whatever ended it."""


class Recorder:
    """Records iterations: history, progress bar, callback, time limit, checkpoints.

    ``max_time``, ``callback`` and ``verbose`` are those of the ``model``. The fit ``began`` at a time by
    ``time.perf_counter``, and is saved by the ``keeper``.
    """

    def __init__(
        self, model: BaseKMeans, began: float, n_points: int, max_iter: int, keeper: Keeper | None = None
    ) -> None:
        from tqdm.auto import tqdm

        self.history: list[Iteration] = [] if keeper is None else keeper.history
        self._model, self._keeper = model, keeper
        self._began = began
        self._seconds_before = self.history[-1].seconds if self.history else 0.0
        self._n_points = n_points
        self._compiled = WATCH.seconds
        self._bar = tqdm(
            total=max_iter, initial=len(self.history), disable=not model.verbose, unit="it", desc=type(model).__name__
        )
        self._bar.set_postfix_str("preparing")

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.total = self._bar.n  # done, even if before max_iter
        self._bar.close()
        if self._keeper is not None:
            self._keeper.finish()

    def count_start(self, state: Clustering[Any], n_clusters: int) -> str | None:
        """Record the assignment to given centres as the first iteration; returns a reason to stop, or None."""
        return self(Step(state, n_active=self._n_points, n_pairs=self._n_points * n_clusters, n_trees=0), None)

    def complete(self, measure_accuracy: Callable[[], float]) -> None:
        """Measure the accuracy of the last iteration, at ``max_iter``, if it was not.

        The keeper has the record without it, as it is in the history of a fit that goes on from there.
        """
        last = self.history[-1]
        if last.accuracy is None:
            self.history[-1] = last._replace(accuracy=measure_accuracy())

    def __call__(self, step: Step[Any], accuracy: float | None, converged: bool = False) -> str | None:
        """Record an iteration; returns a reason to stop, or None."""
        elapsed = time.perf_counter() - self._began
        record = Iteration(
            iteration=len(self.history) + 1,
            seconds=self._seconds_before + elapsed,
            inertia=step.state.clusters.inertia,
            n_active=step.n_active,
            n_trees=step.n_trees,
            n_candidates=step.n_pairs / self._n_points,
            accuracy=accuracy,
        )
        before = self.history[-1].seconds if self.history else record.seconds
        self.history.append(record)
        self._bar.set_postfix_str(
            f"distortion {record.inertia / self._n_points:.6g}, moved {record.n_active / self._n_points:.2%}"
        )
        compiling = WATCH.seconds - self._compiled
        self._compiled += compiling
        if not self._bar.disable:  # exclude compile time from the estimate of the remaining time
            self._bar.start_t += compiling
            self._bar.last_print_t += compiling
        self._bar.update()
        if self._keeper is not None:
            self._keeper.note(step.state, self.history, converged)
        if self._model.callback is not None and self._model.callback(record):
            return "callback"
        if self._model.max_time is not None and elapsed + record.seconds - before - compiling > self._model.max_time:
            return "max_time"
        return None
