"""Report: the clusters in one self-contained HTML file."""

from __future__ import annotations

import base64
import os
from functools import partial
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from closure_kmeans.explorer import charts
from closure_kmeans.explorer.cards import ORDERS, make_cards
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.fit import fit_of_model
from closure_kmeans.explorer.pictures import Encoded, draw_vector, missing
from closure_kmeans.explorer.rendering import STYLE, make_environment, plural
from closure_kmeans.files import replacing

# Items per cluster: two rows.
N_ITEMS = 26


def write_report(
    path: str | os.PathLike[str],
    catalog: Catalog,
    *,
    n_clusters: int = 100,
    sort: str = "size",
    descending: bool = True,
    show: str = "random",
) -> None:
    """Write the report atomically.

    Parameters
    ----------
    path : path
        HTML file to write.
    catalog : Catalog
        Clusters to show.
    n_clusters : int
        Largest number of clusters.
    sort : str
        Sort key, one of ``catalog.measures``.
    descending : bool
        Whether to sort in descending order.
    show : str
        Order of items, one of ``catalog.shows`` if there are any.
    """
    clusters = catalog.find(sort, descending=descending)[:n_clusters].tolist()
    fit = fit_of_model(catalog.model)
    curve = None
    if fit is not None:
        n_points = fit.n_points or 1
        curve = charts.draw_curve(fit.history, lambda step: step.inertia / n_points, name="distortion", by_time=True)
    text = (
        make_environment()
        .get_template("report.html")
        .render(
            style=Markup((files("closure_kmeans.explorer") / "static" / STYLE).read_text("utf-8")),
            catalog=catalog,
            cards=make_cards(catalog, clusters, show, N_ITEMS),
            order=f"by {ORDERS[sort].name.lower()}, {ORDERS[sort].first(descending=descending)}",
            show=show,
            look=partial(look_of, catalog),
            center=lambda cluster: embedded(draw_vector(catalog.centers[cluster])),
            histogram=charts.draw_histogram(catalog.sizes),
            map=charts.draw_map(catalog.places, catalog.sizes, catalog.spreads),
            curve=curve,
            plural=plural,
        )
    )
    with replacing(Path(path)) as beside:
        beside.write_text(text, encoding="utf-8")


def look_of(catalog: Catalog, item: int) -> str | None:
    """Picture of an item as a data URL; None for an item that is shown by its title."""
    if catalog.pictures is not None:
        try:
            return embedded(catalog.pictures.small(item))
        except (ValueError, OSError):  # missing or damaged
            return embedded(missing("missing"))
    row = catalog.row(item)
    if catalog.metadata is not None or row is None:
        return None
    return embedded(draw_vector(row))


def embedded(picture: Encoded) -> str:
    """Data URL of a picture."""
    return f"data:{picture.media_type};base64,{base64.b64encode(picture.content).decode()}"
