"""The compiled functions of the baselines, by the rules of ``closure_kmeans._kernels``.

Two functions of that module are compiled into these. Numba's cache does not notice a change of a function in another
file: whoever changes ``load_row`` or ``squared_distance`` should empty it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from closure_kmeans._kernels import Array, kernel, load_row, squared_distance

if TYPE_CHECKING:
    from closure_kmeans.baselines.approximate import Forest
    from closure_kmeans.baselines.canopy import Canopies
    from closure_kmeans.clusters import Clusters
    from closure_kmeans.points import Points

# Points that the canopies assign together, and centres in one product.
CANOPY_ROWS = 1024
CANOPY_CENTERS = 512

# Rows of a node that show in which dimensions it spreads, and how many of those are drawn from.
SPREAD_SAMPLE = 100
WIDEST_AXES = 5


@kernel
def distance(a: Array, b: Array) -> Any:
    """The squared distance in the precision of the arrays: within d units in the last place of the true one."""
    total = a.dtype.type(0)
    for t in range(a.shape[0]):
        difference = a[t] - b[t]
        total += difference * difference
    return total


# -- randomised k-d trees over centres -------------------------------------------------------------------------------


@kernel
def choose_cut(centers: Array, node: Array, draw: float, means: Array, spread: Array) -> tuple[int, Any]:
    """Where to cut a node: at the mean of one of the dimensions in which it spreads most, as its first members show."""
    size = min(node.shape[0], SPREAD_SAMPLE)
    means[:] = 0
    spread[:] = 0
    for i in range(size):
        for t in range(means.shape[0]):
            means[t] += centers[node[i], t]
    for t in range(means.shape[0]):
        means[t] /= size
    for i in range(size):
        for t in range(means.shape[0]):
            difference = centers[node[i], t] - means[t]
            spread[t] += difference * difference
    axis = 0
    for _ in range(1 + int(draw * min(WIDEST_AXES, spread.shape[0]))):
        axis = int(spread.argmax())
        spread[axis] = -1
    return axis, means[axis]


@kernel
def split_node(centers: Array, node: Array, axis: int, cut: Any, spare: Array) -> int:
    """Move the centres below the cut to the front, all in their old order; how many they are.

    Where they all lie on one side, which then are copies but for rounding, it is half of them.
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
    """Grow the trees ``first <= tree < last`` down to single centres.

    ``orders`` holds the centres in a random order for each tree, so that the first ones of a node are a random sample;
    they are reordered.
    """
    n_centers, n_features = centers.shape
    spare = np.empty(n_centers, orders.dtype)
    means = np.empty(n_features, centers.dtype)
    spread = np.empty(n_features, centers.dtype)
    begins = np.empty(2 * n_centers, np.int64)
    ends = np.empty(2 * n_centers, np.int64)
    for tree in range(first, last):
        begins[0], ends[0] = 0, n_centers
        n_nodes = 1
        for v in range(2 * n_centers - 1):  # by then all nodes have been listed by their parents
            node = orders[tree, begins[v] : ends[v]]
            if node.shape[0] == 1:
                forest.children[tree, v] = -1 - node[0]
                continue
            axis, cut = choose_cut(centers, node, draws[tree, v], means, spread)
            middle = begins[v] + split_node(centers, node, axis, cut, spare)
            forest.axes[tree, v] = axis
            forest.cuts[tree, v] = cut
            forest.children[tree, v] = n_nodes
            begins[n_nodes], ends[n_nodes] = begins[v], middle
            begins[n_nodes + 1], ends[n_nodes + 1] = middle, ends[v]
            n_nodes += 2


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
    """The nearest of the centres that a best-bin-first search meets, for rows ``first <= row < last``.

    One queue over all trees holds the branches not taken, the nearest first, until ``n_candidates`` centres were met.
    A row's own centre, unless that is -1, is its first candidate, left only for one that is nearer. Returns the number
    of pairs of row and candidate.
    """
    n_trees, n_nodes = forest.children.shape
    met_by = np.full(centers.shape[0], -1, np.int64)
    candidates = np.empty(min(n_candidates, centers.shape[0]), np.int32)
    bounds = np.empty(n_trees * n_nodes, centers.dtype)
    waiting = np.empty(n_trees * n_nodes, np.int64)  # nodes, numbered through all trees
    n_pairs = 0
    for row in range(first, last):
        n_met, n_waiting = 0, 0
        if own[row] >= 0:
            candidates[0] = own[row]
            met_by[own[row]] = row
            n_met = 1
        for tree in range(n_trees):
            n_waiting = push(bounds, waiting, n_waiting, bounds.dtype.type(0), tree * n_nodes)
        while n_met < candidates.shape[0] and n_waiting > 0:
            bound, number = bounds[0], waiting[0]
            n_waiting = drop_first(bounds, waiting, n_waiting)
            tree, node = number // n_nodes, number % n_nodes
            child = forest.children[tree, node]
            while child > 0:
                across = rows[row, forest.axes[tree, node]] - forest.cuts[tree, node]
                left = across < 0
                n_waiting = push(bounds, waiting, n_waiting, bound + across * across, tree * n_nodes + child + left)
                node = child + 1 - left
                child = forest.children[tree, node]
            center = -1 - child
            if met_by[center] != row:
                met_by[center] = row
                candidates[n_met] = center
                n_met += 1
        labels[row] = nearest_candidate(rows[row], centers, candidates[:n_met], own[row])
        n_pairs += n_met
    return n_pairs


