"""Records the iterations of a fit: history, progress bar, callback, time budget, checkpoints."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from tqdm.auto import tqdm

from closure_kmeans.compiler import CompilerTime
from closure_kmeans.iteration import Clustering, Iteration, Step

if TYPE_CHECKING:
    from closure_kmeans.base import BaseKMeans


class Keeper(Protocol):
    """A place where a fit is saved while it runs: a checkpoint, or the shared folder of a fit on Dask."""

    @property
    def history(self) -> list[Iteration]:
        """The iterations that were saved there before this fit."""

    def note(self, state: Clustering[Any], history: list[Iteration], converged: bool) -> None:
        """Take the state after an iteration."""

    def finish(self) -> None:
        """Save the last state: the fit has ended, for whatever reason."""


class Recorder:
    """Records iterations, shows the progress, and says when to stop.

    Parameters
    ----------
    model : estimator
        ``max_time``, ``callback`` and ``verbose`` are read from it.
    began : float
        When the fit began, by ``time.perf_counter``.
    n_points : int
        Number of points.
    max_iter : int
        Largest number of iterations.
    keeper : Keeper, optional
        The place where the fit is saved.
    """

    def __init__(
        self, model: BaseKMeans, began: float, n_points: int, max_iter: int, keeper: Keeper | None = None
    ) -> None:
        self.history: list[Iteration] = [] if keeper is None else keeper.history
        self._keeper = keeper
        self._began = began
        self._seconds_before = self.history[-1].seconds if self.history else 0.0
        self._n_points = n_points
        self._max_time = model.max_time
        self._callback = model.callback
        self._compiling = CompilerTime()
        self._bar = tqdm(
            total=max_iter,
            initial=len(self.history),
            disable=not model.verbose,
            unit="it",
            desc=type(model).__name__,
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
        """Record the assignment to given centres as the first iteration; a reason to stop, if there is one."""
        return self(Step(state, n_active=self._n_points, n_pairs=self._n_points * n_clusters, n_trees=0), None)

    def __call__(self, step: Step[Any], accuracy: float | None, converged: bool = False) -> str | None:
        """Record an iteration; a reason to stop, if there is one."""
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
        compiling = self._compiling.lap()
        if not self._bar.disable:  # exclude compile time from the estimate of the remaining time
            self._bar.start_t += compiling
            self._bar.last_print_t += compiling
        self._bar.update()
        if self._keeper is not None:
            self._keeper.note(step.state, self.history, converged)
        if self._callback is not None and self._callback(record):
            return "callback"
        if self._max_time is not None and elapsed + record.seconds - before - compiling > self._max_time:
            return "max_time"
        return None
