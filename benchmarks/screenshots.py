"""Take the pictures of the explorer that the README and its page in the docs show.

    python -m benchmarks.screenshots [FOLDER]

They are of the embedded data, and of parts of the two photos that scikit-learn carries.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from playwright.sync_api import Browser
from sklearn.datasets import load_sample_images

from benchmarks import ROOT
from benchmarks.pages import open_browser
from closure_kmeans import ClosureKMeans
from closure_kmeans.datasets import load_sift
from closure_kmeans.demo import prepare_kernels
from closure_kmeans.explorer.app import make_app
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.fit import fit_of_model
from closure_kmeans.explorer.queries import Searches
from closure_kmeans.explorer.server import running
from closure_kmeans.retrieval import ImageIndex, collect, learn_vocabulary

N_CLUSTERS, N_WORDS = 500, 2000
WIDTH, QUALITY = 1200, 88
# A part of a photo, its middle, and how it is turned: so far that no corner lies outside the photo.
PART, MIDDLES, TURNS = (300, 210), [(205, 213), (435, 213)], [0, 9, 18, 27]
# The photo that is searched for, and a result beside it.
QUERY, RESULT = "temple-left-1.jpg", "temple-left-3.jpg"


class Shot(NamedTuple):
    """A picture of a page."""

    file: str
    path: str
    height: int
    scheme: str = "light"
    point: tuple[int, int] | None = None  # where the mouse is


SHOTS = [
    Shot("explorer-clusters.png", "/?show=nearest", 720),
    Shot("explorer-item.png", "/items/3", 640),
    Shot("explorer-map.png", "/map", 640, "dark", (636, 370)),
    Shot("explorer-fit.png", "/fit?by=iteration", 600),
    Shot("explorer-query.jpg", "/query?image={query}&box=20,15,265,190", 600),
    Shot("explorer-match.jpg", "/query/match?image={query}&result={result}", 760),
]


def take(shots: list[Shot], browser: Browser, url: str, searches: Searches, folder: Path) -> None:
    """Open each page, and keep what is seen."""
    query, result = searches.index.names.index(QUERY), searches.index.names.index(RESULT)
    for shot in shots:
        viewport = {"width": WIDTH, "height": shot.height}
        page = browser.new_page(base_url=url, viewport=viewport, color_scheme=shot.scheme)
        page.goto(shot.path.format(query=query, result=result), wait_until="networkidle")
        if shot.point is not None:
            page.mouse.move(*shot.point)
            page.wait_for_selector("#pointed:visible")
            page.wait_for_load_state("networkidle")
        as_jpeg = {"type": "jpeg", "quality": QUALITY} if shot.file.endswith(".jpg") else {}
        page.screenshot(path=folder / shot.file, **as_jpeg)
        page.close()


def write_photos(folder: Path) -> None:
    """Parts of two photos, each seen from four sides."""
    for scene, pixels in zip(("temple", "dahlia"), load_sample_images().images, strict=True):
        photo = Image.fromarray(pixels)
        for side, (x, y) in zip(("left", "right"), MIDDLES, strict=True):
            box = x - PART[0] // 2, y - PART[1] // 2, x + PART[0] // 2, y + PART[1] // 2
            for number, turn in enumerate(TURNS):
                part = photo.rotate(turn, Image.Resampling.BICUBIC, center=(x, y)).crop(box)
                part.save(folder / f"{scene}-{side}-{number}.jpg", quality=92)


def make_catalog() -> Catalog:
    X = load_sift()
    prepare_kernels(X, N_CLUSTERS, seed=0, n_threads=None)  # so that the fit's times are its own
    model = ClosureKMeans(N_CLUSTERS, random_state=0).fit(X)
    squares = model.squared_distances(X, model.labels_)
    return Catalog(model, X, labels=model.labels_, squares=squares)


def make_searches(photos: Path, uploads: Path) -> Searches:
    collection = collect(photos)
    index = ImageIndex(learn_vocabulary(collection.descriptors, N_WORDS, random_state=0), collection.extraction)
    index.add(collection)
    return Searches(index, "photos.index", uploads)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.screenshots", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs" / "images")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        photos, uploads = (Path(name) / part for part in ("photos", "uploads"))
        photos.mkdir()
        uploads.mkdir()
        write_photos(photos)
        catalog, searches = make_catalog(), make_searches(photos, uploads)
        searches.prepare()
        fit = fit_of_model(catalog.model)
        with open_browser() as browser, running(make_app(catalog, searches, lambda: fit)) as url:
            take(SHOTS, browser, url, searches, arguments.folder)


if __name__ == "__main__":
    main()
