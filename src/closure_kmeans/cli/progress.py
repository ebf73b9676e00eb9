"""Progress line of a fit, with the estimated end."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import click
from tqdm import tqdm

from closure_kmeans import ClosureKMeans, Iteration
from closure_kmeans.compiler import WATCH

# Iterations whose trend predicts the end.
TREND = 4
# Seconds between two lines where there is no screen.
LINE_EVERY = 10.0


def seconds_left(history: list[Iteration], *, tol: float, max_iter: int, at_most: float) -> float | None:
    """Estimated remaining seconds, assuming that the falls of the distortion shrink geometrically to ``tol``."""
    falls = [
        1 - after.inertia / before.inertia
        for before, after in zip(history[-TREND - 1 :], history[-TREND:], strict=False)
        if before.inertia > 0
    ]
    if len(falls) < TREND or min(falls) <= 0:
        return None
    n_left = max_iter - history[-1].iteration
    shrinkage = (falls[-1] / falls[0]) ** (1 / (TREND - 1))
    if tol > 0 and shrinkage < 1:
        n_left = min(n_left, math.ceil(max(0.0, math.log(tol / falls[-1]) / math.log(shrinkage))))
    seconds = n_left * (history[-1].seconds - history[-1 - TREND].seconds) / TREND
    return min(seconds, at_most)


def clock(seconds: float) -> str:
    """Format seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """Told of each iteration: one line that is rewritten on a screen, some lines elsewhere, or JSON.

    ``saved`` is the checkpoint or the storage that the fit may go on from; its first iteration shows whether it does.
    """

    def __init__(
        self, model: ClosureKMeans, n_rows: int, *, quiet: bool, as_json: bool, saved: Path | str | None = None
    ) -> None:
        self._model = model
        self._saved = saved
        self._n_rows = n_rows
        self._quiet = quiet or as_json
        self._as_json = as_json
        self._history: list[Iteration] = []  # without the time that the compiler took
        self._compiled_before = WATCH.seconds
        self._began = time.monotonic()
        self._line_at = -math.inf
        screen = sys.stderr.isatty() and not self._quiet
        self._line = tqdm(desc="sorting rows", bar_format="{desc}", leave=False) if screen else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._line is not None:
            self._line.close()

    def __call__(self, record: Iteration) -> None:
        """Show an iteration."""
        if not self._history:
            self._say_resumed("resuming", record.iteration - 1)
        self._history.append(record._replace(seconds=record.seconds - (WATCH.seconds - self._compiled_before)))
        if self._as_json:
            facts = {"event": "iteration", **record._asdict(), "distortion": record.inertia / self._n_rows}
            self._say(json.dumps(facts), err=False)
        if self._line is not None:
            self._line.set_description_str(self._text(record))
        elif not self._quiet and time.monotonic() - self._line_at > LINE_EVERY:
            self._line_at = time.monotonic()
            self._say(self._text(record), err=True)

    def finish(self) -> None:
        """Print that nothing was left to do, if a finished fit was resumed."""
        if not self._history:
            ended = "already converged" if self._model.stopped_by_ == "converged" else "already ended"
            self._say_resumed(f"the fit {ended}", self._model.n_iter_)

    def _say_resumed(self, state: str, n_iter: int) -> None:
        if self._saved is None or self._quiet or n_iter == 0:
            return
        if self._line is not None:
            self._line.clear()
        self._say(f"{state} after iteration {n_iter} of '{self._saved}'", err=True)

    def _say(self, text: str, *, err: bool) -> None:
        """Print; a closed output stream does not end the fit."""
        try:
            click.echo(text, err=err)
        except OSError:
            self._quiet, self._as_json = True, False

    def _text(self, record: Iteration) -> str:
        model = self._model
        at_most = math.inf if model.max_time is None else max(0.0, self._began + model.max_time - time.monotonic())
        left = seconds_left(self._history, tol=model.tol, max_iter=model.max_iter, at_most=at_most)
        end = "" if left is None else f", about {clock(left)} left"
        trees = f", {record.n_trees} trees" if record.n_trees > 1 else ""
        return (
            f"iteration {record.iteration}: distortion {record.inertia / self._n_rows:,.6g}, "
            f"moved {record.n_active / self._n_rows:.2%}{trees}, {clock(record.seconds)}{end}"
        )
