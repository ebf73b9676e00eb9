"""What all pages have in common: templates, addresses, pictures, and what is said of a request that goes wrong."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from closure_kmeans.explorer.guard import HEADERS
from closure_kmeans.explorer.params import Params
from closure_kmeans.explorer.pictures import LARGE, SMALL, Encoded, missing, picture_of_file
from closure_kmeans.explorer.rendering import make_environment, pages, plural

# A number in an address has fewer digits.
MOST_DIGITS = 19
# Threads that decode pictures: pages have others, and never wait for them.
PICTURE_THREADS = 4
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Pictures and style sheets never change under an address, which holds what is different each time the server starts.
KEEP = {"cache-control": "private, max-age=86400, immutable"}


class Site:
    """Renders pages and sends pictures; ``shown`` is what all templates know."""

    def __init__(self, **shown: Any) -> None:
        self.decoding = CapacityLimiter(PICTURE_THREADS)
        self._static = {
            file.name: Encoded(file.read_bytes(), MEDIA_TYPES[Path(file.name).suffix])
            for file in (files("closure_kmeans.explorer") / "static").iterdir()
        }
        self._environment = make_environment()
        self._environment.globals |= {"version": secrets.token_hex(4), "plural": plural, "pages": pages} | shown

    def page(self, request: Request, template: str, status: int = 200, /, **context: Any) -> Response:
        """A template, filled in. It knows in which part of the site it is, and makes links to itself."""
        here = request.scope["path"].strip("/").partition("/")[0]
        text = self._environment.get_template(template).render(here=here, link=partial(link, request), **context)
        # Names of files need not be texts.
        return HTMLResponse(text.encode("utf-8", "replace"), status, {"cache-control": "no-cache"})

    async def picture(self, request: Request, small: Callable[[], Encoded], large: Callable[[], Encoded]) -> Response:
        """A picture of the size that is asked for; one that is gone or damaged leaves a sign in its place."""
        make = small if Params(request.query_params).choice("size", ["small", "large"]) == "small" else large
        try:
            return picture_response(await to_thread.run_sync(make, limiter=self.decoding))
        except (ValueError, OSError):
            gone = missing("missing")
            return Response(gone.content, 404, media_type=gone.media_type)

    async def file_picture(self, request: Request, path: Path) -> Response:
        """The picture of a file."""
        return await self.picture(request, *(partial(picture_of_file, path, side) for side in (SMALL, LARGE)))

    def static(self, request: Request) -> Response:
        """The style sheet and the scripts."""
        if request.path_params["name"] not in self._static:
            raise HTTPException(404, "there is no such file")
        return picture_response(self._static[request.path_params["name"]])

    async def explain(self, request: Request, error: Exception) -> Response:
        """The page for a request that cannot be answered."""
        status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
        response: Response
        if request.method != "GET":
            response = JSONResponse({"error": detail}, status)
        else:
            response = self.page(request, "error.html", status, status=status, detail=detail)
        response.headers.update(HEADERS)  # what went wrong by a fault of ours is answered outside of the guard
        return response


def picture_response(encoded: Encoded) -> Response:
    """A picture, which the browser may keep."""
    return Response(encoded.content, 200, KEEP, encoded.media_type)


def link(request: Request, /, **changes: Any) -> str:
    """The address of this page with some of its parameters changed, or left out by None."""
    given = {**request.query_params, **changes, "token": None}  # which is not for others
    return "?" + urlencode({name: value for name, value in given.items() if value is not None})


def number_in(request: Request, name: str, n_things: int) -> int:
    """The number of a thing that there is, in the path of an address."""
    text: str = request.path_params[name]
    if not (text.isascii() and text.isdigit() and len(text) < MOST_DIGITS and int(text) < n_things):
        there = f"the last one is {n_things - 1:,}" if n_things else "there are none"
        raise HTTPException(404, f"there is no such {name}: {there}")
    return int(text)
