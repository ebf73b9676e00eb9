"""Charts: histogram of cluster sizes, curves of a fit, map. Templates draw them; colours come from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from closure_kmeans.explorer.rendering import plural, render
from closure_kmeans.iteration import Iteration
from closure_kmeans.points import largest

if TYPE_CHECKING:
    from closure_kmeans.explorer.catalog import Catalog

# Bars of a histogram, at most.
MOST_BARS = 28
# Grid lines behind a curve, approximately.
N_TICKS = 4
# An interval this short has one tick: its logarithm would be that of a number that is not normal.
SHORTEST = 1e-300
# Clusters on an SVG map, at most.
MOST_ON_MAP = 3000
# Classes of tightness, each with a colour.
N_CLASSES = 8


class Bar(NamedTuple):
    """Number of clusters within a range of sizes."""

    least: int
    most: int
    n_clusters: int

    @property
    def text(self) -> str:
        """Description of the bar."""
        span = f"{self.least:,}" if self.least == self.most else f"{self.least:,} to {self.most:,}"
        return f"{plural(self.n_clusters, 'cluster')} of {span} items"


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
    return render("histogram.svg", bars=count_sizes(sizes), link=link, chosen=chosen)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers in an interval."""
    span = high - low
    if not (math.isfinite(span) and span > SHORTEST):
        return [low]
    step = 10 ** math.floor(math.log10(span / N_TICKS))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= N_TICKS + 1)
    first = math.ceil(low / step)
    return [first * step + i * step for i in range(int((high - first * step) / step + 1e-9) + 1)]


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
    return render(
        "curve.svg",
        points=list(zip(history, xs, ys, strict=True)),
        x_range=(0 if by_time else min(1, xs[0]), max(xs)),
        y_range=(0 if from_zero else min(ys) - margin, max(ys) + margin),
        ticks=ticks,
        name=name,
        by_time=by_time,
    )


def tightness_classes(catalog: Catalog) -> NDArray[np.int64]:
    """Classes of equal size from tight (0) to loose clusters; the middle class if spreads are unknown."""
    if catalog.spreads is None:
        return np.full(catalog.n_clusters, N_CLASSES // 2)
    ranks = np.argsort(np.argsort(catalog.spreads, kind="stable"), kind="stable")
    classes: NDArray[np.int64] = ranks * N_CLASSES // catalog.n_clusters
    return classes


def draw_map(catalog: Catalog) -> Markup:
    """Draw the largest clusters as circles at their centres: area by size, colour by tightness."""
    shown = largest(catalog.sizes, MOST_ON_MAP)
    scale = 18 * min(1.0, math.sqrt(60 / len(shown))) / math.sqrt(float(catalog.sizes.max()))
    radii = np.maximum(0.8, scale * np.sqrt(catalog.sizes))
    return render("map.svg", catalog=catalog, shown=shown, radii=radii, classes=tightness_classes(catalog))
