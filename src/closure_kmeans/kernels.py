"""Compiled kernels of the method: rows, partition trees, closure assignment, search among centres, update.

All are serial and release the GIL. A kernel that threads call takes a range of rows, leaves, nodes or clusters as its
last two arguments and writes nothing that another range reads, so ranges may run in any order and on any number of
threads. The tests compare kernels, alone or through their callers, with slow definitions, most of them in
``tests/reference.py``.

``offset`` is subtracted from every row as it is loaded. It keeps products accurate for data far from the
origin. Values of one or two bytes are converted one row at a time, in the cache; there is no float copy of the data.
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

# Lanczos steps for the principal direction of a node. They capture 99 % of the variance along the converged one.
LANCZOS_STEPS = 5
# Squarings of a small matrix until its largest eigenvalue dominates.
EIGENVECTOR_SQUARINGS = 10
# Norms within this factor count as equal when the farthest row is chosen, so that rounding does not choose it.
NEARLY_EQUAL = 1 + 1e-5

# From MANY_VALUES values on, select_rank first takes a sorted sample of RANK_SAMPLE values and keeps the values between
# its order statistics RANK_MARGIN below and RANK_MARGIN above the rank (Floyd–Rivest).
MANY_VALUES = 512
RANK_SAMPLE = 32
RANK_MARGIN = 5

# Bit mask with all bits of a group set.
WHOLE_GROUP = (1 << GROUP) - 1

# Bound on the rounding error of a product, in units of eps. A move must gain more than this.
SLACK = 8
# The smallest normal float32.
TINY = float(np.finfo(np.float32).tiny)

# Prefetch: rows ahead, and bytes of each. The hardware prefetcher fetches the rest of a long row.
ROWS_AHEAD = 32
BYTES_AHEAD = 512
CACHE_LINE = 64

# Rows and centres in one matrix product of the exact search; both fit into the second-level cache.
SEARCH_ROWS = 256
SEARCH_CENTERS = 512


watch_compiler()


def kernel(function: Function) -> Function:
    """Compile for the host processor on first use, and cache the result on disk."""
    compiled = njit(nogil=True, error_model="numpy", fastmath=FAST_FLOATS)(function)
    keep_on_disk(compiled)
    return cast(Function, compiled)


# -- rows -----------------------------------------------------------------------------------------------------------


@kernel
def widen(value: Any) -> Any:
    """Convert a stored value to a number. float16 is stored as its bits: Numba has no float16."""
    if isinstance(value, np.uint16):
        magnitude = (np.uint32(value) & np.uint32(0x7FFF)) << np.uint32(13)
        sign = (np.uint32(value) & np.uint32(0x8000)) << np.uint32(16)
        # The exponent biases differ by 112. Multiplying by 2^112 corrects this for subnormal numbers, too.
        return np.uint32(magnitude | sign).view(np.float32) * np.float32(2.0**112)
    else:
        return value


@kernel
def load_row(rows: Array, i: int, offset: Array, out: Array, place: int) -> Any:
    """Load row ``i`` less the offset into ``out[place]``, in the precision of ``out``; return its squared norm."""
    number = out.dtype.type
    norm = number(0)
    for t in range(offset.shape[0]):
        value = number(widen(rows[i, t])) - offset[t]
        out[place, t] = value
        norm += value * value
    return norm


@kernel
def measure_rows(rows: Array, offset: Array, shifted: Array, norms: Array, in_bytes: Array) -> bool:
    """Rows less the offset, and their squared norms; ``in_bytes``, unless it is empty, gets the rows as uint8.

    Returns whether ``in_bytes`` holds them, so whether all values are whole numbers from 0 to 255.
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
    """Prefetch the row that is read ``ROWS_AHEAD`` places later, when rows are read in a given order."""
    fetch_row(rows, order[min(place + ROWS_AHEAD, order.shape[0] - 1)])


@kernel
def fetch_row(rows: Array, row: int) -> None:
    """Prefetch a row, up to its first ``BYTES_AHEAD`` bytes."""
    prefetch(rows, row, 0)  # a short row has one cache line
    for byte in range(CACHE_LINE, min(rows.shape[1] * rows.itemsize, BYTES_AHEAD), CACHE_LINE):
        prefetch(rows, row, byte)


