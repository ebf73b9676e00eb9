"""Beyond one machine: quality, bytes, costs, kills and a rival.

    python -m benchmarks.scale quality     # 1M x 128 into 10,000, on 1 to 16 partitions and on one machine; bytes too
    python -m benchmarks.scale replicas    # partitions that a cluster has points in
    python -m benchmarks.scale entered     # quality against how widely centres are entered
    python -m benchmarks.scale costs       # the constants of the model
    python -m benchmarks.scale rival       # against dask-ml's KMeans
    python -m benchmarks.scale kills       # twenty workers and five drivers killed
    python -m benchmarks.scale report      # the tables, and the model's answer for a billion rows

Each appends to ``results/scale/COMMAND.jsonl``; runs that are there are not repeated, unless ``--fresh`` is given.
``--quick`` takes 1/50 of rows and clusters. Let nothing else run meanwhile: ``quality`` counts what goes over the
loopback device, and takes times.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, Row, append_row, read_rows
from benchmarks.scale import costs, kills, report, rival, runs

N_ROWS, N_CLUSTERS, SEED = 1_000_000, 10_000, 0
PARTITIONS = (0, 1, 2, 4, 8, 16)  # 0 is ClosureKMeans, on one machine
# Partitions, clusters. A hundred machines that cluster a billion rows have 625 clusters a partition, a thousand 62.
SPREAD = ((4, 2_500), (16, 10_000), (64, 40_000), (160, 10_000))
SPREAD_ITERATIONS = 10
# The same: 100 points a cluster as in the runs of quality, and 1,000 as in a billion rows.
TASKS = ((1, 10_000), (2, 10_000), (4, 10_000), (8, 10_000), (16, 10_000), (16, 1_000))
PIECES_ENTERED = (0, 8, 16, 32, 64)  # 0 is ClosureKMeans
ENTERED_SHARE = 5  # of rows and clusters: one core does it
RIVAL_CLUSTERS = (100, 1_000)
QUICK_SHARE = 50
TIMES = ("seconds", "iteration_seconds", "seconds_undisturbed")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("command", choices=[*COMMANDS, "report"])
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK_SHARE} of the rows and clusters")
    parser.add_argument("--busy", action="store_true", help="something else is running: keep no times")
    parser.add_argument("--fresh", action="store_true", help="redo finished runs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, nargs=2, metavar=("WORKERS", "DRIVERS"), help="default: 20 5, quick: 2 1")
    parser.add_argument("--output", type=Path, default=FOLDER / "scale", metavar="FOLDER")
    arguments = parser.parse_args()
    suffix = "-quick" if arguments.quick else ""
    if arguments.command == "report":
        print(report.write(arguments.output, COMMANDS, suffix))
        return
    runs.limit_threads()
    results = arguments.output / f"{arguments.command}{suffix}.jsonl"
    if arguments.fresh:
        results.unlink(missing_ok=True)
    for job, run in COMMANDS[arguments.command](arguments, QUICK_SHARE if arguments.quick else 1):
        job |= {"busy": arguments.busy}
        if any(row.items() >= job.items() for row in read_rows(results)):
            continue
        row = job | run()
        if arguments.busy:
            row = {name: value for name, value in row.items() if name not in TIMES}
        append_row(results, row | {"machine": describe_machine(), "versions": describe_versions()})
        print(row, flush=True)


Job = tuple[Row, Callable[[], Row]]  # what tells a run apart, and the run


def quality(arguments: Any, share: int) -> list[Job]:
    """Also the largest number of partitions on one worker, which must end in the same bytes."""
    n_clusters = N_CLUSTERS // share
    sizes = [(n_partitions, arguments.workers) for n_partitions in PARTITIONS] + [(max(PARTITIONS), 1)]
    return [fit_job(arguments, share, n_partitions, n_clusters, n_workers) for n_partitions, n_workers in sizes]


def replicas(arguments: Any, share: int) -> list[Job]:
    return [
        fit_job(arguments, share, n_partitions, n_clusters // share, arguments.workers, SPREAD_ITERATIONS)
        for n_partitions, n_clusters in SPREAD
    ]


def fit_job(arguments: Any, share: int, n_partitions: int, n_clusters: int, n_workers: int, max_iter: int = 100) -> Job:
    path = runs.source_file(N_ROWS // share, arguments.data)
    job = {"partitions": n_partitions, "n_clusters": n_clusters, "n_rows": N_ROWS // share, "workers": n_workers}
    if n_partitions == 0:
        return job, partial(runs.one_machine, path, n_clusters, SEED)
    return job, partial(runs.on_cluster, path, n_clusters, n_partitions, n_workers, SEED, max_iter)


def entered(arguments: Any, share: int) -> list[Job]:
    """In results the number of pieces has its name of version 0.1, ``n_cells``."""
    n_rows, n_clusters = (size // share // ENTERED_SHARE for size in (N_ROWS, N_CLUSTERS))
    path = runs.source_file(n_rows, arguments.data)
    return [
        (
            {"n_cells": n_pieces, "n_clusters": n_clusters, "n_rows": n_rows, "partitions": max(PARTITIONS)},
            partial(runs.with_entered, path, n_clusters, max(PARTITIONS), n_pieces, SEED),
        )
        for n_pieces in PIECES_ENTERED
    ]


def measure_costs(arguments: Any, share: int) -> list[Job]:
    path = runs.source_file(N_ROWS // share, arguments.data)
    n_workers = arguments.workers
    jobs: list[Job] = [
        (
            {"what": "driver", "n_clusters": 10 * N_CLUSTERS // share, "width": 128},
            partial(costs.measure_driver, 10 * N_CLUSTERS // share, 128),
        ),
        ({"what": "cluster", "workers": n_workers}, partial(costs.measure_cluster, n_workers)),
    ]
    for n_partitions, n_clusters in ((n_partitions, n_clusters // share) for n_partitions, n_clusters in TASKS):
        sizes = {"partitions": n_partitions, "n_clusters": n_clusters, "n_rows": N_ROWS // share, "workers": n_workers}
        jobs.append(
            ({"what": "tasks"} | sizes, partial(costs.measure_tasks, path, n_clusters, n_partitions, n_workers))
        )
    return jobs


def run_rival(arguments: Any, share: int) -> list[Job]:
    path = runs.source_file(N_ROWS // share, arguments.data)
    jobs: list[Job] = []
    for n_clusters, method in product((max(2, n_clusters // share) for n_clusters in RIVAL_CLUSTERS), rival.METHODS):
        job = {"method": method, "n_clusters": n_clusters, "n_rows": N_ROWS // share, "workers": arguments.workers}
        jobs.append((job, partial(rival.run, path, method, n_clusters, 16, arguments.workers)))
    return jobs


def run_kills(arguments: Any, share: int) -> list[Job]:
    """Of the embedded rows, whatever the share: what is killed counts here, and not how much it was at work on."""
    n_workers, n_drivers = arguments.kills or ((2, 1) if arguments.quick else (20, 5))
    return [
        ({"killed": "worker", "n_kills": n_workers}, partial(kills.kill_workers, n_workers)),
        ({"killed": "driver", "n_kills": n_drivers}, partial(kills.kill_drivers, n_drivers)),
    ]


COMMANDS: dict[str, Callable[[Any, int], list[Job]]] = {
    "quality": quality,
    "replicas": replicas,
    "entered": entered,
    "costs": measure_costs,
    "rival": run_rival,
    "kills": run_kills,
}

if __name__ == "__main__":
    main()
