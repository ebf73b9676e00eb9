"""What an iteration costs, over the number of clusters and over the number of rows.

    python -m benchmarks.scaling [--quick] [--data PATH]

Three tables: k from 1,000 to 100,000 on the same million rows, n from 100,000 to 10 million at the same k, and at the
same n/k. Default settings, but for a fixed number of iterations.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from statistics import median

from benchmarks import data
from benchmarks.job import Job, identity, run_job
from benchmarks.results import FOLDER, Row, markdown_table, run_missing

N_ITERATIONS = 8
CLUSTERS = (1_000, 3_000, 10_000, 30_000, 100_000)
ROWS = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
FIXED_ROWS = 1_000_000
FIXED_CLUSTERS = 10_000
ROWS_PER_CLUSTER = 100
QUICK_SHARE = 50


def plan(arguments: argparse.Namespace) -> dict[str, list[Job]]:
    share = QUICK_SHARE if arguments.quick else 1
    n_rows = min(FIXED_ROWS // share, data.count_sift(arguments.data))
    common = Job(
        method=arguments.method,
        data="sift",
        n_rows=n_rows,
        n_clusters=0,
        threads=arguments.threads,
        source=arguments.data,
        parameters={"max_iter": N_ITERATIONS, "tol": 0.0},
        score_rows=10_000,
    )
    sizes = [rows // share for rows in ROWS if rows <= arguments.largest]
    tables = {
        "over clusters": [
            replace(common, n_clusters=max(2, n_clusters * n_rows // FIXED_ROWS)) for n_clusters in CLUSTERS
        ],
        "over rows": [
            replace(common, data="mixtures", n_rows=rows, n_clusters=FIXED_CLUSTERS // share) for rows in sizes
        ],
        "over rows and clusters": [
            replace(common, data="mixtures", n_rows=rows, n_clusters=rows // ROWS_PER_CLUSTER) for rows in sizes
        ],
    }
    return {
        label: [
            replace(job, label=label, repeat=repeat, seed=repeat + 1)
            for repeat in range(arguments.repeats)
            for job in jobs
        ]
        for label, jobs in tables.items()
    }


def iteration_seconds(row: Row) -> float:
    """The median iteration; the first one holds the set-up."""
    return median(after["seconds"] - before["seconds"] for before, after in pairwise(row["history"]))


def format_table(rows: list[Row]) -> str:
    """The cost of an iteration, and of a row in it, relative to the first line."""
    groups: dict[tuple[int, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["n_rows"], row["n_clusters"])):
        if "history" in row:
            groups.setdefault((row["n_rows"], row["n_clusters"]), []).append(row)
    lines = []
    base = None
    for (n_rows, n_clusters), group in groups.items():
        seconds = median(iteration_seconds(row) for row in group)
        first = median(row["history"][0]["seconds"] for row in group)
        base = base or seconds / n_rows
        lines.append(
            [
                f"{n_rows:,}",
                f"{n_clusters:,}",
                f"{seconds:.3f}",
                f"{1e9 * seconds / n_rows:.0f}",
                f"{seconds / n_rows / base:.2f}",
                f"{first:.2f}",
                f"{group[0]['history'][-1]['n_candidates']:.0f}",
                f"{max(row['memory_beyond_input'] for row in group) / 1e6:,.0f}",
            ]
        )
    header = (
        "rows",
        "clusters",
        "iteration, s",
        "per row, ns",
        "per row, relative",
        "first result after, s",
        "candidates per row",
        "memory beyond the input, MB",
    )
    return markdown_table(header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK_SHARE} of all sizes")
    parser.add_argument("--largest", type=int, default=max(ROWS), help="largest number of rows, before --quick")
    parser.add_argument("--method", default="ours-uint8", choices=("ours", "ours-uint8"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--fresh", action="store_true", help="redo finished runs")
    arguments = parser.parse_args()
    path = arguments.output / f"scaling{'-quick' if arguments.quick else ''}.jsonl"
    jobs = plan(arguments)
    all_jobs = list(chain.from_iterable(jobs.values()))
    for job in all_jobs:
        data.prepare(job.data, job.n_rows, job.source)
    rows = run_missing(path, all_jobs, identity, run_job, fresh=arguments.fresh)
    parts = ["# Cost of an iteration"]
    for label in jobs:
        chosen = [row for row in rows if row["label"] == label]
        titles = " and ".join(sorted({row["data_title"].partition(" ")[2] for row in chosen}))
        parts += [f"## {label}\n\n{titles}; {arguments.threads} threads.", format_table(chosen)]
    text = "\n\n".join(parts) + "\n"
    path.with_suffix(".md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
