"""What better clusters are worth to a search: recall@10 of IVF indexes at equal ``nprobe``, by who trained their lists.

python -m benchmarks.ivf [--data PATH] [--rows NAME] [--lists K]

The lists of an ``IndexIVFFlat`` are trained by faiss (its defaults: 10 iterations over a sample of 256 rows a list), by
faiss on all rows, and by us; then each within the time of the other. Every index holds all rows but the queries, and
assigns them itself, so that they differ in the centres only.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, Row, append_row, latest, markdown_table, read_rows
from benchmarks.score import score_centers
from closure_kmeans import ClosureKMeans
from closure_kmeans.export import to_faiss

NEIGHBORS = 10
PROBES = (1, 4, 16, 64)
FEWEST_POINTS = 39  # rows a list below which faiss warns


class Training(NamedTuple):
    name: str
    seconds: float
    index: Any  # trained and empty
    n_rows: int  # that the training saw


def train_faiss(X: NDArray[np.float32], n_lists: int, seed: int, *, most_rows: int | None = None) -> tuple[Any, int]:
    """An index trained by faiss, on a sample of so many rows or on its own default, and the number of rows it saw."""
    index = faiss.index_factory(X.shape[1], f"IVF{n_lists},Flat")
    index.cp.seed = seed
    if most_rows is not None:
        index.cp.max_points_per_centroid = max(FEWEST_POINTS, most_rows // n_lists)
    index.train(X)
    return index, min(len(X), index.cp.max_points_per_centroid * n_lists)


def train_ours(
    X: NDArray[np.float32], n_lists: int, seed: int, threads: int, *, max_time: float | None = None
) -> tuple[Any, int]:
    model = ClosureKMeans(n_lists, random_state=seed, n_threads=threads, max_time=max_time).fit(X)
    return to_faiss(model, graph=False), len(X)


def timed(name: str, train: Callable[[], tuple[Any, int]]) -> Training:
    began = perf_counter()
    index, n_rows = train()
    return Training(name, perf_counter() - began, index, n_rows)


def all_trainings(X: NDArray[np.float32], n_lists: int, seed: int, threads: int) -> Iterator[Training]:
    """Each once, then each in the time of the other, as far as it can be."""
    ours = timed("ours", partial(train_ours, X, n_lists, seed, threads))
    default = timed("faiss, its defaults", partial(train_faiss, X, n_lists, seed))
    whole = timed("faiss, all rows", partial(train_faiss, X, n_lists, seed, most_rows=len(X)))
    yield from (ours, default, whole)
    if default.seconds < ours.seconds:
        in_its_time = partial(train_ours, X, n_lists, seed, threads, max_time=default.seconds)
        yield timed("ours, in the time of faiss's defaults", in_its_time)
    share = ours.seconds / whole.seconds
    if share < 1:
        in_our_time = partial(train_faiss, X, n_lists, seed, most_rows=int(share * len(X)))
        yield timed("faiss, a sample of rows that takes our time", in_our_time)


def search(index: Any, queries: NDArray[np.float32], nearest: NDArray[np.int64], n_probes: int) -> dict[str, float]:
    """Recall of the true neighbours, and the rows that a query was compared with."""
    index.nprobe = n_probes
    faiss.cvar.indexIVF_stats.reset()
    found = index.search(queries, NEIGHBORS)[1]
    compared = faiss.cvar.indexIVF_stats.ndis / len(queries)
    hits = sum(len(np.intersect1d(a, b)) for a, b in zip(found, nearest, strict=True))
    return {"nprobe": n_probes, "recall": hits / nearest.size, "compared": compared}


def measure(
    training: Training, X: NDArray[np.float32], queries: NDArray[Any], nearest: NDArray[np.int64], threads: int
) -> Row:
    training.index.add(X)
    centers = training.index.quantizer.reconstruct_n(0, training.index.nlist)
    return {
        "training": training.name,
        "seconds": training.seconds,
        "trained_on": training.n_rows,
        "distortion": score_centers(X, centers, None, threads).distortion,
        "imbalance": training.index.invlists.imbalance_factor(),
        "searches": [search(training.index, queries, nearest, n_probes) for n_probes in PROBES],
    }


def format_report(rows: list[Row]) -> str:
    """A table a data set and number of lists."""
    parts = [
        "# IVF",
        f"Recall@{NEIGHBORS} of an `IndexIVFFlat` at equal `nprobe`, and in brackets the mean number of rows that a "
        "query is compared with. Time and rows are those of the training of the lists.",
    ]
    for setting in dict.fromkeys((row["data_title"], row["n_lists"], row["n_queries"], row["threads"]) for row in rows):
        title, n_lists, n_queries, threads = setting
        chosen = [row for row in rows if (row["data_title"], row["n_lists"]) == (title, n_lists)]
        header = (
            *("trained by", "time, s", "rows", "distortion per row"),
            *(f"nprobe {n}" for n in PROBES),
            "imbalance factor",
        )
        lines = [
            [
                row["training"],
                f"{row['seconds']:.2f}",
                f"{row['trained_on']:,}",
                f"{row['distortion']:,.6g}",
                *(f"{found['recall']:.4f} ({found['compared']:,.0f})" for found in row["searches"]),
                f"{row['imbalance']:.3f}",
            ]
            for row in chosen
        ]
        parts += [
            f"## {title}, {n_lists:,} lists",
            f"{n_queries:,} queries, {threads} threads, seed {chosen[0]['seed']}.",
            markdown_table(header, lines),
        ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ivf", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--rows", default="sift", choices=data.DATA_SETS, help="the data set; default: sift")
    parser.add_argument("--lists", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--most-rows", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    n_rows = min(arguments.most_rows, data.DATA_SETS[arguments.rows].largest(arguments.data) or arguments.most_rows)
    data.prepare(arguments.rows, n_rows, arguments.data)
    rows = np.ascontiguousarray(data.load(arguments.rows, n_rows, arguments.data), np.float32)
    n_queries = min(arguments.queries, n_rows // 10)
    X, queries = rows[:-n_queries], rows[-n_queries:]
    faiss.omp_set_num_threads(arguments.threads)
    exact = faiss.IndexFlatL2(X.shape[1])
    exact.add(X)
    nearest = exact.search(queries, NEIGHBORS)[1]
    for n_clusters in (100, 1000):  # compile
        train_ours(X[:5000], n_clusters, 0, arguments.threads)

    path = arguments.output / "ivf.jsonl"
    about = {
        "data_title": data.describe(arguments.rows, n_rows, arguments.data),
        "n_lists": arguments.lists,
        "n_queries": n_queries,
        "threads": arguments.threads,
        "seed": arguments.seed,
        "machine": describe_machine(),
        "versions": describe_versions(),
    }
    for training in all_trainings(X, arguments.lists, arguments.seed, arguments.threads):
        append_row(path, about | measure(training, X, queries, nearest, arguments.threads))
    text = format_report(latest(read_rows(path), lambda row: [row["data_title"], row["n_lists"], row["training"]]))
    path.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
