"""Starts: the labels that the first iteration improves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points, as_numbers
from closure_kmeans.quantizer import SAMPLE_ROWS, find_centers
from closure_kmeans.trees import RandomPartition


def start_labels(
    init: str | NDArray[Any],
    points: Points,
    tree: RandomPartition,
    rng: np.random.Generator,
    threads: Threads,
) -> NDArray[np.int32]:
    """Labels of the points by one of the starts.

    ``"tree"`` takes the cells of the first tree (section 4.3), ``"random"`` the nearest of as many random rows as the
    tree has cells, drawn by weight. Given centres are an array of two dimensions, given labels one of one dimension.
    Where centres are fewer than clusters, the other clusters have no points yet.
    """
    n_clusters = len(tree.starts) - 1
    if isinstance(init, str) and init == "tree":
        return np.repeat(np.arange(n_clusters, dtype=np.int32), np.diff(tree.starts))
    if isinstance(init, str):
        rows = draw_rows(points, tree, n_clusters, rng)
        centers = as_numbers(points.rows[rows]).astype(points.mean.dtype) - points.mean
    elif init.ndim == 1:
        return init[tree.members].astype(np.int32)
    else:
        centers = (init - points.mean).astype(points.mean.dtype)
    rows = as_numbers(points.rows)
    sample = rows[:: -(-len(rows) // SAMPLE_ROWS)]
    return find_centers(rows, centers, points.mean, sample, threads)


def draw_rows(points: Points, tree: RandomPartition, n_rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Different random points, drawn one after the other in proportion to their weights.

    Each point waits a random time that is exponential in its weight, and the first to come are taken. The times are
    drawn in the order of the user's rows, so that the choice does not depend on the tree.
    """
    times = rng.exponential(size=len(tree.members))[tree.members] / points.weights
    return np.sort(np.argpartition(times, n_rows - 1)[:n_rows])
