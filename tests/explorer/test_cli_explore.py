"""The commands explore and report, and what other commands keep for them."""

import json
import re
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from closure_kmeans import ClosureKMeans, cli, load
from tests.explorer_data import COLORS, make_pixels, make_rows
from tests.page import Page


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
        (["--images", "photos"], "pictures must have one entry for each of 300 items, got 0"),
        (["--metadata", "short.csv"], "metadata must have one entry for each of 300 items, got 1"),
        (["--labels", "rows.npy"], "must hold labels from 0 to 9, one per vector"),
        (["--labels", "few.npy"], "must hold one label for each of 300 vectors, but has 3"),
        (["--port", "0"], "0 is not in the range"),
        (["--index", "rows.csv"], "rows.csv"),
        (["--host", "256.1.1.1"], "port 8643 of 256.1.1.1 is not available"),
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
        (("--images", "photos"), "--images needs --vectors, --labels"),
        (("--metadata", "rows.csv"), "--metadata needs --vectors, --labels"),
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
    assert re.match(r"http://127\.0\.0\.1:\d+/  \(Ctrl-C to stop\)", result.output)
    assert served["open_browser"] is None
    served["prepare"]()
    assert run("explore", "--checkpoint", files / "ck", "--host", "0.0.0.0").exit_code == 0
    assert "?token=" in served["open_browser"]


@pytest.mark.slow
def test_explore_the_embedded_data(served):
    result = run("explore", "--no-browser")
    assert result.exit_code == 0, result.output
    assert "20,000 bundled SIFT descriptors into 500 clusters" in result.output


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


def test_distances_of_a_cosine_model_are_those_of_directions(tmp_path):
    X = make_rows() * np.random.default_rng(0).uniform(0.1, 10, (300, 1)).astype(np.float32)
    np.save(tmp_path / "rows.npy", X)
    model = ClosureKMeans(n_clusters=10, metric="cosine", random_state=0).fit(X)
    model.save(tmp_path / "model.safetensors")
    result = run("evaluate", tmp_path / "model.safetensors", tmp_path / "rows.npy", "--json")
    assert json.loads(result.output)["distortion"] <= 1.01 * model.inertia_ / 300
