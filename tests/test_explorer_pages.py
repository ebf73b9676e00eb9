import io
import json
import re
import shlex
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from closure_kmeans import ClosureKMeans, cli
from closure_kmeans.explorer import pictures, queries, query_pages
from closure_kmeans.explorer.app import make_app
from closure_kmeans.explorer.budget import PixelBudget
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.fit import Fit, fit_of_checkpoint, fit_of_model
from closure_kmeans.explorer.metadata import Metadata
from closure_kmeans.explorer.pictures import folder_pictures
from closure_kmeans.explorer.queries import Searches
from closure_kmeans.explorer.server import running
from closure_kmeans.features import images
from tests.explorer_data import make_catalog, make_index, make_rows, write_photos
from tests.page import Page

HERE = "http://127.0.0.1:8643"


@pytest.fixture(scope="module")
def catalog():
    return make_catalog()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder)
    return folder


@pytest.fixture(scope="module")
def searches(photos, tmp_path_factory):
    return Searches(make_index(photos), "photos.index", tmp_path_factory.mktemp("uploads"))


@pytest.fixture(scope="module")
def client(catalog, searches):
    fit = fit_of_model(catalog.model)
    return TestClient(make_app(catalog, searches, lambda: fit), base_url=HERE)


def only(**parts):
    return TestClient(make_app(**parts), base_url=HERE)


def seen(client, address):
    return Page(client.get(address).text)


def clusters_on(page):
    """The clusters that cards are headed with, each a link to its page."""
    links = [card.only("heading").only("link") for card in page.all("article")]
    assert [link.address for link in links] == [f"/clusters/{link.text}" for link in links]
    return [int(link.text) for link in links]


def items_in(element):
    """The items of which there are pictures that lead to their pages."""
    items = [int(image.name.removeprefix("thing ")) for image in element.all("img", re.compile("thing .*"))]
    links = [link for link in element.all("link") if link.pictures]
    assert [link.address for link in links] == [f"/items/{item}" for item in items]
    return items


# -- pages -------------------------------------------------------------------------------------------------------------


def test_clusters_are_sorted_and_paged(client, catalog):
    largest = catalog.find("size", descending=True).tolist()
    assert client.get("/").status_code == 200
    first, second = seen(client, "/"), seen(client, "/?page=2")
    assert clusters_on(first) + clusters_on(second) == largest
    tightest = seen(client, "/?sort=spread&order=ascending")
    assert clusters_on(tightest) == catalog.find("spread", descending=False)[:20].tolist()
    found = catalog.find("size", descending=True, text="thing 7")[:20].tolist()
    assert clusters_on(seen(client, "/?q=thing 7")) == found
    nothing = seen(client, "/?q=nothing+of+the+kind")
    assert nothing.all("heading", "No cluster matches")
    assert clusters_on(nothing) == []


@pytest.mark.parametrize("show", ["random", "nearest", "farthest"])
def test_a_card_shows_items_of_its_cluster(client, catalog, show):
    page = seen(client, f"/?show={show}")
    for cluster, card in zip(clusters_on(page), page.all("article"), strict=True):
        assert items_in(card) == catalog.choose(cluster, show, 0, 20).tolist()


def test_a_bar_leads_to_its_clusters(client, catalog):
    bars = seen(client, "/").only("group", "Number of clusters by size").all("link")
    for bar in (bars[0], bars[-1]):
        count, least, most = re.fullmatch(r"(\d+) clusters? of (\d+)(?: to (\d+))? items", bar.name).groups()
        found = clusters_on(seen(client, "/" + bar.address))
        assert len(found) == int(count) > 0
        assert all(int(least) <= catalog.sizes[cluster] <= int(most or least) for cluster in found)


def test_a_cluster_shows_all_its_items(client, catalog):
    page = seen(client, "/clusters/3")
    members = catalog.members(3).tolist()
    assert items_in(page.only("region", f"{len(members)} items")) == members
    near = [row.all("link")[0] for row in page.only("region", "Next to it").all("listitem")]
    neighbors = [neighbor.cluster for neighbor in catalog.neighbors([3], 8)[0]]
    assert [int(link.text.split()[0]) for link in near] == neighbors
    assert [link.address for link in near] == [f"/clusters/{neighbor}" for neighbor in neighbors]


