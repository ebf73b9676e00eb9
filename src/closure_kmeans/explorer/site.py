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
from closure_kmeans.explorer.pictures import LARGE, SMALL, Encoded, missing
from closure_kmeans.explorer.rendering import render, whole_number

# Threads for decoding pictures, separate from the threads of pages.
PICTURE_THREADS = 4
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Pictures and style sheets are immutable: their addresses contain a version that changes with every start.
KEEP = {"cache-control": "private, max-age=86400, immutable"}


class Site:
    """Renders pages and sends pictures; every template gets ``shown``."""

    def __init__(self, **shown: Any) -> None:
        self.decoding = CapacityLimiter(PICTURE_THREADS)
        self._shown = {"version": secrets.token_hex(4), **shown}
        self._static = {
            file.name: Encoded(file.read_bytes(), MEDIA_TYPES[Path(file.name).suffix])
            for file in (files("closure_kmeans.explorer") / "static").iterdir()
        }

    def page(self, request: Request, template: str, status: int = 200, /, **context: Any) -> Response:
        """Render a template, with its section of the site and a function for links to itself."""
        here = request.scope["path"].strip("/").partition("/")[0]
        text = render(template, here=here, link=partial(link, request), **self._shown, **context)
        # File names may contain invalid Unicode.
        return HTMLResponse(text.encode("utf-8", "replace"), status, {"cache-control": "no-cache"})

    async def picture(self, request: Request, make: Callable[[int], Encoded]) -> Response:
        """Picture that ``make`` makes for a longer side; a placeholder if it is missing or damaged."""
        side = SMALL if Params(request.query_params).choice("size", ["small", "large"]) == "small" else LARGE
        try:
            return picture_response(await to_thread.run_sync(make, side, limiter=self.decoding))
        except (ValueError, OSError):
            return picture_response(missing("missing"), 404)

    def static(self, request: Request) -> Response:
        """Static file."""
        if request.path_params["name"] not in self._static:
            raise HTTPException(404, "there is no such file")
        return picture_response(self._static[request.path_params["name"]])

    async def explain(self, request: Request, error: Exception) -> Response:
        """Error page."""
        status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
        if request.method == "GET":
            response = self.page(request, "error.html", status, status=status, detail=detail)
        else:
            response = JSONResponse({"error": detail}, status)
        response.headers.update(HEADERS)  # status 500 is sent outside of the guard
        return response


def picture_response(encoded: Encoded, status: int = 200) -> Response:
    """Response with a picture, which the browser may cache unless it is a placeholder."""
    return Response(encoded.content, status, KEEP if status == 200 else None, encoded.media_type)


def link(request: Request, /, **changes: Any) -> str:
    """Address of this page with some parameters changed, or removed by None."""
    given = {**request.query_params, **changes, "token": None}  # do not pass the token on
    return "?" + urlencode({name: value for name, value in given.items() if value is not None})


def number_in(request: Request, name: str, n_things: int) -> int:
    """Number in the path of an address, checked against ``n_things``."""
    number = whole_number(request.path_params[name])
    if number is None or number >= n_things:
        there = f"the last one is {n_things - 1:,}" if n_things else "there are none"
        raise HTTPException(404, f"there is no such {name}: {there}")
    return number
