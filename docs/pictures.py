"""Draw the pictures of "How it works" and of the map of the code.

python docs/pictures.py [FOLDER]

All but the two sketches are computed by the library itself, on points of two dimensions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, Voronoi, voronoi_plot_2d

from closure_kmeans import ClosureKMeans, Method
from closure_kmeans.metrics import exact_labels
from closure_kmeans.parallel import Threads
from closure_kmeans.trees import RandomPartition, grow_partition

INK, GREY, PALE, RED, BLUE, GREEN = "#22313f", "#9aa5b1", "#d7dde3", "#c8452c", "#1f6f9c", "#4f8f3a"


def points_in_two_dimensions(n_points: int) -> NDArray[np.float64]:
    """Round heaps of points of different widths, and some in between."""
    rng = np.random.default_rng(7)
    heaps = rng.uniform((-3.4, -2.4), (3.4, 2.4), (14, 2))
    heap = rng.integers(len(heaps), size=n_points)
    widths = rng.uniform(0.25, 0.8, len(heaps))[heap, np.newaxis]
    in_heaps = heaps[heap] + widths * rng.normal(size=(n_points, 2))
    in_between = rng.uniform((-4.4, -3.4), (4.4, 3.4), (n_points, 2))
    return np.where(rng.random((n_points, 1)) < 0.75, in_heaps, in_between)


def grow(X: NDArray[Any], n_leaves: int, seed: int) -> RandomPartition:
    """A tree of the library."""
    with Threads(1) as threads:
        return grow_partition(X, X.mean(axis=0), n_leaves, np.random.default_rng(seed), threads)


def leaves_of(tree: RandomPartition) -> NDArray[np.int64]:
    """The leaf of each point."""
    leaf = np.empty(len(tree.members), np.int64)
    leaf[tree.members] = np.repeat(np.arange(len(tree.starts) - 1), np.diff(tree.starts))
    return leaf


def frames(n: int, height: float, width: float = 10.0, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Empty squares side by side, in so many rows."""
    figure = Figure((width, height), layout="constrained")
    axes = list(figure.subplots(rows, n // rows, squeeze=False).flat)
    for ax in axes:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_aspect("equal")
        for side in ax.spines.values():
            side.set_color(PALE)
    return figure, axes


def entitle(ax: Axes, text: str) -> None:
    """A title, in one style."""
    ax.set_title(text, fontsize=10, color=INK)


def shades(labels: NDArray[Any]) -> NDArray[Any]:
    """A colour for each label, such that numbers that are near each other look different."""
    return np.asarray(colormaps["turbo"](0.08 + 0.84 * (labels * 0.618034 % 1)))


def draw_active_points() -> Figure:
    """Which points move in one exact iteration."""
    X = points_in_two_dimensions(4000)
    centers = X[np.random.default_rng(1).choice(len(X), 30, replace=False)]
    for _ in range(2):
        before, _ = exact_labels(X, centers)
        centers = np.array([X[before == j].mean(axis=0) for j in range(len(centers))])
    after, _ = exact_labels(X, centers)
    active = before != after
    figure, (ax,) = frames(1, height=5.2, width=7)
    voronoi_plot_2d(Voronoi(centers), ax, show_points=False, show_vertices=False, line_colors=GREY, line_width=0.9)
    ax.scatter(*X[~active].T, s=3, color=PALE)
    ax.scatter(*X[active].T, s=9, color=RED)
    ax.scatter(*centers.T, s=28, marker="+", color=INK)
    ax.set_xlim(*np.quantile(X[:, 0], (0.003, 0.997)))
    ax.set_ylim(*np.quantile(X[:, 1], (0.003, 0.997)))
    entitle(ax, f"An exact iteration moves {active.sum()} of {len(X):,} points (red); lines are the borders of cells")
    return figure


def draw_closure() -> Figure:
    """One cluster, and its closure over one tree and over three."""
    X = points_in_two_dimensions(1200)
    labels = ClosureKMeans(40, random_state=0, method=Method(neighborhoods="all")).fit_predict(X)
    sizes = np.bincount(labels)
    middle = np.array([np.square(X[labels == j].mean(axis=0) - X.mean(axis=0)).sum() for j in range(40)])
    cluster = labels == np.argmin(np.where(sizes > 24, middle, np.inf))
    figure, axes = frames(3, height=3.6)
    closure = np.zeros(len(X), bool)
    for ax, n_trees in zip(axes, (0, 1, 3), strict=True):
        for seed in range(n_trees):
            leaf = leaves_of(grow(X, 120, seed))
            for number in np.unique(leaf[cluster]):
                hull = X[leaf == number][ConvexHull(X[leaf == number]).vertices]
                ax.add_patch(Polygon(hull, facecolor=BLUE, edgecolor=BLUE, alpha=0.12, linewidth=0))
                ax.add_patch(Polygon(hull, facecolor="none", edgecolor=BLUE, alpha=0.7, linewidth=0.8))
            closure |= np.isin(leaf, leaf[cluster])
        ax.scatter(*X[~closure & ~cluster].T, s=5, color=GREY, alpha=0.6)
        ax.scatter(*X[closure & ~cluster].T, s=8, color=BLUE)
        ax.scatter(*X[cluster].T, s=10, color=RED)
        center = X[cluster].mean(axis=0)
        ax.set_xlim(center[0] - 2.1, center[0] + 2.1)
        ax.set_ylim(center[1] - 2.1, center[1] + 2.1)
    entitle(axes[0], f"A cluster: {cluster.sum()} points")
    leaf = leaves_of(grow(X, 120, 0))
    entitle(axes[1], f"Its closure over one tree: {np.isin(leaf, leaf[cluster]).sum()} points")
    entitle(axes[2], f"Over three trees: {closure.sum()} points")
    return figure


def draw_trees() -> Figure:
    """A tree as it splits; neighbouring leaves share an ancestor."""
    X = points_in_two_dimensions(3000)
    leaf = leaves_of(grow(X, 64, 3))
    figure, axes = frames(4, height=5.6, width=7, rows=2)
    for ax, depth in zip(axes, (1, 2, 4, 6), strict=True):
        node = leaf >> (6 - depth)
        ax.scatter(*X.T, s=3, color=shades(node), linewidths=0)
        entitle(ax, f"{2**depth} nodes of {len(X) // 2**depth} points")
    return figure


def draw_fit() -> Figure:
    """A fit in four frames."""
    X = points_in_two_dimensions(3000)
    figure, axes = frames(4, height=5.9, width=7, rows=2)
    method = Method(leaf_size=32, neighborhoods="fresh")
    last = ClosureKMeans(60, tol=0, method=method, random_state=0).fit(X).n_iter_
    for ax, n in zip(axes, (1, 2, 5, last), strict=True):
        model = ClosureKMeans(60, max_iter=n, tol=0, method=method, random_state=0).fit(X)
        ax.scatter(*X.T, s=4, color=shades(model.labels_), linewidths=0)
        ax.scatter(*model.cluster_centers_.T, s=14, marker="+", color="black", linewidths=0.9)
        step = model.history_[-1]
        entitle(ax, f"iteration {n}: distortion {model.inertia_ / len(X):.3f}\n{step.n_active:,} points moved")
    return figure


def draw_leaf() -> Figure:
    """The leaf as a small product: a sketch with real distances."""
    X = points_in_two_dimensions(1200)
    model = ClosureKMeans(40, max_iter=2, method=Method(neighborhoods="all"), random_state=0).fit(X)
    leaf = leaves_of(grow(X, 90, 1))
    kinds = np.array([len(np.unique(model.labels_[leaf == number])) for number in range(90)])
    members = np.flatnonzero(leaf == np.argmax(kinds))
    members = members[np.argsort(model.labels_[members], kind="stable")]
    labels = model.labels_[members]
    candidates = np.unique(labels)
    colors = colormaps["Set1"](np.arange(len(candidates)))
    own = np.searchsorted(candidates, labels)

    figure, (left, right) = frames(2, height=4.2)
    others = np.setdiff1d(np.arange(len(X)), members)
    left.scatter(*X[others].T, s=8, color=PALE)
    hull = X[members][ConvexHull(X[members]).vertices]
    left.add_patch(Polygon(hull, facecolor="none", edgecolor=INK, linewidth=1))
    left.scatter(*X[members].T, s=36, color=colors[own], zorder=3)
    left.scatter(*model.cluster_centers_[candidates].T, s=90, marker="X", color=colors, edgecolor=INK, zorder=4)
    everything = np.concatenate([X[members], model.cluster_centers_[candidates]])
    middle, reach = (everything.max(axis=0) + everything.min(axis=0)) / 2, np.ptp(everything, axis=0).max() * 0.6
    left.set_xlim(middle[0] - reach, middle[0] + reach)
    left.set_ylim(middle[1] - reach, middle[1] + reach)
    entitle(left, f"A leaf of {len(members)} points, of {len(candidates)} clusters (crosses: their centres)")

    difference = X[members, np.newaxis] - model.cluster_centers_[candidates]
    distances = np.square(difference).sum(axis=2)
    right.imshow(distances, cmap="Greys", vmax=distances.max() * 1.6, aspect="auto")
    right.set_aspect("auto")
    nearest = distances.argmin(axis=1)
    for row, column in enumerate(nearest):
        moved = column != own[row]
        text, color = ("moves", RED) if moved else ("stays", INK)
        right.text(column, row, text, ha="center", va="center", fontsize=8, color=color)
    right.set_xticks(range(len(candidates)), [f"cluster {number}" for number in candidates], fontsize=8)
    right.set_yticks(range(len(members)), [f"point {number}" for number in members], fontsize=8)
    for tick, color in zip(right.get_xticklabels(), colors, strict=True):
        tick.set_color(color)
    for tick, color in zip(right.get_yticklabels(), colors[own], strict=True):
        tick.set_color(color)
    entitle(right, "One product: its points by its candidates; the darker, the farther")
    return figure


def draw_flow() -> Figure:
    """The data flow, as a sketch: each box is a file."""
    figure = Figure((8.4, 4.7), layout="constrained")
    ax = figure.subplots()
    ax.set_axis_off()
    ax.set_xlim(0, 10)
    ax.set_ylim(0, 5.4)

    rounded = "round,pad=0.02,rounding_size=0.08"

    def box(x: float, y: float, name: str, text: str, color: str = BLUE, width: float = 2.15) -> None:
        shape = FancyBboxPatch((x, y), width, 0.86, boxstyle=rounded, facecolor="white", edgecolor=color, linewidth=1.2)
        ax.add_patch(shape)
        ax.text(x + width / 2, y + 0.6, name, ha="center", va="center", fontsize=9, color=color, family="monospace")
        ax.text(x + width / 2, y + 0.25, text, ha="center", va="center", fontsize=8, color=INK)

    def arrow(begin: tuple[float, float], end: tuple[float, float], bend: float = 0) -> None:
        style = {"arrowstyle": "-|>", "mutation_scale": 12, "color": INK, "linewidth": 1.1}
        ax.add_patch(FancyArrowPatch(begin, end, connectionstyle=f"arc3,rad={bend}", **style))

    box(0.05, 4.4, "vectors/", "files and arrays → rows")
    box(2.65, 4.4, "estimator.py", "fit: check the input")
    box(5.25, 4.4, "trees.py", "a first tree")
    box(7.8, 4.4, "stores/", "rows in its order, start")
    for x in (2.22, 4.82, 7.4):
        arrow((x, 4.83), (x + 0.38, 4.83))

    ax.add_patch(FancyBboxPatch((0.05, 2.05), 9.9, 1.85, boxstyle=rounded, facecolor="#f3f6f8", edgecolor=PALE))
    loop = "closure.py and iteration.py: again and again, until the distortion hardly falls"
    ax.text(0.2, 3.68, loop, va="center", fontsize=9, color=INK)
    box(0.25, 2.6, "trees.py", "which leaves to look at", RED)
    box(2.7, 2.6, "stores/", "assign inside the leaves", RED)
    box(5.15, 2.6, "clusters.py", "means of the clusters", RED)
    box(7.6, 2.6, "iteration.py", "record, stop, checkpoint", RED)
    for x in (2.42, 4.87, 7.32):
        arrow((x, 3.03), (x + 0.26, 3.03))
    arrow((8.68, 2.57), (1.32, 2.57), bend=-0.05)
    arrow((8.87, 4.38), (8.87, 3.94))

    box(0.05, 0.7, "model.py", "predict, transform, save", GREEN)
    box(2.65, 0.7, "search.py", "nearest centre of new rows", GREEN)
    box(5.25, 0.7, "storage.py, export.py", "to files, to other tools", GREEN)
    box(7.8, 0.7, "cli/, explorer/", "for those who use it", GREEN)
    for x in (2.22, 4.82, 7.4):
        arrow((x, 1.13), (x + 0.38, 1.13))
    arrow((1.12, 2.01), (1.12, 1.6))
    note = "Heavy work is cut into blocks, and parallel.py runs the compiled functions of kernels/ on them"
    ax.text(5, 0.25, note, ha="center", va="center", fontsize=8.5, color=INK, style="italic")
    return figure


PICTURES = {
    "active-points": draw_active_points,
    "closure": draw_closure,
    "trees": draw_trees,
    "fit": draw_fit,
    "leaf": draw_leaf,
    "flow": draw_flow,
}


def main(folder: Path) -> None:
    """Draw them all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        draw().savefig(folder / f"{name}.png", dpi=130, bbox_inches="tight", metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images" / "method")
