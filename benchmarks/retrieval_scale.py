"""Object retrieval at the size of Oxford Buildings, on photos made from those of UKBench.

    python -m benchmarks.retrieval_scale --data FOLDER [--photos 500]

The folder holds ukbench1000. Each made photo of 1,024 x 768 pixels is a mosaic of six parts of UKBench photos, cropped,
rotated and scaled by a seeded generator. One part shows the object of the photo, the others show random objects. There
are 55 queries: the part with the object, searched for among all photos. Each photo has about 3,600 regions, so that
5,000 photos have about 18 million descriptors, as Oxford Buildings has.

The run is one command line, ``closure-kmeans retrieval evaluate oxford --rerank``, with default settings and 200 words
per photo: from the folder to the scores without and with verification and query expansion. Compiled kernels are cached
before. Peak memory is the resident set of the process, mapped pages included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks.data import CACHE, add_data_option
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, Row, append_row, latest, markdown_table, read_rows

RESULTS = FOLDER / "retrieval-scale.jsonl"
PHOTOS = CACHE / "retrieval-scale"
N_PHOTOS, N_QUERIES = 5000, 55
WORDS_PER_PHOTO = 200
# Columns and rows of the mosaic, and the pixels of a part.
GRID = 3, 2
PART = 341, 384
# Smallest and largest scale of a part of a photo, and the largest rotation of the object in degrees.
SCALES, MOST_ROTATED = (1.4, 2.4), 30
QUALITY = 90
MOST_MINUTES, MOST_BYTES = 25, 6e9


def part(source: NDArray[np.uint8], rng: np.random.Generator, most_rotated: float) -> NDArray[np.uint8]:
    """A part of a photo, rotated and scaled about a point near the middle; mirrored beyond the borders."""
    height, width = source.shape[:2]
    middle = rng.uniform(0.35, 0.65, 2) * (width, height)
    transform = cv2.getRotationMatrix2D(middle.tolist(), rng.uniform(-most_rotated, most_rotated), rng.uniform(*SCALES))
    transform[:, 2] += np.array(PART) / 2 - middle
    return cv2.warpAffine(source, transform, PART, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT_101)


def mosaic(sources: list[Path], photo: int) -> tuple[NDArray[np.uint8], int, int]:
    """A made photo, the object that it shows, and the place of the object in the mosaic."""
    rng = np.random.default_rng([0, photo])
    n_objects = len(sources) // 4
    shown, place = photo % n_objects, int(rng.integers(GRID[0] * GRID[1]))
    pixels = np.zeros((PART[1] * GRID[1], PART[0] * GRID[0] + 1, 3), np.uint8)
    for number in range(GRID[0] * GRID[1]):
        is_shown = number == place
        source = 4 * shown + int(rng.integers(4)) if is_shown else int(rng.integers(len(sources)))
        left, top = (number % GRID[0]) * PART[0], (number // GRID[0]) * PART[1]
        made = part(cv2.imread(str(sources[source])), rng, MOST_ROTATED if is_shown else 180)
        pixels[top : top + PART[1], left : left + PART[0]] = made
    return pixels, shown, place


def make_photos(data: Path, n_photos: int) -> Path:
    """The made photos and their ground truth, in a folder that is complete if it exists."""
    folder = PHOTOS / str(n_photos)
    if folder.exists():
        return folder
    sources = sorted((data / "ukbench1000").glob("*.jpg"))
    PHOTOS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PHOTOS) as beside:
        made = Path(beside) / "made"
        for name in ("images", "ground_truth"):
            (made / name).mkdir(parents=True)

        def write(photo: int) -> tuple[int, int]:
            pixels, shown, place = mosaic(sources, photo)
            cv2.imwrite(str(made / "images" / f"{photo:05}.jpg"), pixels, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
            return shown, place

        cv2.setNumThreads(1)
        with ThreadPoolExecutor(2) as pool:
            facts = list(pool.map(write, range(n_photos)))
        for query in range(N_QUERIES):
            write_truth(made / "ground_truth", query * n_photos // N_QUERIES, facts)
        made.rename(folder)
    return folder


def write_truth(folder: Path, query: int, facts: list[tuple[int, int]]) -> None:
    """Ground truth of a query by a photo: its box, and the photos that show its object."""
    shown, place = facts[query]
    left, top = (place % GRID[0]) * PART[0], (place // GRID[0]) * PART[1]
    box = f"{left} {top} {left + PART[0]} {top + PART[1]}"
    good = [f"{photo:05}" for photo, fact in enumerate(facts) if fact[0] == shown]
    for kind, text in {"query": f"{query:05} {box}", "good": "\n".join(good), "ok": "", "junk": ""}.items():
        (folder / f"object_{query}_{kind}.txt").write_text(text)


def measure(folder: Path, n_words: int, threads: int) -> Row:
    """Run the command line, with a new folder for finished work; its time, memory and output."""
    with tempfile.TemporaryDirectory(dir=PHOTOS) as work:
        command = ["retrieval", "evaluate", "oxford", folder / "images", folder / "ground_truth", "--rerank", "--json"]
        command += ["--n-words", n_words, "--n-threads", threads, "--work", work]
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "closure_kmeans", *map(str, command)], stdout=subprocess.PIPE, check=True, text=True
        )
        seconds = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        descriptors = count_descriptors(Path(work))
    return {
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "memory_peak": used.ru_maxrss * 1024,
        "descriptors": descriptors,
        "scores": [json.loads(line) for line in done.stdout.splitlines()],
    }


def count_descriptors(work: Path) -> int:
    from closure_kmeans.retrieval import load_collection

    return sum(len(load_collection(path).descriptors) for path in work.glob("features-*"))


def key_of(row: Row) -> list[Any]:
    return [row["photos"], row["words"], row["threads"]]


def report(rows: list[Row]) -> None:
    header = ["photos", "descriptors", "words", "minutes", "processor minutes", "peak memory, GB", "bytes a descriptor"]
    lines = [
        [
            f"{row['photos']:,}",
            f"{row['descriptors']:,}",
            f"{row['words']:,}",
            f"{row['seconds'] / 60:.1f}",
            f"{row['processor_seconds'] / 60:.1f}",
            f"{row['memory_peak'] / 1e9:.2f}",
            f"{row['memory_peak'] / row['descriptors']:.0f}",
            *(f"{score['score']:.3f}" for score in row["scores"]),
        ]
        for row in rows
    ]
    steps = ["mAP", "verified", "verified and expanded"]
    text = ["# Object retrieval at the size of Oxford Buildings", markdown_table([*header, *steps], lines)]
    last = rows[-1]
    text.append(
        f"{last['threads']} threads; {last['machine']['cpu']}, {last['machine']['memory_gb']:g} GB. "
        f"The goal at {N_PHOTOS:,} photos: {MOST_MINUTES} minutes and {MOST_BYTES / 1e9:g} GB."
    )
    RESULTS.with_suffix(".md").write_text("\n\n".join(text) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--photos", type=int, default=N_PHOTOS)
    parser.add_argument("--words", type=int, help=f"default: {WORDS_PER_PHOTO} per photo")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only-make", action="store_true", help="only make the photos")
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("--data must name the folder that holds ukbench1000")
    folder = make_photos(Path(arguments.data), arguments.photos)
    if arguments.only_make:
        return
    words = arguments.words or WORDS_PER_PHOTO * arguments.photos
    shared = {"machine": describe_machine(), "versions": describe_versions(), "threads": arguments.threads}
    row = {"photos": arguments.photos, "words": words} | measure(folder, words, arguments.threads) | shared
    append_row(RESULTS, row)
    report(sorted(latest(read_rows(RESULTS), key_of), key=key_of))
    print(RESULTS.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
