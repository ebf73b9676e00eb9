"""Common parts of all pages: templates, addresses, pictures, errors."""

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

# Numbers in addresses have fewer digits than this.
MOST_DIGITS = 19
# Threads for decoding pictures, separate from the threads of pages.
PICTURE_THREADS = 4
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Pictures and style sheets are immutable: their addresses contain a version that changes with every start.
KEEP = {"cache-control": "private, max-age=86400, immutable"}


class Site:
    """Renders pages and sends pictures; ``shown`` becomes globals of the templates."""

    def __init__(self, **shown: Any) -> None:
        self.decoding = CapacityLimiter(PICTURE_THREADS)
        self._static = {
            file.name: Encoded(file.read_bytes(), MEDIA_TYPES[Path(file.name).suffix])
            for file in (files("closure_kmeans.explorer") / "static").iterdir()
        }
        self._environment = make_environment()
        self._environment.globals |= {"version": secrets.token_hex(4), "plural": plural, "pages": pages} | shown

    def page(self, request: Request, template: str, status: int = 200, /, **context: Any) -> Response:
        """Render a template, with its section of the site and a function for links to itself."""
        here = request.scope["path"].strip("/").partition("/")[0]
        text = self._environment.get_template(template).render(here=here, link=partial(link, request), **context)
        # File names may contain invalid Unicode.
        return HTMLResponse(text.encode("utf-8", "replace"), status, {"cache-control": "no-cache"})

    async def picture(self, request: Request, small: Callable[[], Encoded], large: Callable[[], Encoded]) -> Response:
        """Picture in the requested size; a placeholder if it is missing or damaged."""
        make = small if Params(request.query_params).choice("size", ["small", "large"]) == "small" else large
        try:
            return picture_response(await to_thread.run_sync(make, limiter=self.decoding))
        except (ValueError, OSError):
            gone = missing("missing")
            return Response(gone.content, 404, media_type=gone.media_type)

    async def file_picture(self, request: Request, path: Path) -> Response:
        """Picture of a file."""
        return await self.picture(request, *(partial(picture_of_file, path, side) for side in (SMALL, LARGE)))

    def static(self, request: Request) -> Response:
        """Static file."""
        if request.path_params["name"] not in self._static:
            raise HTTPException(404, "there is no such file")
        return picture_response(self._static[request.path_params["name"]])

    async def explain(self, request: Request, error: Exception) -> Response:
        """Error page."""
        status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
        response: Response
        if request.method != "GET":
            response = JSONResponse({"error": detail}, status)
        else:
            response = self.page(request, "error.html", status, status=status, detail=detail)
        response.headers.update(HEADERS)  # status 500 is sent outside of the guard
        return response


def picture_response(encoded: Encoded) -> Response:
    """Response with a picture, which the browser may cache."""
    return Response(encoded.content, 200, KEEP, encoded.media_type)


def link(request: Request, /, **changes: Any) -> str:
    """Address of this page with some parameters changed, or removed by None."""
    given = {**request.query_params, **changes, "token": None}  # do not pass the token on
    return "?" + urlencode({name: value for name, value in given.items() if value is not None})


def number_in(request: Request, name: str, n_things: int) -> int:
    """Number in the path of an address, checked against ``n_things``."""
    text: str = request.path_params[name]
    if not (text.isascii() and text.isdigit() and len(text) < MOST_DIGITS and int(text) < n_things):
        there = f"the last one is {n_things - 1:,}" if n_things else "there are none"
        raise HTTPException(404, f"there is no such {name}: {there}")
    return int(text)
