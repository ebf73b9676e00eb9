"""Memory for the centres of an iteration, of the one before and of the next; and the extrapolated centres.

With many clusters the centres are large, and new memory takes as long as the arithmetic: the arrays are allocated once
and take turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from closure_kmeans.arrays import empty_rows
from closure_kmeans.clusters import Clusters
from closure_kmeans.iteration import Clustering, Labels
from closure_kmeans.parallel import Threads
from closure_kmeans.points import rows_per_block

# Cluster sizes between which the extrapolation factor rises from 0 to 1: extrapolation would empty smaller clusters.
EXTRAPOLATE_FROM, EXTRAPOLATE_FULLY = 10, 50


class CenterBuffers:
    """The array that the next centres are written to; it rotates with those of a state.

    With ``keep_previous`` a state keeps the centres of the iteration before, for extrapolation.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, *, keep_previous: bool) -> None:
        self._shape, self._dtype = shape, dtype
        self._keep_previous = keep_previous
        self._next: NDArray[Any] | None = None

    @property
    def next(self) -> NDArray[Any]:
        """Memory for the extrapolated centres and, once the points are assigned to these, for the updated ones."""
        if self._next is None:
            self._next = empty_rows(self._shape, self._dtype)
        return self._next

    def release(self) -> None:
        """Free the memory of the next centres, unless a state still holds it."""
        self._next = None

    def rotate(self, state: Clustering[Labels], labels: Labels, clusters: Clusters) -> Clustering[Labels]:
        """The state after ``state``, whose centres are in ``next``; the oldest are overwritten next."""
        if not self._keep_previous:
            self._next = state.clusters.centers
            return Clustering(labels, clusters)
        self._next = state.previous
        return Clustering(labels, clusters, state.clusters.centers)


def extrapolate(
    clusters: Clusters, previous: NDArray[Any], n_points: int, out: NDArray[Any], threads: Threads
) -> Clusters:
    """Extrapolate each centre by up to its last displacement.

    ``out`` is memory for them. ``norms`` stay those of the centres as they were updated.
    """
    sizes = clusters.sizes * (n_points / clusters.sizes.sum())  # in points, whatever their weights
    reach = ((sizes - EXTRAPOLATE_FROM) / (EXTRAPOLATE_FULLY - EXTRAPOLATE_FROM)).clip(0, 1)
    reach = reach.astype(previous.dtype)[:, np.newaxis]
    if reach.max() == 0:
        return clusters

    def move(first: int, last: int) -> None:
        some = slice(first, last)
        np.subtract(clusters.centers[some], previous[some], out=out[some])
        out[some] *= reach[some]
        out[some] += clusters.centers[some]

    threads.for_each_block(move, len(out), rows_per_block(out))
    return clusters._replace(centers=out)
