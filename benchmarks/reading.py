"""What reading costs: a fit from a memory map against one from an array, and fits with a limit from files in chunks.

    python -m benchmarks.reading [--quick] [--data PATH]

The fits alternate in one process, and ratios are taken between neighbours. The pages of the files are in memory. Files
in chunks, HDF5 with gzip and Parquet, are read with ``memory_limit``, against the same fit from a memory map.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
from pyarrow import parquet

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
# Rows of a chunk or row group, and bytes allowed for such a fit.
CHUNKS, MEMORY_LIMIT = (2_000, 50_000, 200_000), 64_000_000


def seconds_of_fit(X: Any, n_clusters: int, threads: int, **settings: Any) -> float:
    began = time.perf_counter()
    ClosureKMeans(n_clusters, random_state=0, n_threads=threads, **settings).fit(X)
    return time.perf_counter() - began


def write_chunks(path: Path, X: data.Rows, n_rows: int) -> None:
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("train", data=X, chunks=(n_rows, X.shape[1]), compression="gzip")
    else:
        lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(X.ravel()), X.shape[1])
        parquet.write_table(pyarrow.table({"vector": lists}), path, row_group_size=n_rows)


def compare_chunks(X: data.Rows, path: Path, n_rows: int, n_clusters: int, threads: int) -> dict[str, Any]:
    """One iteration: the rows are read in the layout, before the first."""
    mapped = path.with_suffix(".npy")
    save_vectors(mapped, X)
    write_chunks(path, X, n_rows)
    settings = {"memory_limit": MEMORY_LIMIT, "max_iter": 1}
    row = {
        "file": path.suffix,
        "chunk": n_rows,
        "map": seconds_of_fit(open_vectors(mapped), n_clusters, threads, **settings),
        "chunks": seconds_of_fit(open_vectors(path), n_clusters, threads, **settings),
    }
    mapped.unlink()
    path.unlink()
    return row


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
    CACHE.mkdir(parents=True, exist_ok=True)
    lines = []
    for suffix in FORMATS:
        row = compare(X, CACHE / f"reading{suffix}", n_clusters, arguments.threads, arguments.repeats)
        append_row(path, row | {"n_rows": len(X), "machine": describe_machine(), "versions": describe_versions()})
        lines.append([f"`{suffix}`", f"{row['array']:.2f}", f"{row['map']:.2f}", f"{row['ratio']:.3f}"])
        print(row, flush=True)
    title = f"# Memory maps against arrays: {len(X):,} x {X.shape[1]} {X.dtype} into {n_clusters:,}"
    text = f"{title}\n\n{markdown_table(('file', 'array, s', 'map, s', 'map against array, ×'), lines)}\n"
    lines = []
    for suffix in (".h5", ".parquet"):
        for n_rows in (chunk // share for chunk in CHUNKS):
            row = compare_chunks(X, CACHE / f"reading{suffix}", n_rows, n_clusters, arguments.threads)
            append_row(path, row | {"n_rows": len(X), "machine": describe_machine(), "versions": describe_versions()})
            lines.append([f"`{suffix}`", f"{n_rows:,}", f"{row['map']:.2f}", f"{row['chunks']:.2f}"])
            print(row, flush=True)
    text += "\n## One iteration with a limit of 64 MB, from a map and from chunks\n\n"
    text += f"{markdown_table(('file', 'rows in a chunk', 'map, s', 'chunks, s'), lines)}\n"
    path.with_suffix(".md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
