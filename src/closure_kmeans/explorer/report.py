"""Report: the clusters in one self-contained HTML file."""

from __future__ import annotations

import os
from functools import partial
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from closure_kmeans.explorer import charts
from closure_kmeans.explorer.catalog import MEASURES, Catalog
from closure_kmeans.explorer.fit import fit_of_model
from closure_kmeans.explorer.pictures import draw_vector, missing
from closure_kmeans.explorer.rendering import render
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
        Measure to sort by, one of ``catalog.measures``.
    descending : bool
        Whether to sort in descending order.
    show : str
        Which items to show, one of ``catalog.shows`` if there are any.
    """
    clusters = catalog.find(sort, descending=descending)[:n_clusters].tolist()
    fit = fit_of_model(catalog.model)
    text = render(
        "report.html",
        style=Markup((files("closure_kmeans.explorer") / "static" / "style.css").read_text("utf-8")),
        catalog=catalog,
        clusters=clusters,
        neighbors=catalog.neighbors(clusters, 1),
        sorted_by=f"by {MEASURES[sort].name.lower()}, {MEASURES[sort].first(descending=descending)}",
        show=show,
        n_items=N_ITEMS,
        look=partial(look_of, catalog),
        center=lambda cluster: draw_vector(catalog.centers[cluster]).url,
        histogram=charts.draw_histogram(catalog.sizes),
        map=charts.draw_map(catalog),
        curve=fit and charts.draw_curve(fit.history, fit.distortion, name="distortion", by_time=True),
    )
    with replacing(Path(path)) as beside:
        beside.write_text(text, encoding="utf-8")


def look_of(catalog: Catalog, item: int) -> str | None:
    """Picture of an item as a data URL; None for an item that is shown by its title."""
    if catalog.pictures is not None:
        try:
            return catalog.pictures.small(item).url
        except (ValueError, OSError):  # missing or damaged
            return missing("missing").url
    row = None if catalog.by_title else catalog.row(item)
    return None if row is None else draw_vector(row).url
