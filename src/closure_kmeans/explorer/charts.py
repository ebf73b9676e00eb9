"""SVG charts: histogram of cluster sizes, curves of a fit, map. Colours come from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from closure_kmeans.arrays import largest
from closure_kmeans.iteration import Iteration

# Bars of a histogram, at most.
MOST_BARS = 28
# Grid lines behind a curve, approximately.
N_TICKS = 4
# Clusters on an SVG map, at most.
MOST_ON_MAP = 3000


class Bar(NamedTuple):
    """Number of clusters within a range of sizes."""

    least: int
    most: int
    n_clusters: int


def count_sizes(sizes: NDArray[Any]) -> list[Bar]:
    """Histogram of cluster sizes: one bar per size if they are few, else geometric bins."""
    whole = np.rint(sizes).astype(np.int64)
    low, high = int(whole.min()), int(whole.max())
    edges = np.arange(low, high + 2)
    if high - low >= MOST_BARS:
        edges = np.unique(np.rint(np.geomspace(max(low, 1), high + 1, MOST_BARS + 1)).astype(np.int64))
        edges[0] = low
    counts, _ = np.histogram(whole, edges)
    counts[-1] = (whole >= edges[-2]).sum()  # NumPy's last bin includes its right edge
    return [Bar(int(a), int(b) - 1, int(n)) for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)]


def draw_histogram(
    sizes: NDArray[Any], link: Callable[[Bar], str] | None = None, chosen: Callable[[Bar], bool] = lambda bar: True
) -> Markup:
    """Draw the histogram of cluster sizes; bars link to the clusters that they count."""
    bars = count_sizes(sizes)
    width, height, base = 280, 96, 80
    step = width / len(bars)
    highest = max(bar.n_clusters for bar in bars)
    parts = []
    for place, bar in enumerate(bars):
        tall = 0 if bar.n_clusters == 0 else max(2.0, 72 * bar.n_clusters / highest)
        span = f"{bar.least:,}" if bar.least == bar.most else f"{bar.least:,} to {bar.most:,}"
        text = f"{bar.n_clusters:,} {'cluster' if bar.n_clusters == 1 else 'clusters'} of {span} items"
        shape = Markup(
            '<g class="bar{}"><title>{}</title><rect class="hit" x="{:.1f}" width="{:.1f}" height="{}"/>'
            '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="1"/></g>'
        ).format(
            "" if chosen(bar) else " off",
            text,
            *(place * step, step, base),
            *(place * step + 0.5, base - tall, max(step - 1, 0.5), tall),
        )
        if link is not None and bar.n_clusters > 0:
            shape = Markup('<a href="{}" aria-label="{}">{}</a>').format(link(bar), text, shape)
        parts.append(shape)
    ends = Markup('<text x="0" y="94">{:,}</text><text x="{}" y="94" text-anchor="end">{:,} items</text>')
    return Markup(
        '<svg class="histogram" viewBox="0 0 {} {}" role="group" aria-label="Number of clusters by size">'
        '<path class="axis" d="M0 {}.5H{}"/>{}{}</svg>'
    ).format(width, height, base, width, Markup("").join(parts), ends.format(bars[0].least, width, bars[-1].most))


# -- the fit -----------------------------------------------------------------------------------------------------------


class Axes(NamedTuple):
    """Frame of a chart, and its coordinate transformation."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 520
    height: int = 240
    left: int = 58
    bottom: int = 30

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Position of a point in the chart."""
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        inner = self.width - self.left - 10, self.height - self.bottom - 12
        return self.left + across * inner[0], 12 + (1 - up) * inner[1]


def ticks(low: float, high: float) -> list[float]:
    """Round numbers in an interval."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    step = 10 ** math.floor(math.log10(span / N_TICKS))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= N_TICKS + 1)
    first = math.ceil(low / step)
    return [first * step + i * step for i in range(int((high - first * step) / step + 1e-9) + 1)]


