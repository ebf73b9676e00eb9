"""A person's path through the explorer, in a real browser.

It needs Playwright and a Chromium: the one of the system, or the one that CLOSURE_KMEANS_CHROMIUM names.
"""

import os
import shutil

import pytest

from closure_kmeans.checkpoint import FILE_NAME
from closure_kmeans.explorer.app import make_app
from closure_kmeans.explorer.fit import fit_of_checkpoint
from closure_kmeans.explorer.queries import Searches
from closure_kmeans.explorer.server import running
from tests.explorer_data import make_catalog, make_index, make_rows, write_photos

CHROMIUM = os.environ.get("CLOSURE_KMEANS_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
playwright = pytest.importorskip("playwright.sync_api", reason="a real browser needs: pip install playwright")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; CLOSURE_KMEANS_CHROMIUM may name one"),
]
WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
# Seconds: the server is in this process, and stands still while kernels are compiled on a busy machine.
PATIENCE = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explorer")
    for name in ("photos", "uploads"):
        (folder / name).mkdir()
    write_photos(folder / "photos")
    return folder


@pytest.fixture(scope="module")
def searches(folder):
    searches = Searches(make_index(folder / "photos"), "photos.index", folder / "uploads")
    searches.prepare()
    return searches


@pytest.fixture(scope="module")
def url(folder, searches):
    with running(make_app(make_catalog(), searches, lambda: fit_of_checkpoint(folder / "ck"))) as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(params=[(WIDE, "light"), (NARROW, "dark")], ids=["wide-light", "narrow-dark"])
def page(request, browser, url):
    """A page that must not complain about anything, be it the content security policy."""
    viewport, scheme = request.param
    context = browser.new_context(viewport=viewport, color_scheme=scheme, base_url=url)
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    complaints = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()
    assert complaints == []


def wait_until(page, expression, seconds=PATIENCE):
    """Ask again and again; Playwright's own way needs ``eval``, which the content security policy forbids."""
    for _ in range(20 * seconds):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"it never came true: {expression}")


def fits(page):
    """Nothing sticks out of the screen."""
    return page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def follow(page, link):
    """Click on a link, and be there. On a busy machine a page once did not come: if none is under way, click again."""
    before, target = page.url, link.evaluate("link => link.href")
    link.click()
    try:
        page.wait_for_url(lambda url: url == target, wait_until="commit", timeout=1000 * PATIENCE / 2)
    except playwright.TimeoutError:
        if page.url == before:
            link.click()
        page.wait_for_url(lambda url: url == target, wait_until="commit")
    page.wait_for_load_state()


def test_open_sort_page_and_look_at_a_cluster(page):
    page.goto("/")
    assert page.locator(".card").count() == 20
    assert fits(page)
    sizes = [int(text) for text in page.locator(".card .size b").all_text_contents()]
    assert sizes == sorted(sizes, reverse=True)
    follow(page, page.get_by_role("link", name="Tightness"))
    follow(page, page.get_by_role("link", name="loosest first"))
    spreads = page.locator(".card .facts div[title^=root] dd").all_text_contents()
    assert list(map(float, spreads)) == sorted(map(float, spreads))
    follow(page, page.get_by_role("link", name="Next →"))
    assert page.locator(".card").count() == 10
    follow(page, page.get_by_role("link", name="Nearest"))
    first = page.locator(".card").first
    number = first.locator("h2").inner_text()
    first.scroll_into_view_if_needed()
    wait_until(page, "document.querySelector('.card .tile img').naturalWidth > 0")
    follow(page, first.locator("h2 a"))
    assert page.locator("h1").inner_text().split()[-1] == number.lstrip("#")
    assert page.locator(".neighbors li").count() == 8
    assert fits(page)
    follow(page, page.locator("#content .tiles.all .tile").first)
    assert "Position" in page.content()
    assert page.locator(".facts.entries dt").all_text_contents() == ["title", "color"]
    assert fits(page)


def test_two_rows_whatever_the_width(page):
    page.goto("/")
    rows = page.evaluate(
        """() => { const box = document.querySelector(".tiles.rows"), bottom = box.getBoundingClientRect().bottom;
        return new Set([...box.children].map((tile) => tile.getBoundingClientRect())
          .filter((tile) => tile.bottom <= bottom + 6 && tile.height > 0).map((tile) => tile.top)).size }"""
    )
    assert rows == 2


