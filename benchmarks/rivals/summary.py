"""A group of experiments in one table: methods against data, seconds and distortion against exact Lloyd.

python -m benchmarks.rivals.summary shapes [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from benchmarks.results import FOLDER, Row, markdown_table
from benchmarks.rivals.experiments import GROUPS
from benchmarks.rivals.methods import METHODS
from benchmarks.rivals.report import (
    INFINITY,
    LLOYD,
    OURS,
    by_method,
    comparable_rows,
    compare,
    fit_seconds,
    is_estimated,
    own_rows,
    percent,
)

NOTE = (
    "Time of the whole fit, and distortion against exact Lloyd: 25 iterations of `faiss.Kmeans` on all rows. “Lloyd "
    "after”: when closure-kmeans reaches the distortion of exact Lloyd. ≈: estimated from fewer iterations, so that "
    "there is no final distortion. –: not run, not done in time, or not possible. The table of each experiment has "
    "memory, versions and the machine."
)

Groups = dict[str, list[Row]]


def cell(method: str, groups: Groups) -> str:
    if method not in groups:
        return "–"
    group = own_rows(method, groups)
    seconds = f"{median(fit_seconds(row) for row in group):,.3g} s"
    if is_estimated(group[0]):
        return f"≈ {seconds}"
    if method == LLOYD or LLOYD not in groups or is_estimated(groups[LLOYD][0]):
        return seconds
    versus = compare(group, groups[LLOYD])
    text = f"{seconds}, {percent(versus.end)}"
    if method == OURS and versus.reach < INFINITY:
        text += f", Lloyd after {versus.reach * median(fit_seconds(row) for row in groups[LLOYD]):.2g} s"
    return text


def format_summary(name: str, folder: Path) -> str:
    """The table of a group, with what there is of more in the rows: methods or experiments."""
    found: dict[str, Groups] = {}
    for experiment in GROUPS[name]:
        path = folder / f"{experiment}.jsonl"
        if path.exists():
            found[experiment] = by_method(comparable_rows(path))
    methods = [method for method in METHODS if any(method in groups for groups in found.values())]
    titles = [METHODS[method].title for method in methods]
    table = [[describe(groups), *(cell(method, groups) for method in methods)] for groups in found.values()]
    header = ["rows and clusters", *titles]
    if len(methods) > len(found):
        header, *table = map(list, zip(header, *table, strict=True))
        header[0] = "method"
    return f"# {name}\n\n{markdown_table(header, table)}\n\n{NOTE}\n"


def describe(groups: Groups) -> str:
    row = next(iter(groups.values()))[0]
    return f"{row['data_title']}, into {row['n_clusters']:,} clusters"


def write_summary(name: str, folder: Path) -> str:
    text = format_summary(name, folder)
    (folder / f"{name}.md").write_text(text)
    return text


if __name__ == "__main__":
    print(write_summary(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER))
