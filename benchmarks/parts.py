"""The parts of the baselines against those that well-kept libraries have: which one a baseline should use.

    python -m benchmarks.parts [--data PATH] [--quick]

The methods of a part do the same work on the same rows, on one thread and on two; they take turns, and medians are
shown. FLANN itself searches on one thread: here blocks of queries are sent to it from a pool. It has hierarchical
k-means too, but OpenCV does not offer that to Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import cv2
import faiss
import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import BisectingKMeans, KMeans
from threadpoolctl import threadpool_limits

from benchmarks import data
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, Row, append_row, markdown_table
from closure_kmeans import ClosureKMeans
from closure_kmeans.baselines import HierarchicalKMeans, LloydKMeans
from closure_kmeans.baselines.approximate import grow_forest, search_forest
from closure_kmeans.metrics import distortion, exact_labels
from closure_kmeans.parallel import Threads

N_ROWS, N_CLUSTERS = 100_000, 1000
BRANCHING, DEPTH = 10, 3
FOREST_CENTERS = 10_000
QUICK_SHARE = 10
ITERATIONS = 10
N_TREES = 8
CHECKS = (50, 200)
FLANN_KDTREE = 1
FLANN_BLOCK = 1000
REPEATS = 3

Floats = NDArray[np.float32]


class Part(NamedTuple):
    title: str
    quality: str  # what the results are judged by
    judge: Callable[[NDArray[Any]], float]
    methods: dict[str, Callable[[int], NDArray[Any]]]  # from a number of threads to centres or labels


# -- exact k-means ---------------------------------------------------------------------------------------------------


def exact_part(X: Floats, n_clusters: int) -> Part:
    """All from the same rows as first centres, and with as many assignments of all rows."""
    n_rows, n_features = X.shape
    start = X[np.random.default_rng(0).choice(n_rows, n_clusters, replace=False)]

    def ours(n_threads: int) -> NDArray[Any]:
        settings = {"max_iter": ITERATIONS, "tol": 0, "random_state": 0}
        model = LloydKMeans(n_clusters, init=start, n_threads=n_threads, **settings)
        return model.fit(X).cluster_centers_

    def by_faiss(n_threads: int) -> NDArray[Any]:
        model = faiss.Kmeans(n_features, n_clusters, niter=ITERATIONS, max_points_per_centroid=n_rows)
        model.train(X, init_centroids=start)
        return model.centroids

    def by_sklearn(n_threads: int) -> NDArray[Any]:
        return KMeans(n_clusters, init=start, n_init=1, max_iter=ITERATIONS, tol=0).fit(X).cluster_centers_

    return Part(
        f"Exact k-means, {n_rows:,} rows, {n_clusters:,} clusters, {ITERATIONS} iterations",
        "distortion",
        partial(distortion, X),
        {"`LloydKMeans`": ours, "`faiss.Kmeans`": by_faiss, "scikit-learn `KMeans`": by_sklearn},
    )


# -- hierarchical k-means --------------------------------------------------------------------------------------------


def hierarchical_part(X: Floats, branching: int) -> Part:
    def ours(n_threads: int) -> NDArray[Any]:
        model = HierarchicalKMeans(branching, DEPTH, max_iter=ITERATIONS, tol=0, random_state=0, n_threads=n_threads)
        return model.fit(X).cluster_centers_

    def by_faiss(n_threads: int) -> NDArray[Any]:
        return np.concatenate(split_by_faiss(X, branching, DEPTH))

    def by_sklearn(n_threads: int) -> NDArray[Any]:
        model = BisectingKMeans(branching**DEPTH, max_iter=ITERATIONS, tol=0, random_state=0)
        return model.fit(X).cluster_centers_

    return Part(
        f"Hierarchical k-means, {len(X):,} rows, {branching} branches, {DEPTH} levels, {ITERATIONS} iterations a level",
        "distortion",
        partial(distortion, X),
        {
            "`HierarchicalKMeans`": ours,
            "`faiss.Kmeans` in every node": by_faiss,
            "scikit-learn `BisectingKMeans`: as many leaves of two branches": by_sklearn,
        },
    )


def split_by_faiss(X: Floats, branching: int, depth: int) -> list[Floats]:
    """The leaves' centres, node by node."""
    n_children = min(branching, len(X))
    every_row = {"min_points_per_centroid": 1, "max_points_per_centroid": len(X)}
    model = faiss.Kmeans(X.shape[1], n_children, niter=ITERATIONS, seed=0, **every_row)
    model.train(X)
    if depth == 1:
        return [model.centroids]
    _, labels = model.assign(X)
    children = [np.ascontiguousarray(X[labels == child]) for child in range(n_children)]
    return [leaf for rows in children if len(rows) for leaf in split_by_faiss(rows, branching, depth - 1)]


# -- forests of k-d trees --------------------------------------------------------------------------------------------


