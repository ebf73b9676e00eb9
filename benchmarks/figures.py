"""Figures that the README and the pages quote, read from the tables in ``results``.

    python -m benchmarks.figures    # writes those of the README; run it after results have changed

A cell is found by the file of its table, the first cell of its row and the heading of its column. Pages of the site
quote it as ``{{ results["sift-10k"]["closure-kmeans"]["time, s"] }}``, filled in by Sphinx (``docs/conf.py``).
The README is read where nothing is built: its figures are between two comments, and this program writes them.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.results import FOLDER, markdown_table

README = FOLDER.parent.parent / "README.md"
BEGIN, END = "<!-- written by python -m benchmarks.figures -->\n", "\n<!-- end -->"

Table = dict[str, dict[str, str]]  # row -> column -> cell

REACHED = "closure-kmeans reaches it after, s"

OURS = "closure-kmeans"
EXPERIMENTS = {"sift-2k": "2,000", "sift-10k": "10,000", "sift-100k": "100,000"}
# Those of the README, by their titles in the tables.
METHODS = {
    OURS: "**`ClosureKMeans`**",
    "faiss.Kmeans, all rows (exact Lloyd)": "`faiss.Kmeans`: exact Lloyd, 25 iterations",
    "superkmeans, hierarchical, all rows": "`superkmeans`: hierarchical",
}


def read_tables(folder: Path = FOLDER) -> dict[str, Table]:
    """All tables in a folder, by the place of their file in it, without the suffix; "#2" follows for the second one."""
    tables = {}
    for path in sorted(folder.rglob("*.md")):
        name = path.relative_to(folder).with_suffix("").as_posix()
        for number, table in enumerate(re.findall(r"(?:^\|.*\n?)+", path.read_text("utf-8"), re.MULTILINE), 1):
            tables[name if number == 1 else f"{name}#{number}"] = read_table(table)
    return tables


def read_table(text: str) -> Table:
    """Rows by their first cells: as many as tell all rows apart, with " | " between them."""
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]
    width = next(n for n in range(1, len(header) + 1) if len({tuple(row[:n]) for row in rows}) == len(rows))
    return {" | ".join(row[:width]): dict(zip(header, row, strict=True)) for row in rows}


def format_comparison(results: dict[str, Table]) -> str:
    """The README's table: time and distortion of each method, and when ours reaches that distortion."""
    lines = []
    for experiment, n_clusters in EXPERIMENTS.items():
        table = results[experiment]
        best = as_number(table[OURS]["distortion per row"])
        for method, title in METHODS.items():
            if method not in table:
                continue
            row = table[method]
            distortion, reached, faster = (row[column] for column in ("distortion per row", REACHED, "faster, ×"))
            if method == OURS:
                distortion = f"{best:,.0f}"
            elif distortion != "–":
                distortion = f"+{100 * (as_number(distortion) / best - 1):.1f} %"
            if faster.startswith("fit "):
                faster = f"{faster.removeprefix('fit ')}×, whole fit"
            elif faster != "–":
                faster = f"{as_number(faster):,.{0 if as_number(faster) >= 10 else 1}f}×"
            reached = reached if reached == "–" else f"{reached} s"
            lines.append([n_clusters, title, f"{row['time, s']} s", distortion, reached, faster])
    header = ("clusters", "method", "time", "distortion", "`ClosureKMeans` reaches it after", "speed-up")
    return markdown_table(header, lines, n_left=2)


def as_number(cell: str) -> float:
    return float(cell.replace(",", "").removeprefix("≈ "))


def fill(text: str, results: dict[str, Table]) -> str:
    """The README with its figures written anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    million = results["million"]
    largest = (
        f"10,000,000 rows into 1,000,000 clusters take {million['time, s']['measured']} s and "
        f"{million['peak memory, GB']['measured']} GB of memory (`python -m benchmarks.million`)."
    )
    return f"{before}{BEGIN}\n{format_comparison(results)}\n\n{largest}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(fill(README.read_text("utf-8"), read_tables()), "utf-8")
