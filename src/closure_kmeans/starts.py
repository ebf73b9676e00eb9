"""First labels of the points: by random rows, or as they are given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.points import as_numbers
from closure_kmeans.search import CenterIndex
from closure_kmeans.stores.memory import LocalStore


def start_labels(init: str | NDArray[Any], store: LocalStore[Any]) -> NDArray[np.int32]:
    """First labels of the points, for all starts except the tree.

    ``"random"`` takes the nearest of k random rows, drawn by weight. Given centres are an array of two dimensions,
    given labels one of one dimension. Where there are fewer centres than clusters, the other clusters have no points
    yet.
    """
    if isinstance(init, str):
        centers = as_numbers(store.points.rows[draw_rows(store)])
    elif init.ndim == 1:
        return init[store.order].astype(np.int32)
    else:
        centers = init
    index = CenterIndex.of(centers.astype(store.offset.dtype), sample=store.sample, offset=store.offset)
    index.n_threads = store.threads.n_threads
    labels = np.empty(store.n_points, np.int32)
    for some, rows in store.blocks():
        labels[some], _ = index.find(rows)
    return labels


def draw_rows(store: LocalStore[Any]) -> NDArray[np.int64]:
    """Draw k different points without replacement, in proportion to their weights.

    Weighted sampling by exponential keys (Efraimidis–Spirakis): the k smallest Exp(1) / weight are kept. The keys are
    drawn in the order of the user's rows, so that the choice does not depend on the tree.
    """
    keys = store.rng.exponential(size=store.n_points)[store.order] / store.points.weights
    return np.sort(np.argpartition(keys, store.n_clusters - 1)[: store.n_clusters])
