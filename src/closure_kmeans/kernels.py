"""Every compiled function of the method, and nothing else.

All are serial and release the GIL. Those that threads call take a range of rows, leaves, nodes or clusters as their
last two arguments and write nothing that another range reads, so that ranges may run in any order and on any number
of threads. Each has a slow, obvious twin in ``tests/reference.py``.

``offset`` is subtracted from every row as it is loaded: it keeps the products of data far from the origin accurate,
and data of one byte or two per value is widened a row at a time, in the cache, never as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
from numba import njit

from closure_kmeans.cache import keep_on_disk
from closure_kmeans.compiler import watch_compiler
from closure_kmeans.instructions import (
    GROUP,
    TILE_ROWS,
    in_groups,
    less,
    more,
    near_tile,
    numbers_per_vector,
    prefetch,
    score_tile,
    take_group,
    take_lowest,
    turn_rows,
)

if TYPE_CHECKING:
    from closure_kmeans.cells import Cells
    from closure_kmeans.clusters import Clusters
    from closure_kmeans.points import Points
    from closure_kmeans.stores.totals import Totals
    from closure_kmeans.trees import RandomPartition

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Function = TypeVar("Function", bound=Callable[..., Any])

# Reductions may be reordered, so that they vectorise; NaN and infinity keep their meaning.
FAST_FLOATS = {"reassoc", "contract", "nsz"}

# The principal direction of a node: this many steps capture 99 % of the variance that the converged one does.
LANCZOS_STEPS = 5
# Squarings of a small matrix after which its largest eigenvalue stands alone.
EIGENVECTOR_SQUARINGS = 10
# Of rows that are equally far from the mean but for rounding, the first counts as the farthest.
NEARLY_EQUAL = 1 + 1e-5

# Of so many values and more, a sample of them shows which are about where a rank is: two of it, so far from its own.
MANY_VALUES = 512
RANK_SAMPLE = 32
RANK_MARGIN = 5

# All bits of a group.
WHOLE_GROUP = (1 << GROUP) - 1

# Rounding of a product in units of the precision: a move must gain more than this to count as one.
SLACK = 8
# What float32 can tell from zero.
TINY = float(np.finfo(np.float32).tiny)

# How far ahead rows are asked for, and how many bytes of each: the rest of a long row follows by itself.
ROWS_AHEAD = 32
BYTES_AHEAD = 512
CACHE_LINE = 64

# Rows and centres in one product of the exact search: both stay in the second-level cache.
SEARCH_ROWS = 256
SEARCH_CENTERS = 512


watch_compiler()


def kernel(function: Function) -> Function:
    """Compile for the processor at hand on first use, and keep the result on disk."""
    compiled = njit(nogil=True, error_model="numpy", fastmath=FAST_FLOATS)(function)
    keep_on_disk(compiled)
    return cast(Function, compiled)


# -- rows -----------------------------------------------------------------------------------------------------------


@kernel
def widen(value: Any) -> Any:
    """A stored value as a number: float16 is stored as its bits, for want of a type in compiled code."""
    if isinstance(value, np.uint16):
        magnitude = (np.uint32(value) & np.uint32(0x7FFF)) << np.uint32(13)
        sign = (np.uint32(value) & np.uint32(0x8000)) << np.uint32(16)
        # The exponent's bias differs by 112; multiplying corrects it, for subnormal numbers too.
        return np.uint32(magnitude | sign).view(np.float32) * np.float32(2.0**112)
    else:
        return value


@kernel
def load_row(rows: Array, i: int, offset: Array, out: Array, place: int) -> Any:
    """Row ``i``, shifted by the offset, into row ``place`` of ``out`` and in its precision; its squared norm."""
    number = out.dtype.type
    norm = number(0)
    for t in range(offset.shape[0]):
        value = number(widen(rows[i, t])) - offset[t]
        out[place, t] = value
        norm += value * value
    return norm


@kernel
def measure_rows(rows: Array, offset: Array, shifted: Array, norms: Array, in_bytes: Array) -> bool:
    """Rows shifted by the offset, and their squared norms; ``in_bytes``, unless it is empty, gets the rows themselves.

    Returns whether it holds them: whether all values are whole numbers from 0 to 255.
    """
    fits: bool = in_bytes.shape[0] > 0
    for i in range(rows.shape[0]):
        norms[i] = load_row(rows, i, offset, shifted, i)
        if fits:
            for t in range(rows.shape[1]):
                value = rows[i, t]
                fits &= (value >= 0) & (value <= 255) & (value == np.floor(value))
        if fits:
            for t in range(rows.shape[1]):
                in_bytes[i, t] = np.uint8(np.int32(rows[i, t]))
    return fits


@kernel
def fetch_ahead(rows: Array, order: Array, place: int) -> None:
    """Ask for the row that will be read some places later, when rows are read in a given order."""
    fetch_row(rows, order[min(place + ROWS_AHEAD, order.shape[0] - 1)])


@kernel
def fetch_row(rows: Array, row: int) -> None:
    """Ask for a row."""
    prefetch(rows, row, 0)  # of a short row there is nothing else
    for byte in range(CACHE_LINE, min(rows.shape[1] * rows.itemsize, BYTES_AHEAD), CACHE_LINE):
        prefetch(rows, row, byte)


# -- random partition trees (section 3.4, "Implementation details") ---------------------------------------------------


@kernel
def sample_rows(rows: Array, offset: Array, node: Array, draws: Array, place: int, sample: Array) -> None:
    """A random sample of a node's rows, with repetition. Each node reads the draws from a place of its own."""
    for r in range(sample.shape[0]):
        draw = draws[(place + r) % draws.shape[0]]
        load_row(rows, node[int(draw * node.shape[0])], offset, sample, r)


