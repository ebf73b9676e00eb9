"""Stages of work that are kept in a folder: what is finished is not done again."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

from numpy.typing import NDArray
from tqdm import tqdm

import closure_kmeans
from closure_kmeans._files import FileFormatError, library, reading
from closure_kmeans._tensors import read_tensors, write_tensors
from closure_kmeans.checkpoint import read_progress
from closure_kmeans.retrieval.collection import (
    Collection,
    Extraction,
    collect,
    join,
    load_collection,
    save_collection,
)
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
# Images whose features are kept together until those of all are there: some seconds of work.
IMAGES_PER_PART = 100
# Methods that can go on learning where they were stopped.
RESUMABLE = ("closure", "paper")

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


def resume(
    stage: Stage[Product], folder: Path | None, key: str, make: Callable[[], Product], verbose: int = 0
) -> Product:
    """What is in the folder, if it was made of what ``key`` tells; else make it, and keep it if there is a folder.

    With ``verbose`` it is said what was there.
    """
    if folder is None:
        return make()
    path = stage.path(folder, key)
    if path.exists():
        with naming_the_way_out():
            kept = stage.load(path)
        if verbose:
            tqdm.write(f"{stage.name} from '{path}'", file=sys.stderr)
        return kept
    made = make()
    stage.save(path, made)
    return made


def resume_features(
    folder: Path | None,
    photos: Path,
    names: Sequence[str],
    extraction: Extraction,
    *,
    on_error: str = "raise",
    n_jobs: int | None = None,
    verbose: int = 0,
) -> tuple[Collection, str]:
    """The features of images, be it those that were kept, and a key that tells of what they were made.

    The images are known by their paths below ``photos``, and the same as before if place, names, sizes and dates are.
    Those of some images at a time are kept until all are there.
    """
    cv2 = library("cv2", "images", "retrieval")
    made_by = str(photos.resolve()), extraction, on_error, cv2.__version__
    stats = [(photos / name).stat() for name in names]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in zip(names, stats, strict=True)]
    key = key_of(*made_by, files)
    take = partial(collect, photos, extraction, on_error=on_error, n_jobs=n_jobs)
    if folder is None or len(files) <= IMAGES_PER_PART:
        return resume(FEATURES, folder, key, lambda: take(names=names, verbose=verbose), verbose), key
    parts = [files[first : first + IMAGES_PER_PART] for first in range(0, len(files), IMAGES_PER_PART)]
    keys = [key_of(*made_by, part) for part in parts]

    def take_parts() -> Collection:
        taken = []
        with tqdm(total=len(files), unit="image", disable=not verbose) as bar:
            for own_key, part in zip(keys, parts, strict=True):
                own_names = [name for name, *_ in part]
                taken.append(resume(FEATURES, folder, own_key, partial(take, names=own_names)))
                bar.update(len(part))
        return join(taken)

    collection = resume(FEATURES, folder, key, take_parts, verbose)
    for own_key in keys:
        FEATURES.path(folder, own_key).unlink(missing_ok=True)
    return collection, key


def resume_learning(
    folder: Path | None,
    key: str,
    descriptors: NDArray[Any],
    n_words: int,
    *,
    method: str = "closure",
    root: bool = True,
    random_state: int = 0,
    sample: int | None = None,
    n_jobs: int | None = None,
    verbose: int = 0,
) -> Learned:
    """Words that were learned with these settings from the descriptors that ``key`` tells of, or else such words.

    Cluster closures go on where they were stopped.
    """
    if sample is not None and sample >= len(descriptors):
        sample = None  # the words are those of all
    settings: dict[str, Any] = {"method": method, "root": root, "random_state": random_state, "sample": sample}
    own_key = key_of(key, n_words, settings)
    begun = folder / f"begun-{own_key}.safetensors" if folder is not None and method in RESUMABLE else None

    def learn() -> Learned:
        running: dict[str, Any] = {"n_jobs": n_jobs, "verbose": verbose}
        began, spent = perf_counter(), 0.0
        with naming_the_way_out():
            if begun is not None:
                running["checkpoint"] = begun
                spent = read_progress(begun).history[-1].seconds if begun.exists() else 0.0
            vocabulary = learn_vocabulary(descriptors, n_words, **settings, **running)
        return Learned(vocabulary, spent + perf_counter() - began)

    learned = resume(WORDS, folder, own_key, learn, verbose)
    if begun is not None:
        begun.unlink(missing_ok=True)
        learned.vocabulary.model.set_params(checkpoint=None)
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
