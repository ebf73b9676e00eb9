"""dask-ml's KMeans on the same cluster, with a number of clusters that it can do."""

from __future__ import annotations

import time
from pathlib import Path

import dask.array as da
import distributed
import numpy as np
from sklearn.base import clone

from benchmarks.results import Row
from benchmarks.scale.runs import SCORED_ROWS
from closure_kmeans.distributed import DistributedClosureKMeans
from closure_kmeans.distributed.cluster import local_cluster
from closure_kmeans.metrics import distortion

METHODS = ("dask-ml", "ours")
ITERATIONS = 25


def run(path: Path, method: str, n_clusters: int, n_partitions: int, n_workers: int) -> Row:
    """A fit of a Dask array in float32, in as many chunks as partitions, that the workers hold in memory."""
    from dask_ml.cluster import KMeans

    mapped = np.load(path, mmap_mode="r")
    with local_cluster(n_workers) as cluster, distributed.Client(cluster) as client:
        chunk = -(-len(mapped) // n_partitions)
        X = da.from_array(mapped, chunks=(chunk, -1)).astype(np.float32).persist()
        distributed.wait(X)
        settings = {"random_state": 0, "max_iter": ITERATIONS}
        if method == "ours":
            estimator = DistributedClosureKMeans(n_clusters, client=client, n_partitions=n_partitions, **settings)
        else:
            estimator = KMeans(n_clusters, init="random", **settings)
        clone(estimator).set_params(max_iter=1).fit(X)  # compiles
        began = time.perf_counter()
        estimator.fit(X)
        seconds = time.perf_counter() - began
    scored = np.asarray(mapped[:: max(1, len(mapped) // SCORED_ROWS)])
    centers = np.asarray(estimator.cluster_centers_, np.float32)
    return {
        "seconds": seconds,
        "iterations": int(estimator.n_iter_),
        "exact_distortion": distortion(scored, centers, 2),
    }
