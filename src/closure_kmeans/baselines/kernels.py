"""Compiled kernels of the baselines, by the conventions of ``closure_kmeans.kernels``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.cache import kernel
from closure_kmeans.kernels.emit import Array
from closure_kmeans.kernels.nearest import plain_distance, squared_distance
from closure_kmeans.kernels.rows import fetch_row, load_row

if TYPE_CHECKING:
    from closure_kmeans.baselines.approximate import Forest
    from closure_kmeans.baselines.canopy import Canopies
    from closure_kmeans.clusters import Clusters
    from closure_kmeans.points import Points

# Points in one block of the canopy assignment, and centres in one product.
CANOPY_ROWS = 1024
CANOPY_CENTERS = 512

# Rows of a node that estimate its variances, and the number of widest dimensions that the cut is drawn from.
SPREAD_SAMPLE = 100
WIDEST_AXES = 5

# Branches in a group of the queue, of which the lowest key is kept, and groups that are compared at once.
QUEUE_GROUP = 32
GROUPS_AT_ONCE = 8
# A key: the bits of a non-negative float32 bound, which sort like the bound, above the place of the branch. NO_KEY is
# larger than any key.
PLACE_BITS = 32
PLACE_MASK = (1 << PLACE_BITS) - 1
NO_KEY = (1 << 63) - 1


class Queue(NamedTuple):
    """Priority queue of the tree branches not yet followed, by the smallest bound.

    The minimum is found by a two-level linear scan: vectorised comparison is faster than a heap. Each place is used
    once; a branch that was taken has the key ``NO_KEY``. Branches of equal bounds are taken in the order of insertion.
    """

    bounds: NDArray[np.float32]  # (m,) lower bound on the squared distance of a branch
    bits: NDArray[np.int32]  # (m,) a view of ``bounds``
    nodes: NDArray[np.int32]  # (m,) node at which a branch begins
    keys: NDArray[np.int64]  # (m,)
    lowest: NDArray[np.int64]  # (m / QUEUE_GROUP + GROUPS_AT_ONCE,) the lowest key of each group


# -- randomised k-d trees over centres -------------------------------------------------------------------------------


@kernel
def choose_cut(centers: Array, node: Array, draw: float, means: Array, spread: Array) -> tuple[int, Any]:
    """Cut a node at the mean of one of its dimensions of largest variance, estimated from its first members.

    ``means`` and ``spread``, which is float32, are scratch.
    """
    size = min(node.shape[0], SPREAD_SAMPLE)
    origin = centers[node[0]]
    means[:] = 0
    spread[:] = 0
    for i in range(1, size):
        member = centers[node[i]]
        for t in range(means.shape[0]):
            difference = member[t] - origin[t]
            means[t] += difference
            spread[t] += difference * difference
    for t in range(means.shape[0]):
        means[t] /= size
        spread[t] = max(spread[t] - size * means[t] * means[t], 0)
    bits = spread.view(np.int32)  # non-negative floats sort like their bits
    axis = 0
    for _ in range(1 + int(draw * min(WIDEST_AXES, spread.shape[0]))):
        axis = first_largest(bits)
        bits[axis] = -1
    return axis, origin[axis] + means[axis]


@kernel
def first_largest(numbers: Array) -> int:
    """Place of the largest of some integers, the first of equal ones; vectorises, unlike ``argmax``."""
    largest = numbers[0]
    for i in range(numbers.shape[0]):
        largest = max(largest, numbers[i])
    place = 0
    while numbers[place] != largest:
        place += 1
    return place


@kernel
def split_node(centers: Array, node: Array, axis: int, cut: Any, spare: Array) -> int:
    """Move the centres below the cut to the front, both sides in their old order; return how many.

    If all lie on one side, they are copies up to rounding, and the node is halved.
    """
    n_left, n_right = 0, 0
    for i in range(node.shape[0]):
        center = node[i]
        left = centers[center, axis] < cut
        node[n_left] = center
        spare[n_right] = center
        n_left += left
        n_right += not left
    for i in range(n_right):
        node[n_left + i] = spare[i]
    return n_left if n_left > 0 and n_right > 0 else node.shape[0] // 2


@kernel
def grow_trees(centers: Array, orders: Array, draws: Array, forest: Forest, first: int, last: int) -> None:
    """Grow the k-d trees ``first <= tree < last`` down to single centres, depth first.

    ``orders`` holds the centres in a random order for each tree, so that the first members of a node are a random
    sample; it is reordered in place.
    """
    n_centers, n_features = centers.shape
    n_nodes = 2 * n_centers - 1
    spare = np.empty(n_centers, orders.dtype)
    means = np.empty(n_features, centers.dtype)
    spread = np.empty(n_features, np.float32)
    waiting = np.empty((n_centers + 1, 3), np.int64)  # stack: begin, end and parent of a node
    for tree in range(first, last):
        waiting[0, 0], waiting[0, 1], waiting[0, 2] = 0, n_centers, -1
        n_waiting = 1
        for v in range(tree * n_nodes, (tree + 1) * n_nodes):
            n_waiting -= 1
            begin, end, parent = waiting[n_waiting, 0], waiting[n_waiting, 1], waiting[n_waiting, 2]
            if parent >= 0:
                forest.others[parent] = v
            node = orders[tree, begin:end]
            if node.shape[0] == 1:
                forest.axes[v], forest.others[v] = -1, node[0]
                continue
            axis, cut = choose_cut(centers, node, draws[v], means, spread)
            middle = begin + split_node(centers, node, axis, cut, spare)
            forest.axes[v], forest.cuts[v] = axis, cut
            waiting[n_waiting, 0], waiting[n_waiting, 1], waiting[n_waiting, 2] = middle, end, v
            n_waiting += 1
            waiting[n_waiting, 0], waiting[n_waiting, 1], waiting[n_waiting, 2] = begin, middle, -1
            n_waiting += 1


@kernel
def search_forest(
    rows: Array,
    centers: Array,
    forest: Forest,
    n_candidates: int,
    own: Array,
    labels: Array,
    first: int,
    last: int,
) -> int:
    """Best-bin-first search: the nearest of the centres it visits, for rows ``first <= row < last``.

    One priority queue over all trees holds the branches not yet followed; the one of the smallest bound is followed
    next, until ``n_candidates`` centres are found. A row's own centre, unless it is -1, is its first candidate and wins
    ties. Returns the number of row-candidate pairs.
    """
    n_nodes = 2 * centers.shape[0] - 1
    met_by = np.full(centers.shape[0], -1, np.int32)
    candidates = np.empty(min(n_candidates, centers.shape[0]), np.int32)
    queue = make_queue(forest.axes.shape[0])
    n_pairs = 0
    for row in range(first, last):
        n_met, n_put, n_taken = 0, 0, 0
        if own[row] >= 0:
            candidates[0] = own[row]
            met_by[own[row]] = row
            n_met = 1
        for root in range(0, forest.axes.shape[0], n_nodes):
            put(queue, n_put, 0, root)
            n_put += 1
        while n_met < candidates.shape[0] and n_taken < n_put:
            place = take_first(queue, n_put)
            n_taken += 1
            bound, node = queue.bounds[place], queue.nodes[place]
            axis = forest.axes[node]
            while axis >= 0:
                across = rows[row, axis] - forest.cuts[node]
                left = across < 0
                other = forest.others[node]
                put(queue, n_put, bound + across * across, other if left else node + 1)
                n_put += 1
                node = node + 1 if left else other
                axis = forest.axes[node]
            center = forest.others[node]
            if met_by[center] != row:
                met_by[center] = row
                candidates[n_met] = center
                n_met += 1
                fetch_row(centers, center)
        labels[row] = nearest_candidate(rows[row], centers, candidates[:n_met], own[row])
        n_pairs += n_met
    return n_pairs


@kernel
def make_queue(most: int) -> Queue:
    """Allocate a queue for at most ``most`` insertions."""
    n_groups = -(-most // QUEUE_GROUP)
    size = QUEUE_GROUP * n_groups
    bounds = np.empty(size, np.float32)
    return Queue(
        bounds=bounds,
        bits=bounds.view(np.int32),
        nodes=np.empty(size, np.int32),
        keys=np.empty(size, np.int64),
        lowest=np.empty(n_groups + GROUPS_AT_ONCE, np.int64),
    )


@kernel
def put(queue: Queue, place: int, bound: float, node: int) -> None:
    """Insert a branch at a place of the queue; places are filled in ascending order."""
    group = place // QUEUE_GROUP
    if place % QUEUE_GROUP == 0:
        for i in range(QUEUE_GROUP):
            queue.keys[place + i] = NO_KEY
        for i in range(GROUPS_AT_ONCE):
            queue.lowest[group + i] = NO_KEY
    queue.bounds[place] = bound
    queue.nodes[place] = node
    key = (np.int64(queue.bits[place]) << PLACE_BITS) | place
    queue.keys[place] = key
    queue.lowest[group] = min(queue.lowest[group], key)


@kernel
def take_first(queue: Queue, n_put: int) -> int:
    """Take the branch of the smallest bound out of the queue, the first of equal ones; return its place."""
    n_groups = -(-n_put // QUEUE_GROUP)
    place = lowest_key(queue.lowest, 0, -(-n_groups // GROUPS_AT_ONCE) * GROUPS_AT_ONCE) & PLACE_MASK
    queue.keys[place] = NO_KEY
    group = place // QUEUE_GROUP
    queue.lowest[group] = lowest_key(queue.keys, group * QUEUE_GROUP, (group + 1) * QUEUE_GROUP)
    return place


@kernel
def lowest_key(keys: Array, first: int, last: int) -> int:
    """Lowest of some keys; vectorises."""
    lowest = NO_KEY
    for i in range(first, last):
        lowest = min(lowest, keys[i])
    return lowest


@kernel
def nearest_candidate(row: Array, centers: Array, candidates: Array, own: int) -> int:
    """Nearest of some centres; ties go to the row's own centre, then to the lowest id.

    If rounding could decide, all are compared in double precision.
    """
    best, second, choice = np.inf, np.inf, -1
    for i in range(candidates.shape[0]):
        score = plain_distance(row, centers[candidates[i]])
        if score < best:
            best, second, choice = score, best, candidates[i]
        elif score < second:
            second = score
    if second - best > 2 * row.shape[0] * np.finfo(centers.dtype).eps * second:
        return choice
    smallest, choice = np.inf, -1
    for i in range(candidates.shape[0]):
        candidate = candidates[i]
        score = squared_distance(row, centers[candidate])
        if score < smallest or (score == smallest and choice != own and candidate < choice):
            smallest, choice = score, candidate
    return choice


# -- canopies --------------------------------------------------------------------------------------------------------


@kernel
def draw_canopy(
    coordinates: Array, middle: int, loose: float, tight: float, members: Array, covered: Array, first: int, last: int
) -> int:
    """Draw the canopy around a point among the points ``first <= point < last``; return its size.

    ``members`` gets the points within the loose squared distance, from ``first`` on, and ``covered`` marks those within
    the tight one.
    """
    size = 0
    for i in range(first, last):
        apart = plain_distance(coordinates[i], coordinates[middle])
        if apart <= loose:
            members[first + size] = i
            size += 1
        if apart <= tight:
            covered[i] = True
    return size


@kernel
def assign_canopies(
    points: Points,
    clusters: Clusters,
    labels: Array,
    canopies: Canopies,
    inside: Array,
    inside_starts: Array,
    new_labels: Array,
    first: int,
    last: int,
) -> int:
    """Assign points to the nearest centre that shares a canopy with them, for blocks ``first <= block < last``.

    Block b begins at point ``b * CANOPY_ROWS``. Canopy c holds the centres ``inside[inside_starts[c]:inside_starts[c +
    1]]``; the points of a block that lie in it are multiplied with them at once. A point moves only if the gain exceeds
    the rounding error. Returns the number of point-centre pairs.
    """
    dtype = clusters.centers.dtype
    two = dtype.type(2)
    n_points, n_features = points.rows.shape[0], clusters.centers.shape[1]
    slack = dtype.type(2 * n_features * np.finfo(dtype).eps)
    rows = np.empty((CANOPY_ROWS, n_features), dtype)
    visitors = np.empty((CANOPY_ROWS, n_features), dtype)
    visitor_norms = np.empty(CANOPY_ROWS, dtype)
    tile = np.empty((CANOPY_CENTERS, n_features), dtype)
    tile_norms = np.empty(CANOPY_CENTERS, dtype)
    product_memory = np.empty(CANOPY_CENTERS * CANOPY_ROWS, dtype)
    best = np.empty(CANOPY_ROWS, dtype)
    n_pairs = 0
    for block in range(first, last):
        begin, end = block * CANOPY_ROWS, min((block + 1) * CANOPY_ROWS, n_points)
        for i in range(end - begin):
            load_row(points.rows, begin + i, points.offset, rows, i)
            new_labels[begin + i] = labels[begin + i]
            best[i] = plain_distance(rows[i], clusters.centers[labels[begin + i]])
        n_pairs += end - begin
        for canopy in range(canopies.starts.shape[0] - 1):
            members = canopies.members[canopies.starts[canopy] : canopies.starts[canopy + 1]]
            centers = inside[inside_starts[canopy] : inside_starts[canopy + 1]]
            here = members[np.searchsorted(members, begin) : np.searchsorted(members, end)]
            if here.shape[0] == 0 or centers.shape[0] == 0:
                continue
            n_pairs += here.shape[0] * centers.shape[0]
            # Everything is relative to one of the centres. This keeps small clusters far from the mean accurate.
            origin = clusters.centers[centers[0]]
            for i in range(here.shape[0]):
                visitors[i] = rows[here[i] - begin] - origin
                visitor_norms[i] = (visitors[i] * visitors[i]).sum()
            for tile_begin in range(0, centers.shape[0], CANOPY_CENTERS):
                size = min(CANOPY_CENTERS, centers.shape[0] - tile_begin)
                for j in range(size):
                    tile[j] = clusters.centers[centers[tile_begin + j]] - origin
                    tile_norms[j] = (tile[j] * tile[j]).sum()
                products = product_memory[: size * here.shape[0]].reshape(size, here.shape[0])
                np.dot(tile[:size], visitors[: here.shape[0]].T, products)
                for j in range(size):
                    for i in range(here.shape[0]):
                        norms = visitor_norms[i] + tile_norms[j]
                        score = norms - two * products[j, i] + slack * norms
                        if score < best[here[i] - begin]:
                            best[here[i] - begin] = score
                            new_labels[here[i]] = centers[tile_begin + j]
    return n_pairs


# -- hierarchical k-means --------------------------------------------------------------------------------------------


@kernel
def nearest_children(
    rows: Array, offset: Array, centers: Array, starts: Array, nodes: Array, labels: Array, first: int, last: int
) -> None:
    """Nearest child of the node that a row has reached, the first of equal ones, for rows ``first <= row < last``.

    The children of node ``v`` are ``starts[v] <= child < starts[v + 1]``. A pure function of each row.
    """
    row = np.empty((1, centers.shape[1]), centers.dtype)
    for i in range(first, last):
        load_row(rows, i, offset, row, 0)
        begin, end = starts[nodes[i]], starts[nodes[i] + 1]
        choice, smallest = begin, np.inf
        for child in range(begin, end):
            apart = plain_distance(row[0], centers[child])
            if apart < smallest:
                choice, smallest = child, apart
        if smallest == np.inf:  # overflow in single precision
            for child in range(begin, end):
                apart = squared_distance(row[0], centers[child])
                if apart < smallest:
                    choice, smallest = child, apart
        labels[i] = choice
