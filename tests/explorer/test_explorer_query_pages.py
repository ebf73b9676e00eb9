"""Pages of an index, and photos that are sent."""

import io
import json
import re
import shlex
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from closure_kmeans import cli
from closure_kmeans.explorer import query_pages
from closure_kmeans.explorer.app import make_app
from closure_kmeans.explorer.queries import Searches
from closure_kmeans.explorer.server import running
from tests.explorer.browsing import only, results_on, seen
from tests.explorer_data import make_index
from tests.page import Page


def test_a_query_by_an_image_of_the_index(client, searches):
    image = searches.index.names.index("temple1-1.jpg")
    page = seen(client, f"/query?image={image}")
    names = [searches.index.names[found] for found in results_on(page)]
    assert [image.name for image in page.only("region", "Results").all("img")] == names
    assert names[0] == "temple1-1.jpg"
    assert sorted(names[:3]) == ["temple1-0.jpg", "temple1-1.jpg", "temple1-2.jpg"]
    assert re.search(r"[3-9] verified", page.only("status").text)
    assert page.only("code").text.startswith("closure-kmeans retrieval query photos.index")
    plain = seen(client, f"/query?image={image}&rerank=no")
    assert results_on(plain)
    assert "verified" not in plain.text
    assert "inlier" not in plain.text


def test_a_query_by_a_photo_that_is_sent(client, photos):
    sent = client.post("/uploads?name=my photo.jpg", content=(photos / "temple0-1.jpg").read_bytes())
    assert sent.status_code == 201
    key = sent.json()["upload"]
    whole = seen(client, f"/query?upload={key}")
    assert "features" in whole.only("status").text
    assert "'my photo.jpg'" in whole.only("code").text
    boxed = seen(client, f"/query?upload={key}&box=60,60,200,200")
    assert "--box 60,60,200,200" in boxed.only("code").text
    assert results_on(boxed)[0] == results_on(whole)[0]
    assert client.get(f"/uploads/{key}/picture").status_code == 200
    match = seen(client, f"/query/match?upload={key}&result={results_on(whole)[1]}")
    assert match.facts["query"] == "my photo.jpg"
    n_lines = int(match.only("heading").text.split()[0])
    assert n_lines >= 4
    assert len(match.only("img").tag.select("path")) == n_lines
    assert client.get("/query?upload=unknown").status_code == 404
    assert client.get("/uploads/unknown/picture").status_code == 404


@pytest.mark.parametrize("asked", ["image=7", "image=7&rerank=no", "image=7&box=40,40,220,180"])
def test_the_command_finds_the_same(photos, tmp_path, asked):
    index = make_index(photos)
    index.save(tmp_path / "photos.index")
    page = seen(only(searches=Searches(index, str(tmp_path / "photos.index"), tmp_path)), f"/query?{asked}")
    command = shlex.split(page.only("code").text)
    assert command[0] == "closure-kmeans"
    said = CliRunner().invoke(cli.main, [*command[1:], "--json"])
    assert said.exit_code == 0, said.output
    found = [result["name"] for result in json.loads(said.stdout)]
    assert found == [index.names[image] for image in results_on(page)]


def test_lines_lie_on_the_pictures(client, searches):
    a, b = searches.index.names.index("temple0-0.jpg"), searches.index.names.index("temple0-1.jpg")
    drawing = seen(client, f"/query/match?image={a}&result={b}").only("img", re.compile(r"\d+ matching regions"))
    *_, width, height = map(float, drawing.tag["viewbox"].split())
    ends = np.array([[float(circle["cx"]), float(circle["cy"])] for circle in drawing.tag.select("circle")])
    assert len(ends) == 2 * int(drawing.name.split()[0]) >= 8
    assert ((ends >= 0) & (ends <= [width, height])).all()


def test_a_box_without_regions(client):
    page = client.get("/query?image=0&box=0,0,1,1")
    assert page.status_code == 200
    assert Page(page.text).all("heading", "Nothing to search for")


def test_images_of_the_index_are_listed(client, searches):
    listed = seen(client, "/query?q=FLOWER").all("link", re.compile(r"flower.*\.jpg"))
    names = [f"flower{part}-{turn}.jpg" for part in range(2) for turn in range(3)]
    assert sorted(link.name for link in listed) == names
    for link in listed:
        assert link.address == f"/query?image={searches.index.names.index(link.name)}"
    assert seen(client, "/query?q=elephant").all("heading", "No image of this name")


def test_an_image_that_is_gone(photos, tmp_path):
    import shutil

    shutil.copytree(photos, tmp_path / "copy")
    searches = Searches(make_index(tmp_path / "copy"), "x.index", tmp_path)
    shutil.rmtree(tmp_path / "copy")
    client = only(searches=searches)
    gone = client.get("/index/0/picture")
    assert (gone.status_code, gone.headers["content-type"]) == (404, "image/svg+xml")
    assert client.get("/query?image=0").status_code == 200
    assert client.get("/query/match?image=0&result=1").status_code == 200


@pytest.mark.parametrize("content", [b"", b"no image", b"GIF89a" + bytes(100), b"\xff\xd8\xff\xe0" + bytes(50)])
def test_what_is_no_photo(client, content, searches):
    refused = client.post("/uploads", content=content)
    assert refused.status_code == 415
    assert "photo" in refused.json()["error"]
    assert {path.name for path in searches._folder.iterdir()} == set(searches._uploads)


