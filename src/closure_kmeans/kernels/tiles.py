"""Closure assignment (section 3.1) in tiles: rows of a leaf against a panel of centres."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from closure_kmeans.cache import kernel, part
from closure_kmeans.kernels.emit import TILE_ROWS, VECTOR_BYTES, Array
from closure_kmeans.kernels.rows import ROWS_AHEAD, SLACK, epsilon, fetch_row, load_row
from closure_kmeans.kernels.simd import score_tile, take_lowest, turn_rows

if TYPE_CHECKING:
    from closure_kmeans.clusters import Clusters
    from closure_kmeans.points import WeightedRows
    from closure_kmeans.trees import RandomPartition


class LeafMemory(NamedTuple):
    """Memory for the candidates of a leaf, and for one tile of its rows. Vectors are relative to ``shift``."""

    slots: Array  # (k,) place of each cluster among the candidates, or -1
    candidates: Array  # (m,) clusters
    panels: Array  # (m / lanes, d, lanes) their centres, one a column
    center_norms: Array  # (m,) squared norms plus penalties
    sizes: Array  # (m,)
    loaded: Array  # (lanes, d) centres on their way into a panel
    shift: Array  # (d,)
    origin: Array  # (d,) shift less the offset of the points
    # One line for each row of a tile; ``best``, ``choice`` and ``stays`` have a column for each lane of a vector.
    rows: Array  # (TILE_ROWS, d)
    norms: Array
    own: Array  # the candidate that each row is assigned to
    weights: Array
    factors: Array  # (TILE_ROWS, m), or (1, m) if all weights are equal: Hartigan's factors
    best: Array
    choice: Array
    stays: Array
    lowest: Array
    chosen: Array


def leaf_memory(clusters: Clusters, n_candidates: int, weighted: bool) -> LeafMemory:
    """Memory for leaves of at most so many candidates."""
    n_clusters, n_features = clusters.centers.shape
    dtype = clusters.centers.dtype
    lanes = VECTOR_BYTES // dtype.itemsize
    n_panels = -(-n_candidates // lanes)
    n_places = n_panels * lanes
    return LeafMemory(
        slots=np.full(n_clusters, -1, np.int32),
        candidates=np.empty(n_places, np.int32),
        panels=np.empty((n_panels, n_features, lanes), dtype),
        center_norms=np.empty(n_places, dtype),
        sizes=np.empty(n_places, np.float64),
        loaded=np.zeros((lanes, n_features), dtype),
        shift=np.empty(n_features, dtype),
        origin=np.empty(n_features, dtype),
        rows=np.zeros((TILE_ROWS, n_features), dtype),
        norms=np.zeros(TILE_ROWS, dtype),
        own=np.zeros(TILE_ROWS, np.int32),
        weights=np.ones(TILE_ROWS),
        factors=np.ones((TILE_ROWS if weighted else 1, n_places), dtype),
        best=np.empty((TILE_ROWS, lanes), dtype),
        choice=np.empty((TILE_ROWS, lanes), np.int32),
        stays=np.empty((TILE_ROWS, lanes), dtype),
        lowest=np.empty(TILE_ROWS, dtype),
        chosen=np.empty(TILE_ROWS, np.int32),
    )


@kernel
def assign_leaves(
    points: WeightedRows,
    clusters: Clusters,
    labels: Array,
    partition: RandomPartition,
    hartigan: bool,
    new_labels: Array,
    scores: Array,
    memory: LeafMemory,
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
    slots, candidates, sizes = memory.slots, memory.candidates, memory.sizes
    rows, norms, own, weights = memory.rows, memory.norms, memory.own, memory.weights
    best, stays = memory.best, memory.stays
    n_clusters, n_features = clusters.centers.shape
    lanes = VECTOR_BYTES // clusters.centers.itemsize
    weighted = points.weights.shape[0] > 1
    slack = SLACK * epsilon(clusters.centers)
    n_pairs = 0
    for r in range(TILE_ROWS):
        weights[r] = points.weights[0]
    for leaf in range(first, last):
        begin, end = starts[leaf], starts[leaf + 1]
        n_candidates = 0
        if partition.open_to_all:
            for j in range(n_clusters):
                slots[j] = candidates[j] = j
            n_candidates = n_clusters
        else:
            for i in range(begin, end):
                label = labels[members[i]]
                if slots[label] < 0:
                    slots[label] = n_candidates
                    candidates[n_candidates] = label
                    n_candidates += 1
                    fetch_row(clusters.centers, label)
        n_pairs += n_candidates * (end - begin)
        # Everything is relative to a point near one of the centres. This keeps small clusters far from the offset
        # accurate.
        for t in range(n_features):
            memory.shift[t] = points.offset[t] + clusters.centers[candidates[0], t]
            memory.origin[t] = memory.shift[t] - points.offset[t]
        n_panels = load_candidates(clusters, n_candidates, memory)
        if hartigan and not weighted:
            weigh_moves(memory, n_panels * lanes)
        for tile in range(begin, end, TILE_ROWS):
            n_rows = min(TILE_ROWS, end - tile)
            for r in range(n_rows):
                point = members[tile + r]
                fetch_row(points.rows, members[min(tile + r + ROWS_AHEAD, members.shape[0] - 1)])
                norms[r] = load_row(points.rows, point, memory.shift, rows, r)
                own[r] = slots[labels[point]]
                if weighted:
                    weights[r] = points.weights[point]
            if hartigan and weighted:
                weigh_moves(memory, n_panels * lanes)
            for r in range(TILE_ROWS):
                for lane in range(lanes):
                    best[r, lane] = np.inf
            for p in range(n_panels):
                score_tile(
                    rows,
                    norms,
                    own,
                    memory.panels[p],
                    memory.center_norms,
                    memory.factors,
                    p * lanes,
                    best,
                    memory.choice,
                    stays,
                )
            take_lowest(best, memory.choice, memory.lowest, memory.chosen)
            for r in range(n_rows):
                slot = own[r]
                score = score_stay(stays[r, slot % lanes], sizes[slot], weights[r], hartigan)
                doubt = slack * (norms[r] + memory.center_norms[slot])
                if 0 <= score <= doubt:
                    score, slot = compare_each(r, clusters, n_candidates, memory, hartigan)
                else:
                    score -= doubt  # a move must gain more than the rounding error
                    if memory.lowest[r] < score:
                        score, slot = np.float64(memory.lowest[r]), memory.chosen[r]
                point = members[tile + r]
                if score < scores[point]:
                    scores[point] = score
                    new_labels[point] = candidates[slot]
        for j in range(n_candidates):
            slots[candidates[j]] = -1
    return n_pairs


@part
def load_candidates(clusters: Clusters, n_candidates: int, memory: LeafMemory) -> int:
    """Load the candidate centres, relative to the origin, into panels, with sizes and squared norms plus penalties.

    A panel holds one centre a column. Unused columns of the last panel get infinite norms, so no row chooses them.
    Returns the number of panels.
    """
    lanes = VECTOR_BYTES // memory.panels.itemsize
    n_panels = -(-n_candidates // lanes)
    for p in range(n_panels):
        for j in range(p * lanes, (p + 1) * lanes):
            memory.sizes[j] = 1
            memory.center_norms[j] = np.inf
            if j < n_candidates:
                cluster = memory.candidates[j]
                memory.sizes[j] = clusters.sizes[cluster]
                norm = load_row(clusters.centers, cluster, memory.origin, memory.loaded, j % lanes)
                memory.center_norms[j] = norm + clusters.penalties[cluster]
        turn_rows(memory.loaded, memory.panels[p])
    return n_panels


@part
def weigh_moves(memory: LeafMemory, n_places: int) -> None:
    """Fill ``factors`` with n / (n + w), Hartigan's factor for a row of weight w moving to a cluster of size n."""
    for r in range(memory.factors.shape[0]):
        for j in range(n_places):
            memory.factors[r, j] = memory.sizes[j] / (memory.sizes[j] + memory.weights[r])


