"""Common parts of all pages: addresses and errors."""

import pytest
from starlette.testclient import TestClient

from closure_kmeans.explorer.app import make_app
from closure_kmeans.explorer.catalog import Catalog
from tests.explorer.browsing import HERE, seen
from tests.page import Page


@pytest.mark.parametrize(
    "name", ["%2e%2e", "%2e%2e%2fapp.py", "../app.py", "nothing.js", "style.css%00", "..%5capp.py"]
)
def test_no_path_comes_from_the_address(client, name):
    assert client.get(f"/static/{name}").status_code == 404


def test_what_cannot_be_asked_is_said_in_a_sentence(client):
    answer = client.get("/?page=99")
    assert answer.status_code == 400
    assert "page must be a whole number from 1 to 2." in Page(answer.text).text.splitlines()
    assert "There is no such page." in seen(client, "/nothing").text.splitlines()


def test_other_methods(client):
    for path in ("/", "/uploads", "/query"):
        assert client.request("DELETE", path).status_code == 405


def test_a_mistake_of_ours_shows_no_trace(catalog, monkeypatch):
    def fail(*_):
        raise RuntimeError("a secret path")

    monkeypatch.setattr(Catalog, "neighbors", fail)
    broken = TestClient(make_app(catalog), base_url=HERE, raise_server_exceptions=False)
    answer = broken.get("/clusters/0")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 18, "-1", "1.5", "%d9%a1", "1e3"])
def test_numbers_of_nothing(client, number):
    for path in ("/clusters/{}", "/items/{}/picture", "/index/{}/picture"):
        assert client.get(path.format(number)).status_code == 404
    assert client.get("/", params={"q": number}).status_code in (200, 400)
