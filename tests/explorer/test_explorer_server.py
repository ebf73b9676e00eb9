"""The server: who may ask, which port, bytes that no client sends."""

import re
import socket

import httpx2
import pytest

from closure_kmeans.explorer.app import make_app
from closure_kmeans.explorer.server import access, address, bind, running


def test_only_this_machine_without_a_token():
    for host in ("127.0.0.1", "localhost", "::1"):
        assert access(host, host)["token"] is None
    for host in ("0.0.0.0", "192.0.2.7", "::"):
        assert len(access(host, host)["token"]) > 16
    assert access("MyBox", "192.0.2.7")["hosts"] >= {"192.0.2.7", "mybox", "localhost"}


def test_a_port_that_is_in_use():
    with bind("127.0.0.1", None) as first, bind("127.0.0.1", None) as second:
        ports = [one.getsockname()[1] for one in (first, second)]
        assert ports[0] != ports[1]
        assert address(first, None) == f"http://127.0.0.1:{ports[0]}/"
        assert address(first, "abc") == f"http://127.0.0.1:{ports[0]}/?token=abc"
        with pytest.raises(ValueError, match=f"port {ports[0]} of 127.0.0.1 is not available: Address already in use"):
            bind("127.0.0.1", ports[0])


RAW = [
    b"GET /\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",  # no host
    b"\x00\xff\x16\x03\x01\x02\r\n\r\n",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /items/1/../../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /static/..%2f..%2fapp.py HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /items/%ff%fe%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /?q=%ff%fe&sort=%zz& HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: \xff\xfe=\x80\r\nno colon\r\n\r\n",
    b"POST /uploads HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    b"POST /uploads HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /uploads HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nno",
]


def test_malformed_bytes_are_the_askers_mistake(catalog, searches):
    """What no client library would send: an answer of 4xx, and the server goes on."""
    with running(make_app(catalog, searches)) as url:
        host, port = url.removeprefix("http://").split(":")
        for raw in RAW:
            with socket.create_connection((host, int(port)), 30) as line:
                line.sendall(raw)
                said = line.recv(1 << 16)
            assert re.match(rb"HTTP/1.1 4\d\d ", said), raw[:80]
            assert b"Traceback" not in said
        with socket.create_connection((host, int(port)), 30) as line:  # one who goes away in the middle of a photo
            line.sendall(b"POST /uploads HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nhalf")
        assert httpx2.get(url, timeout=30, trust_env=False).status_code == 200
