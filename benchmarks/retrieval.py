"""Object retrieval with codebooks of different methods and sizes, all else the same (the paper's section 4.5).

python -m benchmarks.retrieval --data FOLDER

The folder holds ukbench1000: photos, four of each object in a row. A codebook is learned from all descriptors of all
photos, and scored on the first 200, 400 and so on: only those are queries, and only those are searched. More seeds show
how far chance goes.

All flat methods begin with the same clusters: every descriptor is at the nearest of as many random ones as there are
words. So begins the release of AKM that the paper names. With `--start tree` they begin with the leaves of a tree, as
in the paper's section 4.3.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.data import CACHE, add_data_option
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, Row, append_row, forget, latest, markdown_table, read_rows
from closure_kmeans import CenterIndex
from closure_kmeans.nearest import SAMPLE_ROWS
from closure_kmeans.retrieval import Collection, Extraction, learn_vocabulary
from closure_kmeans.retrieval.collection import image_names
from closure_kmeans.retrieval.experiment import Scoring, score_vocabulary
from closure_kmeans.retrieval.stages import resume_features
from closure_kmeans.retrieval.vocabulary import root_bytes

KEPT = CACHE / "retrieval"
PHOTOS = "ukbench1000"
METHODS = {
    "hkm": "HKM",
    "akm": "AKM",
    "rakm": "RAKM",
    "paper": "closures, as in the paper",
    "closure": "closures, default",
}
SIZES = (1000, 10_000, 100_000, 200_000)
RESULTS = {"random": FOLDER / "retrieval.jsonl", "tree": FOLDER / "retrieval-tree.jsonl"}
TITLES = {"random": "from random rows", "tree": "from the leaves of a tree"}
# Flat methods stop when an iteration lowers the distortion by less than this part of itself. That of AKM goes up and
# down, and is no sign of when to stop: it has the ten iterations that VISE takes, which its authors' group maintains.
FLAT: dict[str, Any] = {"max_iter": 20, "tol": 5e-3}
SETTINGS = {"hkm": {}, "akm": {"max_iter": 10, "tol": 0.0}, "rakm": FLAT, "paper": FLAT, "closure": FLAT}
SUBSETS = (200, 400, 600, 800)
MOST_LEVELS = 4
# What the paper has, by method and scoring levels: 10,200 photos, a million words, L1.
PAPER = {("hkm", 1): 3.16, ("hkm", 2): 3.07, ("hkm", 3): 3.29, ("hkm", 4): 3.29, ("akm", 1): 3.45, ("paper", 1): 3.50}


class Job(NamedTuple):
    method: str
    words: int
    seed: int


class Start(NamedTuple):
    """What the flat methods begin with, and what it took to find."""

    init: Any  # labels, or what the methods call the start
    seconds: float = 0.0


StartOf = Callable[[int, int], Start]  # of a number of words, and a seed


def job_of(row: Row) -> Job:
    return Job(row["method"], row["words"], row["seed"])


def key(row: Row) -> list[Any]:
    return [*job_of(row), row["levels"], row["norm"], row["images"], row["reranked"]]


def photos(source: str) -> tuple[Collection, str]:
    """The features of the photos, taken once, and a key that tells of what they were made."""
    folder = Path(source) / PHOTOS
    return resume_features(KEPT, folder, image_names(folder), Extraction(), verbose=1)


def start_from_random_rows(collection: Collection, words: int, seed: int, threads: int) -> Start:
    """Each descriptor at the nearest of as many random ones as there are words."""
    began = perf_counter()
    rows = root_bytes(collection.descriptors)
    drawn = np.random.default_rng(seed).choice(len(rows), words, replace=False)
    index = CenterIndex(rows[drawn], sample=rows[:: -(-len(rows) // SAMPLE_ROWS)], n_threads=threads)
    labels, _ = index.nearest(rows)
    return Start(labels, perf_counter() - began)


def run(collection: Collection, job: Job, start_of: StartOf, threads: int) -> list[Row]:
    """The scores of one codebook, and what they took in all."""
    began = perf_counter()
    rows = list(learn_and_score(collection, job, start_of, threads))
    whole = perf_counter() - began
    return [row | {"whole_seconds": whole} for row in rows]


def learn_and_score(collection: Collection, job: Job, start_of: StartOf, threads: int) -> Iterator[Row]:
    """Learn one codebook, and score it in every way."""
    settings, seconds = SETTINGS[job.method], 0.0
    if job.method != "hkm":
        start = start_of(job.words, job.seed)
        settings, seconds = settings | {"init": start.init}, start.seconds
    began = perf_counter()
    learned = learn_vocabulary(
        collection.descriptors, job.words, method=job.method, random_state=job.seed, n_threads=threads, **settings
    )
    seconds += perf_counter() - began
    facts = {"learned_words": learned.n_words, "seconds": seconds, "iterations": learned.model.n_iter_}
    facts |= {"distortion": learned.model.inertia_ / len(collection.descriptors)}
    scorings = scorings_of(len(collection.names), len(getattr(learned.model, "levels_", "1")))
    for scoring, score in score_vocabulary(collection, learned, scorings, n_threads=threads):
        yield job._asdict() | facts | scoring._asdict() | score._asdict()


def scorings_of(n_images: int, depth: int) -> list[Scoring]:
    """All photos in several ways, and the first of them; of a tree its levels, too."""
    whole = Scoring(n_images)
    return [
        *(Scoring(n) for n in SUBSETS),
        *(whole, whole._replace(reranked=True), whole._replace(norm="l2")),
        *(whole._replace(levels=levels) for levels in range(2, min(MOST_LEVELS, depth) + 1)),
    ]


# -- report ----------------------------------------------------------------------------------------------------------


def spread(rows: Sequence[Row]) -> str:
    """The mean over seeds, and how far the farthest is from it."""
    if not rows:
        return ""
    scores = [row["score"] for row in rows]
    middle = mean(scores)
    return f"{middle:.3f}" + (f" ± {max(abs(score - middle) for score in scores):.3f}" if len(scores) > 1 else "")


def select(rows: Sequence[Row], **facts: Any) -> list[Row]:
    defaults = {"levels": 1, "norm": "l1", "reranked": False, "images": max(row["images"] for row in rows)}
    return [row for row in rows if all(row[name] == value for name, value in (defaults | facts).items())]


def table(rows: list[Row]) -> str:
    sizes = sorted({row["words"] for row in rows})
    lines = []
    for method, title in METHODS.items():
        for norm, reranked, note in (("l1", False, ""), ("l1", True, ", re-ranked"), ("l2", False, ", L2")):
            found = [spread(select(rows, method=method, words=n, norm=norm, reranked=reranked)) for n in sizes]
            lines.append([title + note, *found])
    for levels in range(2, MOST_LEVELS + 1):
        found = [spread(select(rows, method="hkm", words=n, levels=levels)) for n in sizes]
        lines.append([f"HKM, {levels} scoring levels", *found])
    return markdown_table(
        ["UKBench score", *(f"{n:,} words" for n in sizes)], [line for line in lines if any(line[1:])]
    )


def paper_table(rows: list[Row]) -> str:
    """The paper's scores beside ours with most words."""
    images, words = (max(row[name] for row in rows) for name in ("images", "words"))
    lines = [
        [METHODS[method], str(levels), f"{score:.2f}", spread(select(rows, method=method, words=words, levels=levels))]
        for (method, levels), score in PAPER.items()
    ]
    ours = f"here: {images:,} photos, {words:,} words"
    return markdown_table(["", "scoring levels", "the paper: 10,200 photos, 1,000,000 words", ours], lines)


