import base64
import inspect
import io
import json
import os
import re
import sys
import threading
import time
from functools import partial

import numpy as np
import pyarrow
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

from closure_kmeans import CenterIndex, ClosureKMeans, Iteration, cli, load
from closure_kmeans.explorer import budget, charts, pictures
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.catalog import map_positions
from closure_kmeans.explorer.fit import fit_of_checkpoint, fit_of_model
from closure_kmeans.explorer.metadata import Metadata
from closure_kmeans.explorer.pictures import array_pictures, draw_vector, open_pictures
from closure_kmeans.explorer.rendering import compact, pages, percent, rounded
from closure_kmeans.explorer.report import write_report
from closure_kmeans.explorer.server import access, address, bind
from closure_kmeans.features import images
from closure_kmeans.points import squares_to
from closure_kmeans.vectors import FileFormatError
from tests.explorer_data import COLORS, make_catalog, make_metadata, make_pixels, make_rows
from tests.page import Page


@pytest.fixture(scope="module")
def catalog():
    return make_catalog()


@pytest.fixture(scope="module")
def model():
    return ClosureKMeans(n_clusters=10, random_state=0, n_threads=1).fit(make_rows())


# -- the catalogue -----------------------------------------------------------------------------------------------------


def test_what_is_known_of_clusters(catalog):
    squares = np.sum((catalog.rows - catalog.centers[catalog.labels]) ** 2, axis=1)
    for cluster in range(catalog.n_clusters):
        own = squares[catalog.labels == cluster]
        assert catalog.sizes[cluster] == len(own)
        assert catalog.spreads[cluster] == pytest.approx(np.sqrt(own.mean()), rel=1e-4)
        assert catalog.shares[cluster] == pytest.approx(own.sum() / squares.sum(), rel=1e-4)


def test_members_come_nearest_first(catalog):
    for cluster in range(catalog.n_clusters):
        members = catalog.members(cluster)
        assert sorted(members) == np.flatnonzero(catalog.labels == cluster).tolist()
        assert (np.diff(catalog.squares[members]) >= 0).all()
        assert catalog.choose(cluster, "nearest", 0, 3).tolist() == members[:3].tolist()
        assert catalog.choose(cluster, "farthest", 0, 3).tolist() == members[::-1][:3].tolist()
        drawn = [item for first in range(0, len(members), 4) for item in catalog.choose(cluster, "random", first, 4)]
        assert sorted(drawn) == sorted(members)  # page by page, each once


@pytest.mark.parametrize("measure", ["size", "spread", "share", "neighbor", "number"])
def test_clusters_are_sorted(catalog, measure):
    values = {"size": catalog.sizes, "spread": catalog.spreads, "share": catalog.shares}.get(measure)
    values = {"neighbor": catalog.separations, "number": np.arange(30)}.get(measure) if values is None else values
    assert measure in catalog.measures
    assert (np.diff(values[catalog.find(measure, descending=False)]) >= 0).all()
    assert (np.diff(values[catalog.find(measure, descending=True)]) <= 0).all()


def test_clusters_are_found_by_size_number_and_text(catalog):
    some = catalog.find("number", descending=False, least=8, most=12)
    assert some.tolist() == np.flatnonzero((catalog.sizes >= 8) & (catalog.sizes <= 12)).tolist()
    assert 7 in catalog.find("number", descending=False, text="#7")
    assert catalog.find("size", descending=True, text="THING 123").tolist() == [catalog.labels[123]]
    assert len(catalog.find("size", descending=True, text="nothing like it")) == 0


def test_where_an_item_stands(catalog):
    for item in (0, 17, 299):
        distances = np.linalg.norm(catalog.centers - catalog.rows[item], axis=1)
        standing = catalog.standing(item)
        own = catalog.labels[item]
        assert standing.own.cluster == own
        assert standing.own.distance == pytest.approx(distances[own], rel=1e-4)
        distances[own] = np.inf
        assert standing.second.cluster == distances.argmin()
        assert standing.ratio == pytest.approx(1 - standing.own.distance / distances.min(), rel=1e-3, abs=1e-6)


