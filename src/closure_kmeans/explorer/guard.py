"""Access control: only requests to local host names or with the token; and content security headers."""

from __future__ import annotations

import hmac
import re
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
# Host header: a name or a bracketed IPv6 address, and an optional port.
HOST = re.compile(r"(\[[^]]*\]|[^:]*)(:[0-9]+)?")
# Allowed values of Sec-Fetch-Site: requests by our own pages and by the user. Other values are requests by pages of
# other sites or, with "same-site", of other ports of this machine.
OWN = ("same-origin", "none")
# Load everything from this server only; no inline scripts or styles.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """ASGI middleware against cross-site requests, DNS rebinding and requests without the token.

    Parameters
    ----------
    app : ASGI application
        The application to protect.
    hosts : set of str or None
        Allowed host names, without ports; any other name means DNS rebinding. None allows all names, which is safe only
        with a token.
    token : str or None
        Secret that requests must carry, first in the address and then in a cookie.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None = LOOPBACK, token: str | None = None) -> None:
        self._app = app
        self._hosts = hosts
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        request = Request(scope)
        if self._hosts is not None and _name(request.headers.get("host", "")) not in self._hosts:
            return PlainTextResponse("requests for another host name are refused", 403)
        if _is_foreign(request.method, request.headers):
            return PlainTextResponse("requests from pages of other sites are refused", 403)
        return None if self._token is None else _without_token(request, self._token)


def _without_token(request: Request, token: str) -> Response | None:
    """Response to a request without the token cookie, else None; moves a token from the address to a cookie."""
    cookie = f"closure-kmeans-{request.scope['server'][1]}"  # cookies are shared between ports
    if _same(request.cookies.get(cookie, ""), token):
        return None
    asked = request.query_params
    if not _same(asked.get("token", ""), token):
        return PlainTextResponse("open the address printed by the command: it contains the token", 403)
    others = urlencode([(name, value) for name, value in asked.multi_items() if name != "token"])
    response = RedirectResponse("?" + others, 303)  # the same path
    response.set_cookie(cookie, token, httponly=True, samesite="strict")
    return response


def _name(host: str) -> str:
    """Host without port; empty if malformed."""
    match = HOST.fullmatch(host)
    return match[1].lower() if match else ""


def _is_foreign(method: str, headers: Headers) -> bool:
    """Whether a page of another origin sent a request, other than a link that the user followed."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        return True
    opens_page = method in ("GET", "HEAD") and (
        (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
    )
    return headers.get("sec-fetch-site", "none") not in OWN and not opens_page


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())
