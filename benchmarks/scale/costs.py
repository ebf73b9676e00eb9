"""The constants of the model: seconds of one core, which do not depend on what else the machine does meanwhile."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import Row
from benchmarks.scale.model import TREE_DIMS
from benchmarks.scale.runs import TimedCluster
from closure_kmeans._parallel import Threads
from closure_kmeans.distributed import DistributedClosureKMeans, estimator, passes
from closure_kmeans.distributed.files import shared_folder
from closure_kmeans.distributed.layout import CELLS_PER_PARTITION
from closure_kmeans.points import Points
from closure_kmeans.slabs import Totals, means_of, no_totals

ITERATIONS = 12
REPEATS = 5


def measure(path: Path, n_clusters: int, n_partitions: int) -> Row:
    """A fit without Dask, each task timed."""
    cluster = TimedCluster()

    @contextmanager
    def connect(*_: Any) -> Any:
        yield cluster

    original, estimator.connect = estimator.connect, connect
    try:
        with tempfile.TemporaryDirectory(prefix="closure-kmeans-scale-") as folder:
            settings = {"n_partitions": n_partitions, "random_state": 0, "n_jobs": 1, "storage": folder}
            DistributedClosureKMeans(n_clusters, max_iter=1, **settings).fit(path)  # compiles
            cluster.seconds.clear()
            fitted = DistributedClosureKMeans(n_clusters, max_iter=ITERATIONS, **settings).fit(path)
    finally:
        estimator.connect = original
    n_passes = len(cluster.seconds["assign_partition"]) / n_partitions
    return {
        "assign": sum(cluster.seconds["assign_partition"]) / n_passes / len(fitted.labels_),
        "assign_slowest": float(np.reshape(cluster.seconds["assign_partition"], (-1, n_partitions)).max(axis=1).mean())
        / (len(fitted.labels_) / n_partitions),
        "candidates": fitted.history_[-1].n_candidates,
    }


def measure_driver(n_clusters: int, width: int) -> Row:
    """What the driver does with sums and centres."""
    rng = np.random.default_rng(0)
    totals = no_totals(n_clusters, width)
    ids = np.sort(rng.choice(n_clusters, n_clusters // 4, replace=False)).astype(np.int32)
    part = Totals(rng.normal(size=(len(ids), width)), np.ones(len(ids)), np.ones(len(ids)))
    sums = passes.Sums(ids, part, ids[:1], 0, 0)
    add = best(lambda: passes.add_sums(totals, sums, ids)) / part.sums.size
    mean = np.zeros(width, np.float32)
    points = Points(np.zeros((1, width), np.float32), mean, np.ones(1), np.zeros((1, width), np.float32), mean)
    totals = Totals(rng.normal(size=(n_clusters, width)), np.ones(n_clusters), np.ones(n_clusters))
    with Threads(1) as threads:
        means_of(points, totals, threads)  # compiles
        finish = best(lambda: means_of(points, totals, threads)) / totals.sums.size
    pairs = rng.integers(2**40, size=8 * n_clusters)
    sort = best(lambda: np.unique(pairs)) / len(pairs)
    return {"add": add, "finish": finish, "sort": sort, "near": measure_near(n_clusters)}


def measure_near(n_clusters: int, n_partitions: int = 64) -> float:
    """What a task does to find the centres near partitions: seconds for a pair of a centre and one of its own cells."""
    rng = np.random.default_rng(0)
    cells = rng.normal(size=(n_partitions * CELLS_PER_PARTITION, TREE_DIMS)).astype(np.float32)
    partition_of = np.repeat(np.arange(n_partitions, dtype=np.int32), CELLS_PER_PARTITION)
    layout = passes.Layout(cells[0], None, cells, partition_of, np.arange(n_partitions + 1), cells[:1], 1, False)
    with tempfile.TemporaryDirectory(prefix="closure-kmeans-scale-") as temporary:
        folder = shared_folder(temporary)
        folder.save_record(passes.LAYOUT, layout)
        folder.save("centers.npy", rng.normal(size=(n_clusters, TREE_DIMS)).astype(np.float32))
        task = partial(passes.find_near, passes.Partition(folder, 0), "centers.npy", n_clusters)
        return best(task) / (n_clusters * CELLS_PER_PARTITION)


def best(work: Callable[[], Any]) -> float:
    """Seconds of a core that some work takes: the least of several times."""
    found = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)
