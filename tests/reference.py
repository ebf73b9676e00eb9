"""Slow definitions in NumPy and double precision, to compare kernels with."""

from functools import reduce

import numpy as np
from scipy.sparse.linalg import eigsh

# -- rows ------------------------------------------------------------------------------------------------------------


def widen(rows):
    """Stored rows as numbers; float16 is stored as its bits."""
    rows = np.asarray(rows)
    return (rows.view(np.float16) if rows.dtype == np.uint16 else rows).astype(np.float64)


def load_row(rows, i, mean):
    return widen(rows)[i] - mean


def are_bytes(rows):
    return bool(np.isin(rows, np.arange(256)).all())


# -- random partition trees ------------------------------------------------------------------------------------------


def sample_rows(rows, mean, node, draws, place, size):
    return np.array([load_row(rows, node[int(draws[(place + r) % len(draws)] * len(node))], mean) for r in range(size)])


def principal_direction(sample):
    """The paper's: the first eigenvector of the covariance, by the Lanczos algorithm."""
    centred = sample - sample.mean(axis=0)
    return eigsh(centred.T @ centred, k=1, v0=np.ones(sample.shape[1]))[1][:, 0]


def lanczos_direction(sample, n_steps):
    """An approximation of it: the best direction in the span of a few steps, from the row farthest from the mean."""
    centred = sample - sample.mean(axis=0)
    norms = (centred**2).sum(axis=1)
    farthest = reduce(lambda far, r: r if norms[r] > norms[far] * (1 + 1e-5) else far, range(len(sample)))
    start = centred[farthest]
    if not start.any():
        return start
    basis = [start / np.linalg.norm(start)]
    while len(basis) < n_steps:
        following = centred.T @ (centred @ basis[-1])
        for vector in basis:
            following -= (following @ vector) * vector
        if np.linalg.norm(following) < 1e-6 * (centred**2).sum():
            break
        basis.append(following / np.linalg.norm(following))
    basis = np.array(basis)
    weights = np.linalg.eigh((basis @ centred.T) @ (centred @ basis.T))[1][:, -1]
    return weights @ basis * np.sign(weights[np.abs(weights).argmax()])


def project(rows, mean, node, direction):
    return (widen(rows)[node] - mean) @ direction


def select_rank(values, rank):
    return np.sort(values)[rank]


