"""ASGI application of the explorer.

All state of a page is in its address: sorting, filters, and the numbers of items and images. Addresses never contain
file paths.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.charts import draw_curve
from closure_kmeans.explorer.cluster_pages import ClusterPages
from closure_kmeans.explorer.fit import Fit
from closure_kmeans.explorer.guard import LOOPBACK, Guard
from closure_kmeans.explorer.params import Params
from closure_kmeans.explorer.queries import Searches
from closure_kmeans.explorer.query_pages import QueryPages
from closure_kmeans.explorer.site import Site


def make_app(
    catalog: Catalog | None = None,
    searches: Searches | None = None,
    fit: Callable[[], Fit | None] = lambda: None,
    *,
    hosts: frozenset[str] | None = LOOPBACK,
    token: str | None = None,
) -> Starlette:
    """Make the ASGI application.

    Parameters
    ----------
    catalog : Catalog, optional
        The clusters.
    searches : Searches, optional
        The image index.
    fit : callable, optional
        Returns the current state of the fit.
    hosts, token
        Access control: see ``Guard``.
    """
    site = Site(catalog=catalog, searches=searches)
    routes = [
        Route("/fit", lambda request: show_fit(site, fit, request)),
        Route("/static/{name}", site.static),
    ]
    if catalog is not None:
        routes += ClusterPages(site, catalog).routes
    elif searches is not None:
        routes.append(Route("/", lambda request: RedirectResponse("/query")))
    else:
        routes.append(Route("/", lambda request: site.page(request, "no-model.html")))
    if searches is not None:
        routes += QueryPages(site, searches).routes
    else:
        routes.append(Route("/query", lambda request: site.page(request, "no-index.html")))
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, hosts=hosts, token=token)],
        exception_handlers={HTTPException: site.explain, 500: site.explain},
    )


def show_fit(site: Site, fit_now: Callable[[], Fit | None], request: Request) -> Response:
    """Page with the history of a finished or running fit."""
    by = Params(request.query_params).choice("by", ["time", "iteration"])
    try:
        fit = fit_now()
    except (ValueError, OSError) as error:  # a damaged checkpoint
        raise HTTPException(404, str(error)) from error
    curves = []
    if fit is not None and fit.history:
        draw = partial(draw_curve, fit.history, by_time=by == "time")
        per_item = "per item" if fit.n_points else "of all items"
        n_active = draw(lambda step: step.n_active, name="active points", from_zero=True)
        curves = [
            ("Distortion", per_item, draw(fit.distortion, name="distortion")),
            ("Active points", "that changed their cluster", n_active),
        ]
    return site.page(request, "fit.html", fit=fit, by=by, curves=curves)
