"""From rows to a picture, one for every kind of experiment: its panels side by side, with one legend below."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from benchmarks import data
from benchmarks.paper.measure import NEAR_BORDER, RATIO_EDGES
from benchmarks.paper.plan import Experiment, Group, Panel
from benchmarks.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

Groups = list[tuple[Panel, Group]]
# What is shown in axes of its own: a panel, its rows, and how to draw them.
View = tuple[Panel, Group, Callable[["Axes"], None]]

INK = "#1f2937"
LETTERS_PER_INCH = 12  # in a legend


# -- fits ------------------------------------------------------------------------------------------------------------


def draw_fits(experiment: Experiment, groups: Groups) -> Figure:
    """A view for each panel and kind of x axis."""
    views = [(panel, group, partial(draw_fit, experiment, group, x)) for panel, group in groups for x in experiment.x]
    return draw_views(views, columns=3 if len(views) > 4 else 2)


def draw_fit(experiment: Experiment, group: Group, x: str, axes: Axes) -> None:
    kind = experiment.kind
    curves = [(curve, points_of(group[curve.label], kind, x)) for curve in experiment.curves_in(group)]
    for curve, points in curves:
        width = 2.6 if curve.method == "ours" else 1.6
        axes.plot(*zip(*points, strict=True), "o-", color=curve.color, lw=width, ms=4, label=curve.label)
        if kind == "distortion" and x == "seconds":  # that of the centres, each row at its nearest
            axes.plot(*group[curve.label]["curve"][-1], "D", color=curve.color, ms=6, mec="white")
    if kind == "distortion":
        axes.plot([], [], "D", color=INK, ms=6, mec="white", label="end, exactly assigned")
    limit_values(axes, [points for _, points in curves], kind)
    if x == "seconds":
        plain_log_scale(axes.set_xscale, axes.xaxis)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(x)
    axes.set_ylabel("distortion per row" if kind == "distortion" else "NMI")
    axes.yaxis.set_major_formatter("{x:,.6g}")


def points_of(row: Row, kind: str, x: str) -> list[tuple[float, float]]:
    if kind == "nmi":
        return row["nmi_curve"]
    if x == "seconds":
        return row["curve"][:-1] or row["curve"]
    return [(step["iteration"], step["inertia"] / row["n_rows"]) for step in row["history"]]


def limit_values(axes: Axes, curves: list[list[tuple[float, float]]], kind: str) -> None:
    """Leave out what is far worse than where the curves end."""
    ends = [points[-1][1] for points in curves]
    values = [value for points in curves for _, value in points]
    spread = max(max(ends) - min(ends), 1e-3 * abs(max(ends)))
    margin = 0.1 * spread
    if kind == "distortion":
        axes.set_ylim(min(values) - margin, min(max(values) + margin, max(ends) + 2 * spread))
    else:
        axes.set_ylim(max(min(values) - margin, min(ends) - 1.2 * spread), max(values) + margin)


# -- distance ratio, coverage, candidates ----------------------------------------------------------------------------


def draw_ratios(experiment: Experiment, groups: Groups) -> Figure:
    return draw_views([(panel, group, partial(draw_ratio, experiment, group)) for panel, group in groups])


def draw_ratio(experiment: Experiment, group: Group, axes: Axes) -> None:
    for curve in experiment.curves_in(group):
        row = group[curve.label]
        axes.stairs(100 * np.array(row["shares"]), row["edges"], color=curve.color, lw=1.8, label=curve.label)
    axes.axvline(NEAR_BORDER, color=INK, lw=1, ls=":")
    note = f"{NEAR_BORDER}: 90 % lie to the left,\nsays the paper"
    axes.text(NEAR_BORDER + 0.01, 0.93, note, transform=axes.get_xaxis_transform(), va="top", size=8.5, color=INK)
    axes.set_xlim(RATIO_EDGES[0], 0.4)
    axes.set_xlabel("distance ratio")
    axes.set_ylabel("% of the active points, in steps of 0.01")


def draw_coverages(experiment: Experiment, groups: Groups) -> Figure:
    return draw_views([(panel, group, partial(draw_coverage, experiment, group)) for panel, group in groups])


def draw_coverage(experiment: Experiment, group: Group, axes: Axes) -> None:
    for curve in experiment.curves_in(group):
        sizes, shares, *_ = zip(*group[curve.label]["curve"], strict=True)
        axes.plot(sizes, 100 * np.array(shares), "o-", color=curve.color, lw=1.8, ms=4, label=curve.label)
    axes.plot(50, 90, "*", color=INK, ms=13, label="the paper: 90 % at 50", zorder=4)
    plain_log_scale(axes.set_xscale, axes.xaxis)
    axes.set_ylim(0, 102)
    axes.set_xlabel("points in a neighbourhood")
    axes.set_ylabel("% of the active points covered")


CANDIDATE_AXES = {
    "candidates": "candidates a point",
    "accuracy": "% at the nearest centre",
    "seconds": "seconds of an iteration",
}


def draw_candidates(experiment: Experiment, groups: Groups) -> Figure:
    """Accuracy over candidates, time over candidates, and what both come to: accuracy over time."""
    kinds = (("candidates", "accuracy"), ("candidates", "seconds"), ("seconds", "accuracy"))
    views = [
        (panel, group, partial(draw_candidate, experiment, group, *kind)) for panel, group in groups for kind in kinds
    ]
    return draw_views(views, columns=3)


def draw_candidate(experiment: Experiment, group: Group, x: str, y: str, axes: Axes) -> None:
    for curve in experiment.curves_in(group):
        points = group[curve.label]["points"]
        values = [point[y] * (100 if y == "accuracy" else 1) for point in points]
        axes.plot([point[x] for point in points], values, "o-", color=curve.color, lw=1.8, ms=4, label=curve.label)
    plain_log_scale(axes.set_xscale, axes.xaxis)
    if y == "seconds":
        plain_log_scale(axes.set_yscale, axes.yaxis)
    axes.set_xlabel(CANDIDATE_AXES[x])
    axes.set_ylabel(CANDIDATE_AXES[y])


# -- clusters --------------------------------------------------------------------------------------------------------


def draw_clusters(experiment: Experiment, groups: Groups) -> Figure:
    """A row of pictures for each cluster, the paper's mode above the default."""
    views = [(panel, group[curve.label]) for panel, group in groups for curve in experiment.curves_in(group)]
    figure = Figure(figsize=(10, 3.8 * len(views)), layout="constrained")
    for axes, (panel, row) in zip(np.atleast_1d(figure.subplots(len(views))), views, strict=True):
        pictures = data.load_pictures(panel.data, panel.n_rows, experiment.source).pictures
        side = pictures.shape[1]
        rows = [
            np.hstack([np.pad(pictures[i], 1, constant_values=255) for i in shown["pictures"]])
            for shown in row["shown"]
        ]
        axes.imshow(np.vstack(rows), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks(
            (np.arange(len(rows)) + 0.5) * (side + 2),
            [f"{shown['size']} pictures\n{shown['purity']:.0%} of one class" for shown in row["shown"]],
            size=9,
        )
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(
            f"{row['label']}: {row['data_title']}, into {panel.n_clusters:,} clusters", loc="left", size=10.5
        )
    return figure


# -- what they share -------------------------------------------------------------------------------------------------


def draw_views(views: list[View], columns: int = 2) -> Figure:
    figure, all_axes = make_axes(len(views), columns)
    for axes, (panel, group, draw) in zip(all_axes, views, strict=True):
        draw(axes)
        title = next(iter(group.values()))["data_title"].replace(", stand-in", "\nstand-in")
        axes.set_title(f"{title}\nk = {panel.n_clusters:,}", loc="left", size=9.5, color=INK)
    add_legend(figure, all_axes)
    return figure


def make_axes(n_axes: int, columns: int) -> tuple[Figure, list[Axes]]:
    """So many axes, row by row."""
    columns = min(n_axes, columns)
    n_rows = -(-n_axes // columns)
    figure = Figure(figsize=(max(4.6 * columns, 7), 3.9 * n_rows + 0.5), layout="constrained")
    grid = figure.subplots(n_rows, columns, squeeze=False).ravel()
    for axes in grid[n_axes:]:
        axes.set_visible(False)
    for axes in grid[:n_axes]:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, list(grid[:n_axes])


def plain_log_scale(set_scale: Callable[[str], None], axis: Axis) -> None:
    """A logarithmic axis with 1, 2, 5, 10 on it, not powers."""
    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def add_legend(figure: Figure, all_axes: list[Axes]) -> None:
    """What any of the axes shows: a curve may be missing in some."""
    shown = {}
    for axes in all_axes:
        handles, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, handles, strict=True))
    columns = int(LETTERS_PER_INCH * figure.get_figwidth() // (max(map(len, shown)) + 7))
    figure.legend(
        list(shown.values()),
        list(shown),
        loc="outside lower center",
        ncols=max(1, min(columns, len(shown))),
        frameon=False,
        fontsize=9.5,
    )