def compact(value: float) -> str:
    """Format a number briefly."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def draw_curve(
    history: Sequence[Iteration],
    value: Callable[[Iteration], float],
    *,
    name: str,
    by_time: bool,
    from_zero: bool = False,
) -> Markup:
    """Draw a value of every iteration over time or iterations; vertical lines mark added trees."""
    xs = [step.seconds if by_time else step.iteration for step in history]
    ys = [value(step) for step in history]
    margin = 0.06 * (max(ys) - min(ys))
    axes = Axes(
        (0.0 if by_time else min(1.0, xs[0]), max(xs)), (0 if from_zero else min(ys) - margin, max(ys) + margin)
    )
    places = [axes.place(x, y) for x, y in zip(xs, ys, strict=True)]
    notes = [
        f"iteration {step.iteration}, {step.seconds:.2f} s: {name} {y:,.6g}"
        for step, y in zip(history, ys, strict=True)
    ]
    parts = [*_draw_frame(axes), *_draw_trees(axes, history, xs)]
    parts.append(Markup('<path class="curve" d="M{}"/>').format("L".join(f"{x:.1f} {y:.1f}" for x, y in places)))
    parts += [
        Markup(
            '<g class="dot"><circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="9"/>'
            '<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/><title>{note}</title></g>'
        ).format(x=x, y=y, note=note)
        for (x, y), note in zip(places, notes, strict=True)
    ]
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{} against {}">{}</svg>').format(
        axes.width, axes.height, name, "time" if by_time else "iterations", Markup("").join(parts)
    )


def _draw_frame(axes: Axes) -> list[Markup]:
    """Draw grid lines and their labels."""
    parts = []
    for y in ticks(*axes.y):
        height = axes.place(axes.x[0], y)[1]
        parts += [
            Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(axes.left, height, axes.width - 10),
            Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(axes.left - 8, height + 4, compact(y)),
        ]
    text = Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>')
    parts += [text.format(axes.place(x, axes.y[0])[0], axes.height - 12, compact(x)) for x in ticks(*axes.x)]
    return parts


def _draw_trees(axes: Axes, history: Sequence[Iteration], xs: Sequence[float]) -> list[Markup]:
    """Draw a line at each iteration that added a tree to the kept ones."""
    line = Markup('<path class="tree" d="M{:.1f} 12V{}"><title>tree {} added</title></path>')
    return [
        line.format(axes.place(x, axes.y[0])[0], axes.height - axes.bottom, step.n_trees)
        for before, step, x in zip(history, history[1:], xs[1:], strict=False)
        if step.n_trees > before.n_trees
    ]


# -- the map -----------------------------------------------------------------------------------------------------------


def tightness_classes(spreads: NDArray[Any] | None, n_clusters: int, n_classes: int = 8) -> NDArray[np.int64]:
    """Classes of equal size from tight (0) to loose clusters; the middle class if spreads are unknown."""
    if spreads is None:
        return np.full(n_clusters, n_classes // 2)
    ranks = np.argsort(np.argsort(spreads, kind="stable"), kind="stable")
    return ranks * n_classes // n_clusters


def draw_map(places: NDArray[Any], sizes: NDArray[Any], spreads: NDArray[Any] | None) -> Markup:
    """Draw the largest clusters as circles at their centres: area by size, colour by tightness."""
    classes = tightness_classes(spreads, len(sizes))
    shown = largest(sizes, MOST_ON_MAP)
    scale = 18 * min(1.0, math.sqrt(60 / len(shown))) / math.sqrt(float(sizes.max()))
    circles = Markup("").join(
        Markup('<circle class="t{}" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"><title>{}</title></circle>').format(
            classes[cluster],
            20 + 560 * places[cluster, 0],
            20 + 360 * (1 - places[cluster, 1]),
            max(0.8, scale * math.sqrt(float(sizes[cluster]))),
            f"cluster {cluster}, {sizes[cluster]:,.0f} items",
        )
        for cluster in shown
    )
    return Markup('<svg class="map" viewBox="0 0 600 400" role="img" aria-label="Map of the clusters">{}</svg>').format(
        circles
    )
