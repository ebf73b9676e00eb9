"""Images a second for each feature, and how often the nearest vector is of the same label.

python -m benchmarks.features --data FOLDER

The folder holds ukbench1000 (photos, four of each object) and shopping64 (labelled product photos of 64 x 64 pixels).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import add_data_option
from benchmarks.images import shopping64
from benchmarks.results import markdown_table
from closure_kmeans.features import gist, hog, list_images, local_features

FEATURES: dict[str, Callable[..., Any]] = {
    "SIFT on DoG": partial(local_features, detector="dog"),
    "SIFT on MSER": partial(local_features, detector="mser"),
    "GIST": gist,
    "HOG": hog,
}
# Rows that are compared with all others.
N_QUERIES = 5000


def nearest_share(rows: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """The share of rows, among the first, whose nearest other row has the same label."""
    norms = np.einsum("ij,ij->i", rows, rows)
    same = []
    for first in range(0, min(len(rows), N_QUERIES), 500):
        block = np.arange(first, min(first + 500, len(rows)))
        distances = norms - 2 * rows[block] @ rows.T
        distances[np.arange(len(block)), block] = np.inf
        same.append(labels[block] == labels[distances.argmin(axis=1)])
    return float(np.concatenate(same).mean())


def measure(name: str, images: Any, labels: NDArray[np.int64], n_threads: int) -> list[str]:
    began = perf_counter()
    result = FEATURES[name](images, n_threads=n_threads, verbose=1)
    seconds = perf_counter() - began
    if name in ("GIST", "HOG"):
        found = ["1", f"{nearest_share(result.vectors, labels):.3f}"]
    else:
        found = [f"{len(result.descriptors) / len(images):.0f}", ""]
    return [name, f"{len(images):,}", f"{len(images) / seconds:,.0f}", *found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a few hundred photos, a few thousand products")
    arguments = parser.parse_args()
    photos = list_images(Path(arguments.data) / "ukbench1000")[: 200 if arguments.quick else None]
    objects = np.arange(len(photos)) // 4
    products = shopping64(arguments.data)
    shown = slice(10_000 if arguments.quick else None)
    header = ("", "images", "images a second", "vectors an image", "nearest of the same label")
    lines = [measure(name, photos, objects, arguments.threads) for name in FEATURES]
    print(f"Photos, {arguments.threads} threads, files decoded\n\n{markdown_table(header, lines)}\n")
    pictures, labels = products.pictures[shown], products.labels[shown]
    lines = [measure(name, pictures, labels, arguments.threads) for name in ("GIST", "HOG")]
    print(f"Products, {arguments.threads} threads\n\n{markdown_table(header, lines)}")


if __name__ == "__main__":
    main()
