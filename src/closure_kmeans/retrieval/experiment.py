"""Codebook comparison of the paper's section 4.5: same images and same search, different codebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, product
from pathlib import Path, PurePosixPath
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from closure_kmeans import validation as check
from closure_kmeans.files import reading, warn
from closure_kmeans.retrieval.collection import Collection, take
from closure_kmeans.retrieval.evaluation import UKBENCH_GROUP, Box, OxfordQuery, oxford_score, ukbench_score
from closure_kmeans.retrieval.index import ImageIndex, Query, Steps, inside_box
from closure_kmeans.retrieval.stages import Stage, find, keep, key_of, resume_learning
from closure_kmeans.retrieval.verification import Verification
from closure_kmeans.retrieval.vocabulary import (
    Vocabulary,
    Words,
    check_levels,
    check_n_words,
    check_nearest,
    tree_shape,
)
from closure_kmeans.tensors import read_facts, write_tensors
from closure_kmeans.warmup import compile_retrieval, few_words

# Images of a ranking that are verified.
N_RERANK = 200
# Queries whose words are kept for the next scoring.
QUERIES_KEPT = 2000
# Verified images that search again.
N_EXPANSION = Steps().expansion


class Scoring(NamedTuple):
    """Settings of one evaluation of a codebook."""

    images: int  # number of images, the first of the collection
    levels: int = 1  # scoring levels; 1 unless the codebook is hierarchical
    norm: str = "l1"
    reranked: bool = False
    embedding: bool = False  # the fields of ``Steps``
    burstiness: bool = False
    assignment: int = 1
    expansion: int = 0
    weighted: bool = False  # whether inliers are weighted

    @property
    def steps(self) -> Steps:
        """Steps of the searches."""
        return Steps(self.embedding, self.burstiness, self.assignment, self.expansion)


class Score(NamedTuple):
    """Result of one evaluation."""

    score: float
    search_ms: float  # mean time per query, without the assignment of words


class Row(NamedTuple):
    """One score of one codebook, with its settings."""

    method: str
    words: int  # requested number of words
    levels: int
    norm: str
    images: int
    reranked: bool
    embedding: bool
    burstiness: bool
    assignment: int
    expansion: int
    weighted: bool
    nearest: int  # words per region
    root: bool  # RootSIFT, or plain SIFT
    seed: int
    score: float
    seconds: float  # to learn the codebook
    search_ms: float


def _save_row(path: Path, row: Row) -> None:
    write_tensors(path, "score", {}, row._asdict())


def _load_row(path: Path) -> Row:
    with reading(path, "a score"):
        facts = read_facts(path, "score")
        measured = {name: float(facts[name]) for name in ("score", "seconds", "search_ms")}
        return Row(**{name: facts[name] for name in Row._fields} | measured)


SCORES = Stage("scores", _save_row, _load_row)


class Indexed(NamedTuple):
    """Collection with assigned words, and its index."""

    collection: Collection
    words: Words
    images: ImageIndex
    queries: dict[tuple[int, Box | None, int], Query]  # made so far

    def query(self, image: int, box: Box | None, assignment: int) -> Query | None:
        """Query by an image of the collection; None if it has no regions in the box. The first ones are kept."""
        key = image, box, assignment
        if key in self.queries:
            return self.queries[key]
        own = slice(*self.collection.offsets[image : image + 2])
        if not (inside_box(self.collection.keypoints[own], box).any() if box else own.start < own.stop):
            return None
        rows = self.collection.keypoints[own], self.collection.descriptors[own], self.words.of(own)
        query = self.images.make_query(*rows, box=box, assignment=assignment)
        if len(self.queries) < QUERIES_KEPT:
            self.queries[key] = query
        return query


def check_oxford(names: Sequence[str], queries: Sequence[OxfordQuery]) -> list[str]:
    """Stems of image names, by which queries refer to them; check that they are distinct and cover all queries."""
    stems = [PurePosixPath(name).stem for name in names]
    twice = next((stem for stem, n_images in Counter(stems).items() if n_images > 1), None)
    if twice is not None:
        raise ValueError(f"the images must have names of their own, whatever their folders, but '{twice}' occurs twice")
    missing = next((query.image for query in queries if query.image not in stems), None)
    if missing is not None:
        raise ValueError(f"the images must hold those of all queries, but '{missing}' is not there")
    return stems


def _warn_of_missing(names: Sequence[str], queries: Sequence[OxfordQuery]) -> None:
    """Warn of positive images that the collection lacks: they count as not found."""
    there = {PurePosixPath(name).stem for name in names}
    wanted = {image for query in queries for image in query.positives}
    if wanted - there:
        missing = f"{len(wanted - there):,} of the {len(wanted):,} images that queries should find are not there"
        warn(f"{missing}, such as '{min(wanted - there)}'", RuntimeWarning)


class Codebook(NamedTuple):
    """Key of a codebook."""

    seed: int
    words: int
    method: str


class Plan(NamedTuple):
    """Settings to compare; duplicates count once."""

    words: Sequence[int]
    methods: Sequence[str]
    norms: Sequence[str] = ("l1",)
    seeds: Sequence[int] = (0,)
    levels: Sequence[int] = (1,)  # of hierarchical codebooks
    n_nearest: int = 1  # words per region
    images: Sequence[int | None] = (None,)  # sizes of subsets; None for all
    rerank: bool = False
    root: bool = True
    embedding: bool = True  # where a region has one word
    burstiness: bool = True
    assignment: int = Steps().assignment
    weighted: bool = True
    expansion: int = N_EXPANSION

    @property
    def codebooks(self) -> list[Codebook]:
        """All codebooks to learn."""
        every = (Codebook(*parts) for parts in product(self.seeds, self.words, self.methods))
        return list(dict.fromkeys(every))

    def scorings(self, method: str, n_images: int) -> list[Scoring]:
        """All evaluations of a codebook, ordered so that equal words and indexes are adjacent."""
        levels = self.levels if method == "hkm" else (1,)
        images = [n_images if size is None else size for size in self.images]
        return list(
            dict.fromkeys(
                scoring
                for level, size, norm in product(levels, images, self.norms)
                for scoring in self._in_steps(Scoring(size, level, norm))
            )
        )

    def _in_steps(self, plain: Scoring) -> Iterator[Scoring]:
        """Without verification, with it, and with query expansion, too."""
        embedding = self.embedding and plain.levels == 1 and self.n_nearest == 1
        norm = "l1" if embedding else plain.norm  # which does not matter then: all norms are one scoring
        ranked = plain._replace(norm=norm)
        if embedding:
            ranked = ranked._replace(embedding=True, burstiness=self.burstiness, assignment=self.assignment)
        yield ranked
        if self.rerank:
            verified = ranked._replace(reranked=True, weighted=self.weighted)
            yield verified
            yield verified._replace(expansion=self.expansion)


def compare(
    collection: Collection,
    plan: Plan,
    queries: Sequence[OxfordQuery] | None = None,
    *,
    folder: Path | None = None,
    key: str = "",
    n_threads: int | None = None,
    verbose: int = 0,
) -> Iterator[Row]:
    """Learn codebooks from all descriptors and evaluate each, by UKBench or with Oxford's queries.

    Subsets use the codebook of the whole collection. With a ``folder``, codebooks and scores are saved when they are
    finished, and reused; ``key`` then identifies the collection.
    """
    if folder is not None and not key:
        raise ValueError("with a folder there must be a key, which tells of what the collection was made")
    check_plan(plan, collection.names, queries)
    for n_words in plan.words:
        check_n_words(n_words, len(collection.descriptors))
    _warn_of_missing(collection.names, queries or ())
    asked = [[*query[:3], sorted(query.positives), sorted(query.junk)] for query in queries or ()]

    def score(codebook: Codebook, scorings: Sequence[Scoring]) -> Iterator[Row]:
        learned = resume_learning(
            folder,
            key,
            collection.descriptors,
            codebook.words,
            method=codebook.method,
            root=plan.root,
            random_state=codebook.seed,
            n_threads=n_threads,
            verbose=verbose,
        )
        compile_retrieval(few_words(np.dtype(np.uint8), codebook.method))  # not timed
        vocabulary = Vocabulary(learned.vocabulary.model, root=plan.root, n_nearest=plan.n_nearest)
        for scoring, found in score_vocabulary(collection, vocabulary, scorings, queries, n_threads, verbose):
            facts = codebook._asdict() | scoring._asdict() | found._asdict()
            yield Row(nearest=plan.n_nearest, root=plan.root, seconds=learned.seconds, **facts)

    for codebook in tqdm(plan.codebooks, unit="codebook", disable=not verbose):
        keys = {
            scoring: key_of(key, codebook, plan.root, plan.n_nearest, scoring, asked)
            for scoring in plan.scorings(codebook.method, len(collection.names))
        }
        known = {scoring: find(SCORES, folder, name) for scoring, name in keys.items()}
        missing = score(codebook, [scoring for scoring, row in known.items() if row is None])
        for scoring, row in known.items():
            if row is None:
                row = next(missing)
                keep(SCORES, folder, keys[scoring], row)
            yield row


def score_vocabulary(
    collection: Collection,
    vocabulary: Vocabulary,
    scorings: Sequence[Scoring],
    queries: Sequence[OxfordQuery] | None = None,
    n_threads: int | None = None,
    verbose: int = 0,
) -> Iterator[tuple[Scoring, Score]]:
    """Evaluate a vocabulary, learned from the collection, with several settings, which override its own levels.

    Equal levels and equal numbers of images should be adjacent, so that words and indexes are reused.
    """
    for levels, of_levels in groupby(scorings, lambda scoring: scoring.levels):
        alike = list(of_levels)
        embedding = any(scoring.embedding for scoring in alike)
        model, root, n_nearest = vocabulary.model, vocabulary.root, vocabulary.n_nearest
        used = Vocabulary(model, root=root, levels=levels, n_nearest=n_nearest, embedding=embedding)
        words = used.words_of_fit(collection.descriptors, verbose=verbose)
        signatures = used.signatures(collection.descriptors, words)
        for n_images, same in groupby(alike, lambda scoring: scoring.images):
            some = take(collection, n_images)
            index = ImageIndex(used, collection.extraction)
            rows = slice(some.offsets[-1])
            index.add(some, words.of(rows), None if signatures is None else signatures[rows])
            indexed = Indexed(some, words, index, {})
            for scoring in same:
                yield scoring, _score(indexed, scoring, queries, n_threads, verbose)


def _score(
    indexed: Indexed, scoring: Scoring, queries: Sequence[OxfordQuery] | None, n_threads: int | None, verbose: int
) -> Score:
    """Score an index by UKBench, where every image is a query, or with Oxford's queries."""
    settings: dict[str, Any] = {
        "norm": scoring.norm,
        "n_rerank": N_RERANK if scoring.reranked else 0,
        "steps": scoring.steps,
        "verification": Verification(weighted=scoring.weighted),
        "n_threads": n_threads,
    }
    seconds = 0.0

    def search(image: int, box: Box | None = None, n_results: int | None = None) -> list[int]:
        nonlocal seconds
        query = indexed.query(image, box, scoring.assignment)
        began = perf_counter()
        found = [] if query is None else indexed.images.search(query, n_results=n_results, **settings)
        seconds += perf_counter() - began
        return [result.image for result in found]

    with_bar = partial(tqdm, unit="query", leave=False, disable=not verbose)
    if queries is None:
        every = with_bar(range(len(indexed.images)))
        score = ukbench_score([search(image, n_results=UKBENCH_GROUP) for image in every])
    else:
        stems = check_oxford(indexed.images.names, queries)

        def rank(query: OxfordQuery) -> list[str]:
            return [stems[image] for image in search(stems.index(query.image), query.box)]

        score = oxford_score(with_bar(queries), rank)
    n_queries = len(indexed.images if queries is None else queries)
    return Score(score, 1000 * seconds / n_queries)


def check_plan(plan: Plan, names: Sequence[str], queries: Sequence[OxfordQuery] | None) -> None:
    """Check all settings that can be checked by image names alone, before the long work."""
    for n_words in plan.words:
        check.integer("words", n_words, 2)
        check_nearest(plan.n_nearest, n_words)
        for levels in plan.levels if "hkm" in plan.methods else ():
            check_levels(levels, tree_shape(n_words)[1])
    for seed in plan.seeds:
        check.integer("seeds", seed, 0)
    for size in plan.images:
        if size is not None and not 0 < size <= len(names):
            raise ValueError(f"subsets must have 1 to {len(names)} images, got {size}")
        if queries is not None:
            check_oxford(names[:size], queries)
            continue
        n, whose = (len(names), "the images") if size is None else (size, "the images of subsets")
        if n % UKBENCH_GROUP:
            raise ValueError(f"{whose} must be whole groups of {UKBENCH_GROUP}, got {n} images")
