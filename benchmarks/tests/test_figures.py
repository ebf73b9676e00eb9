"""The figures of the README and of the pages are those of the committed tables."""

import re

import pytest

from benchmarks.figures import README, fill, format_comparison, read_tables

DOCS = README.parent / "docs"


def test_the_readme_has_the_figures_of_the_results():
    text = README.read_text("utf-8")
    assert fill(text, read_tables()) == text, "run python -m benchmarks.figures"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_figure_that_a_page_quotes_is_in_the_results(page):
    results = read_tables()
    for quote in re.findall(r"{{(.+?)}}", page.read_text("utf-8")):
        eval(quote.strip(), {"results": results})


def test_tables_are_numbered_and_rows_found_by_what_tells_them_apart(tmp_path):
    first = "| a | b |\n| --- | ---: |\n| one | 1 |\n| two | 2 |\n"
    second = "| c | d |\n| --- | ---: |\n| one | 1 |\n| one |  |\n"
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x.md").write_text(f"# title\n\n{first}\ntext\n\n{second}")
    assert read_tables(tmp_path) == {
        "below/x": {"one": {"a": "one", "b": "1"}, "two": {"a": "two", "b": "2"}},
        "below/x#2": {"one | 1": {"c": "one", "d": "1"}, "one | ": {"c": "one", "d": ""}},
    }


def test_the_comparison_is_of_ratios():
    row = {"closure-kmeans reaches it after, s": "2.50", "faster, ×": "40.4"}
    ours = {"time, s": "4", "distortion per row": "1,000", "closure-kmeans reaches it after, s": "–", "faster, ×": "–"}
    exact = row | {"time, s": "101", "distortion per row": "1,025"}
    guess = {"time, s": "≈ 400", "distortion per row": "–", "closure-kmeans reaches it after, s": "–"}
    table = {"closure-kmeans": ours, "faiss.Kmeans, all rows (exact Lloyd)": exact}
    few = {"closure-kmeans": ours, "superkmeans, hierarchical, all rows": guess | {"faster, ×": "fit 100"}}
    lines = format_comparison({"sift-2k": table, "sift-10k": few, "sift-100k": {"closure-kmeans": ours}}).splitlines()
    assert [line.split(" | ")[2:] for line in lines[2:]] == [
        ["4 s", "1,000", "–", "– |"],
        ["101 s", "+2.5 %", "2.50 s", "40× |"],
        ["4 s", "1,000", "–", "– |"],
        ["≈ 400 s", "–", "–", "100×, whole fit |"],
        ["4 s", "1,000", "–", "– |"],
    ]