def test_keys(page):
    page.goto("/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.locator(".card.on").count() == 1
    number = page.locator(".card.on h2").inner_text().lstrip("#")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/clusters/{number}")
    page.keyboard.press("u")
    page.wait_for_url("**/")
    page.keyboard.press("n")
    page.wait_for_url("**page=2*")
    page.keyboard.press("/")
    page.keyboard.type("thing 12")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=thing*")
    assert "with “thing 12”" in page.locator(".found").inner_text()
    page.locator("body").click(position={"x": 2, "y": 300})
    page.keyboard.press("?")
    assert page.locator("dialog#keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("dialog#keys").is_visible()


# The ring around what has the focus, as far as some box around it cuts it off.
CUT_OFF = """() => [...document.querySelectorAll("a, button, input:not([type=hidden], .unseen)")].filter((it) => {
  it.focus();
  const style = getComputedStyle(it), around = parseFloat(style.outlineWidth) + parseFloat(style.outlineOffset);
  if (document.activeElement !== it || style.outlineStyle === "none") return false;
  const ring = it.getBoundingClientRect();
  for (let box = it.parentElement; box !== document.body; box = box.parentElement) {
    const bounds = box.getBoundingClientRect(), { overflowX, overflowY } = getComputedStyle(box);
    const wide = ring.left - around < bounds.left - 0.5 || ring.right + around > bounds.right + 0.5;
    const tall = ring.top - around < bounds.top - 0.5 || ring.bottom + around > bounds.bottom + 0.5;
    if ((overflowX !== "visible" && wide) || (overflowY !== "visible" && tall)) return true;
  }
  return false;
}).map((it) => it.outerHTML.slice(0, 100))"""


@pytest.mark.parametrize("path", ["/?least=1", "/clusters/3", "/items/5", "/query?image=0&box=10,10,200,200"])
def test_what_has_the_focus_is_seen(page, path):
    page.goto(path)
    page.keyboard.press("Tab")
    assert page.evaluate(CUT_OFF) == []


def test_keys_lead_only_to_pages_that_there_are(browser, searches):
    with running(make_app(searches=searches)) as url:
        page = browser.new_page(base_url=url)
        page.goto("/query?image=0")
        page.keyboard.press("2")  # the map, which needs clusters
        page.get_by_role("switch").focus()
        page.keyboard.press(" ")
        page.wait_for_url("**rerank=no*")
        page.keyboard.press("3")
        page.wait_for_url("**/fit")
        page.close()


def test_light_and_dark(page):
    page.goto("/")
    paper = "getComputedStyle(document.body).backgroundColor"
    by_system = page.evaluate(paper)
    page.keyboard.press("t")
    light = page.evaluate(paper)
    page.keyboard.press("t")
    dark = page.evaluate(paper)
    assert light != dark
    assert by_system in (light, dark)
    page.goto("/fit")
    assert page.evaluate(paper) == dark  # it is remembered


def test_the_map(page):
    page.goto("/map")
    ink = """() => {
      const map = document.getElementById("map");
      const pixels = map.getContext("2d").getImageData(0, 0, map.width, map.height).data;
      return pixels.some((value, i) => i % 4 === 3 && value > 0);
    }"""
    wait_until(page, ink)
    box = page.locator("#map").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -300)
    page.locator("#map").focus()
    for key in ("0", "+", "-", "ArrowLeft"):
        page.keyboard.press(key)
    wait_until(page, ink)
    page.wait_for_selector("#pointed:visible")  # the cluster in the middle
    shown = page.locator("#pointed b").inner_text().removeprefix("Cluster ")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/clusters/{shown}")


def test_query_with_a_box_rerank_and_inliers(page, folder):
    page.goto("/query")
    assert page.locator(".tiles.images .tile").count() == 12
    with page.expect_navigation(url="**/query?upload=*"):
        page.locator("#file").set_input_files(folder / "photos" / "temple0-1.jpg")
    assert page.locator(".results .name").first.inner_text() == "temple0-1.jpg"
    assert fits(page)
    area = page.locator("#boxed")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.2 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.move(box["x"] + 0.85 * box["width"], box["y"] + 0.85 * box["height"])
    with page.expect_navigation(url="**box=*"):
        page.mouse.up()
    assert "--box" in page.locator("#command").inner_text()
    assert page.locator(".results .name").first.inner_text() == "temple0-1.jpg"
    assert page.locator(".results li.verified").count() >= 2
    page.get_by_role("switch").click()
    page.wait_for_url("**rerank=no*")
    assert page.locator(".results li.verified").count() == 0
    page.get_by_role("switch").click()
    page.wait_for_url(lambda url: "rerank" not in url)
    page.locator(".results li a").nth(1).click()
    page.wait_for_url("**/query/match*")
    assert page.locator(".match .line").count() >= 4
    with page.expect_navigation(url="**/query/match*"):
        page.keyboard.press("n")
    with page.expect_navigation(url="**/query?*"):
        page.keyboard.press("u")


def test_what_is_no_photo_is_said(browser, url, tmp_path):
    (tmp_path / "no.jpg").write_bytes(b"no photo")
    page = browser.new_page(base_url=url)
    page.goto("/query")
    page.locator("#file").set_input_files(tmp_path / "no.jpg")
    wait_until(page, "document.getElementById('state').textContent.startsWith('Upload failed')")
    page.close()


def test_a_fit_is_seen_while_it_runs(browser, url, folder):
    from closure_kmeans import ClosureKMeans

    page = browser.new_page(base_url=url)
    page.goto("/fit")
    assert "Waiting for the first checkpoint" in page.locator("h1").inner_text()
    model = ClosureKMeans(n_clusters=20, random_state=0, max_iter=2, checkpoint=folder / "ck", checkpoint_every=0)
    model.fit(make_rows())
    page.wait_for_selector("svg.chart")
    assert page.locator("tbody tr").count() == 2
    page.get_by_role("link", name="Against iterations").focus()
    model.set_params(max_iter=100).fit(make_rows(), resume=True)
    page.wait_for_selector(".badge:has-text('converged')")
    assert page.locator("tbody tr").count() == model.n_iter_
    assert page.evaluate("document.activeElement.textContent") == "Against iterations"
    assert (folder / "ck" / FILE_NAME).exists()
    page.close()
