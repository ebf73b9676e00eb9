"""The report in one file."""

import base64
import io
import re

import pyarrow
from PIL import Image

from closure_kmeans import ClosureKMeans
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.metadata import Metadata
from closure_kmeans.explorer.pictures import open_pictures
from closure_kmeans.explorer.report import write_report
from tests.explorer_data import make_catalog, make_rows
from tests.page import Page


def test_the_report_holds_everything(catalog, tmp_path):
    write_report(tmp_path / "a.html", catalog, n_clusters=5, sort="spread", show="nearest")
    text = (tmp_path / "a.html").read_text()
    page = Page(text)
    cards = page.all("article")
    assert len(cards) == 5
    assert page.references
    assert all(address.startswith("data:") for address in page.references)
    assert "url(" not in text
    first = cards[0].pictures[0].removeprefix("data:image/jpeg;base64,")
    assert Image.open(io.BytesIO(base64.b64decode(first))).size == (30, 20)
    (policy,) = page.tag.select("meta[http-equiv=Content-Security-Policy]")
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_the_report_says_what_it_shows(catalog, tmp_path):
    write_report(tmp_path / "a.html", catalog, n_clusters=2, sort="spread", descending=False, show="nearest")
    page = Page((tmp_path / "a.html").read_text())
    heading = page.only("region", "Clusters").all("heading")[0].text
    assert heading == "2 clusters of 30 by tightness, tightest first; of each, the items nearest to the centre"
    assert "from tight to loose" in page.text


def test_a_report_of_a_model_alone_draws_the_centers(catalog, tmp_path):
    write_report(tmp_path / "a.html", Catalog(catalog.model), n_clusters=4)
    page = Page((tmp_path / "a.html").read_text())
    drawings = page.all("img", "drawing of the centre")
    assert len(drawings) == 4
    assert all(drawing.address.startswith("data:image/svg+xml") for drawing in drawings)
    assert page.only("region", "Clusters").all("heading")[0].text.endswith(" by size, largest first")
    assert "from tight to loose" not in page.text


def test_the_report_says_what_is_in_a_cluster(tmp_path):
    write_report(tmp_path / "a.html", make_catalog(pictures=False), n_clusters=3)
    cards = Page((tmp_path / "a.html").read_text()).all("article")
    assert len(cards) == 3
    for card in cards:
        (typical,) = card.titled("the item nearest to the centre")
        assert re.fullmatch(r"thing \d+", typical.text)
        frequent = card.all("listitem")
        assert frequent
        assert all(re.fullmatch(r"(red|green|blue) \d+ %", value.text) for value in frequent)
        assert re.match(r"\d+ at \d", card.facts["neighbour"])


def test_a_report_escapes_what_it_is_told(tmp_path):
    X = make_rows(20)
    model = ClosureKMeans(n_clusters=2, random_state=0).fit(X)
    known = Metadata.of_table(pyarrow.table({"title": ["<script>alert(1)</script>"] * 20}), "x")
    write_report(tmp_path / "a.html", Catalog(model, X, labels=model.labels_, metadata=known))
    page = Page((tmp_path / "a.html").read_text())
    assert page.tag.select("script") == []
    assert "<script>alert(1)</script>" in page.text


def test_a_report_of_missing_images(catalog, tmp_path):
    for number in range(300):
        (tmp_path / f"{number:03}.png").touch()
    gone = Catalog(catalog.model, labels=catalog.labels, pictures=open_pictures(tmp_path))
    write_report(tmp_path / "a.html", gone, n_clusters=2)
    pictures = Page((tmp_path / "a.html").read_text()).pictures
    assert pictures
    assert all(picture.startswith("data:image/svg+xml") for picture in pictures)