def subset_table(rows: list[Row], n_words: int) -> str:
    sizes = sorted({row["images"] for row in rows})
    lines = [
        [title, *(spread(select(rows, method=method, words=n_words, images=n)) for n in sizes)]
        for method, title in METHODS.items()
        if select(rows, method=method, words=n_words)
    ]
    return markdown_table([f"{n_words:,} words", *(f"{n:,} photos" for n in sizes)], lines)


def distortion_table(rows: list[Row]) -> str:
    sizes = sorted({row["words"] for row in rows})

    def cell(method: str, words: int) -> str:
        found = select(rows, method=method, words=words)
        if not found:
            return ""
        return f"{mean(row['distortion'] for row in found):,.0f} ({mean(row['iterations'] for row in found):.0f})"

    lines = [[title, *(cell(method, n) for n in sizes)] for method, title in METHODS.items()]
    return markdown_table(["distortion (iterations)", *(f"{n:,} words" for n in sizes)], lines)


def time_table(rows: list[Row]) -> str:
    """What a codebook takes to learn, and a whole run."""
    sizes = sorted({row["words"] for row in rows})

    def cell(method: str, words: int) -> str:
        found = select(rows, method=method, words=words)
        return f"{mean(row['seconds'] for row in found):,.1f}" if found else ""

    lines = [[title, *(cell(method, n) for n in sizes)] for method, title in METHODS.items()]
    text = [markdown_table(["seconds to learn", *(f"{n:,} words" for n in sizes)], lines)]
    features = [row["feature_seconds"] for row in rows if row["feature_seconds"] is not None]
    jobs = {job_of(row): row["whole_seconds"] for row in rows}
    n_jobs_of = Counter(job.seed for job in jobs)
    seeds = [seed for seed, n_jobs in n_jobs_of.items() if n_jobs == len(sizes) * len(METHODS)]
    if features and seeds:
        whole = [features[0] + sum(seconds for job, seconds in jobs.items() if job.seed == seed) for seed in seeds]
        text.append(
            f"All of it adds up to {' and '.join(f'{seconds / 60:.1f}' for seconds in whole)} minutes for "
            f"the codebooks of seed {' and '.join(map(str, seeds))}, from the photos to the last score, on "
            f"{rows[0]['threads']} threads, {features[0]:.0f} s of them for features."
        )
    return "\n\n".join(text)


