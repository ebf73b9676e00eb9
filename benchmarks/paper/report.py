"""From rows to a Markdown table and a picture, one of each for every kind of experiment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks import data
from benchmarks.paper.plan import Experiment, Panel
from benchmarks.results import Row, markdown_table
from benchmarks.rivals.report import INFINITY, percent, time_to_reach

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

Lines = list[list[str]]
Group = dict[str, Row]  # the rows of a panel, by the label of the curve

INK = "#1f2937"
LETTERS_PER_INCH = 12  # in a legend


def describe(row: Row) -> str:
    """A line about a run that has ended."""
    result = (
        f"failed: {row['failed']}" if "failed" in row else f"{row['seconds']:.1f} s" if "seconds" in row else "done"
    )
    return f"{row['label']:60} {row['data']} {row['n_rows']:,} k = {row['n_clusters']:,}  {result}"


def write_report(experiment: Experiment, rows: list[Row], path: Path, source: str | None) -> str:
    """Table and picture beside the file of results; the table."""
    make_table, draw = REPORTS[experiment.kind]
    groups = [(panel, group_of(panel, rows)) for panel in experiment.panels]
    parts = [f"# {experiment.title}", f"Section {experiment.section} of the paper: {experiment.claim}."]
    for panel, group in groups:
        parts += [f"{panel_title(panel, group)}.", make_table(group)] if group else []
    parts += [f"- {row['label']}: failed, {row['failed']}" for row in rows if "failed" in row]
    if rows:
        machine, versions = rows[-1]["machine"], rows[-1]["versions"]
        parts.append(
            f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:g} GB; "
            f"{', '.join(f'{package} {version}' for package, version in versions.items())}."
        )
    text = "\n\n".join(parts) + "\n"
    path.with_suffix(".md").write_text(text)
    drawn = [(panel, group) for panel, group in groups if group]
    if drawn:
        draw(experiment, drawn, source).savefig(path.with_suffix(".png"), dpi=110)
    return text


def group_of(panel: Panel, rows: list[Row]) -> Group:
    size = (panel.data, panel.n_rows, panel.n_clusters)
    return {
        row["label"]: row
        for row in rows
        if "failed" not in row and (row["data"], row["n_rows"], row["n_clusters"]) == size
    }


def panel_title(panel: Panel, group: Group) -> str:
    threads = {row["threads"] for row in group.values()}
    shared = f", {threads.pop()} threads" if len(threads) == 1 else ""
    first = next(iter(group.values()))
    scored = f", scored on {first['scored_rows']:,} seeded rows" if first.get("score_error") else ""
    return f"{first['data_title']}, into {panel.n_clusters:,} clusters{shared}{scored}"


# -- fits ------------------------------------------------------------------------------------------------------------


def fit_table(group: Group) -> str:
    header = (
        "",
        "iterations",
        "seconds",
        "of an iteration",
        "distortion",
        "against the default",
        "the default gets there in",
        "stopped by",
    )
    default = next((row for row in group.values() if row["method"] == "ours"), None)
    return markdown_table(header, [fit_line(row, default) for row in group.values()])


def fit_line(row: Row, default: Row | None) -> list[str]:
    against = reach = "–"
    if default is not None and default is not row:
        seconds = time_to_reach(default, row["distortion"])
        against = percent(row["distortion"] / default["distortion"])
        reach = "never" if seconds == INFINITY else f"{seconds:.2f} s"
    return [*fit_cells(row), f"{row['distortion']:,.6g}", against, reach, row["stopped_by"].replace("_", " ")]


def fit_cells(row: Row) -> list[str]:
    """Curve, iterations, seconds, seconds of an iteration."""
    moments = [step["seconds"] for step in row["history"]]
    each = f"{np.diff(moments).mean():.3f}" if len(moments) > 1 else "–"
    return [row["label"], f"{len(moments)}", f"{row['seconds']:.2f}", each]


def nmi_table(group: Group) -> str:
    header = ("", "iterations", "seconds", "of an iteration", "NMI", "distortion", "stopped by")
    lines = [
        [
            *fit_cells(row),
            f"{row['nmi_curve'][-1][1]:.4f}",
            f"{row['distortion']:,.6g}",
            row["stopped_by"].replace("_", " "),
        ]
        for row in group.values()
    ]
    return markdown_table(header, lines)


def draw_fits(experiment: Experiment, groups: list[tuple[Panel, Group]], source: str | None) -> Figure:
    """A picture for each panel and kind of x axis, with one legend below."""
    views = [(panel, group, x) for panel, group in groups for x in experiment.x]
    figure, all_axes = make_axes(len(views), columns=3 if len(views) > 4 else 2)
    for axes, (panel, group, x) in zip(all_axes, views, strict=True):
        curves = [(curve, points_of(group[curve.label], experiment.kind, x)) for curve in experiment.curves_in(group)]
        for curve, points in curves:
            width = 2.6 if curve.method == "ours" else 1.6
            axes.plot(*zip(*points, strict=True), "o-", color=curve.color, lw=width, ms=4, label=curve.label)
            if experiment.kind == "distortion" and x == "seconds":  # that of the centres, each row at its nearest
                axes.plot(*group[curve.label]["curve"][-1], "D", color=curve.color, ms=6, mec="white")
        limit_values(axes, [points for _, points in curves], experiment.kind)
        if x == "seconds":
            plain_log_scale(axes.set_xscale, axes.xaxis)
        axes.set_xlabel("seconds" if x == "seconds" else "iterations")
        axes.set_ylabel("distortion per row" if experiment.kind == "distortion" else "NMI")
        axes.yaxis.set_major_formatter("{x:,.6g}")
        set_title(axes, panel, group)
    add_legend(figure, all_axes[0])
    return figure


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
    low, high = min(ends), max(ends)
    spread = max(high - low, 1e-3 * abs(high))
    if kind == "distortion":
        axes.set_ylim(min(values) - 0.1 * spread, high + 2 * spread)
    else:
        axes.set_ylim(low - 1.2 * spread, max(values) + 0.1 * spread)


# -- distance ratio --------------------------------------------------------------------------------------------------


def ratio_table(group: Group) -> str:
    header = ("", "active points", "ratio below 0.15", "below 0.05", "moved to a farther centre")
    lines = []
    for row in group.values():
        edges, shares = np.array(row["edges"]), np.array(row["shares"])
        below = [shares[edges[:-1] < edge - 1e-9].sum() for edge in (0.05, 0.0)]
        near = f"{row['near_border']:.1%}"
        lines.append([row["label"], f"{sum(row['n_active']):,}", near, *(f"{share:.1%}" for share in below)])
    return markdown_table(header, lines)


def draw_ratios(experiment: Experiment, groups: list[tuple[Panel, Group]], source: str | None) -> Figure:
    figure, all_axes = make_axes(len(groups), columns=2)
    for axes, (panel, group) in zip(all_axes, groups, strict=True):
        for curve in experiment.curves_in(group):
            row = group[curve.label]
            axes.stairs(100 * np.array(row["shares"]), row["edges"], color=curve.color, lw=1.8, label=curve.label)
        axes.axvline(0.15, color=INK, lw=1, ls=":")
        note = "0.15: 90 % lie to the left,\nsays the paper"
        axes.text(0.16, 0.93, note, transform=axes.get_xaxis_transform(), va="top", size=8.5, color=INK)
        axes.set_xlim(-0.1, 0.4)
        axes.set_xlabel("distance ratio")
        axes.set_ylabel("% of the active points, in steps of 0.01")
        set_title(axes, panel, group)
    add_legend(figure, all_axes[0])
    return figure


# -- coverage --------------------------------------------------------------------------------------------------------


def coverage_table(group: Group) -> str:
    lines = [
        [row["label"], f"{n_trees}", f"{leaf_size}", f"{size:.1f}", f"{share:.1%}"]
        for row in group.values()
        for size, share, n_trees, leaf_size in row["curve"]
    ]
    return markdown_table(("", "trees", "leaf size", "points in a neighbourhood", "coverage"), lines)


def draw_coverage(experiment: Experiment, groups: list[tuple[Panel, Group]], source: str | None) -> Figure:
    figure, all_axes = make_axes(len(groups), columns=2)
    for axes, (panel, group) in zip(all_axes, groups, strict=True):
        for curve in experiment.curves_in(group):
            sizes, shares, *_ = zip(*group[curve.label]["curve"], strict=True)
            axes.plot(sizes, 100 * np.array(shares), "o-", color=curve.color, lw=1.8, ms=4, label=curve.label)
        axes.plot(50, 90, "*", color=INK, ms=13, label="the paper: 90 % at 50", zorder=4)
        plain_log_scale(axes.set_xscale, axes.xaxis)
        axes.set_ylim(0, 102)
        axes.set_xlabel("points in a neighbourhood")
        axes.set_ylabel("% of the active points covered")
        set_title(axes, panel, group)
    add_legend(figure, all_axes[0])
    return figure


# -- candidates ------------------------------------------------------------------------------------------------------


def candidates_table(group: Group) -> str:
    lines = [
        [row["label"], f"{point['candidates']:.1f}", f"{point['accuracy']:.1%}", f"{point['seconds']:.3f}"]
        for row in group.values()
        for point in row["points"]
    ]
    return markdown_table(("", "candidates", "accuracy", "seconds of an iteration"), lines)


def draw_candidates(experiment: Experiment, groups: list[tuple[Panel, Group]], source: str | None) -> Figure:
    """Accuracy over candidates, time over candidates, and what both come to: accuracy over time."""
    views = (("candidates", "accuracy"), ("candidates", "seconds"), ("seconds", "accuracy"))
    names = {
        "candidates": "candidates a point",
        "accuracy": "% at the nearest centre",
        "seconds": "seconds of an iteration",
    }
    figure, all_axes = make_axes(3 * len(groups), columns=3)
    for axes, (panel, group, (x, y)) in zip(
        all_axes, [(panel, group, view) for panel, group in groups for view in views], strict=True
    ):
        for curve in experiment.curves_in(group):
            points = group[curve.label]["points"]
            values = [point[y] * (100 if y == "accuracy" else 1) for point in points]
            axes.plot([point[x] for point in points], values, "o-", color=curve.color, lw=1.8, ms=4, label=curve.label)
        plain_log_scale(axes.set_xscale, axes.xaxis)
        if y == "seconds":
            plain_log_scale(axes.set_yscale, axes.yaxis)
        axes.set_xlabel(names[x])
        axes.set_ylabel(names[y])
        set_title(axes, panel, group)
    add_legend(figure, all_axes[0])
    return figure


# -- clusters --------------------------------------------------------------------------------------------------------


def clusters_table(group: Group) -> str:
    lines = [
        [
            row["label"],
            f"{row['seconds']:.2f}",
            f"{row['nmi']:.4f}",
            f"{np.mean([cluster['purity'] for cluster in row['shown']]):.0%}",
        ]
        for row in group.values()
    ]
    return markdown_table(("", "seconds", "NMI", "of the commonest class, in the clusters shown"), lines)


def draw_clusters(experiment: Experiment, groups: list[tuple[Panel, Group]], source: str | None) -> Figure:
    """A row of pictures for each cluster, the paper's mode above the default."""
    views = [(panel, group[curve.label]) for panel, group in groups for curve in experiment.curves_in(group)]
    figure = Figure(figsize=(10, 3.8 * len(views)), layout="constrained")
    for axes, (panel, row) in zip(np.atleast_1d(figure.subplots(len(views))), views, strict=True):
        pictures = data.load_pictures(panel.data, panel.n_rows, source).pictures
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


# -- all -------------------------------------------------------------------------------------------------------------


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


def set_title(axes: Axes, panel: Panel, group: Group) -> None:
    """The data and the number of clusters, in two lines that fit."""
    title = next(iter(group.values()))["data_title"].replace(", stand-in", "\nstand-in")
    axes.set_title(f"{title}\nk = {panel.n_clusters:,}", loc="left", size=9.5, color=INK)


def add_legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = int(LETTERS_PER_INCH * figure.get_figwidth() // (max(map(len, labels)) + 7))
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=max(1, min(columns, len(labels))),
        frameon=False,
        fontsize=9.5,
    )


REPORTS: dict[str, tuple[Callable[[Group], str], Callable[..., Any]]] = {
    "distortion": (fit_table, draw_fits),
    "nmi": (nmi_table, draw_fits),
    "distance-ratio": (ratio_table, draw_ratios),
    "coverage": (coverage_table, draw_coverage),
    "candidates": (candidates_table, draw_candidates),
    "clusters": (clusters_table, draw_clusters),
}
