"""Beyond one machine: quality, bytes, costs, kills and a rival.

    python -m benchmarks.scale quality     # 1M x 128 into 10,000, on 2 to 16 partitions and on one machine; bytes too
    python -m benchmarks.scale replicas    # partitions that a cluster has points in, at 600 clusters a partition
    python -m benchmarks.scale costs       # the constants of the model
    python -m benchmarks.scale rival       # against dask-ml's KMeans
    python -m benchmarks.scale kills       # twenty workers and five drivers killed
    python -m benchmarks.scale report      # the tables, and the model's answer for a billion rows

Each appends to ``results/scale/COMMAND.jsonl``; runs that are there are not repeated. ``--quick`` takes 1/50 of rows
and clusters. Let nothing else run meanwhile: ``quality`` counts what goes over the loopback device, and takes times.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, Row, append_row, read_rows
from benchmarks.scale import costs, kills, report, rival, runs

N_ROWS, N_CLUSTERS = 1_000_000, 10_000
PARTITIONS = (0, 1, 2, 4, 8, 16)  # 0 is ClosureKMeans, on one machine
SAME_DENSITY = ((4, 2_500), (16, 10_000), (64, 40_000))  # partitions, clusters
RIVAL_CLUSTERS = (100, 1_000)
QUICK_SHARE = 50
TIMES = ("seconds", "iteration_seconds", "seconds_undisturbed")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("command", choices=[*report.COMMANDS, "report"])
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK_SHARE} of the rows and clusters")
    parser.add_argument("--busy", action="store_true", help="something else is running: keep no times")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--partitions", type=int, nargs="*", default=PARTITIONS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, nargs=2, metavar=("WORKERS", "DRIVERS"), help="default: 20 5, quick: 2 1")
    parser.add_argument("--output", type=Path, default=FOLDER / "scale", metavar="FOLDER")
    arguments = parser.parse_args()
    suffix = "-quick" if arguments.quick else ""
    if arguments.command == "report":
        print(report.write(arguments.output, suffix))
        return
    runs.limit_threads()
    share = QUICK_SHARE if arguments.quick else 1
    path = runs.source_file(N_ROWS // share, arguments.data)
    results = arguments.output / f"{arguments.command}{suffix}.jsonl"
    for job, run in COMMANDS[arguments.command](arguments, path, share):
        job |= {"busy": arguments.busy}
        if any(row.items() >= job.items() for row in read_rows(results)):
            continue
        for row in run():
            if arguments.busy:
                row = {name: value for name, value in row.items() if name not in TIMES}
            complete = job | row | {"machine": describe_machine(), "versions": describe_versions()}
            append_row(results, complete)
            print({**job, **row}, flush=True)


Jobs = list[tuple[Row, Callable[[], list[Row]]]]


def quality(arguments: Any, path: Path, share: int) -> Jobs:
    def run(n_partitions: int, n_clusters: int, max_iter: int = 100) -> Callable[[], list[Row]]:
        if n_partitions == 0:
            return lambda: [runs.one_machine(path, n_clusters, arguments.seed)]
        return lambda: [
            runs.on_cluster(path, n_clusters, n_partitions, arguments.workers, arguments.seed, max_iter=max_iter)
        ]

    common = {"n_rows": N_ROWS // share, "seed": arguments.seed, "workers": arguments.workers}
    if arguments.command == "replicas":
        sizes = [(n_partitions, n_clusters // share, 10) for n_partitions, n_clusters in SAME_DENSITY]
    else:
        sizes = [(n_partitions, N_CLUSTERS // share, 100) for n_partitions in arguments.partitions]
    return [
        ({"partitions": n_partitions, "n_clusters": n_clusters} | common, run(n_partitions, n_clusters, max_iter))
        for n_partitions, n_clusters, max_iter in sizes
    ]


def measure_costs(arguments: Any, path: Path, share: int) -> Jobs:
    n_clusters = N_CLUSTERS // share
    driver = {"what": "driver", "n_clusters": 10 * n_clusters, "width": 128}
    tasks = [
        (
            {
                "what": "tasks",
                "partitions": n_partitions,
                "n_clusters": n_clusters,
                "n_rows": N_ROWS // share,
                "workers": arguments.workers,
            },
            lambda n_partitions=n_partitions: [costs.measure_tasks(path, n_clusters, n_partitions, arguments.workers)],
        )
        for n_partitions in (16, 4, 1)
    ]
    cluster = {"what": "cluster", "workers": arguments.workers}
    return [
        (driver, lambda: [costs.measure_driver(10 * n_clusters, 128)]),
        (cluster, lambda: [costs.measure_cluster(arguments.workers)]),
        *tasks,
    ]


def run_rival(arguments: Any, path: Path, share: int) -> Jobs:
    return [
        (
            {"n_clusters": max(2, n_clusters // share), "n_rows": N_ROWS // share, "workers": arguments.workers},
            lambda n_clusters=n_clusters: rival.compare(path, max(2, n_clusters // share), 16, arguments.workers),
        )
        for n_clusters in RIVAL_CLUSTERS
    ]


def run_kills(arguments: Any, path: Path, share: int) -> Jobs:
    n_workers, n_drivers = arguments.kills or ((2, 1) if arguments.quick else (20, 5))
    return [
        ({"killed": "worker", "n_kills": n_workers}, lambda: [kills.kill_workers(n_workers)]),
        ({"killed": "driver", "n_kills": n_drivers}, lambda: [kills.kill_drivers(n_drivers)]),
    ]


COMMANDS = {
    "quality": quality,
    "replicas": quality,
    "costs": measure_costs,
    "rival": run_rival,
    "kills": run_kills,
}

if __name__ == "__main__":
    main()