def test_items_like_one(catalog):
    distances = np.linalg.norm(catalog.rows - catalog.rows[5], axis=1)
    distances[5] = np.inf
    nearest = np.argsort(distances)[:6]
    similar = catalog.similar(5, 6)
    assert [item for item, _ in similar] == nearest.tolist()
    assert [distance for _, distance in similar] == pytest.approx(distances[nearest].tolist(), rel=1e-4)


def test_neighbors_of_a_cluster(catalog):
    distances = np.linalg.norm(catalog.centers - catalog.centers[4], axis=1)
    distances[4] = np.inf
    neighbors = catalog.neighbors([4], 5)[0]
    assert [neighbor.cluster for neighbor in neighbors] == np.argsort(distances)[:5].tolist()
    assert neighbors[0].distance == pytest.approx(catalog.separations[4], rel=1e-3)


def test_a_model_without_items(model):
    bare = Catalog(model)
    assert bare.measures == ["size", "neighbor", "number"]
    assert bare.shows == []
    assert len(bare.members(0)) == 0
    assert bare.sizes.sum() == 300


def test_labels_without_vectors(model):
    catalog = Catalog(model, labels=model.labels_)
    assert catalog.shows == ["random", "first"]
    assert catalog.choose(2, "first", 0, 3).tolist() == np.flatnonzero(model.labels_ == 2)[:3].tolist()
    assert catalog.standing(0) is None
    assert catalog.similar(0, 3) == []


def test_a_single_cluster():
    X = make_rows()
    model = ClosureKMeans(n_clusters=1, random_state=0).fit(X)
    catalog = Catalog(model, X, labels=model.labels_, squares=np.ones(300))
    assert catalog.neighbors([0], 3) == [[]]
    assert catalog.standing(0).second is None
    assert catalog.standing(0).ratio is None
    assert np.isfinite(catalog.positions).all()


def test_parts_must_be_as_many_as_the_items(model):
    with pytest.raises(ValueError, match="metadata must be as many as the items, 300, got 299"):
        Catalog(model, labels=model.labels_, metadata=make_metadata(299))


def test_directions_count_for_the_cosine_metric():
    X = make_rows() * np.random.default_rng(0).uniform(0.1, 10, (300, 1)).astype(np.float32)
    model = ClosureKMeans(n_clusters=10, metric="cosine", random_state=0).fit(X)
    catalog = Catalog(model, X, labels=model.labels_)
    row = X[3] / np.linalg.norm(X[3])
    assert catalog.standing(3).own.distance == pytest.approx(
        np.linalg.norm(row - model.cluster_centers_[model.labels_[3]]), rel=1e-3
    )


@given(n=st.integers(2, 60), seed=st.integers(0, 9))
def test_closest_centers_by_all_pairs(n, seed):
    centers = np.random.default_rng(seed).normal(100, 1, (n, 5)).astype(np.float32)
    squares = [squares_to(np.delete(centers, i, axis=0), centers[i]).min() for i in range(n)]
    assert CenterIndex(centers).separations() == pytest.approx(np.sqrt(squares), rel=1e-2)


def test_closest_centers_of_very_many(monkeypatch):
    centers = np.random.default_rng(0).normal(0, 1, (3000, 16)).astype(np.float32)
    exact = CenterIndex(centers).separations()
    monkeypatch.setattr("closure_kmeans.search.MANY_CENTERS", 1000)
    found = CenterIndex(centers).separations()
    assert (found >= exact * (1 - 1e-4)).all()
    assert np.mean(found <= exact * 1.02) > 0.6  # structureless data is the hardest
    assert np.median(found / exact) < 1.05


def test_the_map_holds_the_centers():
    centers = np.random.default_rng(0).normal(0, 1, (500, 8))
    places = map_positions(centers)
    assert ((places >= -0.2) & (places <= 1.2)).all()
    assert np.ptp(places, axis=0).max() > 0.9
    assert np.isfinite(map_positions(np.ones((1, 3)))).all()
    assert np.isfinite(map_positions(np.ones((5, 1)))).all()


