"""How a fit went, or goes: its history, from a model or from the checkpoint of a fit that runs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from closure_kmeans.checkpoint import checkpoint_file, read_status
from closure_kmeans.iteration import Iteration

if TYPE_CHECKING:
    from closure_kmeans.base import BaseKMeans


# Seconds without a checkpoint after which a fit may have been stopped.
SILENCE = 600


class Fit(NamedTuple):
    """The history of a fit."""

    history: list[Iteration]
    n_points: int | None  # if it is known
    state: str  # "waiting" for a first checkpoint, "running", "silent" for long, "stopped", or why it ended
    saved: float | None = None  # seconds since the checkpoint was written


def fit_of_model(model: BaseKMeans) -> Fit | None:
    """The fit that made a model, if the model has kept its history."""
    if not getattr(model, "history_", None):
        return None
    n_points = len(model.labels_) if hasattr(model, "labels_") else None
    return Fit(model.history_, n_points, model.stopped_by_)


def fit_of_checkpoint(path: str | os.PathLike[str]) -> Fit:
    """The fit that writes, or wrote, a checkpoint."""
    file = checkpoint_file(path)
    if not file.exists():
        return Fit([], None, "waiting")
    status = read_status(file)
    n_points = int(status.identity["X"].partition(" x ")[0])
    saved = max(0.0, time.time() - file.stat().st_mtime)
    if status.ended:
        state = "converged" if status.converged else "stopped"  # and may be resumed
    else:
        state = "running" if saved < SILENCE else "silent"
    return Fit(status.history, n_points, state, saved)
