"""Open the explorer on the embedded data, or on photos where there are some.

python -m benchmarks.explore [--data FOLDER] [-- OPTIONS of closure-kmeans explore]

Of the folder, shopping64 (labelled product photos) is clustered, and ukbench1000 (photos of objects) is searched. What
is made of them is kept in .cache.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from benchmarks.cache import CACHE, keep
from benchmarks.data import add_data_option
from benchmarks.images import has_shopping64, shopping64
from closure_kmeans import ClosureKMeans
from closure_kmeans.cli import main as command
from closure_kmeans.features import hog

N_CLUSTERS, N_WORDS = 1500, 50_000


def prepare_products(source: str) -> list[str]:
    """Product photos as an array, their HOG vectors, what they show, and a model: the options that name them."""
    folder = CACHE / "explore"
    pictures, vectors = folder / "pictures.npy", folder / "products.npy"
    labels, model = vectors.with_suffix(".csv"), folder / "products.safetensors"
    if not model.exists():
        products = shopping64(source)
        keep(products.pictures, pictures)
        keep(hog(products.pictures, verbose=1).vectors, vectors)
        with labels.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["label"])
            rows.writerows([[products.classes[label]] for label in products.labels])
        fitted = ClosureKMeans(n_clusters=N_CLUSTERS, random_state=0, verbose=1).fit(np.load(vectors))
        fitted.save(model, training=True)
    return [str(model), "--vectors", str(vectors), "--images", str(pictures)]


def prepare_index(photos: Path) -> list[str]:
    """An index of photos: the option that names it."""
    index = CACHE / "explore" / "photos.index"
    if not index.exists():
        index.parent.mkdir(parents=True, exist_ok=True)
        options = ["--n-words", str(N_WORDS), "-o", str(index)]
        command(["retrieval", "index", str(photos), *options], standalone_mode=False)
    return ["--index", str(index)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data_option(parser)
    parser.add_argument("options", nargs="*", help="options of closure-kmeans explore, behind --")
    arguments = parser.parse_args()
    shown = []
    if has_shopping64(arguments.data):
        shown += prepare_products(arguments.data)
    if arguments.data is not None and (Path(arguments.data) / "ukbench1000").is_dir():
        shown += prepare_index(Path(arguments.data) / "ukbench1000")
    command(["explore", *shown, *arguments.options])


if __name__ == "__main__":
    main()
