"""What balanced clusters cost: fits with ``max_size`` against one without.

python -m benchmarks.balance [--quick] [--data PATH]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, append_row, markdown_table
from benchmarks.rivals.report import signed
from closure_kmeans import ClosureKMeans
from closure_kmeans.datasets import load_sift

N_ROWS, N_CLUSTERS = 1_000_000, 10_000
QUICK_SHARE = 10
# Targets, in mean sizes; none is the fit to compare with.
TARGETS = (None, 3.0, 2.0, 1.5, 1.2, 1.1)
HEADER = (
    "`max_size`, mean sizes",
    "largest cluster, mean sizes",
    "distortion per row",
    "against no limit, %",
    "iterations",
    "stopped by",
)


def fit(X: data.Rows, n_clusters: int, target: float | None, threads: int) -> dict[str, Any]:
    mean_size = len(X) / n_clusters
    max_size = None if target is None else target * mean_size
    model = ClosureKMeans(n_clusters, max_size=max_size, random_state=0, n_threads=threads).fit(X)
    return {
        "target": target,
        "largest": float(model.cluster_sizes_.max() / mean_size),
        "distortion": model.inertia_ / len(X),
        "iterations": model.n_iter_,
        "stopped_by": model.stopped_by_,
    }


def format_line(row: dict[str, Any], free: dict[str, Any]) -> list[str]:
    return [
        "none" if row["target"] is None else f"{row['target']:g}",
        f"{row['largest']:.2f}",
        f"{row['distortion']:,.0f}",
        "–" if row is free else signed(row["distortion"] / free["distortion"]),
        str(row["iterations"]),
        row["stopped_by"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.balance", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK_SHARE} of the rows and clusters")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    share = QUICK_SHARE if arguments.quick else 1
    X, n_clusters = data.load("sift", N_ROWS // share, arguments.data), N_CLUSTERS // share
    ClosureKMeans(200, random_state=0).fit(load_sift())  # compiled code is no part of it
    rows: list[dict[str, Any]] = []
    job = {"n_rows": len(X), "n_clusters": n_clusters, "threads": arguments.threads}
    path = arguments.output / f"balance{'-quick' if arguments.quick else ''}.jsonl"
    path.unlink(missing_ok=True)
    for target in TARGETS:
        rows.append(fit(X, n_clusters, target, arguments.threads))
        append_row(path, job | rows[-1] | {"machine": describe_machine(), "versions": describe_versions()})
        print(rows[-1], flush=True)
    title = f"# Balanced clusters: {len(X):,} SIFT descriptors into {n_clusters:,}"
    text = f"{title}\n\n{markdown_table(HEADER, [format_line(row, rows[0]) for row in rows])}\n"
    path.with_suffix(".md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
