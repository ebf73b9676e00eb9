"""Reading costs nothing extra: a fit from a memory map against a fit from an array, when both fit in memory.

    python -m benchmarks.reading [--quick] [--data PATH]

The fits alternate in one process, and ratios are taken between neighbours. The pages of the files are in memory.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.cache import CACHE
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, append_row, markdown_table
from closure_kmeans import ClosureKMeans
from closure_kmeans.datasets import load_sift
from closure_kmeans.vectors import open_vectors, save_vectors

N_ROWS, N_CLUSTERS = 1_000_000, 10_000
QUICK_SHARE = 20
FORMATS = (".npy", ".u8bin", ".bvecs")


def seconds_of_fit(X: data.Rows, n_clusters: int, threads: int) -> float:
    began = time.perf_counter()
    ClosureKMeans(n_clusters, random_state=0, n_jobs=threads).fit(X)
    return time.perf_counter() - began


def compare(X: data.Rows, path: Path, n_clusters: int, threads: int, repeats: int) -> dict[str, Any]:
    save_vectors(path, X)
    pairs = []
    for _ in range(repeats):
        from_array = seconds_of_fit(X, n_clusters, threads)
        pairs.append((from_array, seconds_of_fit(open_vectors(path), n_clusters, threads)))
    path.unlink()
    array, mapped = np.transpose(pairs)
    return {
        "file": path.suffix,
        "array": float(np.median(array)),
        "map": float(np.median(mapped)),
        "ratio": float(np.median(mapped / array)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK_SHARE} of the rows and clusters")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    share = QUICK_SHARE if arguments.quick else 1
    X, n_clusters = np.ascontiguousarray(data.load("sift", N_ROWS // share, arguments.data)), N_CLUSTERS // share
    ClosureKMeans(200, random_state=0).fit(load_sift())  # compiled code is no part of it
    path = arguments.output / f"reading{'-quick' if arguments.quick else ''}.jsonl"
    path.unlink(missing_ok=True)
    lines = []
    for suffix in FORMATS:
        row = compare(X, CACHE / f"reading{suffix}", n_clusters, arguments.threads, arguments.repeats)
        append_row(path, row | {"n_rows": len(X), "machine": describe_machine(), "versions": describe_versions()})
        lines.append([f"`{suffix}`", f"{row['array']:.2f}", f"{row['map']:.2f}", f"{row['ratio']:.3f}"])
        print(row, flush=True)
    title = f"# Memory maps against arrays: {len(X):,} x {X.shape[1]} {X.dtype} into {n_clusters:,}"
    text = f"{title}\n\n{markdown_table(('file', 'array, s', 'map, s', 'ratio'), lines)}\n"
    path.with_suffix(".md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