@kernel
def push(bounds: Array, nodes: Array, size: int, bound: Any, node: int) -> int:
    """Put a node into the queue, a binary heap of its bounds; the new size."""
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if bounds[parent] <= bound:
            break
        bounds[place] = bounds[parent]
        nodes[place] = nodes[parent]
        place = parent
    bounds[place] = bound
    nodes[place] = node
    return size + 1


@kernel
def drop_first(bounds: Array, nodes: Array, size: int) -> int:
    """Take the node of the smallest bound out of the queue; the new size."""
    size -= 1
    bound, node = bounds[size], nodes[size]
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and bounds[child + 1] < bounds[child]:
            child += 1
        if bound <= bounds[child]:
            break
        bounds[place] = bounds[child]
        nodes[place] = nodes[child]
        place = child
    bounds[place] = bound
    nodes[place] = node
    return size


@kernel
def nearest_candidate(row: Array, centers: Array, candidates: Array, own: int) -> int:
    """The nearest of some centres; of equally near ones a row's own or else the one of the lowest number.

    Where rounding could decide, all are compared in double precision.
    """
    best, second, choice = np.inf, np.inf, -1
    for i in range(candidates.shape[0]):
        score = distance(row, centers[candidates[i]])
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
    """The canopy around a point, as far as it lies in ``first <= point < last``; its size.

    ``members`` gets the points within the loose squared distance, from ``first`` on, and ``covered`` those within the
    tight one.
    """
    size = 0
    for i in range(first, last):
        apart = distance(coordinates[i], coordinates[middle])
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
    """Each point to the nearest of the centres that share a canopy with it, for blocks ``first <= block < last``.

    Block b holds the points from ``b * CANOPY_ROWS`` on, and canopy c the centres ``inside[inside_starts[c]:]`` up to
    those of the next: all points of a block that lie in a canopy are multiplied with its centres at once. A point
    moves only to a centre that is nearer whatever the rounding. Returns the number of pairs of point and centre.
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
            load_row(points.rows, begin + i, points.mean, rows, i)
            new_labels[begin + i] = labels[begin + i]
            best[i] = distance(rows[i], clusters.centers[labels[begin + i]])
        n_pairs += end - begin
        for canopy in range(canopies.starts.shape[0] - 1):
            members = canopies.members[canopies.starts[canopy] : canopies.starts[canopy + 1]]
            centers = inside[inside_starts[canopy] : inside_starts[canopy + 1]]
            here = members[np.searchsorted(members, begin) : np.searchsorted(members, end)]
            if here.shape[0] == 0 or centers.shape[0] == 0:
                continue
            n_pairs += here.shape[0] * centers.shape[0]
            # All is taken relative to one of the centres: small clusters far from the mean need it.
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
    rows: Array, mean: Array, centers: Array, starts: Array, nodes: Array, labels: Array, first: int, last: int
) -> None:
    """The nearest child of the node that a row has come to, the first of several, for rows ``first <= row < last``.

    The children of node ``v`` are ``starts[v] <= child < starts[v + 1]``. A pure function of each row.
    """
    row = np.empty((1, centers.shape[1]), centers.dtype)
    for i in range(first, last):
        load_row(rows, i, mean, row, 0)
        begin, end = starts[nodes[i]], starts[nodes[i] + 1]
        choice, smallest = begin, np.inf
        for child in range(begin, end):
            apart = distance(row[0], centers[child])
            if apart < smallest:
                choice, smallest = child, apart
        if smallest == np.inf:  # too far away for single precision
            for child in range(begin, end):
                apart = squared_distance(row[0], centers[child])
                if apart < smallest:
                    choice, smallest = child, apart
        labels[i] = choice
