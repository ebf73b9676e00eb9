"""An explorer as a client sees it, without a server."""

import re
from urllib.parse import parse_qs, urlsplit

from starlette.testclient import TestClient

from closure_kmeans.explorer.app import make_app
from tests.page import Page

HERE = "http://127.0.0.1:8643"


def only(**parts):
    return TestClient(make_app(**parts), base_url=HERE)


def seen(client, address):
    return Page(client.get(address).text)


def results_on(page):
    """The results that are listed, each a link to its match."""
    links = [row.only("link") for row in page.only("region", "Results").all("listitem")]
    assert all(urlsplit(link.address).path == "/query/match" for link in links)
    return [int(parse_qs(urlsplit(link.address).query)["result"][0]) for link in links]


def paths_of(app):
    return [re.sub(r"{\w+}", "{}", route.path) for route in app.routes]


def holds_to_the_policy(answer):
    policy = answer.headers["content-security-policy"]
    return (
        "default-src 'none'" in policy
        and "unsafe" not in policy
        and answer.headers["x-content-type-options"] == ("nosniff")
    )
