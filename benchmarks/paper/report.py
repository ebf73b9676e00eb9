"""From rows to a Markdown table and a picture, one of each for every kind of experiment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.paper import pictures
from benchmarks.paper.measure import NEAR_BORDER
from benchmarks.paper.plan import Experiment, Group, Panel
from benchmarks.results import Row, markdown_table
from benchmarks.rivals.report import INFINITY, signed, time_to_reach


def describe(row: Row) -> str:
    """A line about a run that has ended."""
    result = (
        f"failed: {row['failed']}" if "failed" in row else f"{row['seconds']:.1f} s" if "seconds" in row else "done"
    )
    return f"{row['label']:60} {row['data']} {row['n_rows']:,} k = {row['n_clusters']:,}  {result}"


def write_report(experiment: Experiment, rows: list[Row], path: Path) -> str:
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
        draw(experiment, drawn).savefig(path.with_suffix(".png"), dpi=110)
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
        "method",
        "iterations",
        "time, s",
        "iteration, s",
        "distortion per row",
        "against the default, %",
        "the default reaches it after, s",
        "stopped by",
    )
    defaults = {row["threads"]: row for row in group.values() if row["method"] == "ours"}
    return markdown_table(header, [fit_line(row, defaults.get(row["threads"])) for row in group.values()])


def fit_line(row: Row, default: Row | None) -> list[str]:
    against = reach = "–"
    if default is not None and default is not row:
        seconds = time_to_reach(default, row["distortion"])
        against = signed(row["distortion"] / default["distortion"])
        reach = "never" if seconds == INFINITY else f"{seconds:.2f}"
    return [*fit_cells(row), f"{row['distortion']:,.6g}", against, reach, row["stopped_by"].replace("_", " ")]


def fit_cells(row: Row) -> list[str]:
    """Curve, iterations, seconds, seconds of an iteration."""
    moments = [step["seconds"] for step in row["history"]]
    each = f"{np.diff(moments).mean():.3f}" if len(moments) > 1 else "–"
    return [row["label"], f"{len(moments)}", f"{row['seconds']:.2f}", each]


def nmi_table(group: Group) -> str:
    header = ("method", "iterations", "time, s", "iteration, s", "NMI", "distortion per row", "stopped by")
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


# -- other measurements ----------------------------------------------------------------------------------------------


def ratio_table(group: Group) -> str:
    header = (
        "method",
        "active points",
        f"ratio below {NEAR_BORDER}, %",
        "ratio below 0.05, %",
        "moved to a farther centre, %",
    )
    lines = []
    for row in group.values():
        edges, shares = np.array(row["edges"]), np.array(row["shares"])
        below = [shares[edges[:-1] < edge - 1e-9].sum() for edge in (0.05, 0.0)]
        near = f"{100 * row['near_border']:.1f}"
        lines.append([row["label"], f"{sum(row['n_active']):,}", near, *(f"{100 * share:.1f}" for share in below)])
    return markdown_table(header, lines)


def coverage_table(group: Group) -> str:
    lines = [
        [row["label"], f"{n_trees}", f"{leaf_size}", f"{size:.1f}", f"{100 * share:.1f}"]
        for row in group.values()
        for size, share, n_trees, leaf_size in row["curve"]
    ]
    return markdown_table(("neighbourhoods", "trees", "leaf size", "points in a neighbourhood", "coverage, %"), lines)


def candidates_table(group: Group) -> str:
    lines = [
        [row["label"], f"{point['candidates']:.1f}", f"{100 * point['accuracy']:.1f}", f"{point['seconds']:.3f}"]
        for row in group.values()
        for point in row["points"]
    ]
    return markdown_table(("method", "candidates per point", "accuracy, %", "iteration, s"), lines)


def clusters_table(group: Group) -> str:
    lines = [
        [
            row["label"],
            f"{row['seconds']:.2f}",
            f"{row['nmi']:.4f}",
            f"{100 * float(np.mean([cluster['purity'] for cluster in row['shown']])):.0f}",
        ]
        for row in group.values()
    ]
    return markdown_table(("method", "time, s", "NMI", "commonest class in the clusters shown, %"), lines)


# How to make a table of a panel, and a picture of all.
REPORTS: dict[str, tuple[Callable[[Group], str], Callable[[Experiment, pictures.Groups], Figure]]] = {
    "distortion": (fit_table, pictures.draw_fits),
    "nmi": (nmi_table, pictures.draw_fits),
    "distance-ratio": (ratio_table, pictures.draw_ratios),
    "coverage": (coverage_table, pictures.draw_coverages),
    "candidates": (candidates_table, pictures.draw_candidates),
    "clusters": (clusters_table, pictures.draw_clusters),
}