def test_an_item_tells_where_it_stands(client, catalog):
    page = seen(client, "/items/42")
    standing = catalog.standing(42)
    assert page.facts["distance ratio"] == f"{standing.ratio:.3f}"
    assert page.facts["second best"].split()[0] == str(standing.second.cluster)
    second = page.only("region", "Where it stands").only("link", str(standing.second.cluster))
    assert second.address == f"/clusters/{standing.second.cluster}"
    assert page.facts["title"] == page.all("img")[0].name == "thing 42"
    assert items_in(page.only("region", "More like this")) == [item for item, _ in catalog.similar(42, 24)]


def test_the_map_has_every_cluster(client, catalog):
    table = np.frombuffer(client.get("/map.bin").content, "<f4").reshape(-1, 4)
    assert table[:, 2].tolist() == catalog.sizes.tolist()
    assert np.allclose(table[:, :2], catalog.positions)
    assert set(table[:, 3]) <= set(range(8))
    glance = seen(client, "/clusters/3/glance")
    assert "Cluster 3" in glance.text
    shown = {int(image.name.removeprefix("thing ")) for image in glance.all("img")}
    assert shown
    assert shown <= set(catalog.members(3))


def test_pictures_of_items(client):
    small, large = (client.get(f"/items/5/picture?size={size}") for size in ("small", "large"))
    assert Image.open(io.BytesIO(small.content)).size == (30, 20)
    assert large.headers["content-type"] == "image/jpeg"
    assert "immutable" in small.headers["cache-control"]


def test_vectors_without_images_are_drawn():
    client = only(catalog=make_catalog(pictures=False, metadata=False))
    assert client.get("/items/5/picture").headers["content-type"] == "image/svg+xml"
    assert client.get("/clusters/5/picture").headers["content-type"] == "image/svg+xml"
    drawn = seen(client, "/").all("article")[0].all("img", re.compile(r"item \d+"))
    assert drawn
    for image in drawn:
        number = image.name.removeprefix("item ")
        assert image.address.startswith(f"/items/{number}/picture?")


def test_metadata_without_images_are_read():
    client = only(catalog=make_catalog(pictures=False))
    for card in seen(client, "/").all("article"):
        assert card.pictures == []
        assert card.all("link", re.compile(r"thing \d+"))
        (typical,) = card.titled("the item nearest to the centre")
        assert re.fullmatch(r"thing \d+", typical.text)
        assert all(re.fullmatch(r"(red|green|blue) \d+ %", frequent.text) for frequent in card.all("listitem"))
        assert card.all("listitem")


def test_what_the_items_are_called_is_escaped():
    import pyarrow

    X = make_rows(30)
    model = ClosureKMeans(n_clusters=3, random_state=0).fit(X)
    known = Metadata.of_table(pyarrow.table({'"><i>': ["<script>x</script>"] * 30}), "x")
    client = only(catalog=Catalog(model, X, labels=model.labels_, metadata=known))
    for path in ("/", "/clusters/0", "/items/0", "/?q=<script>", "/clusters/0/glance"):
        text = client.get(path).text
        assert "<script>x" not in text
        assert '"><i>' not in text


def test_a_model_alone():
    model = make_catalog().model
    client = only(catalog=Catalog(model))
    assert "This model comes without its items." in seen(client, "/").text
    assert seen(client, "/clusters/1").all("heading", "Its items are not known")
    assert client.get("/items/0").status_code == 404


def test_nothing_but_an_index(searches):
    client = only(searches=searches)
    first = client.get("/", follow_redirects=False)
    assert (first.status_code, first.headers["location"]) == (307, "/query")
    for path in ("/map", "/map.bin", "/clusters/0", "/items/0"):
        assert client.get(path).status_code == 404


def test_no_index(catalog):
    client = only(catalog=catalog)
    assert seen(client, "/query").all("heading", "No index to search")
    assert client.post("/uploads", content=b"x").status_code == 404