# -- random partition trees (section 3.4, "Implementation details") ---------------------------------------------------


@kernel
def sample_rows(rows: Array, offset: Array, node: Array, draws: Array, place: int, sample: Array) -> None:
    """Draw rows of a node at random, with replacement. Each node reads the random numbers from a place of its own."""
    for r in range(sample.shape[0]):
        draw = draws[(place + r) % draws.shape[0]]
        load_row(rows, node[int(draw * node.shape[0])], offset, sample, r)


@kernel
def principal_direction(sample: Array, direction: Array, products: Array) -> None:
    """Direction of the largest variance of a sample, by the Lanczos algorithm; zero if all rows are equal.

    The sample is centred in place. The algorithm starts at the row farthest from the mean, builds an orthonormal basis
    of the Krylov space of the scatter matrix, and returns the best direction in its span.
    """
    size, n_features = sample.shape
    farthest, largest = center_sample(sample, direction)
    if largest == 0:
        direction[:] = 0
        return
    basis = np.empty((LANCZOS_STEPS, n_features), sample.dtype)
    scatter = np.zeros((LANCZOS_STEPS, LANCZOS_STEPS), np.float64)  # projected onto the basis: tridiagonal
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
        # The residual is rounding only: the Krylov space is exhausted.
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
    """Centre a sample in place; return the row farthest from the mean and its squared distance."""
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
    """Multiply the scatter matrix of a centred sample, divided by ``scale``, by a vector. ``products`` is scratch."""
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
    """Subtract from a vector its projection onto a unit vector; return the length of the projection."""
    overlap = 0.0
    for t in range(vector.shape[0]):
        overlap += vector[t] * unit[t]
    for t in range(vector.shape[0]):
        vector[t] -= overlap * unit[t]
    return overlap


@kernel
def top_eigenvector(matrix: Array, size: int) -> Array:
    """Eigenvector of the largest eigenvalue of the leading part of a small positive matrix, by repeated squaring."""
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
    """Project each row of a node onto a direction."""
    number = values.dtype.type
    for i in range(node.shape[0]):
        prefetch(rows, node[min(i + ROWS_AHEAD, node.shape[0] - 1)], 0)  # the first cache line of the row
        row = node[i]
        value = number(0)
        for t in range(direction.shape[0]):
            value += (number(widen(rows[row, t])) - offset[t]) * direction[t]
        values[i] = value


@kernel
def select_rank(values: Array, rank: int, kept: Array, spare: Array) -> Any:
    """Select the value of a given rank, from 0. ``kept`` and ``spare``, as long as ``values``, are overwritten.

    Branch-free quickselect. Values equal to the pivot are dropped in every round, so it ends on any input. Of many
    values, only the values around the rank are kept, in one pass. Within a group of values the larger ones are stored
    first: the smaller ones are compressed in place and may overwrite the group.
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
    """Keep the values between two order statistics of a sample that bracket a rank.

    Returns the number of values below them and the number kept. The value of the rank is nearly always among them.
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
    """Median of three values."""
    return max(min(a, b), min(max(a, b), c))


