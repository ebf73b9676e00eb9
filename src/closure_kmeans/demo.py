"""Demonstration: cluster closures and exact Lloyd on the data set of the package.

Each method runs once and returns a ``Run``; the table and the picture are made from the runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from closure_kmeans import ClosureKMeans
from closure_kmeans.files import library

LLOYD_ITERATIONS = 25


class Run(NamedTuple):
    """Result of one method. Distortions are means over the points."""

    method: str
    seconds: float  # total
    distortion: float
    curve: list[tuple[float, float]]  # seconds since the fit began and distortion, per iteration


def prepare_kernels(X: NDArray[Any], n_clusters: int, *, seed: int, n_threads: int | None) -> float:
    """Compile the kernels, or load them from the cache; return the seconds it took.

    Two iterations of the fit that follows call all kernels that it needs.
    """
    begin = perf_counter()
    ClosureKMeans(n_clusters=n_clusters, max_iter=2, random_state=seed, n_threads=n_threads).fit(X)
    return perf_counter() - begin


def run_closures(
    X: NDArray[Any], n_clusters: int, *, seed: int, n_threads: int | None, on_iteration: Callable[[float], None]
) -> Run:
    """Fit ``ClosureKMeans``; calls ``on_iteration`` with the distortion after every iteration."""
    model = ClosureKMeans(
        n_clusters, random_state=seed, n_threads=n_threads, callback=lambda step: on_iteration(step.inertia / len(X))
    )
    begin = perf_counter()
    model.fit(X)
    seconds = perf_counter() - begin
    curve = [(step.seconds, step.inertia / len(X)) for step in model.history_]
    return Run("ClosureKMeans", seconds, model.inertia_ / len(X), curve)


def run_lloyd(
    X: NDArray[Any], n_clusters: int, *, seed: int, n_threads: int | None, on_iteration: Callable[[float], None]
) -> Run:
    """Run scikit-learn's exact Lloyd from random rows.

    scikit-learn records no history, and a fit of one iteration assigns the points twice. Therefore one complete fit is
    timed; a second, untimed pass of single iterations collects the distortions, and the time is divided equally between
    the iterations.
    """
    X = X.astype(np.float32)
    centers = X[np.random.default_rng(seed).choice(len(X), n_clusters, replace=False)]
    with threadpool_limits(n_threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        begin = perf_counter()
        model = _lloyd(centers, LLOYD_ITERATIONS).fit(X)
        seconds = perf_counter() - begin

        curve: list[tuple[float, float]] = []
        for iteration in range(1, model.n_iter_ + 1):
            step = _lloyd(centers, 1).fit(X)
            centers = step.cluster_centers_
            curve.append((seconds * iteration / model.n_iter_, step.inertia_ / len(X)))
            on_iteration(curve[-1][1])
    return Run("exact Lloyd", seconds, model.inertia_ / len(X), curve)


def _lloyd(centers: NDArray[np.float32], max_iter: int) -> KMeans:
    return KMeans(len(centers), init=centers, n_init=1, algorithm="lloyd", max_iter=max_iter, tol=0)


def format_table(runs: list[Run]) -> str:
    """Format the runs as a table, relative to the last one."""
    width = max(len(run.method) for run in runs)
    lines = [f"{'method':{width}}  iterations  seconds  distortion  relative"]
    lines += [
        f"{run.method:{width}}  {len(run.curve):10}  {run.seconds:7.2f}  {run.distortion:10,.0f}"
        f"  {run.distortion / runs[-1].distortion:8.3f}"
        for run in runs
    ]
    return "\n".join(lines)


def draw_runs(runs: list[Run], title: str, path: Path) -> None:
    """Plot distortion over time into a file; the first run is highlighted."""
    Figure = library("matplotlib.figure", "plot", "a picture").Figure
    LogLocator = library("matplotlib.ticker", "plot", "a picture").LogLocator

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for number, run in enumerate(runs):
        ours = number == 0
        seconds, distortions = zip(*run.curve, strict=True)
        color = "#c2410c" if ours else "#64748b"
        axes.plot(seconds, distortions, "o-", color=color, lw=2.5 if ours else 1.5, ms=4 if ours else 3)
        axes.annotate(
            f"{run.method}\n{run.distortion:,.0f} in {run.seconds:.1f} s",
            (seconds[-1], distortions[-1]),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            color=color,
            weight="bold" if ours else "normal",
        )
    axes.set_title(title, loc="left", weight="bold")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("seconds since the fit began")
    axes.set_ylabel("distortion per point")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