def keep_around(values, rank, n, margin):
    sample = np.sort([values[i * (len(values) // n)] for i in range(n)])
    place = rank * n // len(values)
    low = sample[place - margin] if place >= margin else -np.inf
    high = sample[place + margin] if place + margin < n else np.inf
    return sum(values < low), [value for value in values if low <= value <= high]


def median(a, b, c):
    return sorted([a, b, c])[1]


def split_stably(node, values, n_left):
    """The smallest values to the front, of equal ones those that come first; both sides in their old order."""
    left = np.zeros(len(node), bool)
    left[np.argsort(values, kind="stable")[:n_left]] = True
    return np.concatenate([node[left], node[~left]])


def grow_node(rows, mean, members, starts, low, high, draws, sample_size, n_steps, max_depth):
    """Split the node of the leaves from ``low`` to ``high`` in ``members``, and its children."""
    if high - low < 2 or max_depth == 0:
        return
    middle = (low + high) // 2
    node = members[starts[low] : starts[high]]
    sample = sample_rows(rows, mean, node, draws, low + high, sample_size)
    values = project(rows, mean, node, lanczos_direction(sample, n_steps))
    node[:] = split_stably(node, values, starts[middle] - starts[low])
    for half in ((low, middle), (middle, high)):
        grow_node(rows, mean, members, starts, *half, draws, sample_size, n_steps, max_depth - 1)


# -- assignment ------------------------------------------------------------------------------------------------------


def squared_distances(X, centers):
    return ((np.asarray(X, np.float64)[:, np.newaxis] - np.asarray(centers, np.float64)) ** 2).sum(axis=2)


def search_nearest(X, centers):
    distances = squared_distances(X, centers)
    return distances.argmin(axis=1), distances.min(axis=1)


def choose_cells(row, middles, n_probes):
    """The cells of the nearest middles, of equally near ones the first."""
    return np.argsort(squared_distances([row], middles)[0], kind="stable")[:n_probes]


def search_cells(rows, cells, n_probes):
    """The nearest centre in the nearest cells of each row, of equally near ones that of the lowest id."""
    labels, distances = [], []
    for row in rows:
        chosen = choose_cells(row, cells.middles, n_probes)
        places = np.concatenate([np.arange(cells.starts[cell], cells.starts[cell + 1]) for cell in chosen])
        places = places[np.argsort(cells.centers.ids[places])]
        nearest, distance = search_nearest([row], cells.centers.centers[places])
        labels.append(cells.centers.ids[places[nearest[0]]])
        distances.append(distance[0])
    return np.array(labels), np.array(distances)


def search_several(rows, cells, n_probes, n_nearest):
    """The nearest centres in the nearest cells of each row, of equally near ones that of the lowest id first."""
    labels, distances = [], []
    for row in rows:
        chosen = choose_cells(row, cells.middles, n_probes)
        places = np.concatenate([np.arange(cells.starts[cell], cells.starts[cell + 1]) for cell in chosen])
        squares = squared_distances([row], cells.centers.centers[places])[0]
        nearest = np.lexsort((cells.centers.ids[places], squares))[:n_nearest]
        labels.append(cells.centers.ids[places[nearest]])
        distances.append(squares[nearest])
    return np.array(labels), np.array(distances)


def closures(labels, n_clusters, partitions):
    """The closure of each cluster: the union of its points' neighbourhoods, which are leaves united (equation 2)."""
    neighbors = [set() for _ in labels]
    for members, starts, _ in partitions:
        for leaf in np.split(members, starts[1:-1]):
            for point in leaf:
                neighbors[point].update(leaf)
    return [set().union(*(neighbors[i] for i in np.flatnonzero(labels == j))) for j in range(n_clusters)]


def list_candidates(labels, leaf):
    """The different clusters of a leaf's points, in the order in which they are met."""
    return list(dict.fromkeys(labels[leaf]))


def move_costs(X, weights, centers, sizes, labels, hartigan, penalties=0.0):
    """What it costs point i, per weight, to be in cluster j: (n, k).

    The squared distance or, by Hartigan's rule, what the point adds to the distortion if it joins, and what it takes
    away if it leaves: the centre moves with it. Penalties are a part of the squared distances.
    """
    costs = squared_distances(X, centers) + penalties
    if hartigan:
        for i, own in enumerate(labels):
            stay = costs[i, own]
            costs[i] *= sizes / (sizes + weights[i])
            alone = sizes[own] <= weights[i]
            costs[i, own] = -np.inf if alone else stay * sizes[own] / (sizes[own] - weights[i])
    return costs


def assign_by_closures(costs, labels, partitions):
    """Closure after closure, as section 3.1 has it; a point stays unless it gains by moving."""
    new_labels = labels.copy()
    best = costs[np.arange(len(labels)), labels]
    for j, closure in enumerate(closures(labels, costs.shape[1], partitions)):
        for i in closure:
            if costs[i, j] < best[i]:
                best[i] = costs[i, j]
                new_labels[i] = j
    return new_labels, best


# -- baselines -------------------------------------------------------------------------------------------------------


def choose_cut(centers, node, draw, n_sample, n_axes):
    """The mean of a dimension drawn from those of largest variance, of equal ones the first."""
    sample = np.asarray(centers, np.float64)[node[:n_sample]]
    widest = np.argsort(-sample.var(axis=0), kind="stable")[:n_axes]
    axis = widest[int(draw * len(widest))]
    return axis, sample[:, axis].mean()


def split_node(centers, node, axis, cut):
    """Those below the cut first, both sides in their old order; one side alone is halved."""
    left = np.asarray(centers)[node, axis] < cut
    n_left = left.sum() if left.any() and not left.all() else len(node) // 2
    return np.concatenate([node[left], node[~left]]), n_left


def leaves_of(forest, node):
    """The centres below a node."""
    other = forest.others[node]
    return [other] if forest.axes[node] < 0 else leaves_of(forest, node + 1) + leaves_of(forest, other)


def forest_candidates(row, forest, n_trees, n_candidates, own=-1):
    """The centres that the search meets, in their order: always the leaf below the nearest branch not yet taken."""
    met = [] if own < 0 else [own]
    branches = [(0.0, tree * len(forest.axes) // n_trees) for tree in range(n_trees)]
    while len(met) < n_candidates and branches:
        bound, node = branches.pop(min(range(len(branches)), key=lambda i: branches[i][0]))
        while (axis := forest.axes[node]) >= 0:
            across = float(row[axis]) - float(forest.cuts[node])
            children = node + 1, forest.others[node]
            node, other = children if across < 0 else children[::-1]
            branches.append((bound + across**2, other))
        if forest.others[node] not in met:
            met.append(forest.others[node])
    return met


def nearest_candidate(row, centers, candidates, own=-1):
    distances = squared_distances([row], np.asarray(centers)[candidates])[0]
    nearest = {candidate for candidate, d in zip(candidates, distances, strict=True) if d == distances.min()}
    return own if own in nearest else min(nearest)


def canopies(coordinates, order, loose, tight):
    """Around each point in the given order that no canopy covers tightly, all points within the loose radius."""
    distances = np.sqrt(squared_distances(coordinates, coordinates))
    uncovered, found = set(range(len(coordinates))), []
    for middle in order:
        if middle in uncovered:
            found.append((middle, np.flatnonzero(distances[middle] <= loose)))
            uncovered -= set(np.flatnonzero(distances[middle] <= tight)) | {middle}
    return found


def assign_canopies(X, centers, labels, canopies, inside):
    """Each point to the nearest of its own centre and those in its canopies: (labels, number of pairs)."""
    candidates = [[own] for own in labels]
    for members, some in zip(canopies, inside, strict=True):
        for i in members:
            candidates[i].extend(some)
    new_labels = [nearest_candidate(x, centers, some, own) for x, some, own in zip(X, candidates, labels, strict=True)]
    return np.array(new_labels), sum(map(len, candidates))


def nearest_children(X, centers, starts, nodes):
    """The nearest child of each row's node, the first of several."""
    return np.array(
        [
            starts[node] + squared_distances([x], centers[starts[node] : starts[node + 1]])[0].argmin()
            for x, node in zip(X, nodes, strict=True)
        ]
    )


# -- update ----------------------------------------------------------------------------------------------------------


def group_by_label(labels, n_clusters):
    return np.argsort(labels, kind="stable"), np.searchsorted(np.sort(labels), np.arange(n_clusters + 1))


def update_clusters(X, weights, labels, centers):
    """Means, weights and errors of the clusters; an empty one keeps its centre."""
    centers = np.array(centers, np.float64)
    sizes, errors = np.zeros(len(centers)), np.zeros(len(centers))
    for j in range(len(centers)):
        members = labels == j
        if members.any():
            sizes[j] = weights[members].sum()
            centers[j] = np.average(X[members], axis=0, weights=weights[members])
            errors[j] = weights[members] @ ((X[members] - centers[j]) ** 2).sum(axis=1)
    return centers, sizes, errors


# -- the whole -------------------------------------------------------------------------------------------------------


def inertia(X, labels, weights=None):
    """The objective of some labels (equation 1)."""
    X = np.asarray(X, np.float64)
    weights = np.ones(len(X)) if weights is None else weights
    return update_clusters(X, weights, labels, np.zeros((labels.max() + 1, X.shape[1])))[2].sum()


def lloyd(X, labels, n_clusters, max_iter, weights=None):
    """Exact k-means from given labels: labels and centres, or None if a cluster lost all its points.

    A point stays unless another centre is nearer.
    """
    X = np.asarray(X, np.float64)
    weights = np.ones(len(X)) if weights is None else weights
    centers, sizes, _ = update_clusters(X, weights, labels, np.zeros((n_clusters, X.shape[1])))
    for _ in range(max_iter):
        if not sizes.all():
            return None
        distances = squared_distances(X, centers)
        own = distances[np.arange(len(X)), labels]
        labels = np.where(distances.min(axis=1) < own, distances.argmin(axis=1), labels)
        centers, sizes, _ = update_clusters(X, weights, labels, centers)
    return (labels, centers) if sizes.all() else None
