"""Which k-d forest approximate k-means should use: our own, or FLANN's as OpenCV has it.

    python -m benchmarks.forests [--data FOLDER] [--clusters K] [--queries Q]

Needs opencv-python-headless. Both search the centres of a short fit for the nearest one of each query, with the same
number of trees and of centres checked, on one thread and on two; they take turns, and medians are shown. FLANN itself
searches on one thread: here blocks of queries are sent to it from a pool. Exact search is shown beside them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.results import markdown_table
from closure_kmeans import ClosureKMeans
from closure_kmeans._parallel import Threads
from closure_kmeans.baselines.approximate import grow_forest, search_forest
from closure_kmeans.quantizer import nearest_centers

N_TREES = 8
CHECKS = (50, 200)
REPEATS = 3
ROWS_PER_CLUSTER = 10
FLANN_KDTREE = 1
FLANN_BLOCK = 1000

Floats = NDArray[np.float32]
# The seconds to build and to search, and the labels.
Result = tuple[float, float, NDArray[Any]]


def run_ours(centers: Floats, queries: Floats, n_checks: int, n_threads: int) -> Result:
    mean = np.zeros(centers.shape[1], np.float32)
    with Threads(n_threads) as threads:
        began = perf_counter()
        forest = grow_forest(centers, N_TREES, np.random.default_rng(0), threads)
        built = perf_counter()
        labels, _ = search_forest(queries, centers, mean, forest, n_checks, None, threads)
        return built - began, perf_counter() - built, labels


def run_flann(centers: Floats, queries: Floats, n_checks: int, n_threads: int) -> Result:
    cv2.setRNGSeed(0)
    began = perf_counter()
    index = cv2.flann_Index(centers, {"algorithm": FLANN_KDTREE, "trees": N_TREES})
    built = perf_counter()

    def search(first: int) -> NDArray[Any]:
        return index.knnSearch(queries[first : first + FLANN_BLOCK], 1, params={"checks": n_checks})[0][:, 0]

    with ThreadPoolExecutor(n_threads) as pool:
        labels = np.concatenate(list(pool.map(search, range(0, len(queries), FLANN_BLOCK))))
    return built - began, perf_counter() - built, labels


def run_exact(centers: Floats, queries: Floats, n_checks: int, n_threads: int) -> Result:
    began = perf_counter()
    with Threads(n_threads) as threads:
        labels, _ = nearest_centers(queries, centers, np.zeros(centers.shape[1], np.float32), threads)
    return 0.0, perf_counter() - began, labels


METHODS: dict[str, Callable[[Floats, Floats, int, int], Result]] = {"ours": run_ours, "FLANN": run_flann}


def compare(centers: Floats, queries: Floats, n_checks: int, n_threads: int, truth: NDArray[Any]) -> list[list[str]]:
    runs: dict[str, list[Result]] = {name: [] for name in METHODS}
    for _ in range(REPEATS):
        for name, run in METHODS.items():
            runs[name].append(run(centers, queries, n_checks, n_threads))
    return [
        [
            name,
            str(n_checks),
            str(n_threads),
            f"{median(build for build, _, _ in results):.3f}",
            f"{1e6 * median(search for _, search, _ in results) / len(queries):.1f}",
            f"{np.mean(results[0][2] == truth):.3f}",
            "yes" if all(np.array_equal(labels, results[0][2]) for _, _, labels in results) else "no",
        ]
        for name, results in runs.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data.add_data_option(parser)
    parser.add_argument("--clusters", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=50_000)
    options = parser.parse_args()
    n_rows = min(options.clusters * ROWS_PER_CLUSTER, data.count_sift(options.data) - options.queries)
    rows = data.load("sift", n_rows + options.queries, options.data)
    model = ClosureKMeans(options.clusters, max_iter=5, random_state=0).fit(rows[:n_rows])
    mean = model.cluster_centers_.mean(axis=0)
    centers, queries = model.cluster_centers_ - mean, rows[n_rows:].astype(np.float32) - mean
    for run in (run_ours, run_flann, run_exact):  # compile, and start what has to be started
        run(centers[:1000], queries[:1000], 10, 2)
    lines = []
    for n_threads in (1, 2):
        _, seconds, truth = run_exact(centers, queries, 0, n_threads)
        lines.append(["exact", "all", str(n_threads), "", f"{1e6 * seconds / len(queries):.1f}", "1.000", "yes"])
        for n_checks in CHECKS:
            lines += compare(centers, queries, n_checks, n_threads, truth)
    header = ["forest", "checks", "threads", "s to build", "µs a query", "accuracy", "same every time"]
    print(f"{len(centers):,} centres, {len(queries):,} queries, {N_TREES} trees\n")
    print(markdown_table(header, lines))


if __name__ == "__main__":
    main()
