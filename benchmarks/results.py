"""Results are JSON lines: one line a run, appended as soon as it ends, so that an interrupted benchmark goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

FOLDER = Path(__file__).resolve().parent / "results"


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def append_row(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def forget(path: Path, is_old: Callable[[Row], bool]) -> None:
    rows = [row for row in read_rows(path) if not is_old(row)]
    path.unlink(missing_ok=True)
    for row in rows:
        append_row(path, row)


def run_missing(
    path: Path,
    jobs: Iterable[Any],
    key: Callable[[Row], Sequence[Any]],
    run: Callable[[Any], Row],
    *,
    fresh: bool,
    describe: Callable[[Row], str] | None = None,
) -> list[Row]:
    """Run the jobs that have no row yet, in their order; the rows of all jobs. Failed runs are tried again.

    ``key`` of a row tells runs apart; a job's own fields are the first part of its row. ``fresh`` forgets the rows that
    the jobs have. ``describe`` says in a line what a row shows.
    """
    jobs = list(jobs)
    planned = [key(job.as_row()) for job in jobs]
    if fresh:
        forget(path, lambda row: key(row) in planned)
    done = [key(row) for row in read_rows(path) if "failed" not in row]
    for job, job_key in zip(jobs, planned, strict=True):
        if job_key in done:
            continue
        row = run(job)
        append_row(path, row)
        print((describe or summary)(row), flush=True)
    return latest([row for row in read_rows(path) if key(row) in planned], key)


def latest(rows: list[Row], key: Callable[[Row], Sequence[Any]]) -> list[Row]:
    """One row a run: the last one written."""
    return list({json.dumps(key(row)): row for row in rows}.values())


def summary(row: Row) -> str:
    sizes = f"n = {row['n_rows']:<10,} k = {row['n_clusters']:<9,} repeat {row['repeat']}"
    name = f"{row['label'] or row['method']:28} {sizes}"
    for kind in ("failed", "left_out"):
        if kind in row:
            return f"{name}  {kind.replace('_', ' ')}: {row[kind]}"
    return (
        f"{name}  {row['seconds']:9.2f} s  distortion {row['distortion']:12,.6g}"
        f"  {row['memory_beyond_input'] / 1e6:8,.0f} MB beyond the input"
    )


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]], *, n_left: int = 1) -> str:
    """The first ``n_left`` columns are aligned to the left, all others to the right."""
    rules = [*["---"] * n_left, *["---:"] * (len(header) - n_left)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rules, *lines))
