"""What a query takes, part by part, on an index of real photos that is read from disk.

python -m benchmarks.query --data FOLDER

The folder holds ukbench1000. Features and words are kept, so that a second run measures at once.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.data import add_data_option
from benchmarks.machine import describe_machine
from benchmarks.results import FOLDER, markdown_table
from benchmarks.retrieval import KEPT, photos
from closure_kmeans.retrieval import PAPER_STEPS, Collection, ImageIndex, Steps, Vocabulary
from closure_kmeans.retrieval.stages import resume_learning

RESULTS = FOLDER / "query.md"


# Words that each region is matched in, verified images, and steps of a search.
SEARCHES = {
    "the default": (Steps().assignment, 0, Steps()),
    "the default, 200 verified and expanded": (Steps().assignment, 200, Steps()),
    "one word a region (--assignment 1)": (1, 0, Steps(assignment=1)),
    "one word a region, 200 verified and expanded": (1, 200, Steps(assignment=1)),
    "tf-idf (--protocol paper)": (1, 0, PAPER_STEPS),
    "tf-idf, 200 verified": (1, 200, PAPER_STEPS),
}


def make_index(collection: Collection, key: str, n_words: int) -> ImageIndex:
    learned = resume_learning(KEPT, key, collection.descriptors, n_words, verbose=1)
    index = ImageIndex(Vocabulary(learned.vocabulary.model, embedding=True))
    index.add(collection, index.vocabulary.words_of_fit(collection.descriptors))
    return index


def measure(index: ImageIndex, collection: Collection, images: range) -> dict[str, list[tuple[float, float]]]:
    """Milliseconds for the words and signatures, and for the search, of each of some photos, by each kind of search."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in SEARCHES}
    for image in images:
        own = slice(*collection.offsets[image : image + 2])
        for name, (assignment, n_rerank, steps) in SEARCHES.items():
            began = perf_counter()
            query = index.make_query(collection.keypoints[own], collection.descriptors[own], assignment=assignment)
            asked = perf_counter()
            found = index.search(query, n_rerank=n_rerank, steps=steps)
            times[name].append((1000 * (asked - began), 1000 * (perf_counter() - asked)))
            assert image in [result.image for result in found]
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
    lines = [
        [name, f"{words:.1f}", f"{search:.1f}", f"{total:.1f}", f"{most:.1f}"]
        for name, parts in times.items()
        for words, search in [np.median(parts, axis=0)]
        for total, most in [np.quantile(np.sum(parts, axis=1), [0.5, 0.95])]
    ]
    header = ["milliseconds", "words and signatures, median", "search, median", "both, median", "95 % within"]
    text = (
        f"# Time of a query\n\n{markdown_table(header, lines)}\n\n"
        f"{len(index):,} photos, {arguments.words:,} words; {len(regions)} queries of {median(regions):.0f} regions; "
        f"{describe_machine()['cpu']}, all of {os.cpu_count()} cores. Features are not included.\n"
    )
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