@kernel
def split_stably(node: Array, values: Array, threshold: Any, n_left: int, spare: Array) -> None:
    """Move the ``n_left`` smallest members to the front; both sides keep their order.

    Of the members equal to the threshold, the first ones go left, as many as are needed: any input splits evenly.
    Within a group, the members that go right are stored first: the others are compressed in place and may overwrite the
    group.
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
            go_left |= ties & -ties  # lowest set bit: the first tie
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

    Node ``v`` holds the leaves ``nodes[v] <= leaf < nodes[v + 1]``; leaf ``l`` holds ``members[starts[l]:starts[l +
    1]]``. A node is split at its middle leaf, which is the median along the principal direction of a sample of its
    rows. It writes only its own members, and its sample depends only on its leaves.
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
    open to all), so a leaf is one small product of points and centres.

    The score of a move is the squared distance plus the cluster's penalty. By Hartigan's rule it is the change of the
    distortion per unit weight: n / (n + w) times that for the gain of the new cluster of size n, and n / (n - w) times
    that for the loss of the present one, where w is the point's weight. ``scores`` holds the best score of each point
    in earlier partitions. Returns the number of point-candidate pairs.
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
    # One line for each row of a tile; ``best``, ``choice`` and ``stays`` have a column for each lane of a vector.
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
        # Everything is relative to a point near one of the centres. This keeps small clusters far from the offset
        # accurate.
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
                    score -= doubt  # a move must gain more than the rounding error
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
    """Load candidate centres, relative to an origin, into panels, with sizes and squared norms plus penalties.

    A panel holds one centre a column. Unused columns of the last panel get infinite norms, so no row chooses them.
    Returns the number of panels.
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
    """Fill ``factors`` with n / (n + w), Hartigan's factor for a row of weight w moving to a cluster of size n."""
    for r in range(factors.shape[0]):
        for j in range(sizes.shape[0]):
            factors[r, j] = sizes[j] / (sizes[j] + weights[r])


@kernel
def score_stay(distance: float, size: float, weight: float, hartigan: bool) -> float:
    """Score of staying: the squared distance or, by Hartigan's rule, n / (n - w) times it."""
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
    """Lowest score of a row and its candidate, the own one if none is lower; from differences, in double precision.

    For rows whose distance to their own centre is below the rounding error of the product, as happens when the
    candidates of a leaf are far apart.
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
    """Squared distance of a row to a centre in the panels, in double precision."""
    panel, lane = panels[j // panels.shape[2]], j % panels.shape[2]
    total = 0.0
    for t in range(row.shape[0]):
        difference = np.float64(row[t]) - np.float64(panel[t, lane])
        total += difference * difference
    return total


@kernel
def list_candidates(labels: Array, leaf: Array, centers: Array, slots: Array, candidates: Array) -> int:
    """List the distinct clusters of a leaf's points in ``candidates``, and their places in ``slots``; return how many.

    Prefetches their centres.
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

    A pure function of each row: where rounding could decide, ``search_row`` decides.
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
def search_row(row: Array, centers: Array) -> int:
    """Nearest of all centres to one row, the first of equally near ones; one by one, in double precision."""
    nearest, smallest = 0, np.inf
    for j in range(centers.shape[0]):
        distance = squared_distance(row, centers[j])
        if distance < smallest:
            nearest, smallest = j, distance
    return nearest


@kernel
def plain_distance(a: Array, b: Array) -> Any:
    """Squared distance in the precision of the arrays; its relative error is at most about d eps."""
    total = a.dtype.type(0)
    for t in range(a.shape[0]):
        difference = a[t] - b[t]
        total += difference * difference
    return total


@kernel
def squared_distance(a: Array, b: Array) -> float:
    """Squared distance from differences, in double precision."""
    total = 0.0
    for t in range(a.shape[0]):
        difference = np.float64(a[t]) - np.float64(b[t])
        total += difference * difference
    return total


# -- search among cells of centres -----------------------------------------------------------------------------------


