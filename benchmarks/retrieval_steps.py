"""Object retrieval step by step: what each step of a search adds to the score.

python -m benchmarks.retrieval_steps --data FOLDER

The folder holds ukbench1000 and oxford_dev (images and ground_truth). Each line of the table adds one step to the line
above it; the columns are sets of photos, features and sizes of codebooks. Features and words are kept, so that a run
that was stopped goes on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.data import add_data_option
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, Row, append_row, latest, markdown_table, read_rows
from benchmarks.retrieval import KEPT
from closure_kmeans.retrieval import Extraction, Steps, read_oxford
from closure_kmeans.retrieval.collection import image_names
from closure_kmeans.retrieval.experiment import N_EXPANSION, Scoring, score_vocabulary
from closure_kmeans.retrieval.stages import resume_features, resume_learning
from closure_kmeans.warmup import compile_retrieval, few_words

RESULTS = FOLDER / "retrieval-steps.jsonl"
# Photos and ground truth below the data folder.
SETS = {"ukbench": ("ukbench1000", None), "oxford_dev": ("oxford_dev/images", "oxford_dev/ground_truth")}
TITLES = {"ukbench": "UKBench (of 4)", "oxford_dev": "oxford_dev (mAP)"}
FEATURES = {
    "default": Extraction(),
    "contrast 0.02": Extraction(contrast=0.02),
    "upright": Extraction(upright=True),
    "1,000 regions": Extraction(n_regions=1000),
}
PAPER: dict[str, Any] = {}
SIGNED = {"embedding": True}
BURSTY = SIGNED | {"burstiness": True}
SEVERAL = BURSTY | {"assignment": Steps().assignment}
VERIFIED = SEVERAL | {"reranked": True}
WEIGHTED = VERIFIED | {"weighted": True}
STEPS = {
    "tf-idf (`--protocol paper`)": PAPER,
    "tf-idf, re-ranked (`--protocol paper --rerank`)": {"reranked": True},
    "Hamming embedding": SIGNED,
    "+ burstiness": BURSTY,
    "+ multiple assignment (the default)": SEVERAL,
    "+ verification": VERIFIED,
    "+ weighted inliers, local refits": WEIGHTED,
    "+ query expansion (the default with `--rerank`)": WEIGHTED | {"expansion": N_EXPANSION},
}


class Job(NamedTuple):
    photos: str
    features: str
    words: int


JOBS = [
    *(Job("ukbench", "default", words) for words in (10_000, 100_000)),
    *(Job("oxford_dev", "default", words) for words in (20_000, 100_000)),
    *(Job(photos, features, 100_000) for features in list(FEATURES)[1:] for photos in SETS),
]


def run(data: Path, job: Job, threads: int) -> list[Row]:
    """The scores of one codebook with one step more each."""
    photos, truth = SETS[job.photos]
    folder = data / photos
    extraction = FEATURES[job.features]
    collection, key = resume_features(KEPT, folder, image_names(folder), extraction, n_threads=threads, verbose=1)
    learned = resume_learning(KEPT, key, collection.descriptors, job.words, n_threads=threads)
    compile_retrieval(few_words(np.dtype(np.uint8), "closure"))  # not timed
    queries = None if truth is None else read_oxford(data / truth)
    scorings = {Scoring(len(collection.names), **settings): step for step, settings in STEPS.items()}
    facts = job._asdict() | {"descriptors": len(collection.descriptors), "images": len(collection.names)}
    return [
        facts | {"step": scorings[scoring]} | score._asdict()
        for scoring, score in score_vocabulary(collection, learned.vocabulary, list(scorings), queries, threads)
    ]


def key_of(row: Row) -> list[Any]:
    return [*(row[name] for name in Job._fields), row["step"]]


def table(rows: list[Row], photos: str) -> str:
    """Steps by features and sizes of codebooks."""
    own = {tuple(key_of(row)[1:]): row for row in rows if row["photos"] == photos}
    columns = list(dict.fromkeys(key[:2] for key in own))
    lines = [
        [step, *(f"{own[(*column, step)]['score']:.3f}" for column in columns)]
        for step in STEPS
        if all((*column, step) in own for column in columns)
    ]
    sizes = [f"{next(row['descriptors'] for key, row in own.items() if key[:2] == column):,}" for column in columns]
    lines += [["descriptors", *sizes]]
    return markdown_table([TITLES[photos], *(f"{features}, {words:,} words" for features, words in columns)], lines)


def report(rows: list[Row]) -> None:
    text = ["# Retrieval step by step", *(table(rows, photos) for photos in SETS)]
    RESULTS.with_suffix(".md").write_text("\n\n".join(text) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--first", type=int, default=len(JOBS), help="how many of the codebooks that are missing")
    parser.add_argument("--report", action="store_true", help="only make the tables again")
    arguments = parser.parse_args()
    if not arguments.report:
        if arguments.data is None:
            parser.error("--data must name the folder that holds ukbench1000 and oxford_dev")
        shared = {"machine": describe_machine(), "versions": describe_versions(), "threads": arguments.threads}
        done = {Job(*key_of(row)[:3]) for row in read_rows(RESULTS)}
        for job in [job for job in JOBS if job not in done][: arguments.first]:
            for row in run(Path(arguments.data), job, arguments.threads):
                append_row(RESULTS, row | shared)
                print(*job, row["step"], f"{row['score']:.4f}", flush=True)
    report(latest(read_rows(RESULTS), key_of))


if __name__ == "__main__":
    main()