@kernel
def principal_direction(sample: Array, direction: Array, products: Array) -> None:
    """The direction of largest variance of a sample, by the Lanczos algorithm; zero if all its rows are equal.

    The sample is centred in place. The algorithm starts from the row farthest from the mean, applies the scatter matrix
    to one basis vector after the other, and finds the best direction in their span from a small matrix.
    """
    size, n_features = sample.shape
    farthest, largest = center_sample(sample, direction)
    if largest == 0:
        direction[:] = 0
        return
    basis = np.empty((LANCZOS_STEPS, n_features), sample.dtype)
    scatter = np.zeros((LANCZOS_STEPS, LANCZOS_STEPS), np.float64)  # within the span: three diagonals
    basis[0] = sample[farthest] / np.sqrt(largest)
    n_steps = 0
    while n_steps < LANCZOS_STEPS:
        step = n_steps
        n_steps += 1
        apply_scatter(sample, basis[step], largest, products, direction)
        for i in range(n_steps):
            overlap = take_away(direction, basis[i])
            if i == step:
                scatter[i, i] = overlap
        length = 0.0
        for t in range(n_features):
            length += direction[t] * direction[t]
        length = np.sqrt(length)
        # What is left over is rounding: the span holds all there is.
        if n_steps == LANCZOS_STEPS or length <= SLACK * np.finfo(sample.dtype).eps * size:
            break
        scatter[step, n_steps] = scatter[n_steps, step] = length
        for t in range(n_features):
            basis[n_steps, t] = direction[t] / length
    direction[:] = 0
    weights = top_eigenvector(scatter, n_steps)
    for i in range(n_steps):
        for t in range(n_features):
            direction[t] += weights[i] * basis[i, t]


@kernel
def center_sample(sample: Array, mean: Array) -> tuple[int, float]:
    """Subtract its mean from a sample; the row farthest from it, and the square of how far."""
    size, n_features = sample.shape
    mean[:] = 0
    for r in range(size):
        for t in range(n_features):
            mean[t] += sample[r, t]
    for t in range(n_features):
        mean[t] /= size
    farthest, largest = 0, 0.0
    for r in range(size):
        norm = 0.0
        for t in range(n_features):
            sample[r, t] -= mean[t]
            norm += sample[r, t] * sample[r, t]
        if norm > largest * NEARLY_EQUAL:
            farthest, largest = r, norm
    return farthest, largest


@kernel
def apply_scatter(sample: Array, vector: Array, scale: float, products: Array, out: Array) -> None:
    """The scatter matrix of a centred sample, divided by ``scale``, times a vector. ``products`` is memory."""
    size, n_features = sample.shape
    for r in range(size):
        product = 0.0
        for t in range(n_features):
            product += sample[r, t] * vector[t]
        products[r] = product / scale
    out[:] = 0
    for r in range(size):
        for t in range(n_features):
            out[t] += products[r] * sample[r, t]


@kernel
def take_away(vector: Array, unit: Array) -> float:
    """Take the part along a vector of length one away from a vector; how long it was."""
    overlap = 0.0
    for t in range(vector.shape[0]):
        overlap += vector[t] * unit[t]
    for t in range(vector.shape[0]):
        vector[t] -= overlap * unit[t]
    return overlap


@kernel
def top_eigenvector(matrix: Array, size: int) -> Array:
    """The eigenvector of the largest eigenvalue of the leading part of a small positive matrix, by squaring it."""
    power: Array = matrix[:size, :size].copy()
    squared = np.empty((size, size), np.float64)
    for _ in range(EIGENVECTOR_SQUARINGS):
        trace = 0.0
        for i in range(size):
            trace += power[i, i]
        scale = 1 / (trace * trace)
        for i in range(size):
            for j in range(size):
                product = 0.0
                for between in range(size):
                    product += power[i, between] * power[between, j]
                squared[i, j] = product * scale
        power, squared = squared, power
    largest = 0
    for i in range(size):
        if power[i, i] > power[largest, largest]:
            largest = i
    vector: Array = power[largest]
    return vector


