"""Queries on an index of a million made images, from disk.

python -m benchmarks.large_index

An image has 100 regions; words follow a power law like those of real photos, and every fourth image repeats a half of
the regions of the one before.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from closure_kmeans import ClosureKMeans
from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, Vocabulary, Words

REGIONS = 100


def make(n_images: int, n_words: int, rng: np.random.Generator) -> tuple[Collection, Words]:
    words = (n_words * rng.random((n_images, REGIONS), np.float32) ** 1.5).astype(np.int32)
    words[3::4, : REGIONS // 2] = words[2::4, : REGIONS // 2]
    keypoints = rng.random((n_images * REGIONS, 4), np.float32) * np.float32(300) + 1
    names = [f"{number // 1000:04}/{number:07}.jpg" for number in range(n_images)]
    offsets = np.arange(n_images + 1) * REGIONS
    none = np.empty((0, 128), np.uint8)
    return Collection(names, None, keypoints, none, offsets, [], Extraction()), Words(words.reshape(-1, 1), None)


def forget_pages(path: Path) -> None:
    """Have the system drop what it holds of a file, so that it is read from disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--words", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=50)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    centers = rng.integers(0, 256, (arguments.words, 128), np.uint8)
    model = ClosureKMeans(arguments.words, init=np.arange(arguments.words), max_iter=1, random_state=0).fit(centers)
    made = ImageIndex(Vocabulary(model))
    began = perf_counter()
    made.add(*make(arguments.images, arguments.words, rng))
    print(f"{arguments.images:,} images of {REGIONS} regions indexed in {perf_counter() - began:.0f} s")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.index"
        began = perf_counter()
        made.save(path)
        print(f"written in {perf_counter() - began:.0f} s, {path.stat().st_size / 1e9:.1f} GB")
        del made
        forget_pages(path)
        began = perf_counter()
        index = ImageIndex.load(path)
        print(f"opened in {perf_counter() - began:.1f} s")
        for n_rerank in (0, 200):
            times, hits = [], 0
            for image in range(2, 2 + 4 * arguments.queries, 4):
                query = index.query_of(image)
                began = perf_counter()
                found = index.search(query, n_results=10, n_rerank=n_rerank)
                times.append(perf_counter() - began)
                hits += [result.image for result in found[:2]] == [image, image + 1]
            verified = (
                " with 200 verified" if n_rerank else f", {hits} of {len(times)} found the image and its half copy"
            )
            print(
                f"query: first {1000 * times[0]:.0f} ms, median {1000 * median(times):.1f} ms, "
                f"longest after the first {1000 * max(times[1:]):.0f} ms{verified}"
            )


if __name__ == "__main__":
    main()
