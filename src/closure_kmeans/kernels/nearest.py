"""Kernels that find the nearest of all centres, given the products of rows and centres."""

from __future__ import annotations

from typing import Any

import numpy as np

from closure_kmeans.cache import kernel, part
from closure_kmeans.kernels.rows import SLACK, epsilon
from closure_kmeans.kernels.simd import Array

# The smallest normal float32.
TINY = float(np.finfo(np.float32).tiny)


@kernel
def keep_nearest(products: Array, norms: Array, first: int, best: Array, second: Array, choice: Array) -> None:
    """Update the best and second-best score of each column of a product with its rows, the centres from ``first`` on.

    Scores are ‖c‖² − 2 x·c, the squared distance without the ‖x‖² that all scores of a column share.
    """
    two = products.dtype.type(2)
    for j in range(products.shape[0]):
        norm = norms[first + j]
        for i in range(products.shape[1]):
            score = norm - two * products[j, i]
            second[i] = min(second[i], max(best[i], score))
            if score < best[i]:
                best[i] = score
                choice[i] = first + j


@kernel
def settle_nearest(
    rows: Array, centers: Array, largest_norm: Any, best: Array, second: Array, labels: Array, distances: Array
) -> None:
    """Squared distance of each row to the centre of its label.

    Where rounding could decide, the row is compared with all centres in double precision, and the first of the nearest
    ones is taken: the result is a pure function of each row.
    """
    for i in range(rows.shape[0]):
        if second[i] - best[i] > rounding(rows[i], largest_norm):
            distances[i] = squared_distance(rows[i], centers[labels[i]])
            continue
        distances[i] = np.inf
        for j in range(centers.shape[0]):
            distance = squared_distance(rows[i], centers[j])
            if distance < distances[i]:
                labels[i], distances[i] = j, distance


@kernel
def settle_several(
    rows: Array, centers: Array, largest_norm: Any, scores: Array, best: Array, labels: Array, distances: Array
) -> None:
    """Nearest of all centres of each row in ascending order, one for each column of ``labels``.

    ``scores`` are ‖c‖² − 2 x·c, ``largest_norm`` is the largest ‖c‖². Centres whose scores are, but for rounding, among
    the least are compared in double precision, so that the result is a pure function of each row. ``best`` has a place
    for each column.
    """
    last = best.shape[0] - 1
    for i in range(rows.shape[0]):
        for place in range(best.shape[0]):
            best[place] = np.inf
        for j in range(centers.shape[0]):
            if scores[i, j] < best[last]:
                place = last
                while place > 0 and scores[i, j] < best[place - 1]:
                    best[place] = best[place - 1]
                    place -= 1
                best[place] = scores[i, j]
        limit = best[last] + rounding(rows[i], largest_norm)
        for place in range(labels.shape[1]):
            labels[i, place] = -1
            distances[i, place] = np.inf
        for j in range(centers.shape[0]):
            if not scores[i, j] > limit:  # also where a score has overflown
                insert_nearest(squared_distance(rows[i], centers[j]), j, labels[i], distances[i])


@part
def insert_nearest(distance: float, label: int, labels: Array, distances: Array) -> None:
    """Insert a centre into the sorted list of the nearest ones so far, which keeps its length."""
    place = labels.shape[0]
    while place > 0 and (
        distance < distances[place - 1] or (distance == distances[place - 1] and label < labels[place - 1])
    ):
        place -= 1
        if place + 1 < labels.shape[0]:
            labels[place + 1], distances[place + 1] = labels[place], distances[place]
    if place < labels.shape[0]:
        labels[place], distances[place] = label, distance


@part
def rounding(row: Array, largest_norm: Any) -> Any:
    """Bound on the rounding error of the difference of two scores of a row, for centres of norm up to ``largest_norm``.

    Assumes the worst case, in which all errors have the same sign, and includes underflow. ``largest_norm`` is squared.
    """
    norm = largest_norm
    for t in range(row.shape[0]):
        norm += row[t] * row[t]
    return row.dtype.type((SLACK + row.shape[0]) * epsilon(row)) * norm + row.dtype.type(TINY)


@part
def plain_distance(a: Array, b: Array) -> Any:
    """Squared distance in the precision of the arrays; its relative error is at most about d eps."""
    total = a.dtype.type(0)
    for t in range(a.shape[0]):
        difference = a[t] - b[t]
        total += difference * difference
    return total


@part
def squared_distance(a: Array, b: Array) -> float:
    """Squared distance from differences, in double precision."""
    total = 0.0
    for t in range(a.shape[0]):
        difference = np.float64(a[t]) - np.float64(b[t])
        total += difference * difference
    return total