def forest_part(centers: Floats, queries: Floats, n_checks: int) -> Part:
    """An assignment of AKM: to grow the forest, and to search it for every row."""
    truth, _ = exact_labels(queries, centers)

    def ours(n_threads: int) -> NDArray[Any]:
        with Threads(n_threads) as threads:
            forest = grow_forest(centers, N_TREES, np.random.default_rng(0), threads)
            mean = np.zeros(centers.shape[1], np.float32)
            return search_forest(queries, centers, mean, forest, n_checks, None, threads)[0]

    def by_flann(n_threads: int) -> NDArray[Any]:
        cv2.setRNGSeed(0)
        index = cv2.flann_Index(centers, {"algorithm": FLANN_KDTREE, "trees": N_TREES})

        def search(first: int) -> NDArray[Any]:
            return index.knnSearch(queries[first : first + FLANN_BLOCK], 1, params={"checks": n_checks})[0][:, 0]

        with ThreadPoolExecutor(n_threads) as pool:
            return np.concatenate(list(pool.map(search, range(0, len(queries), FLANN_BLOCK))))

    def exact(n_threads: int) -> NDArray[Any]:
        return exact_labels(queries, centers, n_threads)[0]

    return Part(
        f"Forest of {N_TREES} k-d trees, {len(centers):,} centres, {len(queries):,} rows, {n_checks} centres checked",
        "accuracy",
        lambda labels: float(np.mean(labels == truth)),
        {"our forest": ours, "FLANN's forest (OpenCV)": by_flann, "exact search, for comparison": exact},
    )


def make_forest_parts(rows: NDArray[Any], n_centers: int) -> list[Part]:
    """The centres of a short fit, and rows that it has not seen."""
    model = ClosureKMeans(n_centers, max_iter=5, random_state=0).fit(rows[: len(rows) // 2])
    mean = model.cluster_centers_.mean(axis=0)
    centers, queries = model.cluster_centers_ - mean, rows[len(rows) // 2 :].astype(np.float32) - mean
    return [forest_part(centers, queries, n_checks) for n_checks in CHECKS]


# -- all -------------------------------------------------------------------------------------------------------------


def measure(part: Part) -> list[Row]:
    """A row for each method and number of threads."""
    rows = []
    for n_threads in (1, 2):
        times: dict[str, list[float]] = {name: [] for name in part.methods}
        results: dict[str, list[NDArray[Any]]] = {name: [] for name in part.methods}
        faiss.omp_set_num_threads(n_threads)
        with threadpool_limits(n_threads):
            for _ in range(REPEATS):
                for name, run in part.methods.items():
                    began = perf_counter()
                    results[name].append(run(n_threads))
                    times[name].append(perf_counter() - began)
        for name, found in results.items():
            rows.append(
                {
                    "part": part.title,
                    "method": name,
                    "threads": n_threads,
                    "seconds": median(times[name]),
                    "quality": part.judge(found[0]),
                    "repeats_alike": all(np.array_equal(found[0], other) for other in found[1:]),
                }
            )
    return rows


def table(part: Part, rows: list[Row]) -> str:
    header = ("method", "1 thread, s", "2 threads, s", part.quality, "reproducible")
    lines = []
    for name in part.methods:
        one, two = (row for row in rows if row["method"] == name)
        quality = f"{two['quality']:,.4g}" if two["quality"] <= 1 else f"{two['quality']:,.0f}"
        alike = "yes" if one["repeats_alike"] and two["repeats_alike"] else "no"
        lines.append([name, f"{one['seconds']:.2f}", f"{two['seconds']:.2f}", quality, alike])
    return f"**{part.title}**\n\n{markdown_table(header, lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data.add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK_SHARE} of rows, clusters and centres")
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    options = parser.parse_args()
    share = QUICK_SHARE if options.quick else 1
    n_rows = min(N_ROWS // share, data.count_sift(options.data))
    rows = data.load("sift", n_rows, options.data)
    X = np.ascontiguousarray(rows, np.float32)
    for part in (exact_part(X[:2000], 20), hierarchical_part(X[:2000], 3), *make_forest_parts(rows[:4000], 200)):
        for run in part.methods.values():  # compile, and start what has to be started
            run(2)
    parts = [
        exact_part(X, N_CLUSTERS // share),
        hierarchical_part(X, round((BRANCHING**DEPTH / share) ** (1 / DEPTH))),
        *make_forest_parts(rows, FOREST_CENTERS // share),
    ]
    path = options.output / f"parts{'-quick' if options.quick else ''}.jsonl"
    path.unlink(missing_ok=True)
    title, machine, versions = data.describe("sift", n_rows, options.data), describe_machine(), describe_versions()
    texts = ["# Parts of the baselines, ours and those of libraries", f"{title}."]
    for part in parts:
        measured = measure(part)
        for row in measured:
            append_row(path, row | {"data_title": title, "machine": machine, "versions": versions})
        texts.append(table(part, measured))
        print(f"{texts[-1]}\n", flush=True)
    libraries = f"opencv {cv2.__version__}, faiss {faiss.__version__}, scikit-learn {versions['scikit-learn']}"
    texts.append(f"{machine['cpu']}, {machine['cores']} cores; {libraries}.")
    path.with_suffix(".md").write_text("\n\n".join(texts) + "\n")


if __name__ == "__main__":
    main()
