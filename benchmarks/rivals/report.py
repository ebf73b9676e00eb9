"""From results to a table of ratios and a picture of distortion against time.

Runs are compared repeat by repeat, ours with each rival of the same repeat, and the table shows medians over the
repeats. A curve counts from the moment it has a value: what stands at a moment is the best value up to then.

    python -m benchmarks.rivals.report FILE.jsonl ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.job import LLOYD_ITERATIONS
from benchmarks.results import Row, latest, markdown_table, read_rows
from benchmarks.rivals.experiments import EXPERIMENTS, Claim
from benchmarks.rivals.methods import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS = "ours"
# The same fit of rows of another type: nothing to compare with.
OURS_BY_TYPE = (OURS, "ours-uint8", "ours-fractions")
LLOYD = "faiss"
INFINITY = float("inf")


# -- comparing two runs ----------------------------------------------------------------------------------------------


def fit_seconds(row: Row) -> float:
    return row["estimated_seconds"] or row["seconds"]


def is_estimated(row: Row) -> bool:
    return row["estimated_seconds"] is not None


def value_at(row: Row, seconds: float) -> float:
    """The best distortion up to a moment; infinite before the first."""
    return min((value for moment, value in row["curve"] if moment <= seconds), default=INFINITY)


def time_to_reach(row: Row, distortion: float) -> float:
    return min((moment for moment, value in row["curve"] if value <= distortion), default=INFINITY)


def behind(ours: Row, rival: Row) -> list[tuple[float, float]]:
    """The periods in which the rival has the lower distortion."""
    moments = sorted({moment for row in (ours, rival) for moment, _ in row["curve"]})
    periods: list[tuple[float, float]] = []
    for begin, end in zip(moments, [*moments[1:], INFINITY], strict=True):
        if value_at(rival, begin) < value_at(ours, begin):
            if periods and periods[-1][1] == begin:
                begin = periods.pop()[0]
            periods.append((begin, end))
    return periods


class Comparison(NamedTuple):
    """Ours against a rival, as ratios of ours to the rival's; medians over the repeats."""

    reach: float  # time until ours is where the rival ends
    fit: float  # time of the whole fit
    end: float  # final distortion
    when_it_stops: float  # distortion at the time at which the rival stops
    behind: list[tuple[float, float]]  # periods of the repeat in which ours was behind for the longest time


def compare(ours: list[Row], rival: list[Row]) -> Comparison:
    pairs = list(pair_repeats(ours, rival))
    periods = [behind(a, b) for a, b in pairs]
    return Comparison(
        reach=median(time_to_reach(a, b["distortion"]) / fit_seconds(b) for a, b in pairs),
        fit=median(fit_seconds(a) / fit_seconds(b) for a, b in pairs),
        end=median(a["distortion"] / b["distortion"] for a, b in pairs),
        when_it_stops=median(value_at(a, fit_seconds(b)) / b["distortion"] for a, b in pairs),
        behind=max(periods, key=lambda found: sum(min(end, 1e9) - begin for begin, end in found)),
    )


def pair_repeats(ours: list[Row], rival: list[Row]) -> Iterator[tuple[Row, Row]]:
    by_repeat = {row["repeat"]: row for row in ours}
    for row in rival:
        yield by_repeat.get(row["repeat"], ours[0]), row


# -- the table -------------------------------------------------------------------------------------------------------

HEADER = (
    "method",
    "time, s",
    "distortion per row",
    "against exact Lloyd, %",
    "closure-kmeans reaches it after, s",
    "faster, ×",
    "closure-kmeans when it ends, %",
    "lower than closure-kmeans, s",
    "memory beyond the input, MB",
)
LEGEND = (
    "Faster: the method's time, divided by the time after which closure-kmeans reaches the method's final distortion; "
    "“fit”: by the time of the whole fit. closure-kmeans when it ends: its distortion when the method ends, against "
    "the method's. Lower than closure-kmeans: the periods in which the method has the lower distortion. ≈: time of 25 "
    "iterations, estimated from fewer."
)


