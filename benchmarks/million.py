"""Ten million rows into a million clusters.

    python -m benchmarks.million [--quick] [--data PATH]

The rows are mixtures of near pairs of real SIFT descriptors, uint8, written once to a file of 1.3 GB and
memory-mapped; ``benchmarks.data.mixtures`` makes them. The peak memory is all that the process held during the fit:
the pages of the mapped file, the interpreter and the libraries included.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import data
from benchmarks.job import Job, identity, run_job
from benchmarks.results import FOLDER, Row, markdown_table, run_missing

N_ROWS, N_CLUSTERS = 10_000_000, 1_000_000
QUICK_SHARE = 50
MOST_SECONDS, MOST_BYTES = 240, 6e9


def format_report(row: Row) -> str:
    if "failed" in row:
        return f"failed: {row['failed']}"
    verdict = "yes" if row["n_rows"] == N_ROWS else "only at full size"
    checks = {
        "time, s": (f"{row['seconds']:,.1f}", row["seconds"] < MOST_SECONDS, f"under {MOST_SECONDS}"),
        "peak memory, GB": (f"{row['memory_peak'] / 1e9:.2f}", row["memory_peak"] < MOST_BYTES, "under 6"),
    }
    lines = [[name, value, goal, verdict if holds else "**no**"] for name, (value, holds, goal) in checks.items()]
    history = row["history"]
    return "\n\n".join(
        [
            f"# {row['data_title']}, into {row['n_clusters']:,} clusters",
            markdown_table(("quantity", "measured", "goal", "reached"), lines),
            f"{len(history)} iterations, the first one after {history[0]['seconds']:.1f} s; "
            f"stopped by: {row['stopped_by']}; "
            f"distortion {row['distortion']:,.6g} on {row['scored_rows']:,} rows, of its own labels "
            f"{row['labels_distortion']:,.6g}; {row['memory_beyond_input'] / row['n_rows']:.0f} bytes a row beyond "
            f"the memory before the fit, mapped pages included; {row['threads']} threads; "
            f"{row['machine']['cpu']}, {row['machine']['memory_gb']:g} GB.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.million", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK_SHARE} of the rows and clusters")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--score-rows", type=int)
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--fresh", action="store_true", help="redo finished runs")
    arguments = parser.parse_args()
    share = QUICK_SHARE if arguments.quick else 1
    path = arguments.output / f"million{'-quick' if arguments.quick else ''}.jsonl"
    jobs = [
        Job(
            method="ours-uint8",
            data="mixtures",
            n_rows=N_ROWS // share,
            n_clusters=N_CLUSTERS // share,
            threads=arguments.threads,
            source=arguments.data,
            repeat=repeat,
            seed=repeat + 1,
            score_rows=arguments.score_rows,
            memory_mapped=True,
        )
        for repeat in range(arguments.repeats)
    ]
    data.prepare("mixtures", N_ROWS // share, arguments.data)
    rows = run_missing(path, jobs, identity, run_job, fresh=arguments.fresh)
    text = "\n\n".join(format_report(row) for row in rows) + "\n"
    path.with_suffix(".md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
