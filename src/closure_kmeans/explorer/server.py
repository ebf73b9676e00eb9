"""The server: on this machine alone, unless another address is asked for."""

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

HERE = "127.0.0.1"
# The port that is taken if it is free and no other is asked for.
USUAL_PORT = 8643
# Addresses that mean all that this machine has: it can be called by any of its names there.
EVERYWHERE = ("0.0.0.0", "::", "")
# A parameter of glibc's mallopt, and bytes from which on memory is mapped and so returned to the system when freed.
M_MMAP_THRESHOLD, MAPPED = -3, 1 << 20


def access(host: str, bound: str) -> dict[str, Any]:
    """Who may ask a server at an address, as ``make_app`` takes it: this machine, or whoever has the token.

    A host is called as the user did, or by the address that it was ``bound`` to.
    """
    if host in ("localhost", "127.0.0.1", "::1"):
        return {"hosts": LOOPBACK, "token": None}
    names = {(f"[{name}]" if ":" in name else name).lower() for name in (host, bound)}
    return {"hosts": None if host in EVERYWHERE else LOOPBACK | names, "token": secrets.token_urlsafe(16)}


def bind(host: str, port: int | None) -> socket.socket:
    """A socket at a port; without one, at the usual port or else any that is free."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # elsewhere two programs could then have one port
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
        raise ValueError(f"port {wanted} of {host} cannot be had: {error.strerror or error}") from error
    return listening


def address(listening: socket.socket, token: str | None) -> str:
    """What to open in a browser."""
    host, port = listening.getsockname()[:2]
    named = "localhost" if host in EVERYWHERE else f"[{host}]" if ":" in host else host
    return f"http://{named}:{port}/" + (f"?token={token}" if token else "")


def serve(app: Any, listening: socket.socket, *, open_browser: str | None, prepare: Callable[[], Any]) -> None:
    """Answer requests until interrupted; ``prepare`` runs beside it."""
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
    """Fix glibc's threshold for mapped memory, which it raises by default: each thread would keep what it has freed."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED)


@contextmanager
def running(app: Any) -> Iterator[str]:
    """Answer requests of this machine beside the program, until the block ends; yields the address, without a slash."""
    with bind(HERE, None) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield address(listening, None).rstrip("/")
        finally:
            server.should_exit = True
            thread.join()
