"""Run an experiment, or a group of them: python -m benchmarks.rivals EXPERIMENT [--quick]."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.data import add_data_option, prepare
from benchmarks.job import Job, identity, run_job
from benchmarks.results import FOLDER, run_missing
from benchmarks.rivals.experiments import EXPERIMENTS, GROUPS, Experiment, own_experiment
from benchmarks.rivals.methods import METHODS
from benchmarks.rivals.report import write_report
from benchmarks.rivals.summary import write_summary


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("experiment", choices=[*EXPERIMENTS, *GROUPS, "own"], help="own: a file of your own")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows and clusters, one repeat")
    add_data_option(parser)
    parser.add_argument("--clusters", type=int, default=1000, help="number of clusters of the experiment 'own'")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, help="default: 2, and 1 for quick runs")
    parser.add_argument(
        "--first-repeat",
        type=int,
        default=0,
        metavar="N",
        help="number of the first repeat: one that no result has yet adds runs of another session, "
        "which are compared with each other only",
    )
    parser.add_argument("--methods", help=f"some of {', '.join(METHODS)}")
    parser.add_argument("--iterations", type=int, help="of exact Lloyd, instead of 25; times are then estimated")
    parser.add_argument("--score-rows", type=int, help="score so many seeded rows; default: as many as is reasonable")
    parser.add_argument("--timeout", type=float, default=7200, help="seconds after which a run is stopped")
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--fresh", action="store_true", help="redo finished runs")
    return parser.parse_args()


def choose_experiments(arguments: argparse.Namespace) -> list[Experiment]:
    source = arguments.data
    if arguments.experiment == "own":
        chosen = [own_experiment(source, arguments.clusters)]
    else:
        chosen = [EXPERIMENTS[name] for name in GROUPS.get(arguments.experiment, [arguments.experiment])]
    if arguments.quick:
        chosen = [experiment.quick() for experiment in chosen]
    return [experiment.on_available_rows(source) for experiment in chosen]


def plan(experiment: Experiment, arguments: argparse.Namespace) -> list[Job]:
    """All runs, every other repeat in the opposite order."""
    methods = arguments.methods.split(",") if arguments.methods else list(experiment.methods)
    unknown = set(methods) - set(METHODS)
    if unknown:
        raise SystemExit(f"--methods must be some of {', '.join(METHODS)}, got {', '.join(sorted(unknown))}")
    n_repeats = arguments.repeats or (1 if arguments.quick else 2)
    jobs = []
    for repeat in range(arguments.first_repeat, arguments.first_repeat + n_repeats):
        for method in methods if repeat % 2 == 0 else reversed(methods):
            job = experiment.job(method, repeat, arguments.threads, arguments.data, arguments.score_rows)
            if arguments.iterations and METHODS[method].iterates:
                job = replace(job, iterations=arguments.iterations)
            jobs.append(replace(job, timeout=min(arguments.timeout, job.timeout or arguments.timeout)))
    return jobs


def main() -> None:
    arguments = parse_arguments()
    for experiment in choose_experiments(arguments):
        path = arguments.output / f"{experiment.name}.jsonl"
        print(f"\n== {experiment.name}: {experiment.n_rows:,} rows into {experiment.n_clusters:,} clusters", flush=True)
        prepare(experiment.data, experiment.n_rows, arguments.data)
        run_missing(path, plan(experiment, arguments), identity, run_job, fresh=arguments.fresh)
        print(f"\n{write_report(path)}")
    if arguments.experiment in GROUPS and not arguments.quick:
        print(f"\n{write_summary(arguments.experiment, arguments.output)}")


if __name__ == "__main__":
    main()
