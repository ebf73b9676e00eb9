"""Notebook output: summary of a model, and the items of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray

from closure_kmeans.explorer import charts
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.fit import fit_of_model
from closure_kmeans.explorer.pictures import Pictures, array_pictures, open_pictures, read_pixels
from closure_kmeans.explorer.rendering import measure
from closure_kmeans.explorer.report import look_of

if TYPE_CHECKING:
    from closure_kmeans.base import BaseKMeans

# Replaces the style sheet of the pages, which a notebook does not load.
STYLE = Markup(
    "<style>.ckm{font:13px system-ui,sans-serif;display:flex;flex-wrap:wrap;gap:12px 28px;margin-top:12px}"
    ".ckm svg{display:block;width:260px;height:auto;font-size:11px;fill:currentColor}.ckm .chart{font-size:22px}"
    ".ckm .bar rect,.ckm .dot circle{fill:#c2410c}"
    ".ckm .hit{fill:transparent!important}.ckm .curve{fill:none;stroke:#c2410c;stroke-width:2}"
    ".ckm .axis,.ckm .grid{stroke:#8886;fill:none}.ckm b{display:block;font-size:17px}"
    ".ckm.cells{gap:8px}.ckm .all{flex-basis:100%}"
    ".ckm .cell{width:84px;text-align:center;font-size:11px}.ckm img{width:84px;border-radius:5px}</style>"
)


def summary(model: BaseKMeans) -> str:
    """HTML summary of a fitted model; empty if it is not fitted."""
    if not hasattr(model, "cluster_centers_"):
        return ""
    fit = fit_of_model(model)
    n_items = float(model.cluster_sizes_.sum())
    facts = {
        "clusters": f"{len(model.cluster_centers_):,}",
        "items": f"{n_items:,.0f}",
        "distortion per item": measure(model.inertia_ / n_items),
        "iterations": f"{model.n_iter_}, {model.stopped_by_}",
    }
    parts = [Markup("<div><b>{}</b>{}</div>").format(value, name) for name, value in facts.items()]
    parts.append(Markup("<div>sizes{}</div>").format(charts.draw_histogram(model.cluster_sizes_)))
    if fit is not None:
        curve = charts.draw_curve(fit.history, lambda step: step.inertia / n_items, name="distortion", by_time=True)
        parts.append(Markup("<div>distortion against seconds{}</div>").format(curve))
    # A plain str: scikit-learn appends to it, and a Markup would escape the rest.
    return str(Markup('{}<div class="ckm">{}</div>').format(STYLE, Markup("").join(parts)))


class Grid:
    """Items of a cluster, with an HTML representation."""

    def __init__(self, cluster: int, items: list[int], html: str) -> None:
        self.cluster = cluster
        self.items = items  # row numbers
        self._html = html

    def __repr__(self) -> str:
        return f"<cluster {self.cluster}: items {', '.join(map(str, self.items))}>"

    def _repr_html_(self) -> str:
        return self._html


def cluster_grid(
    model: BaseKMeans,
    cluster: int,
    X: ArrayLike | None,
    images: str | os.PathLike[str] | Sequence[Any] | NDArray[Any] | None,
    n_items: int,
) -> Grid:
    """Items of a cluster, nearest first, with their images or drawings of their vectors."""
    if not 0 <= cluster < len(model.cluster_centers_):
        raise ValueError(f"cluster must be from 0 to {len(model.cluster_centers_) - 1}, got {cluster}")
    rows = None if X is None else np.asarray(X)
    squares = None
    if rows is not None:
        squares = model.squared_distances(rows, model.labels_)
    pictures = None if images is None else as_pictures(images)
    catalog = Catalog(model, rows, labels=np.asarray(model.labels_), squares=squares, pictures=pictures)
    items = catalog.members(cluster)[:n_items].tolist()
    cells = Markup("").join(_cell(catalog, item) for item in items)
    heading = Markup('<div class="all"><b>Cluster {}</b>{} of {:,.0f} items</div>').format(
        cluster, len(items), catalog.sizes[cluster]
    )
    return Grid(cluster, items, Markup('{}<div class="ckm cells">{}{}</div>').format(STYLE, heading, cells))


def as_pictures(images: str | os.PathLike[str] | Sequence[Any] | NDArray[Any]) -> Pictures:
    """Pictures from a folder or a file, an array of pictures, or a list of paths and arrays."""
    if isinstance(images, str | os.PathLike):
        return open_pictures(images)
    if isinstance(images, np.ndarray):
        return array_pictures(images)
    return Pictures(partial(_read, images), len(images))


def _read(images: Sequence[Any], item: int, side: int) -> NDArray[np.uint8]:
    image = images[item]
    return np.asarray(image) if isinstance(image, np.ndarray) else read_pixels(Path(image), side)


def _cell(catalog: Catalog, item: int) -> Markup:
    look = look_of(catalog, item)
    shown = Markup('<img src="{}" alt="">').format(look) if look else Markup("")
    return Markup('<div class="cell">{}{}</div>').format(shown, item)
