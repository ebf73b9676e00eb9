"""Pages of clusters: list, cluster, item, map."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from closure_kmeans.explorer import charts
from closure_kmeans.explorer.cards import ORDERS, make_cards
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.params import Params
from closure_kmeans.explorer.pictures import draw_vector, missing
from closure_kmeans.explorer.site import Site, link, number_in, picture_response

CLUSTERS_PER_PAGE, TILES_PER_CLUSTER, ITEMS_PER_PAGE = 20, 20, 120
N_NEIGHBORS, TILES_PER_NEIGHBOR, N_SIMILAR = 8, 4, 24


class ClusterPages:
    """Pages of a catalog."""

    def __init__(self, site: Site, catalog: Catalog) -> None:
        self._site, self._catalog = site, catalog

    def routes(self) -> list[Route]:
        """Routes of the pages."""
        return [
            Route("/", self.clusters),
            Route("/clusters/{cluster}", self.cluster),
            Route("/clusters/{cluster}/glance", self.glance),
            Route("/clusters/{cluster}/picture", self.center_picture),
            Route("/items/{item}", self.item),
            Route("/items/{item}/picture", self.item_picture),
            Route("/map", self.map),
            Route("/map.bin", self.map_data),
        ]

    def clusters(self, request: Request) -> Response:
        """List of clusters: sorted, filtered, paged."""
        catalog, params = self._catalog, Params(request.query_params)
        largest = round(float(catalog.sizes.max()))
        asked: dict[str, Any] = {
            "sort": params.choice("sort", catalog.measures),
            "order": params.choice("order", ["descending", "ascending"]),
            "show": params.choice("show", catalog.shows or ["none"]),
            "least": params.integer("least", 0, least=0, most=largest),
            "most": params.integer("most", largest, least=0, most=largest),
            "q": params.text("q"),
        }
        found = catalog.find(
            asked["sort"],
            descending=asked["order"] == "descending",
            least=asked["least"],
            most=asked["most"],
            text=asked["q"],
        )
        n_pages = max(1, -(-len(found) // CLUSTERS_PER_PAGE))
        page = params.integer("page", 1, least=1, most=n_pages)
        shown = found[(page - 1) * CLUSTERS_PER_PAGE : page * CLUSTERS_PER_PAGE].tolist()
        histogram = charts.draw_histogram(
            catalog.sizes,
            lambda bar: link(request, least=bar.least, most=bar.most, page=None),
            lambda bar: asked["least"] <= bar.most and bar.least <= asked["most"],
        )
        return self._site.page(
            request,
            "clusters.html",
            asked=asked,
            sorts=[(measure, ORDERS[measure].name) for measure in catalog.measures],
            first=ORDERS[asked["sort"]].first(descending=asked["order"] == "descending"),
            n_found=len(found),
            page=page,
            n_pages=n_pages,
            cards=make_cards(catalog, shown, asked["show"], TILES_PER_CLUSTER),
            histogram=histogram,
            largest=largest,
            filtered=asked["least"] > 0 or asked["most"] < largest or asked["q"] != "",
        )

    def cluster(self, request: Request) -> Response:
        """Page of a cluster: its items, paged, and the neighbouring clusters."""
        catalog, cluster = self._catalog, number_in(request, "cluster", self._catalog.n_clusters)
        params = Params(request.query_params)
        n_members = len(catalog.members(cluster))
        n_pages = max(1, -(-n_members // ITEMS_PER_PAGE))
        page = params.integer("page", 1, least=1, most=n_pages)
        shows = [*catalog.shows[1:], *catalog.shows[:1]]  # random order last
        show = params.choice("show", shows or ["none"])
        return self._site.page(
            request,
            "cluster.html",
            card=make_cards(catalog, [cluster], show, 0)[0],
            show=show,
            shows=shows,
            page=page,
            n_pages=n_pages,
            n_members=n_members,
            items=catalog.choose(cluster, show, (page - 1) * ITEMS_PER_PAGE, ITEMS_PER_PAGE).tolist(),
            neighbors=[
                (neighbor, catalog.choose(neighbor.cluster, (shows or ["none"])[0], 0, TILES_PER_NEIGHBOR).tolist())
                for neighbor in catalog.neighbors([cluster], N_NEIGHBORS)[0]
            ],
        )

    def glance(self, request: Request) -> Response:
        """Some items of a cluster, for the map."""
        catalog, cluster = self._catalog, number_in(request, "cluster", self._catalog.n_clusters)
        items = catalog.choose(cluster, "nearest", 0, 2 * TILES_PER_NEIGHBOR).tolist()
        return self._site.page(request, "glance.html", cluster=cluster, items=items)

    def item(self, request: Request) -> Response:
        """Page of an item: its cluster, the second-nearest cluster, similar items."""
        catalog, item = self._catalog, number_in(request, "item", self._catalog.n_items)
        return self._site.page(
            request,
            "item.html",
            item=item,
            cluster=catalog.cluster_of(item),
            standing=catalog.standing(item),
            similar=catalog.similar(item, N_SIMILAR),
            entries={} if catalog.metadata is None else catalog.metadata.entries(item),
        )

    def map(self, request: Request) -> Response:
        """Page of the map."""
        return self._site.page(request, "map.html", n_shown=self._catalog.n_clusters)

    def map_data(self, request: Request) -> Response:
        """Map data: x, y, size and tightness class of each cluster, as 32-bit floats."""
        catalog = self._catalog
        classes = charts.tightness_classes(catalog.spreads, catalog.n_clusters)
        table = np.column_stack([catalog.places, catalog.sizes, classes]).astype("<f4")
        return Response(table.tobytes(), media_type="application/octet-stream")

    async def item_picture(self, request: Request) -> Response:
        """Picture of an item."""
        catalog, item = self._catalog, number_in(request, "item", self._catalog.n_items)
        if catalog.pictures is not None:
            sizes = partial(catalog.pictures.small, item), partial(catalog.pictures.large, item)
            return await self._site.picture(request, *sizes)
        row = await to_thread.run_sync(catalog.row, item, limiter=self._site.decoding)
        if row is None:
            unknown = missing("no vector")
            return Response(unknown.content, 404, media_type=unknown.media_type)
        return picture_response(draw_vector(row))

    def center_picture(self, request: Request) -> Response:
        """Drawing of a centre."""
        return picture_response(
            draw_vector(self._catalog.centers[number_in(request, "cluster", self._catalog.n_clusters)])
        )
