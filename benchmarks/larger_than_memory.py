"""Data larger than memory: a fit with ``memory_limit`` against one in memory.

    python -m benchmarks.larger_than_memory [--quick] [--data PATH]

Two tasks: a million real SIFT descriptors into 10,000 clusters with a fourth of the data's bytes allowed, and five
million mixtures of them, from a ``.u8bin`` file, into 50,000 clusters with 1 GB. Each fit has a process of its own. One
with a limit runs under ``RLIMIT_DATA``: once the kernels are loaded, it may allocate the limit, 24 bytes for each value
of the centres (those of three iterations, and their sums in double precision), and a stack of 1 MB for each thread.
More would end it. The pages of files are the system's to keep or to drop.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg.blas import sgemm
from threadpoolctl import threadpool_limits

from benchmarks import data
from benchmarks.machine import PeakMemory, describe_machine, describe_versions
from benchmarks.results import FOLDER, append_row, markdown_table, read_rows
from closure_kmeans import ClosureKMeans
from closure_kmeans.metrics import distortion
from closure_kmeans.vectors import open_vectors, save_vectors

SCORED_ROWS = 20_000
BYTES_PER_CENTER_VALUE = 24
STACK = 1 << 20
WARM_ROWS = 50_000
PRODUCT_SIZE = 1500  # takes longer than threads take to begin
# Data set, rows, clusters, bytes allowed.
TASKS = {"sift": (1_000_000, 10_000, 32_000_000), "mixtures": (5_000_000, 50_000, 1_000_000_000)}
QUICK_SHARE = 50
LEAST_MEMORY = 6_000_000
# Limited or not, threads.
RUNS = ((False, 2), (True, 2), (True, 1))


def allocated() -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmData"].split()[0]) * 1024


def allocate_blas(threads: int) -> None:
    """Have the BLAS of NumPy, and that of SciPy, which Numba calls, allocate the memory of so many products at a time.

    OpenBLAS keeps 32 MB for each, which it hardly touches. Under a limit it would ask for them forever.
    """
    square = np.ones((PRODUCT_SIZE, PRODUCT_SIZE), np.float32)
    all_there = threading.Barrier(threads)

    def multiply(_: int) -> None:
        for product in (np.dot, partial(sgemm, 1.0)):
            all_there.wait()
            product(square, square)

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        list(pool.map(multiply, range(threads)))


def fit(path: str, n_clusters: int, memory_limit: int, threads: int) -> dict[str, Any]:
    """In a process of its own: fit, and say how it went."""
    threading.stack_size(STACK)
    X = open_vectors(path)
    limit = memory_limit or None
    model = ClosureKMeans(n_clusters, memory_limit=limit, random_state=0, n_threads=threads)
    # Compiled code is no part of the fit, nor is what BLAS keeps for each thread.
    ClosureKMeans(500, memory_limit=limit and 8_000_000, random_state=0, n_threads=threads).fit(X[:WARM_ROWS])
    allocate_blas(threads)
    if limit is not None:
        allowed = allocated() + limit + BYTES_PER_CENTER_VALUE * n_clusters * X.shape[1] + STACK * threads
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with PeakMemory() as memory:
        began = time.perf_counter()
        model.fit(X)
        seconds = time.perf_counter() - began
    digest = hashlib.blake2b(model.labels_.tobytes() + model.cluster_centers_.tobytes(), digest_size=8)
    resource.setrlimit(resource.RLIMIT_DATA, (resource.getrlimit(resource.RLIMIT_DATA)[1],) * 2)
    return {
        "seconds": seconds,
        "iterations": model.n_iter_,
        "distortion": model.inertia_ / len(X),
        "exact_distortion": distortion(X[:: len(X) // SCORED_ROWS], model.cluster_centers_, threads),
        "accuracy": model.history_[-1].accuracy,
        "digest": digest.hexdigest(),
        "memory_peak": memory.peak,
        "memory_beyond_before": memory.peak - memory.before,
    }


def format_report(rows: list[dict[str, Any]]) -> str:
    parts = ["# Data larger than memory"]
    for name in dict.fromkeys(row["data"] for row in rows):
        runs = [row for row in rows if row["data"] == name]
        free = next(row for row in runs if not row["memory_limit"])
        n_bytes = free["n_rows"] * free["n_features"]
        lines = [
            [
                f"{row['memory_limit'] / 1e6:,.0f} MB" if row["memory_limit"] else "none",
                str(row["threads"]),
                f"{row['seconds']:.1f}",
                f"{row['seconds'] / free['seconds']:.2f}",
                str(row["iterations"]),
                f"{row['distortion']:,.1f}",
                f"{row['distortion'] / free['distortion'] - 1:+.2%}",
                f"{row['memory_beyond_before'] / 1e6:,.0f} MB",
                row["digest"],
            ]
            for row in runs
        ]
        header = (
            *("memory_limit", "threads", "seconds", "relative to none", "iterations"),
            *("distortion", "against none", "peak memory", "digest"),
        )
        size = f"{free['n_rows']:,} x {free['n_features']} uint8 ({n_bytes / 1e6:,.0f} MB)"
        parts += [f"{name}: {size} into {free['n_clusters']:,} clusters.", markdown_table(header, lines)]
    machine = rows[-1]["machine"]
    parts.append(
        "Peak memory is resident memory beyond that before the fit, pages of mapped files included. "
        f"Equal digests mean equal bytes of labels and centres. {machine['cpu']}, {machine['cores']} cores."
    )
    return "\n\n".join(parts) + "\n"


def prepare(name: str, n_rows: int, source: str | None) -> Path:
    path = data.CACHE / f"larger-{name}-{n_rows}.u8bin"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_vectors(path, np.asarray(data.load(name, n_rows, source, memory_mapped=True)))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.larger_than_memory", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK_SHARE} of the rows and clusters, to try it")
    parser.add_argument("--task", choices=[*TASKS], action="append")
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--fit", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fit:
        path, *numbers = arguments.fit
        print(json.dumps(fit(path, *map(int, numbers))))
        return
    share = QUICK_SHARE if arguments.quick else 1
    results = arguments.output / f"larger-than-memory{'-quick' if arguments.quick else ''}.jsonl"
    for name in arguments.task or TASKS:
        n_rows, n_clusters, memory = (number // share for number in TASKS[name])
        memory = max(memory, LEAST_MEMORY)
        path = prepare(name, n_rows, arguments.data)
        for limited, threads in RUNS:
            job = {"data": name, "n_rows": n_rows, "n_features": open_vectors(path).shape[1], "n_clusters": n_clusters}
            job |= {"memory_limit": memory if limited else 0, "threads": threads}
            settings = map(str, (path, n_clusters, job["memory_limit"], threads))
            command = [sys.executable, "-m", "benchmarks.larger_than_memory", "--fit", *settings]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            outcome = json.loads(done.stdout.splitlines()[-1])
            append_row(results, job | outcome | {"machine": describe_machine(), "versions": describe_versions()})
            print(job, outcome, flush=True)
    latest = {(row["data"], row["memory_limit"], row["threads"]): row for row in read_rows(results)}
    text = format_report(list(latest.values()))
    results.with_suffix(".md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