@part
def score_stay(distance: float, size: float, weight: float, hartigan: bool) -> float:
    """Score of staying: the squared distance or, by Hartigan's rule, n / (n - w) times it."""
    score: float = np.float64(max(0.0, distance))
    if hartigan:
        # The last point of a cluster never leaves it.
        score = score * size / (size - weight) if size > weight else -np.inf
    return score


@part
def compare_each(
    r: int, clusters: Clusters, n_candidates: int, memory: LeafMemory, hartigan: bool
) -> tuple[float, int]:
    """Lowest score of a row and its candidate, the own one if none is lower; from differences, in double precision.

    For rows whose distance to their own centre is below the rounding error of the product, as happens when the
    candidates of a leaf are far apart.
    """
    own, weight = memory.own[r], memory.weights[r]
    lanes = VECTOR_BYTES // memory.panels.itemsize
    score, chosen = np.inf, own
    for place in range(n_candidates + 1):
        j = own if place == 0 else place - 1  # the own one first
        distance = 0.0
        for t in range(memory.rows.shape[1]):
            difference = np.float64(memory.rows[r, t]) - np.float64(memory.panels[j // lanes, t, j % lanes])
            distance += difference * difference
        distance += clusters.penalties[memory.candidates[j]]
        size = memory.sizes[j]
        if place == 0:
            score = score_stay(distance, size, weight, hartigan)
            if score == 0:
                break
        elif j != own:
            moved = distance * size / (size + weight) if hartigan else distance
            if moved < score:
                score, chosen = moved, j
    return score, chosen