@kernel
def project(rows: Array, offset: Array, node: Array, direction: Array, values: Array) -> None:
    """The position of each of a node's rows along a direction."""
    number = values.dtype.type
    for i in range(node.shape[0]):
        prefetch(rows, node[min(i + ROWS_AHEAD, node.shape[0] - 1)], 0)  # a short row is one line
        row = node[i]
        value = number(0)
        for t in range(direction.shape[0]):
            value += (number(widen(rows[row, t])) - offset[t]) * direction[t]
        values[i] = value


@kernel
def select_rank(values: Array, rank: int, kept: Array, spare: Array) -> Any:
    """The value of a given rank, from 0. ``kept`` and ``spare``, as long as ``values``, are overwritten.

    Quickselect without a branch on the data. The pivot's equals leave in every round, so that it ends on any input. Of
    many values, those around the rank are kept first, in one round. A group's larger values are taken before its
    smaller ones, which may overwrite it.
    """
    size, n_below = 0, 0
    if values.shape[0] >= MANY_VALUES:
        n_below, size = keep_around(values, rank, kept)
    if not n_below <= rank < n_below + size:
        n_below, size = 0, values.shape[0]
        kept[:size] = values
    rank -= n_below
    while True:
        step = size // 9
        low = median(kept[0], kept[step], kept[2 * step])
        middle = median(kept[3 * step], kept[4 * step], kept[5 * step])
        high = median(kept[6 * step], kept[7 * step], kept[8 * step])
        pivot = median(low, middle, high)
        n_less, n_more = 0, 0
        for i in range(0, in_groups(size), GROUP):
            n_more += take_group(kept, i, more(kept, i, pivot), spare, n_more)
            n_less += take_group(kept, i, less(kept, i, pivot), kept, n_less)
        for i in range(in_groups(size), size):
            value = kept[i]
            kept[n_less] = value
            spare[n_more] = value
            n_less += value < pivot
            n_more += value > pivot
        if rank < n_less:
            size = n_less
        elif rank >= size - n_more:
            rank -= size - n_more
            size = n_more
            kept, spare = spare, kept
        else:
            return pivot


