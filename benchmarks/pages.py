"""What the explorer's pages take in a real browser, on a million vectors and 100,000 clusters.

    python -m benchmarks.pages [--data FOLDER] [--clusters K] [--index INDEX]

It needs Playwright and a Chromium, as the tests do. A page is timed from the call of its address until it is loaded,
pictures of its items included; the map by the time between two frames while it is dragged.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks import data
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, append_row, markdown_table
from closure_kmeans import ClosureKMeans
from closure_kmeans.explorer.app import make_app
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.fit import fit_of_model
from closure_kmeans.explorer.queries import Searches
from closure_kmeans.explorer.server import running
from closure_kmeans.retrieval import ImageIndex

PAGES = {
    "clusters": "/",
    "clusters, smallest first": "/?sort=size&order=ascending",
    "a cluster": "/clusters/3",
    "an item": "/items/42",
    "the map": "/map",
    "the fit": "/fit",
}
# Of an index, if there is one.
QUERY_PAGES = {
    "a query": "/query?image=8&rerank=no",
    "a query, 200 verified": "/query?image=8",
    "a query with a box, 200 verified": "/query?image=8&box=100,60,300,260",
    "two images side by side": "/query/match?image=8&result=9",
}
REPEATS = 5
DRAG_STEPS = 120
# Frames are watched by the page itself.
WATCH = """() => { window.frames_ = []; let last = performance.now();
const watch = (now) => { window.frames_.push(now - last); last = now; requestAnimationFrame(watch); };
requestAnimationFrame(watch); }"""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """The Chromium of this machine."""
    found = (os.environ.get("CLOSURE_KMEANS_CHROMIUM"), *map(shutil.which, ("chromium", "chromium-browser")))
    chromium = next(filter(None, found), None)
    if chromium is None:
        raise SystemExit("there is no Chromium; CLOSURE_KMEANS_CHROMIUM may name one")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


def make_catalog(source: str | None, n_clusters: int, threads: int) -> Catalog:
    X = data.load("sift", data.count_sift(source), source)
    model = ClosureKMeans(n_clusters, max_iter=8, random_state=0, n_threads=threads).fit(X)
    squares = model.squared_distances(X, model.labels_)
    return Catalog(model, X, labels=model.labels_, squares=squares)


def time_page(page: Page, path: str) -> float:
    began = perf_counter()
    response = page.goto(path, wait_until="load")
    if response is None or not response.ok:
        raise RuntimeError(f"'{path}' must be a page, but was answered {response and response.status}")
    return perf_counter() - began


def time_frames(page: Page) -> list[float]:
    """Milliseconds between frames while the map is dragged around and zoomed."""
    page.goto("/map", wait_until="load")
    page.wait_for_timeout(2000)
    box = page.locator("#map").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(300)
    page.evaluate(WATCH)
    page.mouse.down()
    for step in range(DRAG_STEPS):
        page.mouse.move(x + 150 * np.sin(step / 10), y + 100 * np.cos(step / 7))
    page.mouse.up()
    frames: list[float] = page.evaluate("window.frames_")
    return frames


def measure(catalog: Catalog, browser: Browser, searches: Searches | None = None) -> dict[str, Any]:
    shown = fit_of_model(catalog.model)
    app = make_app(catalog, searches, lambda: shown)
    with running(app) as url:
        page = browser.new_page(base_url=url, viewport={"width": 1280, "height": 860})
        first = time_page(page, "/")  # with nothing prepared
        began = perf_counter()
        catalog.prepare()
        prepared = perf_counter() - began
        paths = PAGES
        if searches is not None:
            searches.prepare()
            paths = PAGES | QUERY_PAGES
        seconds = {name: [time_page(page, path) for _ in range(REPEATS)] for name, path in paths.items()}
        frames = time_frames(page)
        page.close()
    return {"prepare_seconds": prepared, "first_page": first, "pages": seconds, "frames": frames}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--clusters", type=int, default=100_000)
    parser.add_argument("--index", metavar="FILE", help="an index of photos, whose query pages are timed, too")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    catalog = make_catalog(arguments.data, arguments.clusters, arguments.threads)
    with open_browser() as browser, tempfile.TemporaryDirectory() as uploads:
        index = None if arguments.index is None else ImageIndex.load(arguments.index)
        searches = None if index is None else Searches(index, arguments.index, Path(uploads))
        row = {"n_items": catalog.n_items, "n_clusters": arguments.clusters}
        row |= {"n_images": None if index is None else len(index)} | measure(catalog, browser, searches)
    append_row(arguments.output / "pages.jsonl", row | {"machine": describe_machine(), "versions": describe_versions()})
    lines = [["the first of all", f"{1000 * row['first_page']:.0f}", ""]]
    for name, seconds in row["pages"].items():
        lines.append([name, f"{1000 * median(seconds):.0f}", f"{1000 * max(seconds):.0f}"])
    frames = sorted(row["frames"])
    photos = "" if row["n_images"] is None else f", {row['n_images']:,} photos to search"
    text = (
        "# The explorer's pages\n\n"
        f"{row['n_items']:,} items in {row['n_clusters']:,} clusters{photos}; Chromium, without a screen.\n\n"
        f"{markdown_table(('page', 'median ms', 'slowest of five, ms'), lines)}\n\n"
        f"The map of all clusters while it is dragged: {median(frames):.0f} ms a frame, 95 % within "
        f"{frames[int(0.95 * len(frames))]:.0f} ms. What is known of every vector and cluster took "
        f"{row['prepare_seconds']:.1f} s, after the first page.\n"
    )
    (arguments.output / "pages.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
