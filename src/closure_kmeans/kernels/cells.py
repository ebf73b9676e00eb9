"""Kernels of the search among cells of centres."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from closure_kmeans.cache import kernel, part
from closure_kmeans.kernels.emit import Array
from closure_kmeans.kernels.nearest import insert_nearest, rounding, squared_distance
from closure_kmeans.kernels.rows import SLACK, epsilon
from closure_kmeans.kernels.trees import RankMemory, rank_memory, select_rank

if TYPE_CHECKING:
    from closure_kmeans.cells import Cells


class ChoiceMemory(NamedTuple):
    """Memory for choosing the cells of a row."""

    rank: RankMemory
    close: Array  # (n_cells,) cells near the threshold
    distances: Array  # (n_cells,) to their middles


def choice_memory(middles: Array) -> ChoiceMemory:
    """Memory for choosing among the cells of given middles."""
    n_cells = len(middles)
    return ChoiceMemory(rank_memory(n_cells, middles.dtype), np.empty(n_cells, np.int32), np.empty(n_cells))


@kernel
def take_cells(
    rows: Array, middles: Array, scores: Array, largest_norm: Any, chosen: Array, memory: ChoiceMemory
) -> None:
    """Take the nearest cells of each row, one for each column of ``chosen``.

    ``scores`` are ‖m‖² − 2 x·m for the middle m of each cell; ``largest_norm`` is the largest ‖m‖².
    """
    for i in range(rows.shape[0]):
        take_nearest(rows[i], middles, scores[i], rounding(rows[i], largest_norm), chosen[i], memory)


@part
def take_nearest(row: Array, middles: Array, scores: Array, slack: Any, chosen: Array, memory: ChoiceMemory) -> None:
    """Put the cells whose middles are nearest to a row into ``chosen``, the first of equally near ones.

    Scores are exact to within ``slack``, up to a common constant. Cells within ``slack`` of the threshold, and all
    cells if the scores overflow, are compared in double precision, so the choice does not depend on the other rows of
    the block. The cell of the lowest score comes first, the others in any order.
    """
    close, distances = memory.close, memory.distances
    threshold = select_rank(scores, scores.shape[0], chosen.shape[0] - 1, memory.rank)
    low, high = threshold - slack, threshold + slack
    n_chosen, n_close = 0, 0
    for j in range(scores.shape[0]):
        if scores[j] < low:
            chosen[n_chosen] = j
            n_chosen += 1
        elif not scores[j] > high:
            close[n_close] = j
            distances[n_close] = squared_distance(row, middles[j])
            n_close += 1
    while n_chosen < chosen.shape[0]:
        nearest = 0
        for i in range(1, n_close):
            if distances[i] < distances[nearest]:
                nearest = i
        chosen[n_chosen] = close[nearest]
        distances[nearest] = np.inf
        n_chosen += 1
    for i in range(1, n_chosen):
        if scores[chosen[i]] < scores[chosen[0]]:
            chosen[0], chosen[i] = chosen[i], chosen[0]


@kernel
def search_several(
    rows: Array, cells: Cells, scores: Array, probed: Array, labels: Array, distances: Array, memory: ChoiceMemory
) -> None:
    """Nearest centres of each row in ascending order, one for each column of ``labels``.

    Searches as many of the nearest cells as ``probed`` has places; they hold at least that many centres. Ties go to the
    lowest id. Works row by row and in double precision, so the first one agrees with ``settle_rows``. ``scores`` has a
    place for each cell.
    """
    for i in range(rows.shape[0]):
        largest = 0.0
        for cell in range(scores.shape[0]):
            distance = squared_distance(rows[i], cells.middles[cell])
            scores[cell] = distance
            largest = max(largest, distance)
        doubt = scores.dtype.type(SLACK * epsilon(scores) * largest)
        take_nearest(rows[i], cells.middles, scores, doubt, probed, memory)
        for place in range(labels.shape[1]):
            labels[i, place] = -1
            distances[i, place] = np.inf
        for near in probed:
            for j in range(cells.starts[near], cells.starts[near + 1]):
                insert_nearest(
                    squared_distance(rows[i], cells.centers.centers[j]), cells.centers.ids[j], labels[i], distances[i]
                )