def test_the_fit(client, catalog):
    page = seen(client, "/fit")
    charts = [chart.name for chart in page.all("img")]
    assert charts == ["distortion against time", "active points against time"]
    rows = [[cell.text for cell in row.all("cell")] for row in page.all("row")[1:]]
    assert [int(row[0]) for row in rows] == [step.iteration for step in reversed(catalog.model.history_)]
    assert not is_fetched_again(page)
    (distortion, _) = seen(client, "/fit?by=iteration").all("img")
    assert distortion.name == "distortion against iterations"
    assert [note.partition(",")[0] for note in distortion.notes if note.startswith("iteration")] == [
        f"iteration {step.iteration}" for step in catalog.model.history_
    ]


def is_fetched_again(page):
    """Whether a script fetches the page every few seconds."""
    return bool(page.tag.select("[data-every]"))


def test_a_fit_that_runs_is_fetched_again(catalog):
    history = list(catalog.model.history_)
    states = [
        Fit([], None, "waiting"),
        Fit(history[:2], 300, "running", 7.2),
        Fit(history, 300, "converged", 0.1),
        None,
    ]
    client = only(fit=lambda: states.pop(0))
    waiting, running, ended, unknown = (seen(client, "/fit") for _ in range(4))
    assert [page.only("heading").text for page in (waiting, running, ended, unknown)] == [
        "Waiting for the first checkpoint live",
        "The fit so far live",
        "The fit converged",
        "How the fit went is not known",
    ]
    assert running.facts["saved"] == "7 s ago"
    assert [is_fetched_again(page) for page in (waiting, running, ended, unknown)] == [True, True, False, False]


def test_a_damaged_checkpoint_is_said(tmp_path):
    (tmp_path / "checkpoint.safetensors").write_bytes(b"no checkpoint at all")
    answer = only(fit=lambda: fit_of_checkpoint(tmp_path)).get("/fit")
    assert answer.status_code == 404
    assert "cannot be read as a checkpoint" in Page(answer.text).text


# -- queries -----------------------------------------------------------------------------------------------------------


def results_on(page):
    """The results that are listed, each a link to its match."""
    links = [row.only("link") for row in page.only("region", "Results").all("listitem")]
    assert all(urlsplit(link.address).path == "/query/match" for link in links)
    return [int(parse_qs(urlsplit(link.address).query)["result"][0]) for link in links]


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
    drawing = seen(client, f"/query/match?image={a}&result={b}").only("img", re.compile(r"\d+ regions lie in .*"))
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


def test_a_hundred_large_pictures_are_never_decoded_at_once(catalog, searches, photos, tmp_path, monkeypatch):
    """Views and uploads share one budget of pixels."""
    Image.new("RGB", (90, 100)).save(tmp_path / "large.png")
    Image.new("RGB", (20, 20)).save(tmp_path / "small.png")
    content = (photos / "flower0-0.jpg").read_bytes()  # 300 x 210
    held, most, lock = 0, 0, threading.Lock()
    decode = images.decode

    def counted(path, *arguments, **options):
        nonlocal held, most
        with Image.open(path) as image:
            n_pixels = image.width * image.height
        with lock:
            held += n_pixels
            most = max(most, held)
        time.sleep(0.001)  # so that others come meanwhile
        try:
            return decode(path, *arguments, **options)
        finally:
            with lock:
                held -= n_pixels

    monkeypatch.setattr(images, "decode", counted)
    limited = PixelBudget(70_000)
    for module in (pictures, queries):
        monkeypatch.setattr(module, "BUDGET", limited)
    files = folder_pictures(tmp_path, ["large.png", "small.png"] * 150)
    app = make_app(Catalog(catalog.model, catalog.rows, labels=catalog.labels, pictures=files), searches)
    with running(app) as url, ThreadPoolExecutor(32) as people:
        views = [people.submit(httpx2.get, f"{url}/items/{i}/picture", timeout=60, trust_env=False) for i in range(90)]
        sent = [
            people.submit(httpx2.post, f"{url}/uploads", content=content, timeout=60, trust_env=False)
            for _ in range(10)
        ]
        assert {one.result(120).status_code for one in views} == {200}
        assert {one.result(120).status_code for one in sent} == {201}
    assert held == 0
    assert 0 < most <= 70_000
    assert limited._free == 70_000


