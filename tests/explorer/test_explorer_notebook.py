"""What a notebook shows of a model."""

import sys

import numpy as np
import pytest
from PIL import Image

from closure_kmeans import ClosureKMeans
from tests.explorer_data import make_pixels, make_rows
from tests.page import Page


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
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"a grid needs jinja2: pip install 'closure-kmeans\[explore\]'"):
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
