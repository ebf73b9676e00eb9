"""The whole application: what it shows of what it is given, and malformed requests."""

from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st

from closure_kmeans.explorer.fit import Fit, fit_of_checkpoint
from tests.explorer.browsing import HERE, holds_to_the_policy, only, paths_of, seen
from tests.page import Page


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
        "No history of the fit",
    ]
    assert running.facts["saved"] == "7 s ago"
    assert [is_fetched_again(page) for page in (waiting, running, ended, unknown)] == [True, True, False, False]


def test_a_damaged_checkpoint_is_said(tmp_path):
    (tmp_path / "checkpoint.safetensors").write_bytes(b"no checkpoint at all")
    answer = only(fit=lambda: fit_of_checkpoint(tmp_path)).get("/fit")
    assert answer.status_code == 404
    assert "cannot be read as a checkpoint" in Page(answer.text).text


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
