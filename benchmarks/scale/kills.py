"""Kill workers and drivers at random moments: does the fit end in the same bytes?"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from benchmarks.results import Row
from benchmarks.scale.runs import digest_of
from closure_kmeans.datasets import load_sift
from closure_kmeans.distributed import DistributedClosureKMeans
from closure_kmeans.distributed.cluster import local_cluster
from closure_kmeans.distributed.files import FIT
from closure_kmeans.distributed.store import FEWEST_MERGED

SETTINGS: dict[str, Any] = {
    "n_clusters": 400,
    "n_partitions": 2 * FEWEST_MERGED,
    "random_state": 0,
    "max_iter": 12,
    "tol": 0,
}


def fit(address: str, storage: str | None = None) -> str:
    """Fit, or go on with the fit in ``storage``."""
    model = DistributedClosureKMeans(client=address, storage=storage, **SETTINGS)
    return digest_of(model.fit(load_sift(), resume=storage is not None))


def kill_workers(n_kills: int, seed: int = 0) -> Row:
    """Fits in each of which one worker process is killed; those that end before are not counted."""
    rng = random.Random(seed)
    killed: list[int] = []

    def kill(worker: int) -> None:
        os.kill(worker, signal.SIGKILL)
        killed.append(worker)

    with local_cluster(2) as cluster:
        fit(cluster.scheduler_address)
        began = time.perf_counter()
        expected = fit(cluster.scheduler_address)
        seconds = time.perf_counter() - began
        n_same = 0
        while len(killed) < n_kills:
            n_before = len(killed)
            worker = rng.choice([nanny.pid for nanny in cluster.workers.values()])
            timer = threading.Timer(rng.uniform(0, seconds), kill, (worker,))
            timer.start()
            is_same = fit(cluster.scheduler_address) == expected
            timer.cancel()
            timer.join()
            if len(killed) > n_before:
                n_same += is_same
                print(f"worker {len(killed)} of {n_kills} killed, {n_same} fits with the same bytes", flush=True)
    return {"n_same": n_same, "seconds_undisturbed": seconds}


def kill_drivers(n_kills: int, seed: int = 0) -> Row:
    """Fits whose driver is killed, and that another one resumes; those that end before are not counted."""
    rng = random.Random(seed)
    n_same = n_killed = 0
    with local_cluster(2) as cluster, tempfile.TemporaryDirectory(prefix="closure-kmeans-kills-") as folder:
        address = cluster.scheduler_address
        expected = fit(address)
        driver = start_driver(address, Path(folder, "undisturbed"))
        began = time.perf_counter()
        driver.join()
        seconds = time.perf_counter() - began
        while n_killed < n_kills:
            storage = Path(tempfile.mkdtemp(dir=folder))
            driver = start_driver(address, storage)
            time.sleep(rng.uniform(0, seconds))
            driver.kill()
            driver.join()
            if driver.exitcode == -signal.SIGKILL:
                n_killed += 1
                found = sorted(path.name for path in (storage / FIT / "centers").glob("*.safetensors"))
                n_same += fit(address, str(storage)) == expected
                print(f"driver {n_killed} killed with {found[-1:]}, {n_same} with the same bytes", flush=True)
    return {"n_same": n_same, "seconds_undisturbed": seconds}


def start_driver(address: str, storage: Path) -> SpawnProcess:
    """A process that fits, and has begun to."""
    driver = multiprocessing.get_context("spawn").Process(target=fit, args=(address, str(storage)))
    driver.start()
    while driver.is_alive() and not (storage / FIT).exists():
        time.sleep(0.01)
    return driver
