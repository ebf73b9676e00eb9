"""Stages of work that are kept in a folder: what is finished is not done again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

from numpy.typing import ArrayLike

import closure_kmeans
from closure_kmeans._files import FileFormatError, reading
from closure_kmeans._tensors import read_tensors, write_tensors
from closure_kmeans.retrieval.collection import load_collection, save_collection
from closure_kmeans.retrieval.vocabulary import (
    VOCABULARY,
    Vocabulary,
    learn_vocabulary,
    pack_vocabulary,
    unpack_vocabulary,
)

# Raised when the same settings give other features, words or scores than before.
RESULTS = 1
# Digits of a key: few enough for names of files, and too many for two to be the same.
KEY_DIGITS = 16

Product = TypeVar("Product")


class Stage(NamedTuple, Generic[Product]):
    """How the products of a stage are kept: each in a file whose name tells what it was made of."""

    name: str
    save: Callable[[Path, Product], None]
    load: Callable[[Path], Product]

    def path(self, folder: Path, key: str) -> Path:
        """Where the product is that was made of what ``key`` tells."""
        return folder / f"{self.name}-{key}.safetensors"


class Learned(NamedTuple):
    """Words, and what it took to learn them."""

    vocabulary: Vocabulary
    seconds: float


def _save_learned(path: Path, learned: Learned) -> None:
    arrays, facts = pack_vocabulary(learned.vocabulary)
    write_tensors(path, VOCABULARY, arrays, facts | {"seconds": learned.seconds})


def _load_learned(path: Path) -> Learned:
    with reading(path, "a vocabulary"):
        arrays, facts = read_tensors(path, VOCABULARY)
        return Learned(unpack_vocabulary(path, arrays, facts), facts["seconds"])


FEATURES = Stage("features", save_collection, load_collection)
WORDS = Stage("words", _save_learned, _load_learned)


def resume(stage: Stage[Product], folder: Path | None, key: str, make: Callable[[], Product]) -> Product:
    """What is in the folder, if it was made of what ``key`` tells; else make it, and keep it if there is a folder."""
    if folder is None:
        return make()
    path = stage.path(folder, key)
    if path.exists():
        with naming_the_way_out():
            return stage.load(path)
    made = make()
    stage.save(path, made)
    return made


def resume_learning(
    folder: Path | None,
    key: str,
    descriptors: ArrayLike,
    n_words: int,
    *,
    method: str = "closure",
    root: bool = True,
    random_state: int = 0,
    sample: int | None = None,
    n_jobs: int | None = None,
    verbose: int = 0,
) -> Learned:
    """Words that were learned with these settings from the descriptors that ``key`` tells of, or else such words."""
    settings: dict[str, Any] = {"method": method, "root": root, "random_state": random_state, "sample": sample}

    def learn() -> Learned:
        began = perf_counter()
        vocabulary = learn_vocabulary(descriptors, n_words, n_jobs=n_jobs, verbose=verbose, **settings)
        return Learned(vocabulary, perf_counter() - began)

    learned = resume(WORDS, folder, key_of(key, n_words, settings), learn)
    learned.vocabulary.model.n_jobs = n_jobs  # a model that was kept knows of no threads
    return learned


@contextmanager
def naming_the_way_out() -> Iterator[None]:
    """What was kept and cannot be read is nothing that cannot be made again."""
    try:
        yield
    except FileFormatError as error:
        raise FileFormatError(f"{error}; remove it to have it made again") from error


def key_of(*parts: Any) -> str:
    """What tells one piece of work from another: of the parts, and of the version of the library."""
    text = json.dumps([closure_kmeans.__version__, RESULTS, *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]
