"""Kernels, compiled or loaded before they are needed: what is timed, or should answer at once, has them by then."""

from __future__ import annotations

import tempfile
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import ClosureKMeans
from closure_kmeans.estimator import BaseKMeans
from closure_kmeans.search import compile_cells


def compile_kernels(dtype: np.dtype[Any]) -> None:
    """Call all kernels of the method on a few rows of a type: fits of all kinds, and all kinds of search.

    Descriptors of images are bytes, so that the retrieval belongs to these.
    """
    X = _few_rows(dtype)
    weights = np.arange(1, len(X) + 1)
    limited = partial(ClosureKMeans, memory_limit="16MB")
    for rows in (X, X + dtype.type(0.5)) if dtype == np.float32 else (X,):  # whole numbers are held as bytes
        for kind in (ClosureKMeans, ClosureKMeans.paper, limited):
            for sample_weight in (None, weights):
                model = kind(64, max_iter=2, random_state=0).fit(rows, sample_weight=sample_weight)
    model.predict(X)
    model.several_nearest(X, 2)
    for n_nearest in (1, 2):
        compile_cells(X, model.cluster_centers_, n_nearest)
    if dtype == np.uint8 and find_spec("cv2") is not None:
        compile_retrieval(model)


def compile_learning(dtype: np.dtype[Any], method: str, n_words: int) -> None:
    """Call what it takes to learn so many visual words from descriptors of a type, by one of the methods."""
    model = few_words(dtype, method)
    compile_cells(_few_rows(dtype), model.cluster_centers_)  # for a start from random rows


@cache
def few_words(dtype: np.dtype[Any], method: str) -> BaseKMeans:
    """Some words of a few descriptors, by one of the methods."""
    from closure_kmeans.retrieval import METHODS

    model: BaseKMeans = METHODS[method](64, max_iter=2, random_state=0).fit(_few_rows(dtype))
    return model


def _few_rows(dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.random.default_rng(0).integers(0, 100, (400, 32)).astype(dtype)


def compile_retrieval(model: BaseKMeans) -> None:
    """Search an index of two made images, in memory and from disk, where arrays cannot be written to."""
    from closure_kmeans.retrieval import PAPER_STEPS, Collection, Extraction, ImageIndex, Vocabulary, align

    descriptors = _few_rows(np.dtype(np.uint8))
    keypoints = np.random.default_rng(0).uniform(1, 100, (len(descriptors), 4)).astype(np.float32)
    offsets = np.array([0, len(descriptors) // 2, len(descriptors)])
    index = ImageIndex(Vocabulary(model, embedding=True))
    compile_cells(descriptors, model.cluster_centers_, 2)  # several words of a query
    index.add(Collection(["a", "b"], None, keypoints, descriptors, offsets, [], Extraction()))
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "made.index")
        for made in (index, ImageIndex.load(Path(folder) / "made.index")):
            query = made.make_query(keypoints, descriptors)
            made.search(query, n_rerank=2)
            made.search(query, steps=PAPER_STEPS)
            align(query.places, made.places_of(0))
        del made, query  # close the file, which Windows does not remove before