# -- metadata ----------------------------------------------------------------------------------------------------------


def test_metadata_of_csv_are_texts(tmp_path):
    path = tmp_path / "about.csv"
    path.write_text('id,name\n007,"a, b"\n008,\n')
    known = Metadata.open(path)
    assert known.entries(0) == {"id": "007", "name": "a, b"}
    assert known.entries(1) == {"id": "008", "name": ""}
    assert known.title(0) == "a, b"
    assert len(known) == 2


def test_metadata_of_parquet_leave_out_vectors(tmp_path):
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"vector": [[1.0, 2.0]] * 3, "n": [1, None, 3], "t": ["a", "b", "c"]}), path)
    known = Metadata.open(path)
    assert known.entries(1) == {"n": "", "t": "b"}
    assert Metadata.has_columns(path)
    parquet.write_table(pyarrow.table({"vector": [[1.0, 2.0]] * 3}), path)
    assert not Metadata.has_columns(path)
    with pytest.raises(FileFormatError, match="must have a column of texts or numbers, but has none"):
        Metadata.open(path)


def test_search_and_frequent_values():
    known = make_metadata(9)
    assert known.search("RED").tolist() == [0, 3, 6]
    assert known.search("%").tolist() == []
    frequent = known.frequent(np.array([0, 3, 6, 1]))
    assert [(one.column, one.value, one.share) for one in frequent] == [
        ("color", "red", 0.75),
        ("color", "green", 0.25),
    ]
    assert known.frequent(np.array([], int)) == []


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", b""), ("a.parquet", b"PAR1 no"), ("a.txt", b"x"), ("b.csv", b"a,b\n1\n")]
)
def test_bad_metadata(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileFormatError, match=name):
        Metadata.open(tmp_path / name)


# -- pictures and charts -----------------------------------------------------------------------------------------------


def opened(encoded):
    assert encoded.media_type == "image/jpeg"
    return Image.open(io.BytesIO(encoded.content))


def test_pictures_of_arrays_and_files(tmp_path):
    shown = array_pictures(make_pixels(3))
    assert opened(shown.small(2)).size == (30, 20)
    for number in range(2):
        Image.new("RGB", (400, 200 + 100 * number), "red").save(tmp_path / f"{number}.png")
    folder = open_pictures(tmp_path)
    assert len(folder) == 2
    assert opened(folder.small(0)).size == (160, 80)
    assert opened(folder.large(1)).size == (400, 300)
    assert opened(folder.small(0)).getpixel((3, 3))[0] > 240  # in colour
    named = open_pictures(tmp_path, ["1.png", "0.png", "1.png"])
    assert opened(named.large(0)).size == (400, 300)


def test_pixels_that_a_file_holds_while_it_is_decoded(tmp_path, monkeypatch):
    photo = Image.new("RGB", (800, 400))
    for name, options in (("a.png", {}), ("a.jpg", {}), ("whole.jpg", {"progressive": True})):
        photo.save(tmp_path / name, **options)
    (tmp_path / "none.png").write_text("no image")
    count = partial(budget._count_pixels, max_side=160)
    assert count(tmp_path / "a.png") == count(tmp_path / "whole.jpg") == 320_000
    assert count(tmp_path / "a.jpg") == 200 * 100  # decoded at a quarter
    assert count(tmp_path / "none.png") == count(tmp_path / "gone.png") == 0
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    assert count(tmp_path / "a.jpg") == 0  # it is refused
    assert inspect.signature(images.load_image).parameters["max_pixels"].default <= budget.MOST_PIXELS


def test_a_large_picture_is_not_passed_by_small_ones():
    limited, order = budget.PixelBudget(100), []

    def ask(n_pixels):
        with limited.hold(n_pixels):
            order.append(n_pixels)

    with limited.hold(60):
        large = threading.Thread(target=ask, args=(100,))
        large.start()
        large.join(0.05)
        small = threading.Thread(target=ask, args=(40,))
        small.start()
        small.join(0.05)
        assert order == []
    large.join(60)
    small.join(60)
    assert order == [100, 40]


