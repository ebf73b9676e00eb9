"""Notebook output: summary of a model, and the items of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans.explorer import charts
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.fit import fit_of_model
from closure_kmeans.explorer.pictures import Encoded, Pictures, array_pictures, encode, open_pictures, picture_of_file
from closure_kmeans.explorer.rendering import render
from closure_kmeans.explorer.report import look_of

if TYPE_CHECKING:
    from closure_kmeans.model import FittedModel


def summary(model: FittedModel) -> str:
    """HTML summary of a fitted model; empty if it is not fitted."""
    if not hasattr(model, "cluster_centers_"):
        return ""
    fit = fit_of_model(model)
    n_items = float(model.cluster_sizes_.sum())
    curve = fit and charts.draw_curve(fit.history, lambda step: step.inertia / n_items, name="distortion", by_time=True)
    histogram = charts.draw_histogram(model.cluster_sizes_)
    # A plain str: scikit-learn appends to it, and a Markup would escape the rest.
    return str(render("summary.html", model=model, n_items=n_items, histogram=histogram, curve=curve))


@dataclass(repr=False)
class Grid:
    """Items of a cluster, with an HTML representation."""

    cluster: int
    items: list[int]  # row numbers
    html: str

    def __repr__(self) -> str:
        return f"<cluster {self.cluster}: items {', '.join(map(str, self.items))}>"

    def _repr_html_(self) -> str:
        return self.html


def cluster_grid(
    model: FittedModel,
    cluster: int,
    X: ArrayLike | None,
    images: str | os.PathLike[str] | Sequence[Any] | NDArray[Any] | None,
    n_items: int,
) -> Grid:
    """Items of a cluster, nearest first, with their images or drawings of their vectors."""
    if not 0 <= cluster < len(model.cluster_centers_):
        raise ValueError(f"cluster must be from 0 to {len(model.cluster_centers_) - 1}, got {cluster}")
    rows = None if X is None else np.asarray(X)
    squares = None if rows is None else model.squared_distances(rows, model.labels_)
    pictures = None if images is None else as_pictures(images)
    catalog = Catalog(model, rows, labels=np.asarray(model.labels_), squares=squares, pictures=pictures)
    items = catalog.members(cluster)[:n_items].tolist()
    look, size = partial(look_of, catalog), catalog.sizes[cluster]
    return Grid(cluster, items, render("grid.html", cluster=cluster, items=items, size=size, look=look))


def as_pictures(images: str | os.PathLike[str] | Sequence[Any] | NDArray[Any]) -> Pictures:
    """Pictures from a folder or a file, an array of pictures, or a list of paths and arrays."""
    if isinstance(images, str | os.PathLike):
        return open_pictures(images)
    if isinstance(images, np.ndarray):
        return array_pictures(images)

    def make(item: int, side: int) -> Encoded:
        image = images[item]
        return encode(image, side) if isinstance(image, np.ndarray) else picture_of_file(Path(image), side)

    return Pictures(make, len(images))
