"""New points: recall and throughput of ``predict`` against a flat faiss index and faiss HNSW.

    python -m benchmarks.predict [--data PATH] [--clusters K] [--queries Q]

Centres come from a short fit; queries are rows that it has not seen. The true nearest centre is that of the flat index.
All take turns. 100,000 clusters are trained on the real rows, more on mixtures of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, Row, append_row, markdown_table
from benchmarks.score import labelled_distances
from closure_kmeans import ClosureKMeans

ROWS_PER_CLUSTER = 10
HNSW_LINKS = 32
HNSW_EFFORTS = (16, 32, 64, 128, 256, 512)


@dataclass
class Searcher:
    name: str
    build_seconds: float
    search: Callable[[], NDArray[Any]]
    times: list[float] = field(default_factory=list)
    recall: float = 0.0


def timed(work: Callable[[], Any]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def train(rows: NDArray[Any], n_clusters: int, n_iterations: int, threads: int) -> ClosureKMeans:
    return ClosureKMeans(n_clusters, max_iter=n_iterations, random_state=0, n_threads=threads).fit(rows)


def make_searchers(model: ClosureKMeans, queries: NDArray[np.float32]) -> list[Searcher]:
    centers = np.ascontiguousarray(model.cluster_centers_, np.float32)
    d = centers.shape[1]
    flat = faiss.IndexFlatL2(d)
    graph = faiss.IndexHNSWFlat(d, HNSW_LINKS)
    searchers = [
        Searcher("flat faiss", timed(lambda: flat.add(centers)), lambda: flat.search(queries, 1)[1].ravel()),
        # Whatever it prepares, it prepares in its first call.
        Searcher("ours", timed(lambda: model.predict(queries[:1])), lambda: model.predict(queries)),
        Searcher("ours, exact", 0.0, lambda: model.predict(queries, exact=True)),
    ]
    build = timed(lambda: graph.add(centers))

    def search_graph(effort: int) -> NDArray[Any]:
        graph.hnsw.efSearch = effort
        return graph.search(queries, 1)[1].ravel()

    graphs = [
        Searcher(f"faiss HNSW{HNSW_LINKS}, efSearch {effort}", build, partial(search_graph, effort))
        for effort in HNSW_EFFORTS
    ]
    return [*searchers, *graphs]


def take_turns(searchers: list[Searcher], queries: NDArray[Any], centers: NDArray[Any], repeats: int) -> None:
    smallest = None
    for _ in range(repeats):
        for searcher in searchers:
            began = perf_counter()
            labels = searcher.search()
            searcher.times.append(perf_counter() - began)
            distances = labelled_distances(queries, centers, labels)
            smallest = distances if smallest is None else smallest
            searcher.recall = float(np.mean(distances <= smallest * (1 + 1e-5)))


HEADER = ("search", "recall@1", "time per row, µs", "throughput against flat, ×", "build, s")


def format_report(row: Row) -> str:
    """The table of a run, and ours against the others at the same recall."""
    flat, ours, _, *graphs = row["searchers"]
    speed = {found["name"]: row["n_queries"] / median(found["times"]) for found in row["searchers"]}
    lines = [
        [
            found["name"],
            f"{found['recall']:.4f}",
            f"{1e6 / speed[found['name']]:.1f}",
            f"{speed[found['name']] / speed[flat['name']]:.1f}",
            f"{found['build_seconds']:.2f}",
        ]
        for found in row["searchers"]
    ]
    recalls, speeds = zip(*sorted((graph["recall"], speed[graph["name"]]) for graph in graphs), strict=True)
    at_same = np.exp(np.interp(ours["recall"], recalls, np.log(speeds)))  # between the efforts that were tried
    where = "at the same recall" if ours["recall"] <= recalls[-1] else "at its highest recall, which is lower"
    return (
        f"{row['n_queries']:,} new rows among {row['n_clusters']:,} centres of {row['data_title']}; {row['threads']} "
        f"threads.\n\n{markdown_table(HEADER, lines)}\n\n"
        f"Ours has {speed[ours['name']] / speed[flat['name']]:.1f}× the throughput of the flat index, and "
        f"{speed[ours['name']] / at_same:.1f}× that of HNSW {where}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predict", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--clusters", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=20_000)
    parser.add_argument("--iterations", type=int, default=5, help="of the fit that makes the centres")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    n_rows = ROWS_PER_CLUSTER * arguments.clusters
    name = "sift" if n_rows <= data.count_sift(arguments.data) else "mixtures"
    if name == "mixtures":
        data.prepare(name, n_rows, arguments.data)
    rows = data.load(name, n_rows, arguments.data, memory_mapped=True)
    n_queries = min(arguments.queries, len(rows) // 10)
    queries = rows[-n_queries:].astype(np.float32)
    faiss.omp_set_num_threads(arguments.threads)
    for n_clusters in (100, 1000):  # compile
        train(rows[:5000], n_clusters, 2, arguments.threads).predict(queries[:1000])
    model = train(rows[:-n_queries], arguments.clusters, arguments.iterations, arguments.threads)
    searchers = make_searchers(model, queries)
    take_turns(searchers, queries, model.cluster_centers_, arguments.repeats)

    row = {
        "data_title": data.describe(name, len(rows), arguments.data),
        "n_clusters": arguments.clusters,
        "n_queries": n_queries,
        "threads": arguments.threads,
        "machine": describe_machine(),
        "versions": describe_versions(),
        "searchers": [
            {"name": s.name, "recall": s.recall, "times": s.times, "build_seconds": s.build_seconds} for s in searchers
        ],
    }
    append_row(arguments.output / "predict.jsonl", row)
    text = format_report(row)
    (arguments.output / f"predict-{arguments.clusters}.md").write_text(f"# predict\n\n{text}")
    print(text)


if __name__ == "__main__":
    main()