def test_the_budget_is_given_back_when_decoding_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "BUDGET", limited := budget.PixelBudget(2_000))
    Image.effect_noise((40, 40), 50).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:-900])
    for _ in range(3):
        with pytest.raises(ValueError, match="must be a whole and valid image"):
            open_pictures(tmp_path).small(0)
    assert limited._free == 2_000
    with pytest.raises(ValueError, match="a picture must have at most 2000 pixels, got 2500"):
        array_pictures(np.zeros((1, 50, 50), np.uint8)).small(0)


def test_transparency_lies_on_white(tmp_path):
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert opened(open_pictures(tmp_path).small(0)).getpixel((3, 3)) == (255, 255, 255)


def test_names_of_images_stay_in_their_folder(tmp_path):
    for name in ("../secret.png", "/etc/passwd", "a/../../b"):
        with pytest.raises(ValueError, match="must be paths below the folder"):
            open_pictures(tmp_path, [name])


@pytest.mark.parametrize("array", [np.zeros((3, 4)), np.zeros((3, 4, 4, 2), np.uint8), np.zeros((0, 4, 4), np.uint8)])
def test_bad_arrays_of_pictures(array, tmp_path):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match="pictures must be bytes of shape"):
        open_pictures(tmp_path / "a.npy")


@pytest.mark.parametrize(
    "row", [np.arange(128), np.zeros(128), np.linspace(-1, 1, 300), np.array([np.nan, 1]), np.zeros(1)]
)
def test_vectors_are_drawn(row):
    drawn = draw_vector(row)
    assert drawn.media_type == "image/svg+xml"
    assert b"nan" not in drawn.content
    assert drawn.content.startswith(b"<svg")


def test_a_petal_for_each_strong_direction():
    row = np.zeros(128)
    row[[0, 9, 127]] = 200
    assert draw_vector(row).content.count(b"Z") == 3


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=50))
def test_every_cluster_is_in_one_bar(sizes):
    bars = charts.count_sizes(np.array(sizes))
    assert sum(bar.n_clusters for bar in bars) == len(sizes)
    for bar in bars:
        assert bar.n_clusters == sum(bar.least <= size <= bar.most for size in sizes)
    assert len(bars) <= charts.MOST_BARS


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_ticks_are_few_and_inside(low, span):
    marks = charts.ticks(low, low + span)
    assert 1 <= len(marks) <= 8
    assert all(low - 1e-6 * (abs(low) + span) <= mark <= low + span * (1 + 1e-6) + 1e-6 * abs(low) for mark in marks)


def test_curves_of_any_history():
    one = Iteration(1, 0.5, 100.0, 10, 1, 5.0, None)
    for history in ([one], [one, one._replace(iteration=2, seconds=1.0, n_trees=2, inertia=50.0)]):
        text = charts.draw_curve(history, lambda step: step.inertia, name="distortion", by_time=True)
        notes = Page(text).only("img", "distortion against time").notes
        assert sum(note.startswith("iteration") for note in notes) == len(history)
        assert sum(note.endswith("added") for note in notes) == len(history) - 1
        assert "nan" not in text


def test_how_numbers_are_written():
    assert [rounded(value) for value in (203, 0.25, 999.96, 57222.4)] == ["203.0", "0.2500", "1,000", "57,222"]
    assert [percent(value) for value in (1, 0.0996, 1.2e-5, 1e-17)] == ["100 %", "10 %", "0.0012 %", "0 %"]
    assert [compact(value) for value in (0.5, 250, 5000, 62_000, 1.5e6)] == ["0.5", "250", "5K", "62K", "1.5M"]


def test_offered_pages():
    assert pages(1, 1) == [1]
    assert pages(5, 9) == [1, None, 3, 4, 5, 6, 7, None, 9]
    assert pages(1, 3) == [1, 2, 3]


