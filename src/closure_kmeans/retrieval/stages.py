"""Stages of work that are kept in a folder: what is finished is not done again."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import closure_kmeans
from closure_kmeans.files import FileFormatError, library, reading, unfinished
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
from closure_kmeans.tensors import read_tensors, write_tensors
from closure_kmeans.warmup import compile_learning

# Raised when the same settings give other features, words or scores than before.
RESULTS = 1
# Digits of a key: few enough for names of files, and too many for two to be the same.
KEY_DIGITS = 16
# Images whose features are kept together, on average: a second of work for small ones.
IMAGES_PER_PART = 50
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

    def is_kept(self, folder: Path | None, key: str) -> bool:
        """Whether it is there."""
        return folder is not None and self.path(folder, key).exists()


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


def find(stage: Stage[Product], folder: Path | None, key: str) -> Product | None:
    """What the folder, if there is one, holds that was made of what ``key`` tells."""
    if folder is None or not stage.is_kept(folder, key):
        return None
    with naming_the_way_out():
        return stage.load(stage.path(folder, key))


def keep(stage: Stage[Product], folder: Path | None, key: str, product: Product) -> None:
    """Put what was made into the folder, if there is one. A failure is no reason to lose it.

    What kills have left behind of it goes.
    """
    if folder is not None:
        path = stage.path(folder, key)
        try:
            stage.save(path, product)
            for leftover in unfinished(path):
                leftover.unlink(missing_ok=True)
        except OSError as error:
            message = f"{stage.name} are not kept in '{folder}': {os.strerror(error.errno or errno.EIO)}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)


def resume(stage: Stage[Product], folder: Path | None, key: str, make: Callable[[], Product]) -> Product:
    """What is in the folder, if it was made of what ``key`` tells; else make it, and keep it if there is a folder."""
    kept = find(stage, folder, key)
    if kept is not None:
        return kept
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)  # now: if it cannot be, nothing is made in vain
    made = make()
    keep(stage, folder, key, made)
    return made


def resume_features(
    folder: Path | None,
    photos: Path,
    names: Sequence[str],
    extraction: Extraction,
    *,
    on_error: str = "raise",
    n_threads: int | None = None,
    verbose: int = 0,
) -> tuple[Collection, str]:
    """The features of images, be it those that were kept, and a key that tells of what they were made.

    The images are known by their paths below ``photos``, and the same as before if place, names, sizes and dates are.
    They are kept some at a time, so that neither an interrupt nor new images make all be done again.
    """
    versions = [library(name, "images", "retrieval").__version__ for name in ("cv2", "PIL")]
    made_by = str(photos.resolve()), extraction, on_error, versions
    stats = [(photos / name).stat() for name in names]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in zip(names, stats, strict=True)]
    collect_some = partial(collect, photos, extraction, on_error=on_error, n_threads=n_threads)
    key = key_of(made_by, files)
    if folder is None:
        return collect_some(names=names, verbose=verbose), key
    parts = {key_of(made_by, files[part]): names[part] for part in _parts(names)}
    n_kept = sum(len(part) for own_key, part in parts.items() if FEATURES.is_kept(folder, own_key))
    if n_kept and verbose:
        tqdm.write(f"features of {n_kept:,} images from '{folder}'", file=sys.stderr)
    with tqdm(total=len(files), initial=n_kept, unit="image", disable=not verbose or n_kept == len(files)) as bar:
        collect_with_bar = partial(collect_some, callback=bar.update)
        collections = [
            resume(FEATURES, folder, own_key, partial(collect_with_bar, names=part)) for own_key, part in parts.items()
        ]
    return join(collections), key


def _parts(names: Sequence[str]) -> list[slice]:
    """Parts of a list of names. A name itself says whether it ends a part, so that a new one changes no other part."""
    numbers = [int(hashlib.sha256(os.fsencode(name)).hexdigest(), 16) for name in names]
    ends = sorted({len(names), *(i + 1 for i, number in enumerate(numbers) if number % IMAGES_PER_PART == 0)})
    return [slice(first, end) for first, end in zip([0, *ends], ends, strict=False)]


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
    n_threads: int | None = None,
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
        if verbose and begun is not None and begun.exists():
            tqdm.write(f"{n_words:,} words as far as they are in '{folder}'", file=sys.stderr)
        compile_learning(np.dtype(np.uint8) if root else descriptors.dtype, method, n_words)  # before the clock runs
        checkpoint: dict[str, Any] = {} if begun is None else {"checkpoint": begun}
        with naming_the_way_out():
            vocabulary = learn_vocabulary(
                descriptors, n_words, n_threads=n_threads, verbose=verbose, **settings, **checkpoint
            )
        # By the clock of the fit, which stands still while it is stopped.
        return Learned(vocabulary, vocabulary.model.history_[-1].seconds)

    if verbose and WORDS.is_kept(folder, own_key):
        tqdm.write(f"{n_words:,} words from '{folder}'", file=sys.stderr)
    learned = resume(WORDS, folder, own_key, learn)
    if begun is not None and WORDS.is_kept(folder, own_key):
        begun.unlink(missing_ok=True)
        learned.vocabulary.model.set_params(checkpoint=None)
    learned.vocabulary.model.n_threads = n_threads  # a model that was kept knows of no threads
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
