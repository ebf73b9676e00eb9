"""The benchmark of the explorer's pages and the script that takes their pictures, in a real browser."""

from contextlib import ExitStack

import pytest
from PIL import Image

pytest.importorskip("playwright.sync_api", reason="a real browser needs: pip install playwright")

from benchmarks import ROOT, pages, screenshots
from closure_kmeans.explorer.app import make_app
from closure_kmeans.explorer.fit import fit_of_model
from closure_kmeans.explorer.queries import Searches
from closure_kmeans.explorer.server import running
from tests.explorer_data import make_catalog, make_index, write_photos

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    with ExitStack() as opened:
        try:
            browser = opened.enter_context(pages.open_browser())
        except SystemExit as there_is_none:
            pytest.skip(str(there_is_none))
        yield browser


def test_the_benchmark_of_the_pages(browser, tmp_path):
    for name in ("photos", "uploads"):
        (tmp_path / name).mkdir()
    write_photos(tmp_path / "photos")
    searches = Searches(make_index(tmp_path / "photos"), "photos.index", tmp_path / "uploads")
    found = pages.measure(make_catalog(), browser, searches)
    assert set(found["pages"]) == {*pages.PAGES, *pages.QUERY_PAGES}
    assert len(found["frames"]) > 1


def test_the_pictures_in_the_docs_can_be_taken(browser, tmp_path):
    """Each is taken by the script again, in the size that it has there."""
    for name in ("photos", "uploads"):
        (tmp_path / name).mkdir()
    screenshots.write_photos(tmp_path / "photos")
    searches = Searches(make_index(tmp_path / "photos"), "photos.index", tmp_path / "uploads")
    catalog = make_catalog(pictures=False, metadata=False)
    with running(make_app(catalog, searches, lambda: fit_of_model(catalog.model))) as url:
        unseen = [shot._replace(point=None) for shot in screenshots.SHOTS]  # other clusters lie there
        screenshots.take(unseen, browser, url, searches, tmp_path)
    there = sorted((ROOT / "docs" / "images").glob("explorer-*"))
    assert [path.name for path in there] == sorted(shot.file for shot in screenshots.SHOTS)
    for path in there:
        with Image.open(tmp_path / path.name) as taken, Image.open(path) as shown:
            assert taken.size == shown.size, path.name