# -- the fit -----------------------------------------------------------------------------------------------------------


def test_the_fit_of_a_checkpoint(tmp_path):
    assert fit_of_checkpoint(tmp_path / "ck").state == "waiting"
    fitted = ClosureKMeans(n_clusters=10, random_state=0, checkpoint=tmp_path / "ck", checkpoint_every=0).fit(
        make_rows()
    )
    fit = fit_of_checkpoint(tmp_path / "ck")
    assert fit.history == fitted.history_
    assert (fit.state, fit.n_points) == ("converged", 300)
    assert fit.saved >= 0


def test_the_checkpoint_of_a_fit_that_runs_and_then_stops(tmp_path):
    seen = []

    def look(step):
        if step.iteration == 3:
            seen.append(fit_of_checkpoint(tmp_path).state)
            hours_ago = time.time() - 7200
            os.utime(tmp_path / "checkpoint.safetensors", (hours_ago, hours_ago))
            seen.append(fit_of_checkpoint(tmp_path).state)
            return True

    settings = {"tol": 0, "checkpoint": tmp_path, "checkpoint_every": 0, "callback": look}
    ClosureKMeans(n_clusters=10, random_state=0, **settings).fit(make_rows())
    assert seen == ["running", "silent"]
    assert fit_of_checkpoint(tmp_path).state == "stopped"
    ClosureKMeans(n_clusters=10, random_state=0, **settings | {"callback": None}).fit(make_rows(), resume=True)
    assert fit_of_checkpoint(tmp_path).state == "converged"


def test_the_fit_of_a_model(model, tmp_path):
    assert fit_of_model(model).history == model.history_
    model.save(tmp_path / "bare.safetensors")
    assert fit_of_model(load(tmp_path / "bare.safetensors")) is None


# -- report and notebook -----------------------------------------------------------------------------------------------


def test_the_report_holds_everything(catalog, tmp_path):
    write_report(tmp_path / "a.html", catalog, n_clusters=5, sort="spread", show="nearest")
    text = (tmp_path / "a.html").read_text()
    page = Page(text)
    cards = page.all("article")
    assert len(cards) == 5
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text)
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
        assert re.match(r"\d+ at \d", card.facts["next to it"])


def test_a_report_escapes_what_it_is_told(tmp_path):
    X = make_rows(20)
    model = ClosureKMeans(n_clusters=2, random_state=0).fit(X)
    known = Metadata.of_table(pyarrow.table({"title": ["<script>alert(1)</script>"] * 20}), "x")
    write_report(tmp_path / "a.html", Catalog(model, X, labels=model.labels_, metadata=known))
    text = (tmp_path / "a.html").read_text()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_a_report_of_missing_images(catalog, tmp_path):
    for number in range(300):
        (tmp_path / f"{number:03}.png").touch()
    gone = Catalog(catalog.model, labels=catalog.labels, pictures=open_pictures(tmp_path))
    write_report(tmp_path / "a.html", gone, n_clusters=2)
    pictures = Page((tmp_path / "a.html").read_text()).pictures
    assert pictures
    assert all(picture.startswith("data:image/svg+xml") for picture in pictures)


def test_a_notebook_shows_a_summary(model):
    html = model._repr_mimebundle_()["text/html"]
    page = Page(html)
    assert "distortion per item" in page.text
    assert page.only("group", "Number of clusters by size")
    assert html.startswith("<style>")  # of scikit-learn, with the summary behind it
    assert "<style" not in page.text
    assert "distortion per item" not in Page(ClosureKMeans()._repr_mimebundle_()["text/html"]).text
    assert model._repr_mimebundle_()["text/plain"].startswith("ClosureKMeans(")


def test_the_summary_needs_the_extra(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "closure_kmeans.explorer.notebook", None)
    assert "distortion per item" not in Page(model._repr_mimebundle_()["text/html"]).text
    monkeypatch.setitem(sys.modules, "markupsafe", None)
    with pytest.raises(ImportError, match=r"a grid needs markupsafe: pip install 'closure-kmeans\[explore\]'"):
        model.show_cluster(0)


