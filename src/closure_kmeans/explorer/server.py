"""HTTP server, by default on the loopback interface only."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from closure_kmeans.explorer.guard import LOOPBACK

# Default port, if it is free.
USUAL_PORT = 8643
# Wildcard addresses, under which the machine is reachable by any of its names.
EVERYWHERE = ("0.0.0.0", "::", "")
# Parameter of glibc's mallopt, and the size from which on blocks are mapped and so returned to the system when freed.
M_MMAP_THRESHOLD, MAPPED = -3, 1 << 20


def access(host: str, bound: str) -> dict[str, Any]:
    """Access control of a server, as arguments of ``make_app``: local requests, or requests with a token.

    ``host`` is the name that the user gave, ``bound`` the address that the socket is bound to.
    """
    if host in ("localhost", "127.0.0.1", "::1"):
        return {"hosts": LOOPBACK, "token": None}
    names = {(f"[{name}]" if ":" in name else name).lower() for name in (host, bound)}
    return {"hosts": None if host in EVERYWHERE else LOOPBACK | names, "token": secrets.token_urlsafe(16)}


def bind(host: str, port: int | None) -> socket.socket:
    """Listen on a port; without one, on the default port or, if it is in use, on any free port."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # on Windows it would let two programs share a port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    wanted = USUAL_PORT if port is None else port
    try:
        try:
            listening.bind((host, wanted))
        except OSError as error:
            if port is not None or error.errno != errno.EADDRINUSE:
                raise
            listening.bind((host, 0))
        listening.listen()
    except OSError as error:
        listening.close()
        raise ValueError(f"port {wanted} of {host} is not available: {error.strerror or error}") from error
    return listening


def address(listening: socket.socket, token: str | None) -> str:
    """Address to open in a browser."""
    host, port = listening.getsockname()[:2]
    named = "localhost" if host in EVERYWHERE else f"[{host}]" if ":" in host else host
    return f"http://{named}:{port}/" + (f"?token={token}" if token else "")


def serve(app: Any, listening: socket.socket, *, open_browser: str | None, prepare: Callable[[], Any]) -> None:
    """Serve until interrupted; runs ``prepare`` in another thread."""
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, server_header=False)
    )
    _return_freed_memory()
    threading.Thread(target=prepare, name="prepare", daemon=True).start()
    if open_browser is not None:
        threading.Thread(target=webbrowser.open, args=(open_browser,), daemon=True).start()
    with suppress(KeyboardInterrupt):
        server.run([listening])


def _return_freed_memory() -> None:
    """Fix glibc's mmap threshold, which otherwise grows: each thread would keep memory that it has freed."""
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED)


@contextmanager
def running(app: Any) -> Iterator[str]:
    """Serve on the loopback interface inside the block; yields the address without a trailing slash."""
    with bind("127.0.0.1", None) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield address(listening, None).rstrip("/")
        finally:
            server.should_exit = True
            thread.join()
