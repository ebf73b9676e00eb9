"""Access control and security headers."""

import pytest
from starlette.testclient import TestClient

from closure_kmeans.explorer.app import make_app
from tests.explorer.browsing import HERE, holds_to_the_policy, paths_of, seen


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8643", 200), ("localhost", 200), ("[::1]:8643", 200), ("LOCALHOST:1", 200)]
    + [(host, 403) for host in ("evil.example", "127.0.0.1.evil.example", "", "[::2]", "0.0.0.0", "localhost.", "[")]
    + [(host, 403) for host in ("[::1]evil.example", "[::1]:80@evil.example", "localhost:80@evil.example")]
    + [(host, 403) for host in ("localhost:", "localhost:80:80", "127.0.0.1:80evil.example", "localhost:\u00b2")],
)
def test_the_host_is_looked_at(client, host, status):
    assert client.get("/", headers={"host": host.encode("latin-1")}).status_code == status


def test_other_sites_cannot_send(client):
    for origin, status in (("http://evil.example", 403), ("null", 403), (HERE, 415)):
        assert client.post("/uploads", content=b"x", headers={"origin": origin}).status_code == status


OPENED = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


FRAMED = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}


SHOWN = {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}


FETCHED = {"sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}


@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin", "none"])
@pytest.mark.parametrize("kind", [OPENED, FRAMED, SHOWN, FETCHED])
def test_other_sites_can_only_link_here(client, site, kind):
    """Another port of this machine ("same-site") is another site."""
    for path in ("/", "/items/1/picture", "/query?image=1", "/static/style.css"):
        answer = client.get(path, headers={"sec-fetch-site": site, **kind})
        allowed = site in ("same-origin", "none") or kind is OPENED
        assert answer.status_code == (200 if allowed else 403)


def test_what_other_sites_could_send_without_naming_themselves(client):
    sent = client.post("/uploads", content=b"x", headers={"sec-fetch-site": "cross-site", **OPENED})  # by a form
    assert sent.status_code == 403
    assert client.get("/", headers={"origin": "http://localhost:3000"}).status_code == 403  # an older browser


def test_the_token(catalog):
    app = make_app(catalog, hosts=None, token="secret")
    client = TestClient(app, base_url="http://192.0.2.7:8643", follow_redirects=False)
    for path in ("/", "/items/0/picture", "/static/style.css", "/?token=wrong", "/?token=", "/?token=%ff"):
        assert client.get(path).status_code == 403
    let_in = client.get("/clusters/2?page=1&token=secret")
    assert (let_in.status_code, let_in.headers["location"]) == (303, "?page=1")
    assert all(part in let_in.headers["set-cookie"].lower() for part in ("httponly", "samesite=strict"))
    assert client.get("/").status_code == 200  # by the cookie
    assert "secret" not in client.get("/?token=secret").text  # links may be given to others
    assert TestClient(app, cookies={"closure-kmeans-80": "wrong"}).get("/").status_code == 403


def test_pages_keep_to_the_policy(client):
    for path in (
        "/",
        "/clusters/1",
        "/items/1",
        "/map",
        "/fit",
        "/query",
        "/query?image=1",
        "/query/match?image=1&result=2",
    ):
        page = seen(client, path)
        assert page.inline == []
        assert all(address.startswith(("/", "?")) and not address.startswith("//") for address in page.references)


def test_every_route_has_the_policy_and_its_guard(clients):
    for client in clients:
        for path in [*paths_of(client.app), "/nowhere"]:
            for method in ("GET", "HEAD", "POST", "DELETE"):
                for part in ("0", "style.css", "none"):
                    address = path.format(part)
                    answer = client.request(method, address, follow_redirects=False)
                    assert answer.status_code < 500, (method, address)
                    assert holds_to_the_policy(answer), (method, address)
                foreign = client.request(method, path.format(0), headers={"host": "evil.example"})
                assert foreign.status_code == 403, (method, path)
                assert holds_to_the_policy(foreign), (method, path)


def test_no_route_answers_without_the_token(catalog, searches):
    client = TestClient(make_app(catalog, searches, hosts=None, token="secret"), base_url=HERE)
    for path in paths_of(client.app):
        for method in ("GET", "HEAD", "POST"):
            answer = client.request(method, path.format(0), params={"token": "secre"})
            assert answer.status_code == 403, (method, path)
            assert holds_to_the_policy(answer)
