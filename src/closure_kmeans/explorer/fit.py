"""History of a fit, from a model or from the checkpoint of a running fit."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from closure_kmeans.checkpoint import checkpoint_file, read_status
from closure_kmeans.iteration import Iteration

if TYPE_CHECKING:
    from closure_kmeans.estimator import BaseKMeans


# Seconds without a checkpoint after which a fit counts as silent: it may have been killed.
SILENCE = 600


class Fit(NamedTuple):
    """History and state of a fit."""

    history: list[Iteration]
    n_points: int | None  # None if unknown
    state: str  # "waiting" for a first checkpoint, "running", "silent", "stopped", or the reason of the end
    saved: float | None = None  # seconds since the checkpoint was written

    def distortion(self, step: Iteration) -> float:
        """Distortion after an iteration, per item if their number is known."""
        return step.inertia / (self.n_points or 1)


def fit_of_model(model: BaseKMeans) -> Fit | None:
    """Fit of a model, if the model has a history."""
    if not getattr(model, "history_", None):
        return None
    n_points = len(model.labels_) if hasattr(model, "labels_") else None
    return Fit(model.history_, n_points, model.stopped_by_)


def fit_of_checkpoint(path: str | os.PathLike[str]) -> Fit:
    """Fit that a checkpoint belongs to."""
    file = checkpoint_file(path)
    if not file.exists():
        return Fit([], None, "waiting")
    status = read_status(file)
    n_points = int(status.identity["X"].partition(" x ")[0])
    saved = max(0.0, time.time() - file.stat().st_mtime)
    if status.ended:
        state = "converged" if status.converged else "stopped"  # may be resumed
    else:
        state = "running" if saved < SILENCE else "silent"
    return Fit(status.history, n_points, state, saved)
