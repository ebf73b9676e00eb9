"""Kernels that find the nearest centre of rows: products of bytes rule most centres out.

Rows and centres are rounded to bytes. The product of two such vectors, and the lengths of what rounding took away,
bound the distance from below; centres whose bound exceeds the best distance so far are not compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from closure_kmeans.cache import kernel, part
from closure_kmeans.kernels.byte_tiles import NEAR_ROWS, near_tile
from closure_kmeans.kernels.emit import VECTOR_BYTES, Array
from closure_kmeans.kernels.rows import SLACK, epsilon
from closure_kmeans.kernels.simd import turn_rows

if TYPE_CHECKING:
    from closure_kmeans.nearest import RoundedCenters, RoundedRows

# The smallest normal float32.
TINY = float(np.finfo(np.float32).tiny)


class PanelMemory(NamedTuple):
    """Memory for the rows of one panel."""

    loaded: Array  # (lanes, words) codes on their way into the panel
    panel: Array  # (words, lanes)
    shifts: Array  # (lanes,)
    facts: Array  # (4, lanes) steps, lengths, errors and limits
    bits: Array  # (NEAR_ROWS,)


def panel_memory(n_words: int) -> PanelMemory:
    """Memory for panels of rows whose codes have so many words."""
    lanes = VECTOR_BYTES // 4
    return PanelMemory(
        loaded=np.zeros((lanes, n_words), np.int32),
        panel=np.empty((n_words, lanes), np.int32),
        shifts=np.zeros(lanes, np.int32),
        facts=np.zeros((4, lanes), np.float32),
        bits=np.empty(NEAR_ROWS, np.int32),
    )


@kernel
def round_to_bytes(
    vectors: Array, levels: int, codes: Array, totals: Array, steps: Array, norms: Array, errors: Array
) -> None:
    """Round each vector to whole multiples of a step, up to ``levels`` of them.

    ``codes`` are the multiples and ``totals`` their sums, ``norms`` the squared lengths of the vectors, and ``errors``
    the squared lengths of what rounding took away. A vector that has no such step, because it is zero or overflows,
    becomes zero.
    """
    number = vectors.dtype.type
    for i in range(vectors.shape[0]):
        norm, largest = number(0), number(0)
        for t in range(vectors.shape[1]):
            norm += vectors[i, t] * vectors[i, t]
            largest = max(largest, abs(vectors[i, t]))
        step = np.float32(largest / number(levels))
        norms[i] = norm
        if not (norm < np.inf and 0 < step < np.inf):
            steps[i], totals[i], errors[i] = 1, 0, norm
            for t in range(vectors.shape[1]):
                codes[i, t] = 0
            continue
        total, error = 0, number(0)
        for t in range(vectors.shape[1]):
            multiple = np.rint(vectors[i, t] / number(step))
            left = vectors[i, t] - multiple * number(step)
            error += left * left
            codes[i, t] = np.int8(multiple)
            total += int(multiple)
        steps[i], totals[i], errors[i] = step, total, error


@kernel
def visit_groups(
    rows: RoundedRows,
    centers: RoundedCenters,
    groups: Array,
    visitors: Array,
    starts: Array,
    best: Array,
    choice: Array,
    memory: PanelMemory,
    first: int,
    last: int,
) -> None:
    """Update the nearest centre of each row, and its squared distance, from the groups ``first <= group < last``.

    A group is the centres from ``groups[group]`` to ``groups[group + 1]``, and is searched for the rows
    ``visitors[starts[group]:starts[group + 1]]``. The codes of one vector's worth of rows are the columns of a panel,
    which is multiplied with the codes of the group's centres tile by tile. The few centres that this does not rule out
    are compared one by one, in double precision where it matters; ties go to the lowest id. So the result is a pure
    function of each row and does not depend on its code.
    """
    facts, bits = memory.facts, memory.bits
    lanes, n_words = memory.loaded.shape
    in_doubt = 1 + 2 * (SLACK + rows.rows.shape[1]) * epsilon(rows.rows)
    for group in range(first, last):
        low, high = groups[group], groups[group + 1]
        for begin in range(starts[group], starts[group + 1], lanes):
            n_visiting = min(lanes, starts[group + 1] - begin)
            for i in range(lanes):
                facts[3, i] = -np.inf
                if i < n_visiting:
                    row = visitors[begin + i]
                    for t in range(n_words):
                        memory.loaded[i, t] = rows.codes[row, t]
                    memory.shifts[i] = rows.shifts[row]
                    for t in range(3):
                        facts[t, i] = rows.facts[row, t]
                    facts[3, i] = best[row] + rows.offsets[row]
            turn_rows(memory.loaded, memory.panel)
            for j in range(low, high, NEAR_ROWS):
                near_tile(centers.codes, j, centers.facts, memory.panel, memory.shifts, facts, bits)
                for r in range(min(NEAR_ROWS, high - j)):
                    if bits[r] == 0:
                        continue
                    for i in range(n_visiting):
                        if bits[r] >> i & 1:
                            row, center = visitors[begin + i], j + r
                            plain = plain_distance(rows.rows[row], centers.centers[center])
                            if best[row] * in_doubt + TINY < plain < np.inf:
                                continue
                            distance = squared_distance(rows.rows[row], centers.centers[center])
                            if is_nearer(distance, center, best[row], choice[row], centers.ids):
                                best[row], choice[row] = distance, center
                                facts[3, i] = distance + rows.offsets[row]


@part
def is_nearer(distance: float, center: int, best: float, choice: int, ids: Array) -> bool:
    """Whether a centre is nearer than the best so far, or as near and of a lower id."""
    return distance < best or (distance == best and ids[center] < ids[choice])


@kernel
def settle_rows(ids: Array, best: Array, choice: Array, labels: Array, distances: Array) -> None:
    """Merge the nearest centres found in the parts of the groups."""
    for i in range(labels.shape[0]):
        nearest, smallest = choice[0, i], best[0, i]
        for share in range(1, best.shape[0]):
            if is_nearer(best[share, i], choice[share, i], smallest, nearest, ids):
                nearest, smallest = choice[share, i], best[share, i]
        labels[i] = ids[nearest]
        distances[i] = smallest


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
