"""Repeat the paper's figures and tables: python -m benchmarks.paper [EXPERIMENT ...] [--profile quick]."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import data, results
from benchmarks.job import run_job
from benchmarks.paper.measure import MEASUREMENTS
from benchmarks.paper.plan import NAMES, PROFILES, Experiment, measurement_identity, read_experiment
from benchmarks.paper.report import describe, write_report
from benchmarks.results import run_missing

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


def run_experiment(experiment: Experiment, path: Path, threads: int, source: str | None, *, fresh: bool) -> str:
    """Run what is missing, and write the table and the picture beside the results; the table."""
    for panel in experiment.panels:
        data.prepare(panel.data, panel.n_rows, source)
    jobs = experiment.jobs(threads, source)
    run = MEASUREMENTS.get(experiment.kind, run_job)
    rows = run_missing(path, jobs, measurement_identity, run, fresh=fresh, describe=describe)
    return write_report(experiment, rows, path, source)


def main(arguments: list[str] | None = None) -> None:
    parsed = parse_arguments(arguments)
    for name in parsed.experiments or NAMES:
        experiment = read_experiment(name, parsed.profile, parsed.data)
        suffix = "-stand-in" if experiment.is_stand_in(parsed.data) else ""
        path = parsed.output / parsed.profile / f"{name}{suffix}.jsonl"
        print(f"\n== {name}: {experiment.title}, section {experiment.section}", flush=True)
        print(f"\n{run_experiment(experiment, path, parsed.threads, parsed.data, fresh=parsed.fresh)}")


if __name__ == "__main__":
    main()
