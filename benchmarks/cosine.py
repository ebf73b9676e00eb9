"""Spherical k-means: ours against Euclidean clusters of the unit rows, and against faiss.

python -m benchmarks.cosine [--data PATH] [--embeddings FOLDER] [--seeds N]

All are judged by one objective, the mean of 2 - 2 cos between a row and the nearest of the centres' directions.
``--embeddings`` is a folder that ``benchmarks.embeddings`` has filled.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import faiss
import numpy as np

from benchmarks import data
from benchmarks.data import Rows
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, append_row, markdown_table, read_rows
from benchmarks.rivals.report import signed
from benchmarks.score import unit
from closure_kmeans import ClosureKMeans

ITERATIONS = 25  # of faiss
SCORED_ROWS = 4096
HEADER = (
    "rows",
    "k",
    '`metric="cosine"`',
    "Euclidean",
    "cosine against Euclidean, %",
    "faiss, spherical",
    "cosine against faiss, %",
    "iterations",
    "clusters of one row",
)


def around_directions(n_rows: int, noise: float) -> Rows:
    """Rows around 2,000 random directions, with noise of a length of 11 times ``noise``."""
    rng = np.random.default_rng(0)
    directions = unit(rng.normal(size=(2000, 128)))
    return unit(directions[rng.integers(2000, size=n_rows)] + noise * rng.normal(size=(n_rows, 128)))


def cases(source: str | None, embeddings: Path | None) -> Iterator[tuple[str, Callable[[], Rows], tuple[int, ...]]]:
    """A title, what makes the rows, and numbers of clusters."""
    for noise in (0.09, 0.15):
        make = partial(around_directions, 20_000, noise)
        yield f"20,000 x 128 around 2,000 directions, noise {noise}", make, (2000, 4000, 6000)
    yield "60,000 SIFT descriptors", lambda: data.load("sift", 60_000, source), (600, 6000, 20_000)
    yield "60,000 GloVe vectors", lambda: data.load("glove", 60_000, source), (600, 6000, 20_000)
    if embeddings is not None:
        wordllama, minilm = (embeddings / f"{name}.npy" for name in ("wordllama", "minilm"))
        yield "40,000 x 256, WordNet by WordLlama", lambda: np.load(wordllama)[:40_000], (400, 4000, 10_000)
        yield "100,000 x 384, WordNet by MiniLM", lambda: np.load(minilm)[:100_000], (1000, 10_000)


def objective(X: Rows, centers: Rows) -> float:
    """The mean of 2 - 2 cos to the nearest direction."""
    directions, total = unit(centers), 0.0
    for first in range(0, len(X), SCORED_ROWS):
        total += (2 - 2 * (X[first : first + SCORED_ROWS] @ directions.T).max(axis=1).astype(np.float64)).sum()
    return total / len(X)


def fit_all(X: Rows, k: int, seed: int) -> dict[str, Any]:
    ours = ClosureKMeans(k, metric="cosine", random_state=seed).fit(X)
    euclidean = ClosureKMeans(k, random_state=seed).fit(X)
    theirs = faiss.Kmeans(
        X.shape[1],
        k,
        niter=ITERATIONS,
        spherical=True,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(X),
    )
    theirs.train(X)
    return {
        "ours": objective(X, ours.cluster_centers_),
        "euclidean": objective(X, euclidean.cluster_centers_),
        "faiss": objective(X, theirs.centroids),
        "iterations": ours.n_iter_,
        "singletons": int((ours.cluster_sizes_ == 1).sum()),
    }


def format_line(title: str, k: int, rows: list[dict[str, Any]]) -> list[str]:
    ours, euclidean, theirs = (mean(row[name] for row in rows) for name in ("ours", "euclidean", "faiss"))
    return [
        title,
        f"{k:,}",
        f"{ours:.4f}",
        f"{euclidean:.4f}",
        signed(ours / euclidean),
        f"{theirs:.4f}",
        signed(ours / theirs),
        f"{mean(row['iterations'] for row in rows):.0f}",
        f"{mean(row['singletons'] for row in rows):.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cosine", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--embeddings", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="redo finished runs")
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    path = arguments.output / "cosine.jsonl"
    if arguments.fresh:
        path.unlink(missing_ok=True)
    done = {(row["rows"], row["k"], row["seed"]): row for row in read_rows(path)}
    about = {"machine": describe_machine(), "versions": describe_versions()}
    lines = []
    for title, make, sizes in cases(arguments.data, arguments.embeddings):
        X = unit(make())
        for k in sizes:
            for seed in range(arguments.seeds):
                if (title, k, seed) not in done:
                    done[title, k, seed] = fit_all(X, k, seed)
                    append_row(path, {"rows": title, "k": k, "seed": seed} | done[title, k, seed] | about)
            rows = [done[title, k, seed] for seed in range(arguments.seeds)]
            lines.append(format_line(title, k, rows))
            print(*lines[-1], sep="  ", flush=True)
    text = (
        "# Spherical k-means\n\nMean of 2 − 2 cos of a row and the nearest direction of a centre; lower is better. Of "
        '`metric="cosine"`, of Euclidean clusters of the L2-normalised rows, and of `faiss.Kmeans(spherical=True)` '
        f"with {ITERATIONS} iterations on all rows. Means of {arguments.seeds} seeds.\n\n"
        f"{markdown_table(HEADER, lines)}\n"
    )
    path.with_suffix(".md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
