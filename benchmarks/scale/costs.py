"""The constants of the model.

Most are seconds of one core, which do not depend on what else the machine does meanwhile. What waits for a disk or for
other processes can only be timed by the clock: let nothing else run.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import distributed
import numpy as np

from benchmarks.results import Row
from benchmarks.scale.model import TREE_DIMS
from benchmarks.scale.runs import tasks_here
from closure_kmeans.clusters import group_by_label
from closure_kmeans.distributed import DistributedClosureKMeans, passes
from closure_kmeans.distributed.cluster import Cluster, local_cluster
from closure_kmeans.distributed.files import SharedFolder, shared_folder
from closure_kmeans.distributed.layout import PIECES_PER_PARTITION
from closure_kmeans.nearest import SAMPLE_ROWS
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points
from closure_kmeans.stores.layout import along
from closure_kmeans.stores.totals import Totals, means_of, no_totals

ITERATIONS = 12
REPEATS = 5


def measure_tasks(path: Path, n_clusters: int, n_partitions: int, n_workers: int) -> Row:
    """What tasks take while all workers are busy: they share caches and memory."""
    with ProcessPoolExecutor(n_workers, multiprocessing.get_context("spawn")) as pool:
        rows = list(pool.map(measure, *zip(*[(path, n_clusters, n_partitions)] * n_workers, strict=True)))
    return {name: statistics.mean(row[name] for row in rows) for name in rows[0]}


def measure(path: Path, n_clusters: int, n_partitions: int) -> Row:
    """A fit without Dask that goes on twice: to compile, to take the time of each task, and its memory."""
    with tempfile.TemporaryDirectory(prefix="closure-kmeans-scale-") as folder, tasks_here() as cluster:
        model = DistributedClosureKMeans(
            n_clusters, n_partitions=n_partitions, random_state=0, n_threads=1, storage=folder, tol=0
        )
        model.set_params(max_iter=1).fit(path)
        cluster.costs.clear()
        model.set_params(max_iter=ITERATIONS).fit(path, resume=True)
        seconds = cluster.costs_of("assign_partition", n_partitions)["seconds"]
        cluster.costs.clear()
        tracemalloc.start()
        model.set_params(max_iter=ITERATIONS + 1).fit(path, resume=True)
        tracemalloc.stop()
        memory = cluster.costs_of("assign_partition", n_partitions)["memory"]
    points = len(model.labels_) / n_partitions
    return {
        "assign": float(seconds.mean()) / points,
        "assign_slowest": float(seconds.max(axis=1).mean()) / points,
        "task_memory": float(memory.max()),
        "candidates": model.history_[-1].n_candidates,
    }


def measure_driver(n_clusters: int, width: int) -> Row:
    """What the driver does with sums and centres, by one core."""
    rng = np.random.default_rng(0)
    totals = no_totals(n_clusters, width)
    ids = np.sort(rng.choice(n_clusters, n_clusters // 4, replace=False)).astype(np.int32)
    part = Totals(rng.normal(size=(len(ids), width)), np.ones(len(ids)), np.ones(len(ids)))
    sums = passes.Sums(ids, part, ids[:1], 0, 0)
    totals.sizes[:] = 1
    add = best(lambda: passes.add_sums(totals, sums, ids)) / part.sums.size
    offset = np.zeros(width, np.float32)
    points = Points(np.zeros((1, width), np.float32), offset, np.ones(1), np.zeros((1, width), np.float32), offset)
    axes = np.linalg.qr(rng.normal(size=(width, TREE_DIMS)))[0].astype(np.float32)
    centers = np.empty((n_clusters, width), np.float32)

    def finish() -> None:
        means_of(points, totals, threads, centers)
        along(centers, axes)
        totals.sums[:] = 0

    with Threads(1) as threads:
        finish()  # compiles
        per_value = best(finish) / totals.sums.size
    return {"add": add, "finish": per_value, "group": measure_group(n_clusters), "near": measure_near(n_clusters)}


def measure_group(n_clusters: int, n_partitions: int = 160, n_near: int = 8) -> float:
    """What the driver does to list the centres near each partition: seconds for one of them."""
    rng = np.random.default_rng(0)
    partitions = rng.integers(n_partitions, size=n_near * n_clusters).astype(np.int32)
    ids = np.repeat(np.arange(n_clusters, dtype=np.int32), n_near)

    def group() -> None:
        members, _ = group_by_label(partitions, n_partitions)
        ids[members]

    group()  # compiles
    return best(group) / len(ids)


def measure_near(n_clusters: int, n_partitions: int = 64) -> float:
    """What a task does to find the centres near partitions: seconds for a pair of a centre and an own piece."""
    with tempfile.TemporaryDirectory(prefix="closure-kmeans-scale-") as temporary:
        task = near_task(shared_folder(temporary), n_clusters, n_partitions)
        return best(task) / (n_clusters * PIECES_PER_PARTITION)


def near_task(folder: SharedFolder, n_clusters: int, n_partitions: int) -> Callable[[], Any]:
    """The task of one of several partitions, in a layout that is made up."""
    rng = np.random.default_rng(0)
    pieces = rng.normal(size=(n_partitions * PIECES_PER_PARTITION, TREE_DIMS)).astype(np.float32)
    partition_of = np.repeat(np.arange(n_partitions, dtype=np.int32), PIECES_PER_PARTITION)
    sample = np.zeros((SAMPLE_ROWS, 128), np.uint8)
    layout = passes.Layout(pieces[0], None, pieces, partition_of, np.arange(n_partitions + 1), sample, 1, False)
    folder.save_record(passes.LAYOUT, layout)
    folder.save("centers.npy", rng.normal(size=(n_clusters, TREE_DIMS)).astype(np.float32))
    return partial(passes.find_near, passes.Partition(folder, 0), "centers.npy", n_clusters)


def measure_cluster(n_workers: int, n_tasks: int = 500, n_results: int = 32, n_values: int = 1 << 19) -> Row:
    """What Dask takes for tasks that do nothing, for the bytes of results, and the storage for files."""
    with (
        local_cluster(n_workers) as started,
        distributed.Client(started, set_as_default=False, direct_to_workers=True) as client,
    ):
        cluster = Cluster(client, verbose=0)

        def run(size: int, n_tasks: int) -> float:
            began = time.perf_counter()
            for _ in cluster.run("", np.ones, [(size,)] * n_tasks):
                pass
            return time.perf_counter() - began

        run(1, n_tasks)
        task = statistics.median(run(1, n_tasks) for _ in range(REPEATS)) / n_tasks
        run(n_values, n_results)
        sent = statistics.median(run(n_values, n_results) for _ in range(REPEATS)) - n_results * task
    return {"task": task, "move": sent / (8 * n_values * n_results), **measure_files()}


def measure_files(n_files: int = 40, n_partitions: int = 16, n_values: int = 1 << 24) -> Row:
    """What a small file takes to be written for good and to be removed, and a task with nearly nothing to do; bytes a
    second."""
    with tempfile.TemporaryDirectory(prefix="closure-kmeans-scale-") as temporary:
        folder = shared_folder(temporary)
        labels = np.zeros(1000, np.int32)
        save, remove = [], []
        for _ in range(REPEATS):
            partitions = [passes.Partition(folder, number) for number in range(n_files)]
            save += [clocked(partial(passes.save_labels, partition, 0, labels)) for partition in partitions]
            remove.append(clocked(partial(folder.remove, "labels")) / n_files)
        task = near_task(folder, n_partitions, n_partitions)
        start = [clocked(task) for _ in range(n_files)]
        large = np.zeros((n_values, 1), np.int32)
        save_large = [clocked(partial(folder.save, f"large/{i}.npy", large)) for i in range(REPEATS)]
    write = statistics.median(save)
    storage = large.nbytes / (statistics.median(save_large) - write)
    return {
        "write": write,
        "remove": statistics.median(remove),
        "start": statistics.median(start),
        "storage": storage,
    }


def clocked(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def best(work: Callable[[], Any]) -> float:
    """Seconds of a core that some work takes: the least of several times."""
    found = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)
