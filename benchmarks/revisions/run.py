"""One run of a case in a process of its own, with the package of the revision that PYTHONPATH names.

The revision may be old, so only names are used that all revisions have, and nothing of the benchmarks that imports the
package.
"""

from __future__ import annotations

import json
import sys
from inspect import signature
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numba.core import event

import closure_kmeans
from benchmarks.machine import PeakMemory, touch_memory
from closure_kmeans import ClosureKMeans

WARM_UP_ROWS = 50_000


def perform(task: dict[str, Any]) -> dict[str, Any]:
    """Fit, or predict by a model fitted off the clock; the labels and centres are written to a file.

    Where kernels had to be compiled nothing is measured: the compiler takes time and memory. The next process will load
    them.
    """
    if not Path(closure_kmeans.__file__).is_relative_to(task["source"]):
        raise ImportError(f"closure_kmeans must be imported from {task['source']}, got {closure_kmeans.__file__}")
    X = np.load(task["rows"], mmap_mode="r" if task["memory_mapped"] else None)
    rows, queries = np.split(X, [len(X) - task["n_queries"]])
    few = rows[:WARM_UP_ROWS]
    model = make_model(task, task["n_clusters"])
    with event.install_recorder("numba:compile") as compiled:
        make_model(task, max(2, task["n_clusters"] * len(few) // len(rows))).fit(few).predict(few)
        if compiled.buffer:
            return {"compiled": True}
        if task["n_queries"]:
            model.fit(rows)
        if not task["memory_mapped"]:  # it would take the place of what is mapped
            touch_memory(4 * np.dtype(np.float32).itemsize * X.size)
        with PeakMemory() as memory:
            began = perf_counter()
            labels = model.predict(queries) if task["n_queries"] else model.fit(rows).labels_
            seconds = perf_counter() - began
        if compiled.buffer:
            return {"compiled": True}
    np.savez(task["found"], labels=labels, centers=model.cluster_centers_)
    return {"seconds": seconds, "memory_peak": memory.peak, "iterations": model.n_iter_}


def make_model(task: dict[str, Any], n_clusters: int) -> ClosureKMeans:
    threads = "n_threads" if "n_threads" in signature(ClosureKMeans.__init__).parameters else "n_jobs"
    return ClosureKMeans(n_clusters, random_state=task["seed"], **{threads: task["threads"]}, **task["parameters"])


if __name__ == "__main__":
    print(json.dumps(perform(json.loads(sys.argv[1]))))
