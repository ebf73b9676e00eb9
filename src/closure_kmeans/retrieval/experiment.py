"""The experiment of the paper's section 4.5: the same images and the same search, and only the codebook differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from pathlib import Path, PurePosixPath
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from closure_kmeans import _validation as check
from closure_kmeans._files import reading, replacing
from closure_kmeans.retrieval.collection import Collection, take
from closure_kmeans.retrieval.evaluation import UKBENCH_GROUP, Box, OxfordQuery, oxford_score, ukbench_score
from closure_kmeans.retrieval.index import ImageIndex, Query, inside_box
from closure_kmeans.retrieval.stages import key_of, naming_the_way_out, resume_learning
from closure_kmeans.retrieval.verification import place
from closure_kmeans.retrieval.vocabulary import (
    Vocabulary,
    Words,
    check_levels,
    check_n_words,
    learn_vocabulary,
    tree_shape,
)

# What scores are kept in, and what was measured of each.
SCORES, MEASURED = "scores.json", ("score", "seconds", "search_ms")
# Descriptors from which a few words are learned before the clock runs.
WARM_UP_ROWS = 500
# Images of a ranking that are verified.
N_RERANK = 200


class Scoring(NamedTuple):
    """A way to score a codebook."""

    images: int  # the first of the collection
    levels: int = 1  # scoring levels, 1 but for hierarchical codebooks
    norm: str = "l1"
    reranked: bool = False


class Score(NamedTuple):
    """What came of it."""

    score: float
    search_ms: float  # for a query whose words are known


class Row(NamedTuple):
    """One score, of one codebook."""

    method: str
    words: int  # how many were asked for
    levels: int
    norm: str
    images: int
    reranked: bool
    nearest: int  # words of a region
    root: bool  # RootSIFT, or plain SIFT
    seed: int
    score: float
    seconds: float  # to learn the codebook
    search_ms: float


class Indexed(NamedTuple):
    """A collection whose regions have words, and the index of it."""

    collection: Collection
    words: Words
    images: ImageIndex

    def query(self, image: int, box: Box | None = None) -> Query:
        """An image of the collection as a query."""
        own = np.arange(*self.collection.offsets[image : image + 2])
        if box is not None:
            own = own[inside_box(self.collection.keypoints[own], box)]
        words = self.words.of(own)
        return Query(words, place(words.words[:, 0], self.collection.keypoints[own]))


def index_words(collection: Collection, vocabulary: Vocabulary, words: Words) -> Indexed:
    """Index a collection whose words are known, be it of more images than it has."""
    words = words.of(slice(collection.offsets[-1]))
    index = ImageIndex(vocabulary, collection.extraction)
    index.add(collection, words)
    return Indexed(collection, words, index)


def ukbench(indexed: Indexed, **search: Any) -> float:
    """The UKBench score of an index, every image a query."""
    n_images = len(indexed.images)
    return ukbench_score(
        [
            [result.image for result in indexed.images.search(indexed.query(image), n_results=4, **search)]
            for image in range(n_images)
        ]
    )


def oxford(indexed: Indexed, queries: Sequence[OxfordQuery], **search: Any) -> float:
    """The mean average precision of an index over queries."""
    stems = [PurePosixPath(name).stem for name in indexed.images.names]
    number = {stem: image for image, stem in enumerate(stems)}
    if len(number) < len(stems):
        twice = next(stem for image, stem in enumerate(stems) if number[stem] != image)
        raise ValueError(f"the images must have names of their own, whatever their folders, but '{twice}' occurs twice")
    missing = [query.image for query in queries if query.image not in number]
    if missing:
        raise ValueError(f"the images must hold those of all queries, but '{missing[0]}' is not there")

    def find(query: OxfordQuery) -> list[str]:
        found = indexed.images.search(indexed.query(number[query.image], query.box), n_results=None, **search)
        return [stems[result.image] for result in found]

    return oxford_score(queries, find)


class Codebook(NamedTuple):
    """What a codebook is known by."""

    seed: int
    words: int
    method: str


class Plan(NamedTuple):
    """What is compared; what is named twice counts once."""

    words: Sequence[int]
    methods: Sequence[str]
    norms: Sequence[str] = ("l1",)
    seeds: Sequence[int] = (0,)
    levels: Sequence[int] = (1,)  # of hierarchical codebooks
    n_nearest: int = 1  # words of a region
    images: Sequence[int | None] = (None,)  # sizes of subsets; None for all
    rerank: bool = False
    root: bool = True

    @property
    def codebooks(self) -> list[Codebook]:
        """All that are learned."""
        every = (Codebook(*parts) for parts in product(self.seeds, self.words, self.methods))
        return list(dict.fromkeys(every))

    def scorings(self, method: str, n_images: int) -> list[Scoring]:
        """All ways in which a codebook is scored; those with the same words and index one after the other."""
        levels = self.levels if method == "hkm" else (1,)
        images = [n_images if size is None else size for size in self.images]
        reranked = (False, True) if self.rerank else (False,)
        every = product(levels, images, self.norms, reranked)
        return list(dict.fromkeys(Scoring(size, level, norm, verified) for level, size, norm, verified in every))


def compare(
    collection: Collection,
    plan: Plan,
    queries: Sequence[OxfordQuery] | None = None,
    *,
    folder: Path | None = None,
    key: str = "",
    n_jobs: int | None = None,
    verbose: int = 0,
) -> Iterator[Row]:
    """Learn codebooks from all descriptors and score each; by UKBench unless queries of Oxford are given.

    The codebook of a subset is that of the whole collection. Codebooks and scores are kept in ``folder``, if there is
    one, each when it is finished, and not made again; ``key`` tells of what the collection was made, and must then be
    given.
    """
    if folder is not None and not key:
        raise ValueError("with a folder there must be a key, which tells of what the collection was made")
    _check_plan(plan, collection, whole_groups=queries is None)
    asked = [[*query[:3], sorted(query.positives), sorted(query.junk)] for query in queries or ()]

    def score(codebook: Codebook, scorings: Sequence[Scoring]) -> Iterator[Row]:
        _warm_up(collection, codebook, plan, n_jobs)
        learned = resume_learning(
            folder,
            key,
            collection.descriptors,
            codebook.words,
            method=codebook.method,
            root=plan.root,
            random_state=codebook.seed,
            n_jobs=n_jobs,
            verbose=verbose,
        )
        vocabulary = Vocabulary(learned.vocabulary.model, root=plan.root, n_nearest=plan.n_nearest)
        for scoring, found in score_vocabulary(collection, vocabulary, scorings, queries, n_jobs):
            facts = codebook._asdict() | scoring._asdict() | found._asdict()
            yield Row(nearest=plan.n_nearest, root=plan.root, seconds=learned.seconds, **facts)

    known = _read_scores(folder)
    for codebook in tqdm(plan.codebooks, unit="codebook", disable=not verbose):
        keys = {
            scoring: key_of(key, codebook, plan.root, plan.n_nearest, scoring, asked)
            for scoring in plan.scorings(codebook.method, len(collection.names))
        }
        missing = score(codebook, [scoring for scoring in keys if keys[scoring] not in known])
        for name in keys.values():
            row = known.get(name)
            if row is None:
                row = next(missing)
                _keep_score(folder, name, row)
            yield row


def _warm_up(collection: Collection, codebook: Codebook, plan: Plan, n_jobs: int | None) -> None:
    """Learn and search a little, so that no time that is measured, and kept, has compiling in it."""
    rows = collection.descriptors[:WARM_UP_ROWS]
    n_words = min(codebook.words, max(2, len(rows) // 10))
    vocabulary = learn_vocabulary(rows, n_words, method=codebook.method, root=plan.root, random_state=0, n_jobs=n_jobs)
    few = take(collection, min(UKBENCH_GROUP, len(collection.names)))
    indexed = index_words(few, vocabulary, vocabulary.assign(few.descriptors))
    indexed.images.search(indexed.query(0), n_rerank=N_RERANK if plan.rerank else 0, n_jobs=n_jobs)


def score_vocabulary(
    collection: Collection,
    vocabulary: Vocabulary,
    scorings: Sequence[Scoring],
    queries: Sequence[OxfordQuery] | None = None,
    n_jobs: int | None = None,
) -> Iterator[tuple[Scoring, Score]]:
    """Score a vocabulary in several ways, whatever its own levels.

    Those of the same levels and images should follow each other.
    """
    for levels, alike in groupby(scorings, lambda scoring: scoring.levels):
        used = Vocabulary(vocabulary.model, root=vocabulary.root, levels=levels, n_nearest=vocabulary.n_nearest)
        words = used.assign(collection.descriptors)
        for n_images, same in groupby(alike, lambda scoring: scoring.images):
            indexed = index_words(take(collection, n_images), used, words)
            for scoring in same:
                yield scoring, _score(indexed, scoring, queries, n_jobs)


def _score(indexed: Indexed, scoring: Scoring, queries: Sequence[OxfordQuery] | None, n_jobs: int | None) -> Score:
    search = {"norm": scoring.norm, "n_rerank": N_RERANK if scoring.reranked else 0, "n_jobs": n_jobs}
    began = perf_counter()
    score = ukbench(indexed, **search) if queries is None else oxford(indexed, queries, **search)
    n_queries = len(indexed.images) if queries is None else len(queries)
    return Score(score, 1000 * (perf_counter() - began) / n_queries)


def _read_scores(folder: Path | None) -> dict[str, Row]:
    if folder is None or not (folder / SCORES).exists():
        return {}
    with naming_the_way_out(), reading(folder / SCORES, "scores"):
        kept = json.loads((folder / SCORES).read_text())
        return {name: Row(**row | {value: float(row[value]) for value in MEASURED}) for name, row in kept.items()}


def _keep_score(folder: Path | None, key: str, row: Row) -> None:
    """Beside all that are there by now: another evaluation may keep its own in the same folder."""
    if folder is not None:
        scores = _read_scores(folder) | {key: row}
        with replacing(folder / SCORES) as beside:
            beside.write_text(json.dumps({name: row._asdict() for name, row in scores.items()}, indent=1))


def _check_plan(plan: Plan, collection: Collection, *, whole_groups: bool) -> None:
    """Before hours of work."""
    check_images(plan, len(collection.names), whole_groups=whole_groups)
    for n_words in plan.words:
        check_n_words(n_words, len(collection.descriptors))
        for levels in plan.levels if "hkm" in plan.methods else ():
            check_levels(levels, tree_shape(n_words)[1])


def check_images(plan: Plan, n_images: int, *, whole_groups: bool) -> None:
    """As far as a plan can be checked by the number of images alone."""
    for n_words in plan.words:
        check.integer("words", n_words, 2)
    for size in plan.images:
        if size is not None and not 0 < size <= n_images:
            raise ValueError(f"subsets must have 1 to {n_images} images, got {size}")
        n, whose = (n_images, "the images") if size is None else (size, "the images of subsets")
        if whole_groups and n % UKBENCH_GROUP:
            raise ValueError(f"{whose} must be whole groups of {UKBENCH_GROUP}, got {n} images")