def format_report(name: str, rows: list[Row]) -> str:
    groups = by_method(rows)
    measured = [row for group in groups.values() for row in group]
    if not measured:
        return f"# {name}\n\nNo results.\n"
    first = measured[0]
    lines = [table_line(method, own_rows(method, groups), groups) for method in groups]
    parts = [
        f"# {name}",
        f"{first['data_title']}, into {first['n_clusters']:,} clusters, {first['threads']} threads.",
        markdown_table(HEADER, lines),
        LEGEND,
        "\n".join(f"- {remark}" for remark in remarks(rows, groups)),
    ]
    if name in EXPERIMENTS:
        parts += format_goals(EXPERIMENTS[name].claims, groups)
    return "\n\n".join(parts) + "\n"


def by_method(rows: list[Row]) -> dict[str, list[Row]]:
    """The runs that ended, ours first and then by distortion; the order in which the table shows them."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if "distortion" in row:
            groups.setdefault(row["method"], []).append(row)

    def rank(method: str) -> tuple[bool, bool, float]:
        return method != OURS, not method.startswith(OURS), median(row["distortion"] for row in groups[method])

    return {method: groups[method] for method in sorted(groups, key=rank)}


def table_line(method: str, group: list[Row], groups: dict[str, list[Row]]) -> list[str]:
    estimated = is_estimated(group[0])
    times = [fit_seconds(row) for row in group]
    seconds = f"{median(times):,.3g}" if median(times) < 100 else f"{median(times):,.0f}"
    distortion = median(row["distortion"] for row in group)
    lloyd = groups.get(LLOYD)
    against = "–"
    if lloyd and not estimated and not is_estimated(lloyd[0]):
        against = signed(1 / compare(lloyd, group).end)
    line = [
        METHODS[method].title,
        f"≈ {seconds}" if estimated else seconds,
        "–" if estimated else f"{distortion:,.6g}",
        against,
    ]
    memory = f"{max(row['memory_beyond_input'] for row in group) / 1e6:,.0f}"
    if method in OURS_BY_TYPE or OURS not in groups:
        return [*line, *["–"] * 4, memory]
    versus = compare(groups[OURS], group)
    if estimated:
        return [*line, "–", f"fit {1 / versus.fit:,.0f}", "–", format_periods(versus.behind), memory]
    reach = versus.reach * median(times)
    return [
        *line,
        "never" if reach == INFINITY else f"{reach:,.2f}",
        "–" if reach == INFINITY else f"{1 / versus.reach:,.1f}",
        "no result yet" if versus.when_it_stops == INFINITY else signed(versus.when_it_stops),
        format_periods(versus.behind),
        memory,
    ]


def signed(ratio: float) -> str:
    """The difference from 1 in per cent, without the unit."""
    return f"{100 * (ratio - 1):+.2f}".replace("-", "−")


def percent(ratio: float) -> str:
    return f"{signed(ratio)} %"


def format_periods(periods: Sequence[tuple[float, float]]) -> str:
    if not periods:
        return "never"
    return ", ".join(f"from {begin:.2f}" if end == INFINITY else f"{begin:.2f}–{end:.2f}" for begin, end in periods)


def remarks(rows: list[Row], groups: dict[str, list[Row]]) -> Iterator[str]:
    first = next(iter(groups.values()))[0]
    machine = first["machine"]
    repeats = max(len(own_rows(method, groups)) for method in groups)
    runs = "one run of each method" if repeats == 1 else f"medians of {repeats} runs"
    yield f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:g} GB; {runs}."
    yield ", ".join(f"{package} {version}" for package, version in first["versions"].items()) + "."
    if first["score_error"]:
        yield (
            f"Distortions are those of {first['scored_rows']:,} seeded rows, the same for every method: "
            f"standard error {100 * first['score_error']:.2f} % of each, far less of their ratios."
        )
    else:
        yield "Distortions are exact, in float64, over all rows, from the centres alone."
    for method, group in groups.items():
        row = group[0]
        if is_estimated(row):
            yield (
                f"{METHODS[method].title}: time estimated from {row['iterations']} of {LLOYD_ITERATIONS} iterations, "
                f"which took {row['seconds']:,.1f} s."
            )
        if method.startswith(OURS):
            accuracy = row["history"][-1].get("accuracy")
            exact = f", of which {100 * accuracy:.1f} % of a sample are exact" if accuracy is not None else ""
            beyond = row["memory_beyond_input"] / row["shape"][0]
            yield (
                f"{METHODS[method].title}: distortion of its own labels {row['labels_distortion']:,.6g}{exact}; first "
                f"fit in a fresh process {row['warm_up_seconds']:.1f} s longer, to load or compile kernels; "
                f"{beyond:,.0f} bytes a row beyond the input, with the reordered copy and all centres."
            )
        if row["clusters_used"] < row["n_clusters"] and not row["score_error"]:
            n_idle = row["n_clusters"] - row["clusters_used"]
            yield f"{METHODS[method].title}: {n_idle:,} centres are the nearest of no row."
    yield from describe_sessions(groups)
    without_result = {row["method"]: row for row in rows if row["method"] not in groups}
    for method, row in without_result.items():
        kind = "failed" if "failed" in row else "left_out"
        yield f"{METHODS[method].title}: {kind.replace('_', ' ')}: {row[kind]}."


def added_later(groups: dict[str, list[Row]]) -> dict[int, list[str]]:
    """The methods that were run in a later session, by the repeat that they and ours have there."""
    repeats = sorted({row["repeat"] for row in groups.get(OURS, [])})[1:]
    added = {
        repeat: [method for method, group in groups.items() if {row["repeat"] for row in group} == {repeat}]
        for repeat in repeats
    }
    return {repeat: methods for repeat, methods in added.items() if methods}


def own_rows(method: str, groups: dict[str, list[Row]]) -> list[Row]:
    """The runs of a method, without those of ours that were only made to compare methods of later sessions with."""
    later = added_later(groups) if method == OURS else {}
    return [row for row in groups[method] if row["repeat"] not in later]


def describe_sessions(groups: dict[str, list[Row]]) -> Iterator[str]:
    known = groups[OURS][0]["versions"] if OURS in groups else {}
    for repeat, methods in added_later(groups).items():
        ours = next(row for row in groups[OURS] if row["repeat"] == repeat)
        versions = [f"{name} {version}" for name, version in ours["versions"].items() if known.get(name) != version]
        yield (
            f"Measured in another session, {ours['measured'][:10]} ({', '.join(versions)}), and compared with "
            f"closure-kmeans in that session ({ours['seconds']:,.3g} s, {ours['distortion']:,.6g}): "
            f"{'; '.join(METHODS[method].title for method in methods)}."
        )


def format_goals(claims: Sequence[Claim], groups: dict[str, list[Row]]) -> list[str]:
    """A heading and the table of what an experiment must show; nothing where the runs are missing."""
    methods = [method for method in OURS_BY_TYPE if method in groups]
    judged = [claim for claim in claims if claim.rival in groups]
    if OURS not in groups or not judged:
        return []
    lines = [[str(claim), claim.limit, *(verdict(claim, method, groups) for method in methods)] for claim in judged]
    header = ["goal", "limit, ×", *(METHODS[method].title for method in methods)]
    return ["Goals, as ratios to the other method:", markdown_table(header, lines)]


def verdict(claim: Claim, method: str, groups: dict[str, list[Row]]) -> str:
    """Whether a claim holds for a method of ours, and the ratio that was measured."""
    rival = groups[claim.rival]
    if is_estimated(rival[0]) and claim.kind not in ("fit", "always"):
        return "not judged: the other method was stopped early"
    versus = compare(groups[method], rival)
    if claim.kind == "always":
        return f"**missed**: {format_periods(versus.behind)} s" if versus.behind else "met"
    value = getattr(versus, claim.kind.replace(" ", "_"))
    return f"{'met' if value <= claim.bound else '**missed**'}: {value:.4g}"


# -- the picture -----------------------------------------------------------------------------------------------------

OUR_COLORS = {"ours": "#c2410c", "ours-uint8": "#ea9a6c", "ours-fractions": "#d97742", "ours-paper": "#8a5a44"}
RIVAL_COLORS = {
    "faiss": "#1d4ed8",
    "superkmeans": "#0f766e",
    "sklearn": "#7e22ce",
    "sklearnex": "#a855f7",
    "lance": "#0369a1",
    "clostera": "#be123c",
    "baseline": "#64748b",
    "mlpack": "#a16207",
}
REFINED = ("superkmeans", "superkmeans-refine-1", "superkmeans-refine-2", "superkmeans-refine-5")


def color_of(method: str) -> str:
    """One of its own for each of ours, one a library for the others."""
    return OUR_COLORS.get(method) or RIVAL_COLORS[method.split("-")[0]]


def draw_report(rows: list[Row], path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    groups = by_method(rows)
    figure = Figure(figsize=(9.5, 5.5), layout="constrained")
    axes = figure.add_subplot()
    labels = []
    for method, group in groups.items():
        row, color, ours = group[0], color_of(method), method == OURS
        seconds, values = zip(*row["curve"], strict=True)
        style: dict[str, Any] = {
            "color": color,
            "lw": 2.8 if ours else 1.4,
            "ms": 4.5 if ours else 3.5,
            "zorder": 3 if ours else 2,
        }
        axes.plot(seconds, values, "o-", **style)
        text = f"{row['iterations']} of {LLOYD_ITERATIONS} iterations of {method}" if is_estimated(row) else method
        labels.append((seconds[-1], values[-1], text, color, ours))
    refined = [groups[method][0]["curve"][-1] for method in REFINED if method in groups]
    if len(refined) > 1:
        axes.plot(*zip(*refined, strict=True), ":", color=RIVAL_COLORS["superkmeans"], lw=1)
    ends = [row["distortion"] for group in groups.values() for row in group if not is_estimated(row)]
    low, high = min(ends), max(ends)
    axes.set_ylim(low - 0.05 * (high - low), high + 0.35 * (high - low))
    axes.set_xscale("log")
    last = max(seconds for seconds, *_ in labels)
    axes.set_xlim(right=last * (last / axes.get_xlim()[0]) ** 0.22)  # room for the labels
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.yaxis.set_major_formatter("{x:,.6g}")
    first = next(iter(groups.values()))[0]
    axes.set_title(f"{first['data_title']}, into {first['n_clusters']:,} clusters", loc="left", weight="bold", size=10)
    axes.set_xlabel(f"seconds since the fit began, {first['threads']} threads")
    axes.set_ylabel("distortion per row")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    place_labels(figure, axes, labels)
    figure.savefig(path, dpi=150)


def place_labels(figure: Figure, axes: Axes, labels: list[tuple[float, float, str, str, bool]]) -> None:
    """A label at the end of each curve, moved up or down as far as it takes not to cover another."""
    from matplotlib.patheffects import withStroke

    figure.draw_without_rendering()
    scale = 72 / figure.dpi
    placed: list[tuple[float, float, float]] = []  # left, right, height, in points
    bottom, top = (edge * scale for edge in axes.bbox.intervaly)
    for seconds, value, text, color, ours in sorted(labels, key=lambda label: label[1]):
        x, y = axes.transData.transform((seconds, value)) * scale
        width, y_shown = 5.2 * len(text) + 10, min(max(y, bottom), top - 6)
        tries = sorted((shift for shift in range(-200, 201, 2)), key=abs)
        free = (
            shift
            for shift in tries
            if bottom <= y_shown + shift <= top
            and all(x + width < left or x > right or abs(y_shown + shift - h) > 11 for left, right, h in placed)
        )
        shift = next(free, 0)
        placed.append((x, x + width, y_shown + shift))
        label = axes.annotate(
            text,
            (seconds, value),
            xytext=(7, y_shown + shift - y),
            textcoords="offset points",
            va="center",
            color=color,
            size=8.5,
            weight="bold" if ours else "normal",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.5, "alpha": 0.6} if abs(shift) > 8 else None,
            zorder=4,
        )
        label.set_path_effects([withStroke(linewidth=2.5, foreground="white", alpha=0.85)])


def comparable_rows(path: Path) -> list[Row]:
    """The last row of each method and repeat, of those that agree with the last of all in data, k and threads."""
    rows = read_rows(path)
    setting = itemgetter("data_title", "n_clusters", "threads")
    return latest([row for row in rows if setting(row) == setting(rows[-1])], itemgetter("method", "repeat"))


def write_report(path: Path) -> str:
    """Table and picture beside a file of results; returns the table."""
    rows = comparable_rows(path)
    text = format_report(path.stem, rows)
    path.with_suffix(".md").write_text(text)
    if any("distortion" in row for row in rows):
        draw_report(rows, path.with_suffix(".png"))
    return text


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(write_report(Path(argument)))
