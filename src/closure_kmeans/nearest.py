"""The nearest of all centres, by comparing each row with every centre."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import kernels
from closure_kmeans.parallel import Threads
from closure_kmeans.points import rows_per_block, shifted

# Rows and centres in one matrix product; both fit into the second-level cache.
SEARCH_ROWS, SEARCH_CENTERS = 256, 512
# Rows that are compared with all centres at once, where several centres are looked for.
SEVERAL_ROWS = 64
# Rows of a fit that show how rows lie to the centres: see ``CenterIndex``.
SAMPLE_ROWS = 2000


def nearest_centers(
    X: NDArray[Any], centers: NDArray[Any], offset: NDArray[Any], threads: Threads
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest of all centres of each row, the first of several, and the squared distance to it.

    The centres are relative to ``offset``, which is subtracted from the rows.
    """
    norms = np.einsum("ij,ij->i", centers, centers)
    labels = np.zeros(len(X), np.int32)
    distances = np.empty(len(X), np.float64)

    def search(begin: int, end: int) -> None:
        for first in range(begin, end, SEARCH_ROWS):
            block = slice(first, min(first + SEARCH_ROWS, end))
            rows = shifted(X[block], offset)
            best, second = np.full((2, len(rows)), np.inf, rows.dtype)
            for center in range(0, len(centers), SEARCH_CENTERS):
                with np.errstate(over="ignore", invalid="ignore"):
                    products = centers[center : center + SEARCH_CENTERS] @ rows.T
                kernels.nearest.keep_nearest(products, norms, center, best, second, labels[block])
            kernels.nearest.settle_nearest(rows, centers, norms.max(), best, second, labels[block], distances[block])

    threads.for_each_block(search, len(X), search_block(len(X), rows_per_block(X), threads))
    return labels, distances


def several_nearest_centers(
    X: NDArray[Any], centers: NDArray[Any], offset: NDArray[Any], n_nearest: int, threads: Threads
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest of all centres of each row in ascending order, or all, and the squared distances to them.

    The centres are relative to ``offset``, which is subtracted from the rows.
    """
    n_nearest = min(n_nearest, len(centers))
    norms = np.einsum("ij,ij->i", centers, centers)
    labels = np.empty((len(X), n_nearest), np.int32)
    distances = np.empty((len(X), n_nearest), np.float64)

    def search(begin: int, end: int) -> None:
        best = np.empty(n_nearest, centers.dtype)
        for first in range(begin, end, SEVERAL_ROWS):
            block = slice(first, min(first + SEVERAL_ROWS, end))
            rows = shifted(X[block], offset)
            with np.errstate(over="ignore", invalid="ignore"):
                scores = norms - 2 * (rows @ centers.T)
            kernels.nearest.settle_several(rows, centers, norms.max(), scores, best, labels[block], distances[block])

    threads.for_each_block(search, len(X), search_block(len(X), rows_per_block(X), threads))
    return labels, distances


def search_block(n_rows: int, largest: int, threads: Threads) -> int:
    """Rows to search at a time: equally many for each thread and at most ``largest``, for large products."""
    n_blocks = threads.n_threads * -(-n_rows // (largest * threads.n_threads))
    return max(SEARCH_ROWS, -(-n_rows // max(n_blocks, 1)))
