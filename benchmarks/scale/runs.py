"""The runs: fits on a cluster of processes of this machine, with the bytes that went over its loopback device.

The counters of the device know nothing of our model: all that workers, scheduler and client send each other is in them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import distributed
import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.results import Row
from closure_kmeans import ClosureKMeans
from closure_kmeans.distributed import DistributedClosureKMeans, estimator, passes
from closure_kmeans.distributed.cluster import Cluster, local_cluster, plan_merges
from closure_kmeans.distributed.files import FIT, SharedFolder, fit_folder
from closure_kmeans.distributed.passes import labels_name, sums_bytes
from closure_kmeans.distributed.store import count_merged
from closure_kmeans.estimator import BaseKMeans
from closure_kmeans.metrics import distortion

SCORED_ROWS = 20_000


def source_file(n_rows: int, source: str | None) -> Path:
    """The rows as a file that workers can read."""
    path = data.CACHE / f"scale-{n_rows}.npy"
    if not path.exists():
        rows = data.load("sift", n_rows, source)
        if len(rows) < n_rows:
            raise SystemExit(f"--data must have {n_rows:,} rows, got {len(rows):,}; --quick takes fewer")
        data.keep(rows, path)
    return path


def loopback_bytes() -> int:
    return psutil.net_io_counters(pernic=True)["lo"].bytes_sent


def digest_of(model: BaseKMeans) -> str:
    digest = hashlib.blake2b(np.ascontiguousarray(model.labels_).tobytes(), digest_size=8)
    digest.update(model.cluster_centers_.tobytes())
    return digest.hexdigest()


def facts_of(fitted: BaseKMeans, X: Any, seconds: float) -> Row:
    return {
        "seconds": seconds,
        "iterations": fitted.n_iter_,
        "stopped_by": fitted.stopped_by_,
        "distortion": fitted.inertia_ / len(X),
        "exact_distortion": distortion(X[:: max(1, len(X) // SCORED_ROWS)], fitted.cluster_centers_, 2),
        "accuracy": fitted.history_[-1].accuracy,
        "digest": digest_of(fitted),
    }


def one_machine(path: Path, n_clusters: int, seed: int) -> Row:
    X = np.load(path)
    began = time.perf_counter()
    fitted = ClosureKMeans(n_clusters, random_state=seed).fit(X)
    return facts_of(fitted, X, time.perf_counter() - began)


def on_cluster(path: Path, n_clusters: int, n_partitions: int, n_workers: int, seed: int, max_iter: int) -> Row:
    """A fit, and what went over the wire in each iteration but the first."""
    marks: list[tuple[float, int]] = []
    folder = Path(tempfile.mkdtemp(prefix="closure-kmeans-scale-"))
    try:
        with local_cluster(n_workers) as cluster, distributed.Client(cluster, direct_to_workers=True) as client:
            began = time.perf_counter()
            fitted = DistributedClosureKMeans(
                n_clusters,
                client=client,
                storage=folder,
                n_partitions=n_partitions,
                random_state=seed,
                max_iter=max_iter,
                callback=lambda _: marks.append((time.perf_counter(), loopback_bytes())),
            ).fit(path)
            seconds = time.perf_counter() - began
        X = np.load(path, mmap_mode="r")
        replicas, merged = count_sums(fit_folder(folder), n_partitions, n_clusters, X.shape[1])
        wire = [after[1] - before[1] for before, after in pairwise(marks)]
        steps = [after[0] - before[0] for before, after in pairwise(marks)]
        return facts_of(fitted, X, seconds) | {
            "iteration_seconds": statistics.median(steps),
            "wire_bytes": statistics.median(wire),
            "wire_bytes_in_the_end": wire[-1],
            "replicas": replicas,
            "merged": merged,
            "sums_bytes": sums_bytes(replicas * n_clusters, X.shape[1]),
            "centers_bytes": max(file.stat().st_size for file in (folder / FIT / "centers").iterdir()),
            "entered": count_entered(folder) / n_clusters,
        }
    finally:
        shutil.rmtree(folder)


def with_entered(path: Path, n_clusters: int, n_partitions: int, n_pieces: int, seed: int) -> Row:
    """A fit whose centres are entered into the partitions of so many of their nearest pieces; if 0, on one machine."""
    X = np.load(path)
    with tasks_here(), mock.patch.object(passes, "PIECES_ENTERED", n_pieces):
        if n_pieces:
            model: BaseKMeans = DistributedClosureKMeans(n_clusters, n_partitions=n_partitions, random_state=seed)
        else:
            model = ClosureKMeans(n_clusters, random_state=seed)
        return {"distortion": model.fit(X).inertia_ / len(X), "iterations": model.n_iter_}


def count_sums(folder: SharedFolder, n_partitions: int, n_clusters: int, width: int) -> tuple[float, float]:
    """Partitions that a cluster has points in, on average, and sums of it that reach the driver."""
    (version,) = (int(name.rpartition("/")[2]) for name in folder.list("labels"))
    present = [np.unique(folder.map(labels_name(version, number))) for number in range(n_partitions)]
    n_before = sum(map(len, present))
    for groups in plan_merges(n_partitions, count_merged(n_clusters, width)):
        present = [np.unique(np.concatenate(present[group])) for group in groups]
    return n_before / n_clusters, sum(map(len, present)) / n_clusters


def count_entered(folder: Path) -> int:
    """Pairs of cluster and partition that its centre is entered into."""
    shared = fit_folder(folder)
    arrays, _ = shared.map_tensors(shared.list("centers")[-1], "centers")
    return len(arrays["near"])


class TaskCost(NamedTuple):
    seconds: float  # of a core
    memory: int  # bytes at the most, while memory is traced


class TasksHere(Cluster):
    """Runs the tasks in this process, one after the other, and keeps what each took."""

    def __init__(self) -> None:
        self.costs: dict[str, list[TaskCost]] = {}

    def check_shared(self, folder: SharedFolder) -> None:
        """There are no workers elsewhere."""

    def environment(self) -> dict[str, str]:
        return {}

    def run(self, stage: str, task: Any, arguments: Any) -> Any:
        return (self._watched_task(task, some) for some in arguments)

    def merge(self, stage: str, task: Any, arguments: Any, merge: Any, n_left: int) -> Any:
        return self.run(stage, task, arguments)

    def costs_of(self, task: str, n_partitions: int) -> dict[str, NDArray[Any]]:
        """What a task took, a row for each pass over all partitions."""
        return {
            name: np.reshape(values, (-1, n_partitions))
            for name, values in zip(TaskCost._fields, zip(*self.costs[task], strict=True), strict=True)
        }

    def _watched_task(self, task: Any, arguments: Any) -> Any:
        before, _ = tracemalloc.get_traced_memory()
        if tracemalloc.is_tracing():
            tracemalloc.reset_peak()
        began = time.process_time()
        result = task(*arguments)
        seconds = time.process_time() - began
        _, peak = tracemalloc.get_traced_memory()
        self.costs.setdefault(task.__name__, []).append(TaskCost(seconds, peak - before))
        return result


@contextmanager
def tasks_here() -> Iterator[TasksHere]:
    """Distributed fits meanwhile need no cluster."""
    cluster = TasksHere()
    with mock.patch.object(estimator, "connect", return_value=nullcontext(cluster)):
        yield cluster


def limit_threads() -> None:
    """One thread a worker, whatever BLAS would like."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
