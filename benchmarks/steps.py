"""What each named step of the algorithm brings: the default with one thing changed at a time.

python -m benchmarks.steps [--quick] [--data PATH] [--clusters K]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import data
from benchmarks.job import Job, identity, run_job
from benchmarks.results import FOLDER, Row, markdown_table, run_missing
from benchmarks.rivals.report import INFINITY, pair_repeats, signed, time_to_reach
from closure_kmeans.trees import suitable_leaf_size

DEFAULT = "default"
FIRST_TREE = "a tree over all points in the first iteration"  # by asking for the leaves of the other iterations
VARIATIONS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "kept trees, not fresh ones": {"neighborhoods": "kept"},
    "Lloyd's rule, not Hartigan's": {"rule": "lloyd"},
    "centres not extrapolated": {"extrapolate": False},
    FIRST_TREE: {},
    "leaves not grown for accuracy": {"target_accuracy": 0},
    "tol 0.002": {"tol": 0.002},
    "tol 0.0001": {"tol": 0.0001},
    "leaves of 128": {"leaf_size": 128},
    "leaves of 512": {"leaf_size": 512},
    "trees in 8 dimensions": {"tree_dims": 8},
    "trees in 24 dimensions": {"tree_dims": 24},
    "trees in 32 dimensions": {"tree_dims": 32},
    "trees in all dimensions": {"tree_dims": None},
    "random start": {"init": "random"},
    "none of the three": {"neighborhoods": "kept", "rule": "lloyd", "extrapolate": False},
    # Last: as the paper has it, which is the line above with leaves of 10 points and trees in all dimensions.
    "the paper's mode": {
        "neighborhoods": "kept",
        "rule": "lloyd",
        "extrapolate": False,
        "leaf_size": 10,
        "tree_dims": None,
    },
}


def format_table(rows: list[Row]) -> str:
    groups: dict[str, list[Row]] = {label: [row for row in rows if row["label"] == label] for label in VARIATIONS}
    default = [row for row in groups[DEFAULT] if "distortion" in row]
    lines = []
    for label, group in groups.items():
        done = [row for row in group if "distortion" in row]
        if not done or not default:
            lines += [[label, *["–"] * 5, row["failed"]] for row in group if "failed" in row]
            continue
        pairs = list(pair_repeats(default, done))
        lines.append(
            [
                label,
                f"{median(len(row['history']) for row in done):g}",
                f"{median(row['seconds'] for row in done):,.2f}",
                f"{median(row['distortion'] for row in done):,.6g}",
                signed(median(b["distortion"] / a["distortion"] for a, b in pairs)),
                seconds_or_never(median(time_to_reach(a, b["distortion"]) for a, b in pairs)),
                seconds_or_never(median(time_to_reach(b, a["distortion"]) for a, b in pairs)),
            ]
        )
    header = (
        "variation",
        "iterations",
        "time, s",
        "distortion per row",
        "against the default, %",
        "the default reaches it after, s",
        "reaches the default's after, s",
    )
    return markdown_table(header, lines)


def seconds_or_never(seconds: float) -> str:
    return "never" if seconds == INFINITY else f"{seconds:,.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help="at most 100,000 rows, and clusters to keep n/k")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--clusters", type=int, default=10_000)
    parser.add_argument("--method", default="ours-uint8", choices=("ours", "ours-uint8"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--fresh", action="store_true", help="redo finished runs")
    arguments = parser.parse_args()
    wanted = min(arguments.rows, 100_000) if arguments.quick else arguments.rows
    n_rows = min(wanted, data.count_sift(arguments.data))
    n_clusters = max(2, arguments.clusters * n_rows // arguments.rows)
    variations = VARIATIONS | {FIRST_TREE: {"leaf_size": suitable_leaf_size(n_rows, n_clusters)}}
    jobs = [
        Job(
            method=arguments.method,
            data="sift",
            n_rows=n_rows,
            n_clusters=n_clusters,
            threads=arguments.threads,
            source=arguments.data,
            repeat=repeat,
            seed=repeat + 1,
            parameters=variations[label],
            label=label,
        )
        for repeat in range(arguments.repeats)
        for label in (VARIATIONS if repeat % 2 == 0 else reversed(VARIATIONS))
    ]
    path = arguments.output / f"steps-{n_rows}-{n_clusters}.jsonl"
    rows = run_missing(path, jobs, identity, run_job, fresh=arguments.fresh)
    title = f"# What each step brings\n\n{jobs[0].as_row()['data_title']}, into {n_clusters:,} clusters."
    text = f"{title}\n\n{format_table(rows)}\n"
    path.with_suffix(".md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
