"""Repeat the paper's figures and tables: python -m benchmarks.paper [EXPERIMENT ...] [--profile quick]."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks import data, results
from benchmarks.job import Job, run_job
from benchmarks.paper.measure import MEASUREMENTS
from benchmarks.paper.plan import NAMES, PROFILES, Experiment, measurement_identity, read_experiment
from benchmarks.paper.report import describe, write_report
from benchmarks.results import Row, run_missing

FOLDER = results.FOLDER / "paper"


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    parser.add_argument(
        "experiments", nargs="*", metavar="EXPERIMENT", help=f"some of {', '.join(NAMES)}; default: all"
    )
    parser.add_argument("--profile", choices=PROFILES, default="quick", help="quick: minutes; full: the paper's sizes")
    data.add_data_option(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--fresh", action="store_true", help="redo finished runs")
    parsed = parser.parse_args(arguments)
    unknown = set(parsed.experiments) - set(NAMES)
    if unknown:
        parser.error(f"EXPERIMENT must be some of {', '.join(NAMES)}, got {', '.join(sorted(unknown))}")
    return parsed


def run_experiment(
    experiment: Experiment, path: Path, jobs: list[Job], run_fit: Callable[[Job], Row] = run_job, *, fresh: bool = False
) -> list[Row]:
    """Run the jobs that have no row yet; the rows of all. Each fit has a process of its own."""
    run = MEASUREMENTS.get(experiment.kind, run_fit)
    return run_missing(path, jobs, measurement_identity, run, fresh=fresh, describe=describe)


def main(arguments: list[str] | None = None) -> None:
    parsed = parse_arguments(arguments)
    for name in parsed.experiments or NAMES:
        experiment = read_experiment(name, parsed.profile, parsed.data)
        path = parsed.output / parsed.profile / f"{experiment.file_name}.jsonl"
        print(f"\n== {name}: {experiment.title}, section {experiment.section}", flush=True)
        for panel in experiment.panels:
            data.prepare(panel.data, panel.n_rows, parsed.data)
        jobs = experiment.jobs(parsed.threads)
        rows = run_experiment(experiment, path, jobs, fresh=parsed.fresh)
        print(f"\n{write_report(experiment, rows, path)}")


if __name__ == "__main__":
    main()
