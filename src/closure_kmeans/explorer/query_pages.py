"""Pages of an index: image choice, ranking, comparison of two images."""

from __future__ import annotations

from functools import partial

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from closure_kmeans.explorer.params import Params
from closure_kmeans.explorer.pictures import picture_of_file
from closure_kmeans.explorer.queries import Photo, Question, Searches, picture_size
from closure_kmeans.explorer.site import Site, number_in

IMAGES_PER_PAGE = 60
# Threads for searches. Further queries wait; pages, pictures and uploads do not.
SEARCH_THREADS = 2
# Threads for decoding uploads.
UPLOAD_THREADS = 2
# Limit on the size of an upload.
MOST_BYTES = 24 << 20


class QueryPages:
    """Pages of an index."""

    def __init__(self, site: Site, searches: Searches) -> None:
        self._site, self._searches = site, searches
        self._searching = CapacityLimiter(SEARCH_THREADS)
        self._receiving = CapacityLimiter(UPLOAD_THREADS)
        self.routes = [
            Route("/query", self.query),
            Route("/query/match", self.match),
            Route("/uploads", self.receive, methods=["POST"]),
            Route("/uploads/{key}/picture", self.upload_picture),
            Route("/index/{image}/picture", self.index_picture),
        ]

    async def query(self, request: Request) -> Response:
        """Page of a query and its ranking, or the images to choose from."""
        params = Params(request.query_params)
        searching = self._searching if params.has("image") or params.has("upload") else None
        return await to_thread.run_sync(self._answer, request, params, limiter=searching)

    def _choose(self, request: Request, params: Params) -> Response:
        text = params.text("q")
        found = [number for number, name in enumerate(self._searches.index.names) if text.lower() in name.lower()]
        page = params.page(len(found), IMAGES_PER_PAGE)
        return self._site.page(request, "choose.html", images=found[page.items], q=text, page=page)

    def _answer(self, request: Request, params: Params) -> Response:
        question = self._question(params)
        if question is None:
            return self._choose(request, params)
        answer, problem = None, None
        try:
            answer = self._searches.answer(question)
        except ValueError as error:
            problem = str(error)
        return self._site.page(
            request,
            "query.html",
            question=question,
            answer=answer,
            problem=problem,
            size=picture_size(question.photo.path),
            command=self._searches.command(question),
        )

    async def match(self, request: Request) -> Response:
        """Page of two images side by side, with lines between matched regions."""
        return await to_thread.run_sync(self._match, request, Params(request.query_params), limiter=self._searching)

    def _match(self, request: Request, params: Params) -> Response:
        searches, question = self._searches, self._question(params)
        if question is None or not params.has("result"):
            raise HTTPException(400, "a match needs an image or an upload, and a result")
        image = params.integer("result", 0, least=0, most=len(searches.index) - 1)
        try:
            match = searches.match(question, image)
            results = searches.answer(question).results
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        return self._site.page(request, "match.html", question=question, image=image, match=match, results=results)

    async def receive(self, request: Request) -> Response:
        """Receive an upload, up to the size limit; returns its key."""
        searches = self._searches
        upload = searches.new_upload(Params(request.query_params).text("name"))
        n_bytes = 0
        try:
            with upload.path.open("wb") as file:
                async for chunk in request.stream():
                    n_bytes += len(chunk)
                    if n_bytes > MOST_BYTES:
                        raise HTTPException(413, f"a photo must have at most {MOST_BYTES >> 20} MB")
                    file.write(chunk)
            await to_thread.run_sync(searches.keep, upload, limiter=self._receiving)
        except BaseException as error:
            upload.path.unlink(missing_ok=True)
            if isinstance(error, ValueError):  # not an image
                raise HTTPException(415, str(error)) from error
            if isinstance(error, ClientDisconnect):
                raise HTTPException(400, "the upload is incomplete") from error
            if isinstance(error, OSError):
                raise HTTPException(507, f"the photo could not be saved: {error.strerror or error}") from error
            raise
        return JSONResponse({"upload": upload.key}, 201)

    async def index_picture(self, request: Request) -> Response:
        """Picture of an image of the index."""
        index = self._searches.index
        path = index.path_of(number_in(request, "image", len(index)))
        return await self._site.picture(request, partial(picture_of_file, path))

    async def upload_picture(self, request: Request) -> Response:
        """Picture of an upload."""
        path = self._upload(request.path_params["key"]).path
        return await self._site.picture(request, partial(picture_of_file, path))

    def _question(self, params: Params) -> Question | None:
        box, rerank = params.box("box"), params.choice("rerank", ["yes", "no"]) == "yes"
        if params.has("upload"):
            return Question(self._upload(params.text("upload")), box, rerank)
        if not params.has("image"):
            return None
        image = params.integer("image", 0, least=0, most=len(self._searches.index) - 1)
        return Question(self._searches.photo(image), box, rerank)

    def _upload(self, key: str) -> Photo:
        upload = self._searches.upload(key)
        if upload is None:
            raise HTTPException(404, "this upload no longer exists: upload it again")
        return upload