@kernel
def keep_around(values: Array, rank: int, kept: Array) -> tuple[int, int]:
    """Keep the values between two of a sample that lie around a rank; how many are below them, and how many there are.

    The value of that rank is nearly always among them.
    """
    size = values.shape[0]
    sample = values[: size // RANK_SAMPLE * RANK_SAMPLE : size // RANK_SAMPLE].copy()
    sample.sort()
    place = rank * RANK_SAMPLE // size
    low = sample[place - RANK_MARGIN] if place >= RANK_MARGIN else -np.inf
    high = sample[place + RANK_MARGIN] if place + RANK_MARGIN < RANK_SAMPLE else np.inf
    n_below, n_kept = 0, 0
    for i in range(size):
        n_below += values[i] < low
    for i in range(0, in_groups(size), GROUP):
        n_kept += take_group(values, i, ~(less(values, i, low) | more(values, i, high)), kept, n_kept)
    for i in range(in_groups(size), size):
        value = values[i]
        kept[n_kept] = value
        n_kept += 1 - ((value < low) | (value > high))
    return n_below, n_kept


@kernel
def median(a: Any, b: Any, c: Any) -> Any:
    """The middle one of three values."""
    return max(min(a, b), min(max(a, b), c))


@kernel
def split_stably(node: Array, values: Array, threshold: Any, n_left: int, spare: Array) -> None:
    """Move the ``n_left`` smallest to the front, both sides in their old order.

    Of those equal to the threshold as many go left as are needed, first come first: any input splits evenly. Of a
    group those that go right are taken first: the others may overwrite it.
    """
    size = node.shape[0]
    n_ties = n_left
    for i in range(size):
        n_ties -= values[i] < threshold
    left, right = 0, 0
    for i in range(0, in_groups(size), GROUP):
        go_left = less(values, i, threshold)
        ties = WHOLE_GROUP & ~(go_left | more(values, i, threshold))
        while ties != 0 and n_ties > 0:
            go_left |= ties & -ties  # the first of them
            ties &= ties - 1
            n_ties -= 1
        right += take_group(node, i, ~go_left, spare, right)
        left += take_group(node, i, go_left, node, left)
    for i in range(in_groups(size), size):
        smaller = values[i] < threshold
        tie = 1 - (smaller | (values[i] > threshold))
        goes_left = smaller | (tie & (n_ties > 0))
        n_ties -= tie
        member = node[i]
        node[left] = member
        spare[right] = member
        left += goes_left
        right += 1 - goes_left
    for i in range(right):
        node[left + i] = spare[i]


@kernel
def grow_nodes(
    rows: Array,
    offset: Array,
    members: Array,
    starts: Array,
    nodes: Array,
    draws: Array,
    sample_size: int,
    max_depth: int,
    first: int,
    last: int,
) -> None:
    """Split nodes ``first <= node < last`` of a tree, and their children, up to ``max_depth`` levels down.

    Node ``v`` holds the leaves ``nodes[v]`` to ``nodes[v + 1]``, which hold the members that ``starts`` gives them.
    It is split at the middle leaf, so at the median, along the principal direction of a sample of its rows. A node
    touches its own members only, and its sample depends on nothing but its leaves.
    """
    largest = 0
    for v in range(first, last):
        largest = max(largest, starts[nodes[v + 1]] - starts[nodes[v]])
    values = np.empty(largest, offset.dtype)
    kept = np.empty(largest, offset.dtype)
    spare = np.empty(largest, offset.dtype)
    moved = np.empty(largest, members.dtype)
    sample = np.empty((sample_size, offset.shape[0]), offset.dtype)
    products = np.empty(sample_size, offset.dtype)
    direction = np.empty(offset.shape[0], offset.dtype)
    stack = np.empty((64, 3), np.int64)
    for v in range(first, last):
        stack[0] = nodes[v], nodes[v + 1], 0
        top = 1
        while top > 0:
            top -= 1
            low, high, depth = stack[top]
            if high - low < 2 or depth == max_depth:
                continue
            middle = (low + high) // 2
            node = members[starts[low] : starts[high]]
            n_left = starts[middle] - starts[low]
            size = node.shape[0]
            sample_rows(rows, offset, node, draws, low + high, sample)
            principal_direction(sample, direction, products)
            project(rows, offset, node, direction, values)
            threshold = select_rank(values[:size], n_left, kept, spare)
            split_stably(node, values[:size], threshold, n_left, moved)
            stack[top] = low, middle, depth + 1
            stack[top + 1] = middle, high, depth + 1
            top += 2


# -- assignment (section 3.1) ----------------------------------------------------------------------------------------


@kernel
def assign_leaves(
    points: Points,
    clusters: Clusters,
    labels: Array,
    partition: RandomPartition,
    hartigan: bool,
    new_labels: Array,
    scores: Array,
    first: int,
    last: int,
) -> int:
    """Closure assignment inside the leaves ``first <= leaf < last`` of one partition.

    All points of a leaf share one set of candidates, the clusters of its points (or all clusters, if the partition is
    open to them), so a leaf is one small product of points and centres. A point's score is its squared distance to the
    centre or, by Hartigan's rule, what its move there would add to the distortion; staying counts what leaving would
    take away. A cluster's penalty is a part of all squared distances to it. ``scores`` holds the best score of each
    point in the partitions before this one. Returns the number of pairs of point and candidate.
    """
    members, starts = partition.members, partition.starts
    n_clusters, n_features = clusters.centers.shape
    dtype = clusters.centers.dtype
    lanes = numbers_per_vector(clusters.centers)
    weighted = points.weights.shape[0] > 1
    largest = 0
    for leaf in range(first, last):
        largest = max(largest, starts[leaf + 1] - starts[leaf])
    n_panels = -(-(n_clusters if partition.open_to_all else min(largest, n_clusters)) // lanes)
    slots = np.full(n_clusters, -1, np.int32)
    candidates = np.empty(n_panels * lanes, np.int32)
    panels = np.zeros((n_panels, n_features, lanes), dtype)
    center_norms = np.empty(n_panels * lanes, dtype)
    sizes = np.empty(n_panels * lanes, np.float64)
    shift = np.empty(n_features, dtype)
    origin = np.empty(n_features, dtype)
    # Of a tile of rows and, where a row has several, a column for each place in a vector.
    rows = np.zeros((TILE_ROWS, n_features), dtype)
    norms = np.zeros(TILE_ROWS, dtype)
    own = np.zeros(TILE_ROWS, np.int32)
    weights = np.full(TILE_ROWS, points.weights[0], np.float64)
    factors = np.ones((TILE_ROWS if weighted else 1, n_panels * lanes), dtype)
    best = np.empty((TILE_ROWS, lanes), dtype)
    choice = np.empty((TILE_ROWS, lanes), np.int32)
    stays = np.empty((TILE_ROWS, lanes), dtype)
    lowest = np.empty(TILE_ROWS, dtype)
    chosen = np.empty(TILE_ROWS, np.int32)
    slack = SLACK * np.finfo(dtype).eps
    n_pairs = 0
    for leaf in range(first, last):
        if partition.open_to_all:
            n_candidates = n_clusters
            for j in range(n_clusters):
                slots[j] = candidates[j] = j
        else:
            n_candidates = list_candidates(
                labels, members[starts[leaf] : starts[leaf + 1]], clusters.centers, slots, candidates
            )
        n_pairs += n_candidates * (starts[leaf + 1] - starts[leaf])
        # All is taken relative to one of the centres, or nearly so: small clusters far from the offset need it.
        for t in range(n_features):
            shift[t] = points.offset[t] + clusters.centers[candidates[0], t]
            origin[t] = shift[t] - points.offset[t]
        n_used = load_candidates(clusters, candidates[:n_candidates], origin, panels, center_norms, sizes)
        if hartigan and not weighted:
            weigh_moves(sizes[: n_used * lanes], weights, factors)
        for begin in range(starts[leaf], starts[leaf + 1], TILE_ROWS):
            tile = members[begin : min(begin + TILE_ROWS, starts[leaf + 1])]
            for r in range(tile.shape[0]):
                fetch_ahead(points.rows, members, begin + r)
                norms[r] = load_row(points.rows, tile[r], shift, rows, r)
                own[r] = slots[labels[tile[r]]]
                if weighted:
                    weights[r] = points.weights[tile[r]]
            if hartigan and weighted:
                weigh_moves(sizes[: n_used * lanes], weights, factors)
            best[:] = np.inf
            for p in range(n_used):
                score_tile(rows, norms, own, panels[p], center_norms, factors, p * lanes, best, choice, stays)
            take_lowest(best, choice, lowest, chosen)
            for r in range(tile.shape[0]):
                score = score_stay(stays[r, own[r] % lanes], sizes[own[r]], weights[r], hartigan)
                doubt = slack * (norms[r] + center_norms[own[r]])
                slot = own[r]
                if 0 <= score <= doubt:
                    score, slot = compare_each(
                        rows[r], clusters, candidates[:n_candidates], panels, own[r], weights[r], hartigan
                    )
                else:
                    score -= doubt  # a move must gain more than rounding could hide
                    if lowest[r] < score:
                        score, slot = np.float64(lowest[r]), chosen[r]
                if score < scores[tile[r]]:
                    scores[tile[r]] = score
                    new_labels[tile[r]] = candidates[slot]
        for j in range(n_candidates):
            slots[candidates[j]] = -1
    return n_pairs


@kernel
def load_candidates(
    clusters: Clusters, candidates: Array, origin: Array, panels: Array, norms: Array, sizes: Array
) -> int:
    """The centres of some clusters relative to an origin, in panels; squared norms with the penalties, and sizes.

    A panel holds a centre in each column. The last one is filled up with what no row will choose. Returns how many
    panels there are.
    """
    n_candidates, lanes = candidates.shape[0], panels.shape[2]
    n_panels: int = -(-n_candidates // lanes)
    rows = np.zeros((lanes, origin.shape[0]), origin.dtype)
    for p in range(n_panels):
        for j in range(p * lanes, min((p + 1) * lanes, n_candidates)):
            sizes[j] = clusters.sizes[candidates[j]]
            norm = load_row(clusters.centers, candidates[j], origin, rows, j % lanes)
            norms[j] = norm + clusters.penalties[candidates[j]]
        turn_rows(rows, panels[p])
    norms[n_candidates : n_panels * lanes] = np.inf
    sizes[n_candidates : n_panels * lanes] = 1
    return n_panels


@kernel
def weigh_moves(sizes: Array, weights: Array, factors: Array) -> None:
    """What a squared distance counts by Hartigan's rule if a row moves there: the centre comes to meet it."""
    for r in range(factors.shape[0]):
        for j in range(sizes.shape[0]):
            factors[r, j] = sizes[j] / (sizes[j] + weights[r])


@kernel
def score_stay(distance: float, size: float, weight: float, hartigan: bool) -> float:
    """The score of a row where it is: its squared distance or, by Hartigan's rule, what leaving would take away."""
    distance = max(0.0, distance)
    if not hartigan:
        return distance
    rest = size - weight
    # The last point of a cluster never leaves it.
    return distance * size / rest if rest > 0 else -np.inf


@kernel
def compare_each(
    row: Array, clusters: Clusters, candidates: Array, panels: Array, own: int, weight: float, hartigan: bool
) -> tuple[float, int]:
    """The lowest score of a row and the candidate that has it, its own if none is lower: one by one, from differences.

    For a row so near to its centre that rounding could hide the distance, because the leaf's candidates are far apart.
    """
    distance = distance_to_column(row, panels, own) + clusters.penalties[candidates[own]]
    score = score_stay(distance, clusters.sizes[candidates[own]], weight, hartigan)
    chosen = own
    if score == 0:
        return score, chosen
    for j in range(candidates.shape[0]):
        size = clusters.sizes[candidates[j]]
        distance = distance_to_column(row, panels, j) + clusters.penalties[candidates[j]]
        moved = distance * size / (size + weight) if hartigan else distance
        if j != own and moved < score:
            score, chosen = moved, j
    return score, chosen


@kernel
def distance_to_column(row: Array, panels: Array, j: int) -> float:
    """The squared distance to a centre in the panels, in double precision."""
    panel, lane = panels[j // panels.shape[2]], j % panels.shape[2]
    total = 0.0
    for t in range(row.shape[0]):
        difference = np.float64(row[t]) - np.float64(panel[t, lane])
        total += difference * difference
    return total


@kernel
def list_candidates(labels: Array, leaf: Array, centers: Array, slots: Array, candidates: Array) -> int:
    """The different clusters of a leaf's points, and for each of them its place in that list; how many there are.

    Their centres are asked for.
    """
    n_candidates = 0
    for i in range(leaf.shape[0]):
        label = labels[leaf[i]]
        if slots[label] < 0:
            slots[label] = n_candidates
            candidates[n_candidates] = label
            n_candidates += 1
            fetch_row(centers, label)
    return n_candidates


@kernel
def search_nearest(
    rows: Array, centers: Array, center_norms: Array, labels: Array, distances: Array, first: int, last: int
) -> None:
    """Nearest of all centres, and the squared distance to it, for rows ``first <= row < last``.

    A pure function of each row: wherever rounding could decide, it is decided by ``search_row``.
    """
    dtype = centers.dtype
    largest_norm = center_norms.max()
    product_memory = np.empty(SEARCH_ROWS * SEARCH_CENTERS, dtype)
    best = np.empty(SEARCH_ROWS, dtype)
    second = np.empty(SEARCH_ROWS, dtype)
    choice = np.zeros(SEARCH_ROWS, np.int32)
    for row in range(first, last, SEARCH_ROWS):
        block = rows[row : min(row + SEARCH_ROWS, last)]
        size = block.shape[0]
        best[:] = np.inf
        second[:] = np.inf
        for center in range(0, centers.shape[0], SEARCH_CENTERS):
            tile = centers[center : center + SEARCH_CENTERS]
            products = product_memory[: tile.shape[0] * size].reshape(tile.shape[0], size)
            np.dot(tile, block.T, products)
            keep_nearest(products, center_norms, center, best, second, choice)
        for i in range(size):
            if not second[i] - best[i] > rounding(block[i], largest_norm):
                choice[i] = search_row(block[i], centers)
            labels[row + i] = choice[i]
            distances[row + i] = squared_distance(block[i], centers[choice[i]])


@kernel
def keep_nearest(products: Array, norms: Array, first: int, best: Array, second: Array, choice: Array) -> None:
    """Improve the best and second-best score of each column of a product, its rows being the centres from ``first`` on.

    A score is a squared distance less the squared norm of the column's row, which all its scores have in common.
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
def search_row(row: Array, centers: Array) -> int:
    """Nearest of all centres of one row, the first of several: one by one, in double precision."""
    nearest, smallest = 0, np.inf
    for j in range(centers.shape[0]):
        distance = squared_distance(row, centers[j])
        if distance < smallest:
            nearest, smallest = j, distance
    return nearest


@kernel
def plain_distance(a: Array, b: Array) -> Any:
    """The squared distance in the precision of the arrays: within d units in the last place of the true one."""
    total = a.dtype.type(0)
    for t in range(a.shape[0]):
        difference = a[t] - b[t]
        total += difference * difference
    return total


@kernel
def squared_distance(a: Array, b: Array) -> float:
    """In double precision, from the differences."""
    total = 0.0
    for t in range(a.shape[0]):
        difference = np.float64(a[t]) - np.float64(b[t])
        total += difference * difference
    return total


# -- search among cells of centres -----------------------------------------------------------------------------------


@kernel
def choose_cells(rows: Array, cells: Cells, chosen: Array, first: int, last: int) -> None:
    """The cells nearest to each row, as many as ``chosen`` has columns, for rows ``first <= row < last``."""
    n_cells = cells.middles.shape[0]
    dtype = cells.middles.dtype
    two = dtype.type(2)
    largest_norm = cells.middle_norms.max()
    scores = np.empty((SEARCH_ROWS, n_cells), dtype)
    kept = np.empty(n_cells, dtype)
    spare = np.empty(n_cells, dtype)
    for row in range(first, last, SEARCH_ROWS):
        size = min(SEARCH_ROWS, last - row)
        np.dot(rows[row : row + size], cells.middles.T, scores[:size])
        for i in range(size):
            for j in range(n_cells):
                scores[i, j] = cells.middle_norms[j] - two * scores[i, j]
            doubt = rounding(rows[row + i], largest_norm)
            take_nearest(rows[row + i], cells.middles, scores[i], doubt, kept, spare, chosen[row + i])


@kernel
def take_nearest(
    row: Array, middles: Array, scores: Array, slack: Any, kept: Array, spare: Array, chosen: Array
) -> None:
    """The cells whose middles are nearest to a row, as many as ``chosen`` holds; of equal ones the first.

    Scores are within ``slack`` of the truth, but for what all have in common. Cells that near the threshold, and all
    of them if the scores overflow, are compared in double precision: a row has the same cells in any company. That of
    the lowest score comes first, the others in any order.
    """
    threshold = select_rank(scores, chosen.shape[0] - 1, kept, spare)
    low, high = threshold - slack, threshold + slack
    close = np.empty(scores.shape[0], np.int32)
    n_chosen, n_close = 0, 0
    for j in range(scores.shape[0]):
        if scores[j] < low:
            chosen[n_chosen] = j
            n_chosen += 1
        elif not scores[j] > high:
            close[n_close] = j
            n_close += 1
    distances = np.empty(n_close, np.float64)
    for i in range(n_close):
        distances[i] = squared_distance(row, middles[close[i]])
    while n_chosen < chosen.shape[0]:
        nearest = distances.argmin()
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
    cells: Cells,
    chosen: Array,
    nearest: Array,
    distances: Array,
    offsets: Array,
    first: int,
    last: int,
) -> None:
    """The nearest centre in the nearest cell and its squared distance, to begin with, for rows ``first <= row < last``.

    A centre is farther than that if the score of its sketch is above the distance plus the row's offset.
    """
    largest_norm = cells.sketch_norms.max()
    for i in range(first, last):
        begin, end = cells.starts[chosen[i, 0]], cells.starts[chosen[i, 0] + 1]
        lowest = np.inf
        nearest[i] = begin
        for j in range(begin, end):
            distance = plain_distance(rows[i], cells.centers[j])
            if distance < lowest:
                nearest[i], lowest = j, distance
        distances[i] = squared_distance(rows[i], cells.centers[nearest[i]])
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
    first: int,
    last: int,
) -> None:
    """Improve the smallest squared distance of each row, and the centre of it, by the cells ``first <= cell < last``.

    The rows ``visitors[starts[cell]:starts[cell + 1]]`` look into a cell. The sketches of as many as a vector has
    numbers are the columns of a panel, and those of the cell's centres are multiplied with it in tiles. The few centres
    that are not ruled out then are compared one by one, in double precision where it matters; of equally near ones the
    one of the lowest id is chosen. So the result is a pure function of each row, and not of its sketch.
    """
    n_centers, width = cells.sketches.shape
    dtype = cells.sketches.dtype
    lanes = numbers_per_vector(cells.sketches)
    in_doubt = 1 + 2 * (SLACK + rows.shape[1]) * np.finfo(rows.dtype).eps
    panel_rows = np.zeros((lanes, width), dtype)
    panel = np.empty((width, lanes), dtype)
    limits = np.empty(lanes, dtype)
    bits = np.empty(TILE_ROWS, np.int32)
    norms = np.zeros(TILE_ROWS, dtype)
    last_tile = np.zeros((TILE_ROWS, width), dtype)
    for cell in range(first, last):
        low, high = cells.starts[cell], cells.starts[cell + 1]
        for begin in range(starts[cell], starts[cell + 1], lanes):
            visiting = visitors[begin : min(begin + lanes, starts[cell + 1])]
            for i in range(visiting.shape[0]):
                row = visiting[i]
                limits[i] = best[row] + offsets[row]
                for t in range(width):
                    panel_rows[i, t] = sketches[row, t]
            for i in range(visiting.shape[0], lanes):
                limits[i] = -np.inf
            turn_rows(panel_rows, panel)
            for j in range(low, high, TILE_ROWS):
                size = min(TILE_ROWS, high - j)
                for r in range(size):
                    norms[r] = cells.sketch_norms[j + r]
                tile, place = cells.sketches, j
                if j + TILE_ROWS > n_centers:  # a tile is read whole, and there is nothing behind the last centre
                    tile, place = last_tile, 0
                    last_tile[: n_centers - j] = cells.sketches[j:]
                near_tile(tile, place, norms, panel, limits, bits)
                for r in range(size):
                    if bits[r] == 0:
                        continue
                    for i in range(visiting.shape[0]):
                        if bits[r] >> i & 1:
                            row, center = visiting[i], j + r
                            plain = plain_distance(rows[row], cells.centers[center])
                            if best[row] * in_doubt + TINY < plain < np.inf:
                                continue
                            distance = squared_distance(rows[row], cells.centers[center])
                            if is_nearer(distance, center, best[row], choice[row], cells.ids):
                                best[row], choice[row] = distance, center
                                limits[i] = distance + offsets[row]


@kernel
def is_nearer(distance: float, center: int, best: float, choice: int, ids: Array) -> bool:
    """Whether a centre is nearer than the one chosen so far, or as near and of a lower id."""
    return distance < best or (distance == best and ids[center] < ids[choice])


@kernel
def settle_rows(
    cells: Cells, best: Array, choice: Array, labels: Array, distances: Array, first: int, last: int
) -> None:
    """The nearest centre of all parts of the cells and its squared distance, for rows ``first <= row < last``."""
    for i in range(first, last):
        nearest, smallest = choice[0, i], best[0, i]
        for part in range(1, best.shape[0]):
            if is_nearer(best[part, i], choice[part, i], smallest, nearest, cells.ids):
                nearest, smallest = choice[part, i], best[part, i]
        labels[i] = cells.ids[nearest]
        distances[i] = smallest


@kernel
def rounding(row: Array, largest_norm: Any) -> Any:
    """How much rounding can make of the difference of a row's scores; ``largest_norm`` is that of what is scored.

    All sums may have been rounded the same way, and what is too small may have become zero.
    """
    norm = largest_norm
    for t in range(row.shape[0]):
        norm += row[t] * row[t]
    return row.dtype.type((SLACK + row.shape[0]) * np.finfo(row.dtype).eps) * norm + row.dtype.type(TINY)


@kernel
def search_several(
    rows: Array, cells: Cells, n_probes: int, labels: Array, distances: Array, first: int, last: int
) -> None:
    """As many of the nearest centres as ``labels`` has columns, the nearest first, for rows ``first <= row < last``.

    Of the centres in the ``n_probes`` nearest cells, which hold as many; of equally near ones the one of the lowest id
    comes first. Row by row and in double precision, so that the first is that of ``settle_rows``.
    """
    n_cells = cells.middles.shape[0]
    dtype = cells.centers.dtype
    scores = np.empty(n_cells, dtype)
    kept = np.empty(n_cells, dtype)
    spare = np.empty(n_cells, dtype)
    chosen = np.empty(n_probes, np.int32)
    for i in range(first, last):
        for cell in range(n_cells):
            scores[cell] = squared_distance(rows[i], cells.middles[cell])
        doubt = dtype.type(SLACK * np.finfo(dtype).eps) * scores.max()
        take_nearest(rows[i], cells.middles, scores, doubt, kept, spare, chosen)
        labels[i] = -1
        distances[i] = np.inf
        for near in chosen:
            for j in range(cells.starts[near], cells.starts[near + 1]):
                insert_nearest(squared_distance(rows[i], cells.centers[j]), cells.ids[j], labels[i], distances[i])


@kernel
def insert_nearest(distance: float, label: int, labels: Array, distances: Array) -> None:
    """Put a centre where it belongs among the nearest so far; the last of them leaves, or the centre if it is last."""
    place = labels.shape[0]
    while place > 0 and (
        distance < distances[place - 1] or (distance == distances[place - 1] and label < labels[place - 1])
    ):
        place -= 1
        if place + 1 < labels.shape[0]:
            labels[place + 1], distances[place + 1] = labels[place], distances[place]
    if place < labels.shape[0]:
        labels[place], distances[place] = label, distance


# -- update ------------------------------------------------------------------------------------------------------------


@kernel
def group_by_label(labels: Array, n_clusters: int) -> tuple[Array, Array]:
    """The points of each cluster in ascending order, cluster after cluster, and where each cluster begins."""
    starts = np.zeros(n_clusters + 1, np.int64)
    for i in range(labels.shape[0]):
        starts[labels[i] + 1] += 1
    for j in range(n_clusters):
        starts[j + 1] += starts[j]
    place = starts[:-1].copy()
    members = np.empty(labels.shape[0], np.int32)
    for i in range(labels.shape[0]):
        label = labels[i]
        members[place[label]] = i
        place[label] += 1
    return members, starts


@kernel
def update_clusters(
    points: Points, members: Array, starts: Array, clusters: Clusters, chosen: Array, first: int, last: int
) -> None:
    """Centre, its squared norm, size and error of some clusters, those in the places ``first <= place < last``.

    Sums run over a cluster's points in ascending order, in double precision, whoever computes them. The error is
    the sum of the squared distances to the centre, as that of the squares less that of the mean. The
    centre of an empty cluster is left as it is.
    """
    total = np.empty(points.offset.shape[0], np.float64)
    for place in range(first, last):
        j = chosen[place]
        total[:] = 0
        size, squares = sum_members(points, members, starts[j], starts[j + 1], total)
        finish_cluster(total, size, squares, clusters, j)


@kernel
def add_to_totals(points: Points, members: Array, starts: Array, totals: Totals, first: int, last: int) -> None:
    """Add the points of a part of the data to the sums of the clusters ``first <= cluster < last``."""
    for j in range(first, last):
        if starts[j] < starts[j + 1]:
            size, squares = sum_members(points, members, starts[j], starts[j + 1], totals.sums[j])
            totals.sizes[j] += size
            totals.squares[j] += squares


@kernel
def finish_clusters(totals: Totals, clusters: Clusters, first: int, last: int) -> None:
    """The clusters ``first <= cluster < last`` from the sums over all parts of the data."""
    for j in range(first, last):
        finish_cluster(totals.sums[j], totals.sizes[j], totals.squares[j], clusters, j)


@kernel
def sum_members(points: Points, members: Array, begin: int, end: int, total: Array) -> tuple[float, float]:
    """Add some points to the total of their cluster; their weight, and the weighted sum of their squared lengths."""
    n_features = points.offset.shape[0]
    weighted = points.weights.shape[0] > 1
    number = points.offset.dtype.type
    size, squares = 0.0, 0.0
    for place in range(begin, end):
        fetch_ahead(points.rows, members, place)
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


@kernel
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
