"""Stages of work whose results are cached in a folder: finished work is not repeated."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import closure_kmeans
from closure_kmeans.environment import environment
from closure_kmeans.files import FileFormatError, library, reading, unfinished, warn
from closure_kmeans.retrieval.collection import Collection, Extraction, collect, join, load_collection, save_collection
from closure_kmeans.retrieval.vocabulary import (
    VOCABULARY,
    Vocabulary,
    learn_vocabulary,
    pack_vocabulary,
    unpack_vocabulary,
)
from closure_kmeans.tensors import read_tensors, write_tensors
from closure_kmeans.warmup import compile_learning

# Part of every key; incremented when the same settings give other features, words or scores than before.
RESULTS_VERSION = 2
# Hexadecimal digits of a key; 64 bits make collisions negligible.
KEY_DIGITS = 16
# Mean number of images per features file: about a second of work for small images.
IMAGES_PER_PART = 50
# Methods that can resume from a checkpoint.
RESUMABLE = ("closure", "paper")

Product = TypeVar("Product")


class Stage(NamedTuple, Generic[Product]):
    """Cache of one stage: each result is a file named after a key of its inputs."""

    name: str
    save: Callable[[Path, Product], None]
    load: Callable[[Path], Product]

    def path(self, folder: Path, key: str) -> Path:
        """Path of the result for a key."""
        return folder / f"{self.name}-{key}.safetensors"

    def is_kept(self, folder: Path | None, key: str) -> bool:
        """Whether the result for a key exists."""
        return folder is not None and self.path(folder, key).exists()


class Learned(NamedTuple):
    """Vocabulary and its training time."""

    vocabulary: Vocabulary
    seconds: float


def _save_learned(path: Path, learned: Learned) -> None:
    arrays, facts = pack_vocabulary(learned.vocabulary, training=True)
    write_tensors(path, VOCABULARY, arrays, facts | {"seconds": learned.seconds})


def _load_learned(path: Path) -> Learned:
    with reading(path, "a vocabulary"):
        arrays, facts = read_tensors(path, VOCABULARY)
        return Learned(unpack_vocabulary(path, arrays, facts), facts["seconds"])


FEATURES = Stage("features", save_collection, load_collection)
WORDS = Stage("words", _save_learned, _load_learned)


def find(stage: Stage[Product], folder: Path | None, key: str) -> Product | None:
    """Load the result for a key; None without a folder or a result."""
    if folder is None or not stage.is_kept(folder, key):
        return None
    with suggesting_removal():
        return stage.load(stage.path(folder, key))


def keep(stage: Stage[Product], folder: Path | None, key: str, product: Product) -> None:
    """Save a result if there is a folder; a failure is only a warning.

    Removes partial files that killed processes left.
    """
    if folder is not None:
        path = stage.path(folder, key)
        try:
            stage.save(path, product)
            for leftover in unfinished(path):
                leftover.unlink(missing_ok=True)
        except OSError as error:
            message = f"{stage.name} are not kept in '{folder}': {os.strerror(error.errno or errno.EIO)}"
            warn(message, RuntimeWarning)


def resume(stage: Stage[Product], folder: Path | None, key: str, make: Callable[[], Product]) -> Product:
    """Load the result for a key or, if there is none, make and save it."""
    kept = find(stage, folder, key)
    if kept is not None:
        return kept
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)  # fail before the work, not after it
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
    """Features of images, from the cache where possible, and a key of their inputs.

    Images are identified by their paths below ``photos``, and are unchanged if folder, name, size and modification time
    are. Features are saved in parts, so an interrupt or new images repeat only some of the work.
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
        collections = []
        for own_key, part in parts.items():
            made = resume(FEATURES, folder, own_key, partial(collect_with_bar, names=part))
            kept = find(FEATURES, folder, own_key)  # memory-mapped
            collections.append(made if kept is None else kept)
    return join(collections), key


def _parts(names: Sequence[str]) -> list[slice]:
    """Split names into parts. A hash of a name decides whether it ends a part: a new name changes only one part."""
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
    """Learn words, or load words learned with the same settings from the same descriptors (``key``).

    Cluster closures resume from a checkpoint.
    """
    if sample is not None and sample >= len(descriptors):
        sample = None  # the result is the same as without a sample
    settings: dict[str, Any] = {"method": method, "root": root, "random_state": random_state, "sample": sample}
    own_key = key_of(key, n_words, settings)
    begun = None
    if folder is not None and method in RESUMABLE:
        # Elsewhere the fit would end in other bits: it begins again there, with a checkpoint of its own.
        begun = folder / f"begun-{key_of(own_key, environment())}.safetensors"

    def learn() -> Learned:
        if verbose and begun is not None and begun.exists():
            tqdm.write(f"{n_words:,} words as far as they are in '{folder}'", file=sys.stderr)
        compile_learning(np.dtype(np.uint8) if root else descriptors.dtype, method, n_words)  # not timed
        checkpoint: dict[str, Any] = {} if begun is None else {"checkpoint": begun, "resume": True}
        with suggesting_removal():
            vocabulary = learn_vocabulary(
                descriptors, n_words, n_threads=n_threads, verbose=verbose, **settings, **checkpoint
            )
        # Fit time, which excludes interruptions.
        return Learned(vocabulary, vocabulary.model.history_[-1].seconds)

    if verbose and WORDS.is_kept(folder, own_key):
        tqdm.write(f"{n_words:,} words from '{folder}'", file=sys.stderr)
    learned = resume(WORDS, folder, own_key, learn)
    if begun is not None and WORDS.is_kept(folder, own_key):
        begun.unlink(missing_ok=True)
        learned.vocabulary.model.set_params(checkpoint=None)
    learned.vocabulary.model.n_threads = n_threads  # n_threads is not stored
    return learned


@contextmanager
def suggesting_removal() -> Iterator[None]:
    """Add advice to the error of an unreadable cache file: it can be removed and made again."""
    try:
        yield
    except FileFormatError as error:
        raise FileFormatError(f"{error}; remove it to have it made again") from error


def key_of(*parts: Any) -> str:
    """Hash of the inputs of a piece of work and of the library version."""
    text = json.dumps([closure_kmeans.__version__, RESULTS_VERSION, *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]
