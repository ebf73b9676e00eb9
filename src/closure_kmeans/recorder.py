"""What a fit leaves behind as it goes: the history, a bar, and whatever keeps it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from tqdm.auto import tqdm

from closure_kmeans.compiler import CompilerTime
from closure_kmeans.iteration import Clustering, Iteration, Step

if TYPE_CHECKING:
    from closure_kmeans.base import BaseKMeans


class Keeper(Protocol):
    """Where a fit is kept while it runs."""

    @property
    def history(self) -> list[Iteration]:
        """The iterations that it had when it was found there."""

    def note(self, state: Clustering, history: list[Iteration], converged: bool) -> None:
        """Told how things stand after an iteration."""

    def finish(self) -> None:
        """Told that the fit has ended, for whatever reason."""


class Recorder:
    """Keeps the history, shows the progress, and says when to stop."""

    def __init__(self, model: BaseKMeans, began: float, n_points: int, checkpoint: Keeper | None = None) -> None:
        self.checkpoint = checkpoint
        self.history: list[Iteration] = [] if checkpoint is None else checkpoint.history
        self._began = began
        self._seconds_before = self.history[-1].seconds if self.history else 0.0
        self._n_points = n_points
        self._max_time = model.max_time
        self._callback = model.callback
        self._compiling = CompilerTime()
        self._bar = tqdm(
            total=model._most_iterations,
            initial=len(self.history),
            disable=not model.verbose,
            unit="it",
            desc=type(model).__name__,
        )
        self._bar.set_postfix_str("preparing")

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.total = self._bar.n  # done, be it before the last iteration allowed
        self._bar.close()
        if self.checkpoint is not None:
            self.checkpoint.finish()

    def __call__(self, step: Step, accuracy: float | None, converged: bool = False) -> str | None:
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
        if not self._bar.disable:  # what was compiled is no sign of how long iterations take
            self._bar.start_t += compiling
            self._bar.last_print_t += compiling
        self._bar.update()
        if self.checkpoint is not None:
            self.checkpoint.note(step.state, self.history, converged)
        if self._callback is not None and self._callback(record):
            return "callback"
        if self._max_time is not None and elapsed + record.seconds - before - compiling > self._max_time:
            return "max_time"
        return None
