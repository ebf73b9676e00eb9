"""``closure-kmeans info``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

import closure_kmeans
from closure_kmeans.checkpoint import checkpoint_file, describe_checkpoint
from closure_kmeans.cli import options
from closure_kmeans.cli.common import report
from closure_kmeans.files import reading
from closure_kmeans.tensors import read_any_facts
from closure_kmeans.vectors import open_vectors


@click.command(
    epilog=options.example("closure-kmeans info words.safetensors", "closure-kmeans info vectors.hdf5 --name train")
)
@click.argument("path", type=options.EXISTING)
@options.name
@options.json
def info(path: str, name: str | None, as_json: bool) -> None:
    """PATH is a model, a model of codes, a checkpoint, an image index, or a file or folder of vectors."""
    if Path(path).suffix == ".index":
        facts = _about_index(path)
    elif Path(path).suffix == ".safetensors":
        facts = _about_tensors(path)
    elif checkpoint_file(path).exists():
        facts = describe_checkpoint(path)
    else:
        facts = _about_vectors(path, name)
    report(facts, as_json=as_json)


def _about_tensors(path: str) -> dict[str, Any]:
    with reading(Path(path), "a model"):
        kind = read_any_facts(Path(path))["kind"]
    if kind == "checkpoint":
        return describe_checkpoint(path)
    if kind == "codes":
        return _about_codes(path)
    model = closure_kmeans.load(path)
    centers = model.cluster_centers_
    return {
        "kind": "model",
        "method": " ".join(repr(model).split()),
        "clusters": len(centers),
        "features": centers.shape[1],
        "dtype": str(centers.dtype),
        "inertia": model.inertia_,
        "iterations": model.n_iter_,
        "stopped by": model.stopped_by_,
        "labels": hasattr(model, "labels_"),
        "bytes": Path(path).stat().st_size,
    }


def _about_codes(path: str) -> dict[str, Any]:
    model = closure_kmeans.ResidualKMeans.load(path)
    return {
        "kind": "codes",
        "method": " ".join(repr(model).split()),
        "levels": [len(level.cluster_centers_) for level in model.levels_],
        "features": model.n_features_in_,
        "stopped by": [level.stopped_by_ for level in model.levels_],
        "bytes": Path(path).stat().st_size,
    }


def _about_index(path: str) -> dict[str, Any]:
    from closure_kmeans.retrieval import ImageIndex

    index = ImageIndex.load(path)
    return {
        "kind": "index of images",
        "images": len(index),
        "words": index.vocabulary.n_words,
        "detector": index.extraction.detector,
        "bytes": Path(path).stat().st_size,
    }


def _about_vectors(path: str, name: str | None) -> dict[str, Any]:
    rows = open_vectors(path, name)
    return {
        "kind": "vectors",
        "rows": rows.shape[0],
        "features": rows.shape[1],
        "dtype": str(rows.dtype),
        "bytes in memory": rows.shape[0] * rows.shape[1] * rows.dtype.itemsize,
        "memory-mapped": isinstance(rows, np.memmap),
    }
