"""Pages of clusters: list, cluster, item, map."""

from __future__ import annotations

from functools import partial

import numpy as np
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from closure_kmeans.explorer import charts
from closure_kmeans.explorer.catalog import MEASURES, Catalog
from closure_kmeans.explorer.params import Params
from closure_kmeans.explorer.pictures import draw_vector, missing
from closure_kmeans.explorer.site import Site, link, number_in, picture_response

CLUSTERS_PER_PAGE, TILES_PER_CLUSTER, ITEMS_PER_PAGE = 20, 20, 120
N_NEIGHBORS, TILES_PER_NEIGHBOR, N_SIMILAR = 8, 4, 24


class ClusterPages:
    """Pages of a catalog."""

    def __init__(self, site: Site, catalog: Catalog) -> None:
        self._site, self._catalog = site, catalog
        self.routes = [
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
        sort = params.choice("sort", catalog.measures)
        order = params.choice("order", ["descending", "ascending"])
        show = params.choice("show", catalog.shows or ["none"])
        least = params.integer("least", 0, least=0, most=largest)
        most = params.integer("most", largest, least=0, most=largest)
        text = params.text("q")
        descending = order == "descending"
        found = catalog.find(sort, descending=descending, least=least, most=most, text=text)
        page = params.page(len(found), CLUSTERS_PER_PAGE)
        clusters = found[page.items].tolist()
        return self._site.page(
            request,
            "clusters.html",
            asked={"sort": sort, "order": order, "show": show, "least": least, "most": most, "q": text},
            sorts=[(measure, MEASURES[measure].name) for measure in catalog.measures],
            first=MEASURES[sort].first(descending=descending),
            n_found=len(found),
            page=page,
            clusters=clusters,
            neighbors=catalog.neighbors(clusters, 1),
            n_items=TILES_PER_CLUSTER,
            histogram=charts.draw_histogram(
                catalog.sizes,
                lambda bar: link(request, least=bar.least, most=bar.most, page=None),
                lambda bar: least <= bar.most and bar.least <= most,
            ),
            largest=largest,
            filtered=least > 0 or most < largest or text != "",
        )

    def cluster(self, request: Request) -> Response:
        """Page of a cluster: its items, paged, and the neighbouring clusters."""
        catalog, cluster, params = self._catalog, self._cluster(request), Params(request.query_params)
        n_members = len(catalog.members(cluster))
        page = params.page(n_members, ITEMS_PER_PAGE)
        shows = [*catalog.shows[1:], *catalog.shows[:1]] or ["none"]  # random items last
        show = params.choice("show", shows)
        return self._site.page(
            request,
            "cluster.html",
            cluster=cluster,
            show=show,
            shows=shows,
            page=page,
            n_members=n_members,
            items=catalog.choose(cluster, show, page.items.start, ITEMS_PER_PAGE).tolist(),
            neighbors=[
                (neighbor, catalog.choose(neighbor.cluster, shows[0], 0, TILES_PER_NEIGHBOR).tolist())
                for neighbor in catalog.neighbors([cluster], N_NEIGHBORS)[0]
            ],
        )

    def glance(self, request: Request) -> Response:
        """Some items of a cluster, for the map."""
        cluster = self._cluster(request)
        items = self._catalog.choose(cluster, "nearest", 0, 2 * TILES_PER_NEIGHBOR).tolist()
        return self._site.page(request, "glance.html", cluster=cluster, items=items)

    def item(self, request: Request) -> Response:
        """Page of an item: its cluster, the second-nearest cluster, similar items."""
        catalog, item = self._catalog, self._item(request)
        return self._site.page(
            request,
            "item.html",
            item=item,
            cluster=catalog.cluster_of(item),
            standing=catalog.standing(item),
            similar=catalog.similar(item, N_SIMILAR),
        )

    def map(self, request: Request) -> Response:
        """Page of the map."""
        return self._site.page(request, "map.html", n_classes=charts.N_CLASSES)

    def map_data(self, request: Request) -> Response:
        """Map data: x, y, size and tightness class of each cluster, as 32-bit floats."""
        catalog = self._catalog
        table = np.column_stack([catalog.positions, catalog.sizes, charts.tightness_classes(catalog)]).astype("<f4")
        return Response(table.tobytes(), media_type="application/octet-stream")

    async def item_picture(self, request: Request) -> Response:
        """Picture of an item."""
        catalog, item = self._catalog, self._item(request)
        if catalog.pictures is not None:
            return await self._site.picture(request, partial(catalog.pictures.encoded, item))
        row = await to_thread.run_sync(catalog.row, item, limiter=self._site.decoding)
        return picture_response(missing("no vector"), 404) if row is None else picture_response(draw_vector(row))

    def center_picture(self, request: Request) -> Response:
        """Drawing of a centre."""
        return picture_response(draw_vector(self._catalog.centers[self._cluster(request)]))

    def _cluster(self, request: Request) -> int:
        return number_in(request, "cluster", self._catalog.n_clusters)

    def _item(self, request: Request) -> int:
        return number_in(request, "item", self._catalog.n_items)