def test_old_photos_are_forgotten(searches, photos, monkeypatch):
    monkeypatch.setattr(queries, "MOST_UPLOADS", 3)
    kept = []
    for _ in range(5):
        upload = searches.new_upload("a.jpg")
        upload.path.write_bytes((photos / "flower0-0.jpg").read_bytes())
        searches.keep(upload)
        kept.append(upload)
    assert [searches.upload(upload.key) is not None for upload in kept] == [False, False, True, True, True]
    assert [upload.path.exists() for upload in kept] == [False, False, True, True, True]


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
        all_sent.wait()  # photos that are sent wait in line behind searches
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


# -- safe by default ---------------------------------------------------------------------------------------------------


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
        text = client.get(path).text
        assert not re.search(r'\sstyle="|\son\w+="|<style|<script>|https?://(?!www\.w3\.org)', text)


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


def apps(catalog, searches):
    """All that an explorer can be given: everything, one thing, nothing."""
    fit = fit_of_model(catalog.model)
    yield make_app(catalog, searches, lambda: fit)
    yield make_app(catalog)
    yield make_app(Catalog(catalog.model))
    yield make_app(searches=searches)
    yield make_app()


@pytest.fixture(scope="module")
def clients(catalog, searches):
    return [TestClient(app, base_url=HERE) for app in apps(catalog, searches)]


def paths_of(app):
    return [re.sub(r"{\w+}", "{}", route.path) for route in app.routes]


def holds_to_the_policy(answer):
    policy = answer.headers["content-security-policy"]
    return (
        "default-src 'none'" in policy
        and "unsafe" not in policy
        and answer.headers["x-content-type-options"] == ("nosniff")
    )


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


NAMES = [
    "sort",
    "order",
    "show",
    "least",
    "most",
    "q",
    "page",
    "size",
    "by",
    "box",
    "rerank",
    "image",
    "upload",
    "result",
    "token",
]
TEXTS = st.one_of(
    st.text(max_size=12),
    st.integers(-3, 400).map(str),
    st.integers(-(10**25), 10**25).map(str),
    st.sampled_from(
        ["size", "spread", "nearest", "ascending", "large", "no", "٣", "1e3", "nan,nan,nan,nan", "0,0,9,inf"]
    ),
    st.lists(st.floats(allow_nan=True).map(str), max_size=5).map(",".join),
)


HEADERS = {
    "host": st.sampled_from(["127.0.0.1:8643", "localhost", "evil.example", "", "[", "a" * 300, "127.0.0.1:x", "::1"]),
    "origin": st.sampled_from([HERE, "null", "", "http://", "evil", "http://localhost:1"]),
    "sec-fetch-site": st.sampled_from(["same-origin", "cross-site", "", "x"]),
    "cookie": st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=20),
    "range": st.sampled_from(["bytes=0-1", "bytes=-", "x"]),
    "content-length": st.sampled_from(["0", "-1", "x", "9" * 30]),
    "content-type": st.sampled_from(["multipart/form-data", "application/json", "x"]),
}


@settings(max_examples=600)
@given(data=st.data(), part=TEXTS, params=st.lists(st.tuples(st.sampled_from(NAMES), TEXTS), max_size=5))
def test_malformed_requests_are_the_askers_mistake(clients, data, part, params):
    client = data.draw(st.sampled_from(clients))
    path = data.draw(st.sampled_from([*paths_of(client.app), "/{}", "/{}/{}"]))
    method = data.draw(st.sampled_from(["GET"] * 4 + ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "BREW"]))
    headers = data.draw(st.fixed_dictionaries({}, optional=HEADERS))
    written = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = client.request(method, path.format(*2 * [quote(part, safe="")]), params=params, headers=written)
    assert answer.status_code < 500
    assert "Traceback" not in answer.text
    assert holds_to_the_policy(answer)


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


@settings(max_examples=60)
@given(content=st.binary(max_size=300), name=st.text(max_size=30))
def test_whatever_is_sent_is_refused_or_taken(client, content, name):
    assert client.post("/uploads", params={"name": name}, content=content).status_code in (201, 400, 415)
