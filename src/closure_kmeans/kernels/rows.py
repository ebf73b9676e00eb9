"""Kernels over rows: loading, and sums of clusters.

``offset`` is subtracted from every row as it is loaded. It keeps products accurate for data far from the origin.
Values of one or two bytes are converted one row at a time, in the cache; there is no float copy of the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from closure_kmeans.cache import kernel, part
from closure_kmeans.kernels.emit import Array
from closure_kmeans.kernels.simd import prefetch, widen

if TYPE_CHECKING:
    from closure_kmeans.clusters import Clusters
    from closure_kmeans.points import WeightedRows
    from closure_kmeans.stores.totals import Totals

# Bound on the rounding error of a product, in units of eps.
SLACK = 8

# Prefetch: rows ahead, and bytes of each. The hardware prefetcher fetches the rest of a long row.
ROWS_AHEAD = 32
BYTES_AHEAD = 512
CACHE_LINE = 64


# -- loading ---------------------------------------------------------------------------------------------------------


@part
def load_row(rows: Array, i: int, offset: Array, out: Array, place: int) -> Any:
    """Load row ``i`` less the offset into ``out[place]``, in the precision of ``out``; return its squared norm."""
    number = out.dtype.type
    norm = number(0)
    for t in range(offset.shape[0]):
        value = number(widen(rows[i, t])) - offset[t]
        out[place, t] = value
        norm += value * value
    return norm


@part
def fetch_row(rows: Array, row: int) -> None:
    """Prefetch a row, up to its first ``BYTES_AHEAD`` bytes."""
    prefetch(rows, row, 0)  # a short row has one cache line
    for byte in range(CACHE_LINE, min(rows.shape[1] * rows.itemsize, BYTES_AHEAD), CACHE_LINE):
        prefetch(rows, row, byte)


# -- sums of clusters ------------------------------------------------------------------------------------------------


@kernel
def fill_groups(labels: Array, starts: Array, places: Array, members: Array) -> None:
    """Fill the groups of ``group_by_label``; ``starts`` are zero before, ``places`` are scratch."""
    n_clusters = places.shape[0]
    for i in range(labels.shape[0]):
        starts[labels[i] + 1] += 1
    for j in range(n_clusters):
        starts[j + 1] += starts[j]
        places[j] = starts[j]
    for i in range(labels.shape[0]):
        label = labels[i]
        members[places[label]] = i
        places[label] += 1


@kernel
def update_clusters(
    points: WeightedRows,
    members: Array,
    starts: Array,
    clusters: Clusters,
    total: Array,
    chosen: Array,
    first: int,
    last: int,
) -> None:
    """Update centre, its squared norm, size and error of the clusters ``chosen[first:last]``.

    Sums run over the points in ascending order and in double precision, so they do not depend on the threads. The error
    is the sum of squares less n ‖c‖². The centre of an empty cluster is unchanged. ``total`` is scratch.
    """
    for place in range(first, last):
        j = chosen[place]
        for t in range(total.shape[0]):
            total[t] = 0
        size, squares = sum_members(points, members, starts[j], starts[j + 1], total)
        finish_cluster(total, size, squares, clusters, j)


@kernel
def add_to_totals(points: WeightedRows, members: Array, starts: Array, totals: Totals, first: int, last: int) -> None:
    """Add the points of one part of the data to the sums of the clusters ``first <= cluster < last``."""
    for j in range(first, last):
        if starts[j] < starts[j + 1]:
            size, squares = sum_members(points, members, starts[j], starts[j + 1], totals.sums[j])
            totals.sizes[j] += size
            totals.squares[j] += squares


@kernel
def finish_clusters(totals: Totals, clusters: Clusters, first: int, last: int) -> None:
    """Finish the clusters ``first <= cluster < last`` from the sums over all parts of the data."""
    for j in range(first, last):
        finish_cluster(totals.sums[j], totals.sizes[j], totals.squares[j], clusters, j)


@part
def sum_members(points: WeightedRows, members: Array, begin: int, end: int, total: Array) -> tuple[float, float]:
    """Add some points to the total of their cluster; return their weight and the weighted sum of squared norms."""
    n_features = points.offset.shape[0]
    weighted = points.weights.shape[0] > 1
    number = points.offset.dtype.type
    size, squares = 0.0, 0.0
    for place in range(begin, end):
        fetch_row(points.rows, members[min(place + ROWS_AHEAD, members.shape[0] - 1)])
        point = members[place]
        weight = np.float64(points.weights[point if weighted else 0])
        square = 0.0
        for t in range(n_features):
            value = np.float64(number(widen(points.rows[point, t])) - points.offset[t])
            total[t] += weight * value
            square += value * value
        size += weight
        squares += weight * square
    return size, squares


@part
def finish_cluster(total: Array, size: float, squares: float, clusters: Clusters, j: int) -> None:
    """Centre, its squared norm, size and error of a cluster from the sums over its points."""
    clusters.sizes[j] = size
    clusters.errors[j] = 0
    if size > 0:
        norm = 0.0
        for t in range(total.shape[0]):
            mean = total[t] / size
            norm += mean * mean
            clusters.centers[j, t] = mean
        clusters.norms[j] = norm
        clusters.errors[j] = max(0.0, squares - size * norm)


# -- rounding --------------------------------------------------------------------------------------------------------


@part
def epsilon(array: Array) -> float:
    """Machine epsilon of the numbers of an array."""
    return 2.0**-52 if array.itemsize == 8 else 2.0**-23
