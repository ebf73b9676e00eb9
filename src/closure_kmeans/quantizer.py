"""The nearest centre of any point."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import _kernels
from closure_kmeans._parallel import Threads
from closure_kmeans.points import rows_per_block, shifted


def nearest_centers(
    X: NDArray[Any], centers: NDArray[Any], mean: NDArray[Any], threads: Threads
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest of all centres of each row, the first of several, and the squared distance to it.

    Exact, and a pure function of each row. The centres are relative to ``mean``, which is subtracted from the rows.
    """
    labels = np.empty(len(X), np.int32)
    distances = np.empty(len(X), np.float64)
    norms = np.einsum("ij,ij->i", centers, centers)

    def search(first: int, last: int) -> None:
        rows = shifted(X[first:last], mean)
        _kernels.search_nearest(rows, centers, norms, labels[first:last], distances[first:last], 0, last - first)

    threads.for_each_block(search, len(X), rows_per_block(X))
    return labels, distances
