"""One judge for all methods: the distortion of some centres, every row assigned to its true nearest centre.

Nothing but the centres is asked of a method. The nearest centres come from an exact search; distances are summed in
float64, from the differences of the rows and centres as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.metrics import exact_labels

# Pairs of row and centre that are scored without asking: about one iteration of exact Lloyd at k = 20,000 on 1M rows.
MOST_PAIRS = 20_000_000_000
SEED_OF_ROWS = 20_110
BLOCK = 8192


def unit(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Rows divided by their lengths; what has no direction becomes NaN."""
    with np.errstate(invalid="ignore"):
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


class Score(NamedTuple):
    distortion: float  # mean squared distance to the nearest centre
    n_rows: int  # scored
    error: float  # relative standard error of the distortion for being that of a sample of rows; 0 if of all
    n_used: int  # centres that are the nearest one of a scored row
    n_not_finite: int  # centres left out


def rows_to_score(n_rows: int, n_clusters: int, wanted: int | None) -> NDArray[np.int64] | None:
    """The rows that all methods are scored on: all (None), or a sample that depends on nothing but its size."""
    size = wanted or max(10_000, MOST_PAIRS // n_clusters)
    if size >= n_rows:
        return None
    return np.sort(np.random.default_rng(SEED_OF_ROWS).choice(n_rows, size, replace=False))


def score_centers(X: NDArray[Any], centers: NDArray[Any], rows: NDArray[np.int64] | None, threads: int) -> Score:
    finite = np.isfinite(centers).all(axis=1)
    centers = centers[finite]
    scored = X if rows is None else X[rows]
    labels, _ = exact_labels(scored, centers, threads)
    distances = labelled_distances(scored, centers, labels)
    check_nearest(scored, centers, distances)
    missing = 1 - len(scored) / len(X)
    return Score(
        distortion=float(distances.mean()),
        n_rows=len(scored),
        error=float(distances.std() / distances.mean() * np.sqrt(missing / len(scored))) if missing else 0.0,
        n_used=len(np.unique(labels)),
        n_not_finite=int(np.count_nonzero(~finite)),
    )


def labelled_distances(X: NDArray[Any], centers: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.float64]:
    """The squared distance of each row to the centre that its label names."""
    distances = np.empty(len(X))
    for first in range(0, len(X), BLOCK):
        block = slice(first, first + BLOCK)
        difference = X[block].astype(np.float64) - centers[labels[block]]
        np.einsum("ij,ij->i", difference, difference, out=distances[block])
    return distances


def check_nearest(X: NDArray[Any], centers: NDArray[Any], distances: NDArray[np.float64], n_checked: int = 8) -> None:
    """Hold a few rows against a search that shares no code with the library."""
    for row in np.linspace(0, len(X) - 1, n_checked).astype(int):
        point = X[row].astype(np.float64)
        smallest = min(
            np.square(centers[first : first + BLOCK] - point).sum(axis=1).min()
            for first in range(0, len(centers), BLOCK)
        )
        if distances[row] > smallest * (1 + 1e-5) + 1e-9:
            raise AssertionError(f"row {row} is at {distances[row]} from its centre, another centre at {smallest}")
