"""Time to the distortion of exact Lloyd, and time of a whole fit, against the time of exact Lloyd, in one run.

    python -m benchmarks.lloyd [--clusters 1000 2000 10000 100000] [--data PATH]

Lloyd is ``faiss.Kmeans`` on all rows. Up to 1,000 clusters it runs its 25 iterations; beyond, some of them, which all
take the same time, and 25 are estimated from these. The distortion that it ends at is then that of ``faiss`` in the
committed results of ``benchmarks.rivals``, which ran them all; where there is none, only whole fits are compared. A fit
is run as the processor allows and, as on processors without AVX-512, with AVX2 only.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from unittest import mock

from benchmarks import data
from benchmarks.job import LLOYD_ITERATIONS, Job, identity, run_job
from benchmarks.results import FOLDER, Row, markdown_table, read_rows, run_missing
from benchmarks.rivals.report import INFINITY, time_to_reach

OURS, LLOYD = "ours-uint8", "faiss"
ALL_FEATURES, AVX2 = "all features", "AVX2 only"
AVX2_ENVIRONMENT = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx2,+fma",
    "OPENBLAS_CORETYPE": "Haswell",
}
# Products of pairs of row and centre that an estimate may take, and rows that are scored.
MOST_PAIRS, SCORED_ROWS = 2.5e10, 20_000


def run(job: Job) -> Row:
    with mock.patch.dict(os.environ, AVX2_ENVIRONMENT if job.label == AVX2 else {}):
        return run_job(job)


def jobs_of(n_clusters: int, n_rows: int, source: str | None, threads: int, repeats: int) -> list[Job]:
    """Lloyd first, then ours in turns."""
    few = max(1, min(LLOYD_ITERATIONS, int(MOST_PAIRS / (n_rows * n_clusters))))
    common = {"data": "sift", "n_rows": n_rows, "n_clusters": n_clusters, "threads": threads, "source": source}
    lloyd = Job(method=LLOYD, iterations=few, score_rows=SCORED_ROWS if few < LLOYD_ITERATIONS else None, **common)
    ours = [
        Job(method=OURS, label=label, repeat=repeat, seed=repeat + 1, **common)
        for repeat in range(repeats)
        for label in (ALL_FEATURES, AVX2)[:: 1 if repeat % 2 == 0 else -1]
    ]
    return [lloyd, *ours]


def final_distortion(lloyd: Row) -> float | None:
    """The distortion that Lloyd ends at: of this run, or of the committed results."""
    if lloyd["iterations"] == LLOYD_ITERATIONS:
        return lloyd["distortion"]
    same = ("method", "data_title", "n_clusters", "iterations")
    wanted = [{**lloyd, "iterations": LLOYD_ITERATIONS}[name] for name in same]
    for path in sorted(FOLDER.glob("sift-*.jsonl")):
        for row in read_rows(path):
            if "distortion" in row and [row[name] for name in same] == wanted:
                return row["distortion"]
    return None


def table_lines(rows: Sequence[Row]) -> list[list[str]]:
    lines = []
    for lloyd in rows:
        if lloyd["method"] != LLOYD or "distortion" not in lloyd:
            continue
        seconds, target = lloyd["estimated_seconds"] or lloyd["seconds"], final_distortion(lloyd)
        estimated = "" if lloyd["iterations"] == LLOYD_ITERATIONS else f" (from {lloyd['iterations']})"
        for label in (ALL_FEATURES, AVX2):
            ours = [row for row in rows if row["label"] == label and row["n_clusters"] == lloyd["n_clusters"]]
            ours = [row for row in ours if "distortion" in row]
            if not ours:
                continue
            reached = INFINITY if target is None else median(time_to_reach(row, target) for row in ours)
            whole = median(row["seconds"] for row in ours)
            lines.append(
                [
                    f"{lloyd['n_clusters']:,}",
                    label,
                    f"{seconds:,.0f}{estimated}",
                    "–" if target is None else f"{target:,.6g}",
                    *(["–", "–"] if reached == INFINITY else [f"{reached:.2f}", f"{seconds / reached:.0f}"]),
                    f"{whole:.2f}",
                    f"{seconds / whole:.0f}",
                    f"{median(row['distortion'] for row in ours):,.6g}",
                ]
            )
    return lines


HEADER = (
    "clusters",
    "processor features in use",
    "exact Lloyd, 25 iterations, s",
    "final distortion of Lloyd, per row",
    "closure-kmeans reaches it after, s",
    "faster to that distortion, ×",
    "whole fit of closure-kmeans, s",
    "faster as a whole fit, ×",
    "final distortion of closure-kmeans, per row",
)
NOTE = (
    "Exact Lloyd: `faiss.Kmeans` on all rows. “(from 12)”: the time is estimated from 12 iterations, and the final "
    "distortion is that of a full run in the results of `benchmarks.rivals`. –: not measured. “AVX2 only”: as on "
    "processors without AVX-512."
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lloyd", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--clusters", type=int, nargs="+", default=[1000, 2000, 10_000, 100_000])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--fresh", action="store_true", help="redo finished runs")
    arguments = parser.parse_args()
    n_rows = min(arguments.rows, data.count_sift(arguments.data))
    jobs = [
        job
        for k in arguments.clusters
        for job in jobs_of(k, n_rows, arguments.data, arguments.threads, arguments.repeats)
    ]
    path = arguments.output / "lloyd.jsonl"
    run_missing(path, jobs, identity, run, fresh=arguments.fresh)
    rows = [row for row in read_rows(path) if row["n_rows"] == n_rows and row["threads"] == arguments.threads]
    title = f"# Against the time of exact Lloyd\n\n{jobs[0].as_row()['data_title']}; {arguments.threads} threads."
    text = f"{title}\n\n{markdown_table(HEADER, table_lines(rows), n_left=2)}\n\n{NOTE}\n"
    path.with_suffix(".md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
