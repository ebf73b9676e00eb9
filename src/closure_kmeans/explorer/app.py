"""The pages: each route asks the catalogue, the index or the fit, and renders what they say.

A page is its address: what is sorted, chosen or searched for stands in it, and items and images go by their numbers.
No path of a file ever comes from it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

import numpy as np
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from closure_kmeans.explorer import charts, pictures
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.fit import Fit
from closure_kmeans.explorer.guard import LOOPBACK, Guard
from closure_kmeans.explorer.params import Params
from closure_kmeans.explorer.pictures import Encoded
from closure_kmeans.explorer.queries import Question, Searches, Upload, picture_size
from closure_kmeans.explorer.rendering import make_environment, pages, plural

CLUSTERS_PER_PAGE, TILES_PER_CLUSTER, ITEMS_PER_PAGE, IMAGES_PER_PAGE = 20, 20, 120, 60
N_NEIGHBORS, TILES_PER_NEIGHBOR, N_SIMILAR = 8, 4, 24
# Threads that decode pictures, and threads that search: pages have their own, and never wait for either.
PICTURE_THREADS, SEARCH_THREADS = 4, 2
# Bytes of a photo that is sent.
MOST_BYTES = 24 << 20
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Pictures and style sheets never change under an address, which holds what is different each time the server starts.
KEEP = {"cache-control": "private, max-age=86400, immutable"}


class Explorer:
    """The routes, and what they show.

    Parameters
    ----------
    catalog : Catalog, optional
        The clusters.
    searches : Searches, optional
        The index to search.
    fit : callable, optional
        How the fit stands now.
    """

    def __init__(
        self,
        catalog: Catalog | None = None,
        searches: Searches | None = None,
        fit: Callable[[], Fit | None] = lambda: None,
    ) -> None:
        self.catalog, self.searches, self.fit_now = catalog, searches, fit
        self._version = secrets.token_hex(4)
        self._decoding, self._searching = CapacityLimiter(PICTURE_THREADS), CapacityLimiter(SEARCH_THREADS)
        self._static = {
            file.name: Encoded(file.read_bytes(), MEDIA_TYPES[file.name[file.name.rindex(".") :]])
            for file in (files("closure_kmeans.explorer") / "static").iterdir()
        }
        self._environment = make_environment()
        self._environment.globals |= {
            "version": self._version,
            "catalog": catalog,
            "searches": searches,
            "plural": plural,
            "pages": pages,
        }

    def routes(self) -> list[Route]:
        """All addresses."""
        return [
            Route("/", self.clusters, name="clusters"),
            Route("/clusters/{cluster:int}", self.cluster, name="cluster"),
            Route("/clusters/{cluster:int}/glance", self.glance),
            Route("/clusters/{cluster:int}/picture", self.center_picture),
            Route("/items/{item:int}", self.item, name="item"),
            Route("/items/{item:int}/picture", self.item_picture),
            Route("/map", self.map, name="map"),
            Route("/map.bin", self.map_data),
            Route("/fit", self.fit, name="fit"),
            Route("/query", self.query, name="query"),
            Route("/query/match", self.match, name="match"),
            Route("/uploads", self.receive, methods=["POST"]),
            Route("/uploads/{key}/picture", self.upload_picture),
            Route("/index/{image:int}/picture", self.index_picture),
            Route("/static/{name}", self.static),
        ]

    # -- clusters and items --------------------------------------------------------------------------------------------

    def clusters(self, request: Request) -> Response:
        """All clusters: sorted, filtered, page by page."""
        if self.catalog is None:
            return self._page(request, "no-model.html", 200 if self.searches or self.fit_now() else 404)
        catalog, params = self.catalog, Params(request.query_params)
        largest = int(catalog.sizes.max())
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
            lambda bar: _link(request, least=bar.least, most=bar.most, page=None),
            lambda bar: asked["least"] <= bar.most and bar.least <= asked["most"],
        )
        return self._page(
            request,
            "clusters.html",
            asked=asked,
            n_found=len(found),
            page=page,
            n_pages=n_pages,
            cards=self._cards(shown, asked["show"]),
            histogram=histogram,
            filtered=asked["least"] > 0 or asked["most"] < largest or asked["q"] != "",
        )

    def _cards(self, clusters: list[int], show: str, n_tiles: int = TILES_PER_CLUSTER) -> list[dict[str, Any]]:
        """What a list shows of some clusters."""
        catalog: Any = self.catalog
        cards = []
        for cluster, neighbors in zip(clusters, catalog.neighbors(clusters, 1), strict=True):
            members = catalog.members(cluster)
            card = {
                "cluster": cluster,
                "size": float(catalog.sizes[cluster]),
                "spread": None if catalog.spreads is None else float(catalog.spreads[cluster]),
                "share": None if catalog.shares is None else float(catalog.shares[cluster]),
                "next": next(iter(neighbors), None),
                "items": catalog.choose(cluster, show, 0, n_tiles).tolist(),
                "frequent": [] if catalog.metadata is None else catalog.metadata.frequent(members),
                "typical": None if catalog.metadata is None else catalog.metadata.typical(members),
            }
            cards.append(card)
        return cards

    def cluster(self, request: Request) -> Response:
        """A cluster: all its items, page by page, and the clusters next to it."""
        catalog, cluster = self._catalog(), self._number(request, "cluster", self._catalog().n_clusters, "cluster")
        params = Params(request.query_params)
        n_members = len(catalog.members(cluster))
        n_pages = max(1, -(-n_members // ITEMS_PER_PAGE))
        page = params.integer("page", 1, least=1, most=n_pages)
        shows = [*catalog.shows[1:], *catalog.shows[:1]]  # in their order first, and not at random
        show = params.choice("show", shows or ["none"])
        return self._page(
            request,
            "cluster.html",
            card=self._cards([cluster], show, 0)[0],
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
        """A few items of a cluster, for the map."""
        catalog, cluster = self._catalog(), self._number(request, "cluster", self._catalog().n_clusters, "cluster")
        items = catalog.choose(cluster, "nearest", 0, 2 * TILES_PER_NEIGHBOR).tolist()
        return self._page(request, "glance.html", cluster=cluster, items=items)

    def item(self, request: Request) -> Response:
        """An item: its cluster, the second-best one, and items like it."""
        catalog, item = self._catalog(), self._number(request, "item", self._catalog().n_items, "item")
        return self._page(
            request,
            "item.html",
            item=item,
            cluster=int(catalog.labels[item]),
            standing=catalog.standing(item),
            similar=catalog.similar(item, N_SIMILAR),
            entries={} if catalog.metadata is None else catalog.metadata.entries(item),
        )

    def map(self, request: Request) -> Response:
        """The map of the clusters."""
        return self._page(request, "map.html", n_shown=self._catalog().n_clusters)

    def map_data(self, request: Request) -> Response:
        """For each cluster x, y, size and class of tightness, as 32-bit floats."""
        catalog = self._catalog()
        classes = charts.tightness_classes(catalog.spreads, catalog.n_clusters)
        table = np.column_stack([catalog.places, catalog.sizes, classes]).astype("<f4")
        return Response(table.tobytes(), media_type="application/octet-stream")

    def fit(self, request: Request) -> Response:
        """How the fit went, or goes."""
        by = Params(request.query_params).choice("by", ["time", "iteration"])
        fit = self.fit_now()
        if fit is None or not fit.history:
            return self._page(request, "fit.html", fit=fit, by=by, curves=[])
        n_points = fit.n_points or 1
        draw = partial(charts.draw_curve, fit.history, by_time=by == "time")
        curves = [
            (
                "Distortion",
                "per item" if fit.n_points else "of all items",
                draw(lambda step: step.inertia / n_points, name="distortion"),
            ),
            (
                "Active points",
                "that changed their cluster",
                draw(lambda step: step.n_active, name="active points", from_zero=True),
            ),
        ]
        return self._page(request, "fit.html", fit=fit, by=by, curves=curves, n_points=n_points)

    # -- queries -------------------------------------------------------------------------------------------------------

    async def query(self, request: Request) -> Response:
        """A query and its ranking, or the images of the index to choose from."""
        if self.searches is None:
            return self._page(request, "no-index.html", 404)
        return await to_thread.run_sync(self._answer, request, limiter=self._searching)

    def _answer(self, request: Request) -> Response:
        searches, params = self._searches(), Params(request.query_params)
        question = self._question(params)
        if question is None:
            return self._choice_of_images(request, searches, params)
        answer, problem = None, None
        try:
            answer = searches.answer(question)
        except ValueError as error:
            problem = str(error)
        return self._page(
            request,
            "query.html",
            question=question,
            answer=answer,
            problem=problem,
            size=picture_size(searches.path_of(question)),
            source=self._source(question),
            command=searches.command(question),
        )

    def _choice_of_images(self, request: Request, searches: Searches, params: Params) -> Response:
        text = params.text("q")
        found = [number for number, name in enumerate(searches.index.names) if text.lower() in name.lower()]
        n_pages = max(1, -(-len(found) // IMAGES_PER_PAGE))
        page = params.integer("page", 1, least=1, most=n_pages)
        images = found[(page - 1) * IMAGES_PER_PAGE : page * IMAGES_PER_PAGE]
        return self._page(request, "choose.html", images=images, n_found=len(found), q=text, page=page, n_pages=n_pages)

    async def match(self, request: Request) -> Response:
        """Two images side by side, and lines between what they share."""
        return await to_thread.run_sync(self._match, request, limiter=self._searching)

    def _match(self, request: Request) -> Response:
        searches, params = self._searches(), Params(request.query_params)
        question = self._question(params)
        if question is None or not params.has("result"):
            raise HTTPException(400, "a match is between an image or an upload, and a result")
        image = params.integer("result", 0, least=0, most=len(searches.index) - 1)
        try:
            match = searches.match(question, image)
            results = searches.answer(question).results
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        return self._page(
            request,
            "match.html",
            question=question,
            image=image,
            match=match,
            results=results,
            source=self._source(question),
        )

    async def receive(self, request: Request) -> Response:
        """Take a photo, never more of it than is allowed; its key is for queries."""
        searches = self._searches()
        upload = searches.new_upload(Params(request.query_params).text("name"))
        n_bytes = 0
        try:
            with upload.path.open("wb") as file:
                async for chunk in request.stream():
                    n_bytes += len(chunk)
                    if n_bytes > MOST_BYTES:
                        raise HTTPException(413, f"a photo must have at most {MOST_BYTES >> 20} MB")
                    file.write(chunk)
            await to_thread.run_sync(searches.keep, upload, limiter=self._decoding)
        except BaseException as error:
            upload.path.unlink(missing_ok=True)
            if isinstance(error, ValueError):  # no image
                raise HTTPException(415, str(error)) from error
            raise
        return JSONResponse({"upload": upload.key}, 201)

    def _question(self, params: Params) -> Question | None:
        searches = self._searches()
        box, rerank = params.box("box"), params.choice("rerank", ["yes", "no"]) == "yes"
        if params.has("upload"):
            upload = searches.upload(params.text("upload"))
            if upload is None:
                raise HTTPException(404, "this photo is no longer here: send it again")
            return Question(upload, box, rerank)
        if not params.has("image"):
            return None
        return Question(params.integer("image", 0, least=0, most=len(searches.index) - 1), box, rerank)

    def _source(self, question: Question) -> dict[str, Any]:
        """How the image of a question is named in addresses."""
        source = question.source
        if isinstance(source, Upload):
            return {"upload": source.key, "picture": f"/uploads/{source.key}/picture"}
        return {"image": source, "picture": f"/index/{source}/picture"}

    # -- pictures ------------------------------------------------------------------------------------------------------

    async def item_picture(self, request: Request) -> Response:
        """What an item looks like."""
        catalog, item = self._catalog(), self._number(request, "item", self._catalog().n_items, "item")
        if catalog.pictures is not None:
            return await self._picture(
                request, partial(catalog.pictures.small, item), partial(catalog.pictures.large, item)
            )
        row = await to_thread.run_sync(catalog.row, item, limiter=self._decoding)
        return self._drawing(row)

    def center_picture(self, request: Request) -> Response:
        """A drawing of a centre."""
        catalog = self._catalog()
        return self._drawing(catalog.centers[self._number(request, "cluster", catalog.n_clusters, "cluster")])

    def _drawing(self, row: Any) -> Response:
        encoded = pictures.missing("no vector") if row is None else pictures.draw_vector(row)
        return Response(encoded.content, 404 if row is None else 200, KEEP, encoded.media_type)

    async def index_picture(self, request: Request) -> Response:
        """An image of the index."""
        searches = self._searches()
        path = searches.index.path_of(self._number(request, "image", len(searches.index), "image"))
        return await self._picture(
            request, *(partial(pictures.picture_of_file, path, side) for side in (pictures.SMALL, pictures.LARGE))
        )

    async def upload_picture(self, request: Request) -> Response:
        """A photo that was sent."""
        upload = self._searches().upload(request.path_params["key"])
        if upload is None:
            raise HTTPException(404, "this photo is no longer here: send it again")
        return await self._picture(
            request,
            *(partial(pictures.picture_of_file, upload.path, side) for side in (pictures.SMALL, pictures.LARGE)),
        )

    async def _picture(self, request: Request, small: Callable[[], Encoded], large: Callable[[], Encoded]) -> Response:
        make = small if Params(request.query_params).choice("size", ["small", "large"]) == "small" else large
        try:
            encoded = await to_thread.run_sync(make, limiter=self._decoding)
        except (ValueError, OSError):  # gone, or damaged
            gone = pictures.missing("missing")
            return Response(gone.content, 404, media_type=gone.media_type)
        return Response(encoded.content, 200, KEEP, encoded.media_type)

    def static(self, request: Request) -> Response:
        """The style sheet and the scripts."""
        encoded = self._static.get(request.path_params["name"])
        if encoded is None:
            raise HTTPException(404)
        return Response(encoded.content, 200, KEEP, encoded.media_type)

    # -- all pages -----------------------------------------------------------------------------------------------------

    def _catalog(self) -> Any:
        if self.catalog is None:
            raise HTTPException(404, "there is no model to look at")
        return self.catalog

    def _searches(self) -> Searches:
        if self.searches is None:
            raise HTTPException(404, "there is no index to search")
        return self.searches

    def _number(self, request: Request, name: str, n_things: int, what: str) -> int:
        number: int = request.path_params[name]
        if number >= n_things:
            there = f"the last one is {n_things - 1:,}" if n_things else "there are none"
            raise HTTPException(404, f"there is no {what} {number}: {there}")
        return number

    def _page(self, request: Request, template: str, status: int = 200, /, **context: Any) -> Response:
        here = request.scope["route"].name if "route" in request.scope else ""
        link = partial(_link, request)
        text = self._environment.get_template(template).render(request=request, here=here, link=link, **context)
        return HTMLResponse(text, status, {"cache-control": "no-cache"})

    async def explain(self, request: Request, error: Exception) -> Response:
        """The page for a request that cannot be answered."""
        status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
        if request.method != "GET":
            return JSONResponse({"error": detail}, status)
        return self._page(request, "error.html", status, status=status, detail=detail)


def _link(request: Request, /, **changes: Any) -> str:
    """The address of this page with some of its parameters changed, or left out by None."""
    given = dict(request.query_params) | changes
    return "?" + urlencode({name: value for name, value in given.items() if value is not None})


def make_app(
    catalog: Catalog | None = None,
    searches: Searches | None = None,
    fit: Callable[[], Fit | None] = lambda: None,
    *,
    hosts: frozenset[str] | None = LOOPBACK,
    token: str | None = None,
) -> Starlette:
    """The explorer as an ASGI application; ``Guard`` says what hosts and the token are."""
    explorer = Explorer(catalog, searches, fit)
    return Starlette(
        routes=explorer.routes(),
        middleware=[Middleware(Guard, hosts=hosts, token=token)],
        exception_handlers={HTTPException: explorer.explain, 500: explorer.explain},
    )
