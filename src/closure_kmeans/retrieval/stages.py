"""Stages of work that are kept in a folder: what is finished is not done again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import closure_kmeans
from closure_kmeans._files import FileFormatError, reading
from closure_kmeans._tensors import read_facts
from closure_kmeans.retrieval.collection import COLLECTION, load_collection, save_collection
from closure_kmeans.retrieval.vocabulary import VOCABULARY, load_vocabulary, save_vocabulary

Product = TypeVar("Product")


class Stage(NamedTuple, Generic[Product]):
    """How the product of a stage is kept."""

    file: str
    kind: str
    save: Callable[[Path, Product, str], None]
    load: Callable[[Path], Product]


FEATURES = Stage("features.safetensors", COLLECTION, save_collection, load_collection)
WORDS = Stage("words.safetensors", VOCABULARY, save_vocabulary, load_vocabulary)


def resume(stage: Stage[Product], folder: Path | None, key: str, make: Callable[[], Product]) -> Product:
    """What is in the folder, if it was made of what ``key`` tells; else make it, and keep it if there is a folder."""
    if folder is None:
        return make()
    path = folder / stage.file
    if path.exists():
        try:
            with reading(path, f"a {stage.kind}"):
                kept_key = read_facts(path, stage.kind)["key"]
            if kept_key == key:
                return stage.load(path)
        except FileFormatError as error:
            raise FileFormatError(f"{error}; remove it to have it made again") from error
    made = make()
    stage.save(path, made, key)
    return made


def key_of(*parts: Any) -> str:
    """What tells one piece of work from another: of the parts, and of the version of the library."""
    text = json.dumps([closure_kmeans.__version__, *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