def test_uploads_are_capped_while_they_come(client, monkeypatch, searches):
    monkeypatch.setattr(query_pages, "MOST_BYTES", 1 << 20)
    taken = 0

    def endless():
        nonlocal taken
        for _ in range(64):
            taken += 1
            yield bytes(1 << 18)

    before = set(searches._folder.iterdir())
    refused = client.post("/uploads", content=endless())
    assert refused.status_code == 413
    assert set(searches._folder.iterdir()) == before


def test_a_picture_of_too_many_pixels(client, monkeypatch):
    monkeypatch.setattr("closure_kmeans.features.images.MAX_PIXELS", 1000)
    large = io.BytesIO()
    Image.new("L", (100, 100)).save(large, "PNG")
    refused = client.post("/uploads", content=large.getvalue())
    assert refused.status_code == 415
    assert "at most max_pixels=1000 pixels" in refused.json()["error"]


def test_a_hundred_photos_are_queued_and_pages_still_come(catalog, searches, photos, monkeypatch):
    """No more searches run at a time than there are threads for them; pages pass them by, and no photo is lost."""
    names = [path.name for path in sorted(photos.iterdir())]
    app, answer = make_app(catalog, searches), Searches.answer
    arrived, at_work, most, lock, go = 0, 0, 0, threading.Lock(), threading.Event()
    all_sent = threading.Barrier(100, timeout=600)

    async def counted(scope, receive, send):
        nonlocal arrived
        arrived += scope["type"] == "http" and scope["path"] == "/query" and b"upload=" in scope["query_string"]
        await app(scope, receive, send)

    def slow(self, question):
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        go.wait(600)
        with lock:
            at_work -= 1
        return answer(self, question)

    def send_and_ask(url, name):
        content = (photos / name).read_bytes()
        sent = httpx2.post(f"{url}/uploads?name={name}", content=content, timeout=600, trust_env=False)
        all_sent.wait()  # no search begins before
        return httpx2.get(f"{url}/query?upload={sent.json()['upload']}", timeout=600, trust_env=False)

    monkeypatch.setattr(Searches, "answer", slow)
    with running(counted) as url, ThreadPoolExecutor(100) as people:
        asked = [people.submit(send_and_ask, url, names[i % len(names)]) for i in range(100)]
        try:
            deadline = time.monotonic() + 300
            while arrived < 100 and time.monotonic() < deadline:
                time.sleep(0.01)
            pages = ("/", "/clusters/3", "/items/3/picture", "/map", "/map.bin", "/query", "/index/3/picture", "/fit")
            statuses = [httpx2.get(url + path, timeout=30, trust_env=False).status_code for path in pages]
            waiting = sum(not one.done() for one in asked)
        finally:
            go.set()
        answers = [one.result(120) for one in asked]
    assert arrived == 100
    assert statuses == [200] * len(pages)
    assert waiting == 100
    assert most == query_pages.SEARCH_THREADS
    assert [one.status_code for one in answers] == [200] * 100
    found = [searches.index.names[results_on(Page(one.text))[0]] for one in answers]
    assert found == [names[i % len(names)] for i in range(100)]


def test_photos_that_are_sent_do_not_wait_for_searches(searches, photos, monkeypatch):
    go, answer = threading.Event(), Searches.answer
    all_search = threading.Barrier(query_pages.SEARCH_THREADS + 1, timeout=60)

    def slow(self, question):
        all_search.wait()
        go.wait(600)
        return answer(self, question)

    monkeypatch.setattr(Searches, "answer", slow)
    content = (photos / "flower0-0.jpg").read_bytes()
    with running(make_app(searches=searches)) as url, ThreadPoolExecutor(query_pages.SEARCH_THREADS) as people:
        asked = [
            people.submit(httpx2.get, f"{url}/query?image={image}", timeout=600, trust_env=False)
            for image in range(query_pages.SEARCH_THREADS)
        ]
        try:
            all_search.wait()
            sent = httpx2.post(f"{url}/uploads", content=content, timeout=30, trust_env=False)
        finally:
            go.set()
        assert [one.result(120).status_code for one in asked] == [200] * query_pages.SEARCH_THREADS
    assert sent.status_code == 201


def test_pictures_do_not_wait_for_photos(catalog, searches, photos, monkeypatch):
    go = threading.Event()
    keep = Searches.keep
    monkeypatch.setattr(Searches, "keep", lambda self, upload: (go.wait(600), keep(self, upload))[1])
    content = (photos / "flower0-0.jpg").read_bytes()
    with running(make_app(catalog, searches)) as url, ThreadPoolExecutor(20) as people:
        sent = [
            people.submit(httpx2.post, f"{url}/uploads", content=content, timeout=600, trust_env=False)
            for _ in range(20)
        ]
        try:
            statuses = [
                httpx2.get(f"{url}/items/{i}/picture", timeout=30, trust_env=False).status_code for i in range(3)
            ]
        finally:
            go.set()
        assert [one.result(120).status_code for one in sent] == [201] * 20
    assert statuses == [200] * 3


@settings(max_examples=60)
@given(content=st.binary(max_size=300), name=st.text(max_size=30))
def test_whatever_is_sent_is_refused_or_taken(client, content, name):
    assert client.post("/uploads", params={"name": name}, content=content).status_code in (201, 400, 415)
