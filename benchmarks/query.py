"""What a query takes, part by part, on an index of real photos that is read from disk.

python -m benchmarks.query --data FOLDER

The folder holds ukbench1000. Features and words are kept, so that a second run measures at once.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.data import add_data_option
from benchmarks.retrieval import KEPT, photos
from closure_kmeans.retrieval import Collection, ImageIndex
from closure_kmeans.retrieval.stages import resume_learning


def make_index(collection: Collection, key: str, n_words: int) -> ImageIndex:
    learned = resume_learning(KEPT, key, collection.descriptors, n_words, verbose=1)
    index = ImageIndex(learned.vocabulary, collection.extraction)
    index.add(collection)
    return index


def measure(index: ImageIndex, collection: Collection, images: range) -> dict[str, list[float]]:
    """Milliseconds of each part, for each of some photos."""
    times: dict[str, list[float]] = {"words": [], "ranking": [], "ranking, 200 verified": []}
    for image in images:
        own = slice(*collection.offsets[image : image + 2])
        began = perf_counter()
        query = index.make_query(collection.keypoints[own], collection.descriptors[own])
        times["words"].append(1000 * (perf_counter() - began))
        for part, n_rerank in (("ranking", 0), ("ranking, 200 verified", 200)):
            began = perf_counter()
            found = index.search(query, n_rerank=n_rerank)
            times[part].append(1000 * (perf_counter() - began))
            assert found[0].image == image
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--words", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=100)
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("--data must name the folder that holds ukbench1000")
    collection, key = photos(arguments.data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "photos.index"
        make_index(collection, key, arguments.words).save(path)
        index = ImageIndex.load(path)
        step = max(1, len(index) // arguments.queries)
        measure(index, collection, range(0, 5 * step, step))  # compile
        times = measure(index, collection, range(0, len(index), step))
    regions = np.diff(collection.offsets)[::step]
    print(f"{len(index):,} photos, {arguments.words:,} words; {len(regions)} queries of {median(regions):.0f} regions")
    for part, values in times.items():
        print(f"{part:22} median {median(values):6.2f} ms, 95 % within {np.quantile(values, 0.95):6.2f} ms")


if __name__ == "__main__":
    main()