def kinds_of_pictures(grid):
    return [picture.partition(";")[0] for picture in Page(grid._repr_html_()).pictures]


def test_show_cluster(model, tmp_path):
    X = make_rows()
    members = np.flatnonzero(model.labels_ == 3)
    apart = np.linalg.norm(X[members] - model.cluster_centers_[3], axis=1)
    grid = model.show_cluster(3, X, n_items=5)
    assert grid.items == members[np.argsort(apart, kind="stable")][:5].tolist()
    page = Page(grid._repr_html_())
    assert len(page.pictures) == 5
    heading, *shown = page.text.splitlines()
    assert heading.startswith("Cluster 3")
    assert heading.endswith(f"5 of {len(members)} items")
    assert shown == [str(item) for item in grid.items]
    assert f"{grid.items[0]}" in repr(grid)
    with_images = model.show_cluster(3, images=make_pixels(), n_items=4)
    assert kinds_of_pictures(with_images) == ["data:image/jpeg"] * 4
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    listed = model.show_cluster(3, images=[tmp_path / "a.png"] * 300, n_items=2)
    assert kinds_of_pictures(listed) == ["data:image/jpeg"] * 2
    assert kinds_of_pictures(model.show_cluster(3, n_items=2)) == []
    with pytest.raises(ValueError, match="cluster must be from 0 to 9, got 10"):
        model.show_cluster(10)


# -- the commands ------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, model):
    X = make_rows()
    np.save(tmp_path / "rows.npy", X)
    np.save(tmp_path / "labels.npy", model.labels_)
    np.save(tmp_path / "pixels.npy", make_pixels())
    (tmp_path / "rows.csv").write_text("color\n" + "\n".join(COLORS * 100) + "\n")
    model.save(tmp_path / "model.safetensors")
    model.save(tmp_path / "training.safetensors", training=True)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(cli.main, list(map(str, arguments)))


@pytest.fixture
def served(monkeypatch):
    """The commands, without a server: what would have been served."""
    seen = {}

    def serve(app, listening, **options):
        seen.update(app=app, **options)

    monkeypatch.setattr("closure_kmeans.explorer.server.serve", serve)
    return seen


def test_report_of_files(files):
    result = run(
        "report",
        files / "model.safetensors",
        "--vectors",
        files / "rows.npy",
        "--images",
        files / "pixels.npy",
        "-o",
        files / "a.html",
        "-q",
    )
    assert result.exit_code == 0, result.output
    page = Page((files / "a.html").read_text())
    assert len(page.all("article")) == 10
    assert any(value.text.startswith("red ") for value in page.all("listitem"))  # of the CSV file beside the vectors