def report(rows: list[Row], start: str) -> None:
    largest = max((row["words"] for row in rows if row["words"] <= 100_000), default=SIZES[0])
    text = [
        f"# Retrieval: {max(row['images'] for row in rows):,} UKBench photos, RootSIFT, {TITLES[start]}",
        table(rows),
        "The mean over seeds, ± the largest distance from it where there are several. All else is the same: features, "
        "tf-idf, search.",
        subset_table(rows, largest),
        distortion_table(rows),
        time_table(rows),
        paper_table(rows),
    ]
    RESULTS[start].with_suffix(".md").write_text("\n\n".join(text) + "\n")
    draw(rows, largest, RESULTS[start].with_suffix(".png"))


def draw(rows: list[Row], n_words: int, picture: Path) -> None:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for method, title in METHODS.items():
        for axes, name, fixed in ((left, "words", {}), (right, "images", {"words": n_words})):
            values = sorted({row[name] for row in rows})
            cells = {value: select(rows, method=method, **(fixed | {name: value})) for value in values}
            cells = {value: cell for value, cell in cells.items() if cell}
            if not cells:
                continue
            middles = [mean(row["score"] for row in cell) for cell in cells.values()]
            line = axes.plot(list(cells), middles, marker="o", label=title)[0]
            for value, cell in cells.items():
                axes.scatter([value] * len(cell), [row["score"] for row in cell], s=8, color=line.get_color())
    left.set(xscale="log", xlabel="words", ylabel="UKBench score (of 4)", title="all photos")
    right.set(xlabel="photos", title=f"{n_words:,} words")
    left.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--start", choices=list(RESULTS), default="random", help="where the flat methods begin")
    parser.add_argument("--words", type=lambda text: tuple(map(int, text.split(","))), default=SIZES)
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--fresh", action="store_true", help="forget the features and the results that are there")
    parser.add_argument("--report", action="store_true", help="only make the tables and the figure anew")
    arguments = parser.parse_args()
    results = RESULTS[arguments.start]
    if not arguments.report:
        if arguments.data is None:
            parser.error("--data must name the folder that holds ukbench1000")
        plan = product(range(arguments.seeds), arguments.words, arguments.methods)
        jobs = [Job(method, words, seed) for seed, words, method in plan]
        if arguments.fresh:
            for kept in KEPT.glob("features-*"):
                kept.unlink()
            forget(results, lambda row: job_of(row) in jobs)
        known, began = any(KEPT.glob("features-*")), perf_counter()
        collection, _ = photos(arguments.data)
        shared = {"machine": describe_machine(), "versions": describe_versions(), "threads": arguments.threads}
        shared |= {"feature_seconds": None if known else perf_counter() - began}
        done = {job_of(row) for row in read_rows(results)}

        @lru_cache(maxsize=1)  # the methods of one size come one after the other
        def start_of(words: int, seed: int) -> Start:
            if arguments.start == "tree":
                return Start("tree")
            return start_from_random_rows(collection, words, seed, arguments.threads)

        for job in jobs:
            if job in done:
                continue
            for row in run(collection, job, start_of, arguments.threads):
                append_row(results, row | shared)
            found = select([row for row in read_rows(results) if row["words"] == job.words], **job._asdict())
            print(*job, f"score {spread(found)}, learned in {found[0]['seconds']:.1f} s", flush=True)
    report(latest(read_rows(results), key), arguments.start)


if __name__ == "__main__":
    main()
