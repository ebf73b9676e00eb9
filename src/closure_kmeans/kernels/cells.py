"""Kernels of the search among cells of centres."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from closure_kmeans.cache import kernel, part
from closure_kmeans.kernels.nearest import TINY, insert_nearest, plain_distance, rounding, squared_distance
from closure_kmeans.kernels.rows import SLACK, epsilon
from closure_kmeans.kernels.simd import TILE_ROWS, VECTOR_BYTES, Array, near_tile, turn_rows
from closure_kmeans.kernels.trees import RankMemory, rank_memory, select_rank

if TYPE_CHECKING:
    from closure_kmeans.cells import Cells


class ChoiceMemory(NamedTuple):
    """Memory for choosing the cells of a row."""

    rank: RankMemory
    close: Array  # (n_cells,) cells near the threshold
    distances: Array  # (n_cells,) to their middles


class VisitMemory(NamedTuple):
    """Memory for the rows of one panel that visit a cell."""

    loaded: Array  # (lanes, m) sketches on their way into the panel
    panel: Array  # (m, lanes)
    limits: Array  # (lanes,)
    norms: Array  # (TILE_ROWS,) squared, of the sketches of a tile of centres
    bits: Array  # (TILE_ROWS,)
    last_tile: Array  # (TILE_ROWS, m)


def choice_memory(middles: Array) -> ChoiceMemory:
    """Memory for choosing among the cells of given middles."""
    n_cells = len(middles)
    return ChoiceMemory(rank_memory(n_cells, middles.dtype), np.empty(n_cells, np.int32), np.empty(n_cells))


def visit_memory(sketches: Array) -> VisitMemory:
    """Memory for visits of cells whose centres have such sketches."""
    width, dtype = sketches.shape[1], sketches.dtype
    lanes = VECTOR_BYTES // dtype.itemsize
    return VisitMemory(
        loaded=np.zeros((lanes, width), dtype),
        panel=np.empty((width, lanes), dtype),
        limits=np.empty(lanes, dtype),
        norms=np.zeros(TILE_ROWS, dtype),
        bits=np.empty(TILE_ROWS, np.int32),
        last_tile=np.zeros((TILE_ROWS, width), dtype),
    )


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
def bound_rows(
    rows: Array,
    sketches: Array,
    centers: Array,
    starts: Array,
    largest_norm: Any,
    chosen: Array,
    nearest: Array,
    distances: Array,
    offsets: Array,
    first: int,
    last: int,
) -> None:
    """Upper bound for rows ``first <= row < last``: the nearest centre in the nearest cell, and its squared distance.

    A centre can be ruled out if the score of its sketch exceeds the bound plus the row's offset. ``largest_norm`` is
    that of the sketches of the centres, squared.
    """
    for i in range(first, last):
        begin, end = starts[chosen[i, 0]], starts[chosen[i, 0] + 1]
        lowest = np.inf
        nearest[i] = begin
        for j in range(begin, end):
            distance = plain_distance(rows[i], centers[j])
            if distance < lowest:
                nearest[i], lowest = j, distance
        distances[i] = squared_distance(rows[i], centers[nearest[i]])
        norm = rows.dtype.type(0)
        for t in range(sketches.shape[1]):
            norm += sketches[i, t] * sketches[i, t]
        offsets[i] = rounding(sketches[i], largest_norm) - norm


@kernel
def visit_cells(
    rows: Array,
    sketches: Array,
    cells: Cells,
    visitors: Array,
    starts: Array,
    offsets: Array,
    best: Array,
    choice: Array,
    memory: VisitMemory,
    first: int,
    last: int,
) -> None:
    """Update the nearest centre of each row, and its squared distance, from the cells ``first <= cell < last``.

    A cell is searched for the rows ``visitors[starts[cell]:starts[cell + 1]]``. The sketches of one vector's worth of
    rows are the columns of a panel, which is multiplied with the sketches of the cell's centres tile by tile. The few
    centres that this does not rule out are compared one by one, in double precision where it matters; ties go to the
    lowest id. So the result is a pure function of each row and does not depend on its sketch.
    """
    panel, limits, bits, norms = memory.panel, memory.limits, memory.bits, memory.norms
    n_centers, width = cells.sketches.shape
    lanes = limits.shape[0]
    in_doubt = 1 + 2 * (SLACK + rows.shape[1]) * epsilon(rows)
    for cell in range(first, last):
        low, high = cells.starts[cell], cells.starts[cell + 1]
        for begin in range(starts[cell], starts[cell + 1], lanes):
            n_visiting = min(lanes, starts[cell + 1] - begin)
            for i in range(lanes):
                limits[i] = -np.inf
                if i < n_visiting:
                    row = visitors[begin + i]
                    limits[i] = best[row] + offsets[row]
                    for t in range(width):
                        memory.loaded[i, t] = sketches[row, t]
            turn_rows(memory.loaded, panel)
            for j in range(low, high, TILE_ROWS):
                size = min(TILE_ROWS, high - j)
                for r in range(size):
                    norms[r] = cells.sketch_norms[j + r]
                tile, place = cells.sketches, j
                if j + TILE_ROWS > n_centers:  # tiles are read whole: do not read past the end
                    tile, place = memory.last_tile, 0
                    for r in range(size):
                        for t in range(width):
                            tile[r, t] = cells.sketches[j + r, t]
                near_tile(tile, place, norms, panel, limits, bits)
                for r in range(size):
                    if bits[r] == 0:
                        continue
                    for i in range(n_visiting):
                        if bits[r] >> i & 1:
                            row, center = visitors[begin + i], j + r
                            plain = plain_distance(rows[row], cells.centers[center])
                            if best[row] * in_doubt + TINY < plain < np.inf:
                                continue
                            distance = squared_distance(rows[row], cells.centers[center])
                            if is_nearer(distance, center, best[row], choice[row], cells.ids):
                                best[row], choice[row] = distance, center
                                limits[i] = distance + offsets[row]


@part
def is_nearer(distance: float, center: int, best: float, choice: int, ids: Array) -> bool:
    """Whether a centre is nearer than the best so far, or as near and of a lower id."""
    return distance < best or (distance == best and ids[center] < ids[choice])


@kernel
def settle_rows(ids: Array, best: Array, choice: Array, labels: Array, distances: Array, first: int, last: int) -> None:
    """Merge the nearest centres found in the parts of the cells, for rows ``first <= row < last``."""
    for i in range(first, last):
        nearest, smallest = choice[0, i], best[0, i]
        for share in range(1, best.shape[0]):
            if is_nearer(best[share, i], choice[share, i], smallest, nearest, ids):
                nearest, smallest = choice[share, i], best[share, i]
        labels[i] = ids[nearest]
        distances[i] = smallest


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
                insert_nearest(squared_distance(rows[i], cells.centers[j]), cells.ids[j], labels[i], distances[i])