def test_images_are_named_by_the_metadata(files):
    folder = files / "photos"
    folder.mkdir()
    Image.new("RGB", (40, 40)).save(folder / "one.png")
    (files / "named.csv").write_text("image\n" + "one.png\n" * 300)
    options = ["--images", folder, "--metadata", files / "named.csv", "--labels", files / "labels.npy"]
    result = run("report", files / "model.safetensors", *options, "-o", files / "a.html")
    assert result.exit_code == 0, result.output
    pictures = Page((files / "a.html").read_text()).pictures
    assert pictures
    assert all(picture.startswith("data:image/jpeg") for picture in pictures)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--images", "photos"], "pictures must be as many as the items, 300, got 0"),
        (["--metadata", "short.csv"], "metadata must be as many as the items, 300, got 1"),
        (["--labels", "rows.npy"], "must hold a cluster from 0 to 9 for each vector"),
        (["--labels", "few.npy"], "must hold a cluster for each of 300 vectors, but has 3"),
        (["--port", "0"], "0 is not in the range"),
        (["--index", "rows.csv"], "rows.csv"),
        (["--host", "256.1.1.1"], "port 8643 of 256.1.1.1 cannot be had"),
    ],
)
def test_bad_input(files, arguments, message, monkeypatch, served):
    monkeypatch.chdir(files)
    (files / "photos").mkdir()
    (files / "short.csv").write_text("a\n1\n")
    np.save(files / "few.npy", np.zeros(3, int))
    result = run("explore", "model.safetensors", "--vectors", "rows.npy", *arguments, "--no-browser")
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert served == {}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--sort", "share"), "--sort share needs distances"),
        (("--show", "nearest"), "--show nearest needs distances"),
        (("--images", "photos"), "--images needs the items: give --vectors, --labels"),
        (("--metadata", "rows.csv"), "--metadata needs the items: give --vectors, --labels"),
    ],
)
def test_what_a_model_alone_cannot_show(files, option, message, monkeypatch):
    monkeypatch.chdir(files)
    (files / "photos").mkdir()
    result = run("report", "model.safetensors", *option, "-o", "a.html")
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_explore_says_where(files, served):
    result = run("explore", files / "training.safetensors", "--vectors", files / "rows.npy", "--no-browser", "-q")
    assert result.exit_code == 0, result.output
    assert re.match(r"http://127\.0\.0\.1:\d+/  \(Ctrl-C ends it\)", result.output)
    assert served["open_browser"] is None
    served["prepare"]()
    assert run("explore", "--checkpoint", files / "ck", "--host", "0.0.0.0").exit_code == 0
    assert "?token=" in served["open_browser"]


@pytest.mark.slow
def test_explore_the_embedded_data(served):
    result = run("explore", "--no-browser")
    assert result.exit_code == 0, result.output
    assert "20,000 embedded SIFT descriptors into 500 clusters" in result.output


def test_the_extra_is_named(monkeypatch, files):
    monkeypatch.setitem(sys.modules, "starlette", None)
    result = run("explore", "--no-browser")
    assert result.exit_code == 1
    assert "the explorer needs starlette: pip install 'closure-kmeans[explore]'" in result.output


def test_fit_keeps_what_the_explorer_shows(files):
    result = run("fit", files / "rows.npy", "-k", 10, "-o", files / "kept.safetensors", "--training", "--json")
    assert result.exit_code == 0, result.output
    kept = load(files / "kept.safetensors")
    assert len(kept.labels_) == 300
    assert len(kept.history_) == json.loads(result.output.splitlines()[-1])["iterations"]


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
        with pytest.raises(ValueError, match=f"port {ports[0]} of 127.0.0.1 cannot be had: Address already in use"):
            bind("127.0.0.1", ports[0])


def test_small_pictures_are_kept():
    asked = []

    def read(item, side):
        asked.append(item)
        return np.zeros((4, 4), np.uint8)

    shown = pictures.Pictures(read, 3)
    for _ in range(3):
        shown.small(1)
    assert asked == [1]


def test_distances_of_a_cosine_model_are_those_of_directions(tmp_path):
    X = make_rows() * np.random.default_rng(0).uniform(0.1, 10, (300, 1)).astype(np.float32)
    np.save(tmp_path / "rows.npy", X)
    model = ClosureKMeans(n_clusters=10, metric="cosine", random_state=0).fit(X)
    model.save(tmp_path / "model.safetensors")
    result = run("evaluate", tmp_path / "model.safetensors", tmp_path / "rows.npy", "--json")
    assert json.loads(result.output)["distortion"] <= 1.01 * model.inertia_ / 300


@pytest.mark.skipif(os.name == "nt", reason="Windows does not let a mapped file be cut")
def test_rows_of_a_file_that_was_cut_are_an_error(tmp_path):
    X = make_rows()
    np.save(tmp_path / "rows.npy", X)
    model = ClosureKMeans(n_clusters=30, random_state=0).fit(X)
    catalog = Catalog(model, np.load(tmp_path / "rows.npy", mmap_mode="r"), labels=model.labels_)
    os.truncate(tmp_path / "rows.npy", 1000)
    for read in (catalog.row, catalog.standing):
        with pytest.raises(FileFormatError, match="must keep its"):
            read(len(X) - 1)