@kernel
def choose_cells(rows: Array, cells: Cells, chosen: Array, first: int, last: int) -> None:
    """Nearest cells of each row, one for each column of ``chosen``, for rows ``first <= row < last``."""
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
    """Put the cells whose middles are nearest to a row into ``chosen``, the first of equally near ones.

    Scores are exact to within ``slack``, up to a common constant. Cells within ``slack`` of the threshold, and all
    cells if the scores overflow, are compared in double precision, so the choice does not depend on the other rows of
    the block. The cell of the lowest score comes first, the others in any order.
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
    """Upper bound for rows ``first <= row < last``: the nearest centre in the nearest cell, and its squared distance.

    A centre can be ruled out if the score of its sketch exceeds the bound plus the row's offset.
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
    """Update the nearest centre of each row, and its squared distance, from the cells ``first <= cell < last``.

    A cell is searched for the rows ``visitors[starts[cell]:starts[cell + 1]]``. The sketches of one vector's worth of
    rows are the columns of a panel, which is multiplied with the sketches of the cell's centres tile by tile. The few
    centres that this does not rule out are compared one by one, in double precision where it matters; ties go to the
    lowest id. So the result is a pure function of each row and does not depend on its sketch.
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
                if j + TILE_ROWS > n_centers:  # tiles are read whole: do not read past the end
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
    """Whether a centre is nearer than the best so far, or as near and of a lower id."""
    return distance < best or (distance == best and ids[center] < ids[choice])


@kernel
def settle_rows(
    cells: Cells, best: Array, choice: Array, labels: Array, distances: Array, first: int, last: int
) -> None:
    """Merge the nearest centres found in the parts of the cells, for rows ``first <= row < last``."""
    for i in range(first, last):
        nearest, smallest = choice[0, i], best[0, i]
        for part in range(1, best.shape[0]):
            if is_nearer(best[part, i], choice[part, i], smallest, nearest, cells.ids):
                nearest, smallest = choice[part, i], best[part, i]
        labels[i] = cells.ids[nearest]
        distances[i] = smallest


@kernel
def rounding(row: Array, largest_norm: Any) -> Any:
    """Bound on the rounding error of the difference of two scores of a row, for centres of norm up to ``largest_norm``.

    Assumes the worst case, in which all errors have the same sign, and includes underflow. ``largest_norm`` is squared.
    """
    norm = largest_norm
    for t in range(row.shape[0]):
        norm += row[t] * row[t]
    return row.dtype.type((SLACK + row.shape[0]) * np.finfo(row.dtype).eps) * norm + row.dtype.type(TINY)


@kernel
def search_several(
    rows: Array, cells: Cells, n_probes: int, labels: Array, distances: Array, first: int, last: int
) -> None:
    """Nearest centres of rows ``first <= row < last`` in ascending order, one for each column of ``labels``.

    Searches the ``n_probes`` nearest cells, which hold at least that many centres; ties go to the lowest id. Works row
    by row and in double precision, so the first one agrees with ``settle_rows``.
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


# -- update ------------------------------------------------------------------------------------------------------------


def group_by_label(labels: Array, n_clusters: int) -> tuple[Array, Array]:
    """Group points by cluster (counting sort): ascending point ids, cluster after cluster, and where each begins.

    Not compiled itself: a kernel that returns arrays calls Python, where an interrupt would become a ``SystemError``.
    """
    starts = np.zeros(n_clusters + 1, np.int64)
    members = np.empty(labels.shape[0], np.int32)
    fill_groups(labels, starts, members)
    return members, starts


@kernel
def fill_groups(labels: Array, starts: Array, members: Array) -> None:
    """Fill the groups of ``group_by_label``; ``starts`` are zero before."""
    n_clusters = starts.shape[0] - 1
    for i in range(labels.shape[0]):
        starts[labels[i] + 1] += 1
    for j in range(n_clusters):
        starts[j + 1] += starts[j]
    place = starts[:-1].copy()
    for i in range(labels.shape[0]):
        label = labels[i]
        members[place[label]] = i
        place[label] += 1


@kernel
def update_clusters(
    points: Points, members: Array, starts: Array, clusters: Clusters, chosen: Array, first: int, last: int
) -> None:
    """Update centre, its squared norm, size and error of the clusters ``chosen[first:last]``.

    Sums run over the points in ascending order and in double precision, so they do not depend on the threads. The error
    is the sum of squares less n ‖c‖². The centre of an empty cluster is unchanged.
    """
    total = np.empty(points.offset.shape[0], np.float64)
    for place in range(first, last):
        j = chosen[place]
        total[:] = 0
        size, squares = sum_members(points, members, starts[j], starts[j + 1], total)
        finish_cluster(total, size, squares, clusters, j)


@kernel
def add_to_totals(points: Points, members: Array, starts: Array, totals: Totals, first: int, last: int) -> None:
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


@kernel
def sum_members(points: Points, members: Array, begin: int, end: int, total: Array) -> tuple[float, float]:
    """Add some points to the total of their cluster; return their weight and the weighted sum of squared norms."""
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
