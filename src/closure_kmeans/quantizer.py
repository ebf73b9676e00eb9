"""The nearest centre of any point, at any number of centres.

Up to some thousands of centres the search is exhaustive. Beyond, the centres are grouped into cells by the library's
own k-means, and a row is compared with the centres in the cells nearest to it; how many cells are needed is measured on
a sample of rows. Most of these centres are ruled out by sketches, a few numbers for each, which changes nothing but the
time it takes; with many rows, an exhaustive search looks into all cells that way. The answer is a pure function of each
row.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from sklearn.metrics.pairwise import euclidean_distances

from closure_kmeans import kernels
from closure_kmeans.closure import begin, cluster_by_closures
from closure_kmeans.iteration import Clustering
from closure_kmeans.neighborhoods import FreshNeighborhoods
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points, arrange_points, as_numbers, grow_leaves, rows_per_block, shifted

# Centres above which cells are worth the trouble.
MANY_CENTERS = 10_000
# Rows, and centres, from which on cells save more than it takes to build them, though all are looked into.
MANY_ROWS, SOME_CENTERS = 20_000, 2000
# Rows that show how many cells to look into.
SAMPLE_ROWS = 2000
# Rows that show the accuracy of an assignment: it is known to half a percent or better.
ACCURACY_ROWS = 500
# The share of sample rows whose nearest centre must be found. Rows that a model has not seen are harder than those that
# it has, so this is more than the promised 0.99.
RECALL = 0.998
# Distances that differ by no more than this factor are the same but for rounding.
EQUALLY_NEAR = 1 + 1e-9
# Iterations and leaf size of the k-means over the centres.
CELL_ITERATIONS, CELL_LEAF_SIZE = 12, 256
# Rows that are sent to the cells together: enough for good products, few enough to fit the cache; and visits of theirs.
ROWS_PER_SEARCH, VISITS_PER_SEARCH = 4096, 1 << 20
# Widths that sketches may have, and how many numbers of sketches cost as much as a centre that one does not rule out.
SKETCH_WIDTHS = (32, 48, 64, 96, 128, 192, 256)
COST_OF_A_CENTER = 600
# Centres that show how many others a sketch rules out, the most numbers of those, and the share of them in cells.
SKETCH_SAMPLE, SKETCH_NUMBERS, SHARE_IN_CELLS = 50, 50_000 * 128, 0.05


class Cells(NamedTuple):
    """Centres grouped into cells, for a search that looks into a few of them. All is relative to ``mean``."""

    mean: NDArray[Any]  # (d,)
    centers: NDArray[Any]  # (k, d) cell after cell
    ids: NDArray[np.int32]  # (k,) the centre's place in the model
    starts: NDArray[np.int64]  # (n_cells + 1,) cell c holds centers[starts[c]:starts[c + 1]]
    middles: NDArray[Any]  # (n_cells, d) means of the cells
    middle_norms: NDArray[Any]  # (n_cells,)
    axes: NDArray[np.float64]  # (d, m - 1) principal directions of the centres, orthonormal; none if m = d
    sketches: NDArray[Any]  # (k, m) those of the centres; the centres themselves if m = d
    sketch_norms: NDArray[Any]  # (k,) squared norms


class Quantizer(NamedTuple):
    """Cells, and how many of them to look into."""

    cells: Cells
    n_probes: int


def nearest_centers(
    X: NDArray[Any], centers: NDArray[Any], mean: NDArray[Any], threads: Threads
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest of all centres of each row, the first of several, and the squared distance to it.

    The centres are relative to ``mean``, which is subtracted from the rows.
    """
    norms = np.einsum("ij,ij->i", centers, centers)
    labels = np.empty(len(X), np.int32)
    distances = np.empty(len(X), np.float64)

    def search(first: int, last: int) -> None:
        rows = shifted(X[first:last], mean)
        out = labels[first:last], distances[first:last]
        kernels.search_nearest(rows, centers, norms, *out, 0, len(rows))

    threads.for_each_block(search, len(X), search_block(len(X), rows_per_block(X), threads))
    return labels, distances


def quantize(X: NDArray[Any], quantizer: Quantizer, threads: Threads) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest centre of each row among those of the cells nearest to it, and the squared distance.

    Of few rows, all threads search the same ones, each in other cells: reading the centres is what takes the time then.
    Of many, each thread has rows of its own.
    """
    labels = np.empty(len(X), np.int32)
    distances = np.empty(len(X), np.float64)

    def search(helpers: Threads, first: int, last: int) -> None:
        _search_cells(X[first:last], quantizer, labels[first:last], distances[first:last], helpers)

    at_once = min(ROWS_PER_SEARCH, VISITS_PER_SEARCH // quantizer.n_probes + 1)
    if len(X) < at_once:
        search(threads, 0, len(X))
    else:
        block = search_block(len(X), at_once, threads)
        threads.for_each_block(partial(search, Threads(1)), len(X), block)
    return labels, distances


def _search_cells(
    X: NDArray[Any],
    quantizer: Quantizer,
    labels: NDArray[np.int32],
    distances: NDArray[np.float64],
    threads: Threads,
) -> None:
    """Each row chooses its cells, each cell is visited by the rows that chose it, and the best of all visits counts."""
    cells = quantizer.cells
    rows = np.empty(X.shape, cells.centers.dtype)
    sketches = np.empty((len(X), cells.sketches.shape[1]), rows.dtype)
    chosen = np.empty((len(X), quantizer.n_probes), np.int32)
    nearest = np.empty(len(X), np.int32)
    known, offsets = np.empty((2, len(X)))

    def choose(first: int, last: int) -> None:
        rows[first:last] = shifted(X[first:last], cells.mean)
        sketches[first:last] = sketch(rows[first:last], cells.axes)
        kernels.choose_cells(rows, cells, chosen, first, last)
        kernels.bound_rows(rows, sketches, cells, chosen, nearest, known, offsets, first, last)

    each = -(-len(X) // threads.n_threads)
    threads.for_each_block(choose, len(X), each)
    visits, starts = kernels.group_by_label(chosen.ravel(), len(cells.middles))
    visitors = visits // quantizer.n_probes
    # A part of the cells for each thread, with as many visits.
    cuts = np.searchsorted(starts, np.linspace(0, len(visits), threads.n_threads + 1))
    cuts[-1] = len(cells.middles)
    best, choice = (np.tile(begin, (threads.n_threads, 1)) for begin in (known, nearest))

    def visit(part: int, _: int) -> None:
        out = best[part], choice[part]
        kernels.visit_cells(rows, sketches, cells, visitors, starts, offsets, *out, cuts[part], cuts[part + 1])

    threads.for_each_block(visit, threads.n_threads, 1)
    settle = partial(kernels.settle_rows, cells, best, choice, labels, distances)
    threads.for_each_block(settle, len(X), each)


def quantize_softly(
    X: NDArray[Any], quantizer: Quantizer, n_nearest: int, threads: Threads
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest centres of each row among those of the cells nearest to it, and the squared distances."""
    cells = quantizer.cells
    n_nearest = min(n_nearest, len(cells.centers))
    labels = np.empty((len(X), n_nearest), np.int32)
    distances = np.empty((len(X), n_nearest), np.float64)
    # Even the smallest cells must hold as many.
    n_probes = max(quantizer.n_probes, 1 + int(np.searchsorted(np.sort(np.diff(cells.starts)).cumsum(), n_nearest)))

    def search(first: int, last: int) -> None:
        rows = shifted(X[first:last], cells.mean)
        kernels.search_several(rows, cells, n_probes, labels[first:last], distances[first:last], 0, len(rows))

    threads.for_each_block(search, len(X), search_block(len(X), ROWS_PER_SEARCH, threads))
    return labels, distances


def search_block(n_rows: int, largest: int, threads: Threads) -> int:
    """Rows to search at a time: as many for each thread, and as many at once as may be, for large products."""
    n_blocks = threads.n_threads * -(-n_rows // (largest * threads.n_threads))
    return max(int(kernels.SEARCH_ROWS), -(-n_rows // max(n_blocks, 1)))


def find_centers(
    X: NDArray[Any], centers: NDArray[Any], mean: NDArray[Any], sample: NDArray[Any], threads: Threads
) -> NDArray[np.int32]:
    """The nearest centre of each row: of all centres where they are few, else by cells that suit the sample."""
    if len(centers) <= MANY_CENTERS:
        labels, _ = nearest_centers(X, centers, mean, threads)
    else:
        labels, _ = quantize(X, build_quantizer(centers, mean, sample, threads), threads)
    return labels


def sample_accuracy(points: Points, threads: Threads, state: Clustering) -> float:
    """The share of a sample of points, spread over the data, whose cluster has the nearest of all centres.

    Of several centres that are equally near, any will do.
    """
    sample = slice(None, None, -(-len(points.rows) // ACCURACY_ROWS))
    rows = as_numbers(points.rows[sample])
    _, smallest = nearest_centers(rows, state.clusters.centers, points.mean, threads)
    own = squared_distances(rows, state.clusters.centers, points.mean, state.labels[sample])
    return float(np.mean(own <= smallest * EQUALLY_NEAR))


def squared_distances(
    X: NDArray[Any], centers: NDArray[Any], mean: NDArray[Any], labels: NDArray[Any]
) -> NDArray[np.float64]:
    """The squared distance of each row to the centre that its label names, in double precision."""
    distances = np.empty(len(X))
    for first in range(0, len(X), rows_per_block(X)):
        block = slice(first, first + rows_per_block(X))
        difference = shifted(X[block], mean).astype(np.float64) - centers[labels[block]]
        distances[block] = np.einsum("ij,ij->i", difference, difference)
    return distances


def build_quantizer(centers: NDArray[Any], mean: NDArray[Any], sample: NDArray[Any], threads: Threads) -> Quantizer:
    """Group centres into cells, and look into as many as the rows of a sample need."""
    cells = group_centers(centers, mean, threads)
    return Quantizer(cells, count_probes(cells, centers, sample, threads))


def count_probes(cells: Cells, centers: NDArray[Any], sample: NDArray[Any], threads: Threads) -> int:
    """Into how many cells to look for the rows of a sample to find their nearest centre."""
    nearest, _ = nearest_centers(sample, centers, cells.mean, threads)
    cell = np.empty(len(centers), np.int32)
    cell[cells.ids] = np.repeat(np.arange(len(cells.starts) - 1, dtype=np.int32), np.diff(cells.starts))
    scores = cells.middle_norms - 2 * shifted(sample, cells.mean) @ cells.middles.T
    ranks = (scores < scores[np.arange(len(sample)), cell[nearest], np.newaxis]).sum(axis=1)
    return 1 + int(np.quantile(ranks, RECALL, method="higher"))


def count_cells(n_centers: int) -> int:
    """As many cells as make choosing them about as dear as looking into them, by sketches."""
    return int(2 * np.sqrt(n_centers))


def group_centers(centers: NDArray[Any], mean: NDArray[Any], threads: Threads) -> Cells:
    """Cells of centres, by k-means."""
    n_cells = count_cells(len(centers))
    rng = np.random.default_rng(0)
    points, tree = arrange_points(centers, np.ones(1), n_cells, 16, rng, threads)
    state, stopped_by = cluster_by_closures(
        points,
        begin(points, np.repeat(np.arange(n_cells, dtype=np.int32), np.diff(tree.starts)), n_cells, threads),
        FreshNeighborhoods(partial(grow_leaves, points, rng, threads), CELL_LEAF_SIZE, len(centers), target_accuracy=0),
        hartigan=True,
        extrapolate=True,
        max_iter=CELL_ITERATIONS,
        tol=0.0,
        measure_accuracy=None,
        on_iteration=lambda *_: None,
        threads=threads,
    )
    if stopped_by == "interrupted":
        raise KeyboardInterrupt
    members, starts = kernels.group_by_label(state.labels, n_cells)
    middles = state.clusters.centers + points.mean
    return make_cells(centers, mean, tree.members[members], starts, middles, choose_axes(centers))


def one_cell(centers: NDArray[Any], mean: NDArray[Any]) -> Quantizer:
    """All centres in one cell."""
    ids = np.arange(len(centers), dtype=np.int32)
    middles, no_axes = np.zeros((1, len(mean)), centers.dtype), np.empty((len(mean), 0))
    return Quantizer(make_cells(centers, mean, ids, np.array([0, len(centers)]), middles, no_axes), n_probes=1)


def make_cells(
    centers: NDArray[Any],
    mean: NDArray[Any],
    ids: NDArray[np.int32],
    starts: NDArray[np.int64],
    middles: NDArray[Any],
    axes: NDArray[np.float64],
) -> Cells:
    """Cells, from which centres are in them, where their middles are, and along which directions sketches are made."""
    grouped = np.ascontiguousarray(centers[ids])
    sketches = sketch(grouped, axes)
    return Cells(
        mean=mean,
        centers=grouped,
        ids=ids,
        starts=starts,
        middles=middles,
        middle_norms=np.einsum("ij,ij->i", middles, middles),
        axes=axes,
        sketches=sketches,
        sketch_norms=np.einsum("ij,ij->i", sketches, sketches),
    )


def sketch(rows: NDArray[Any], axes: NDArray[np.float64]) -> NDArray[Any]:
    """The coordinates of rows along some directions, and the length of what is left: a few numbers for each.

    Sketches are no farther apart than the rows are. Without directions, rows are their own sketches.
    """
    if axes.shape[1] == 0:
        return rows
    sketches = np.empty((len(rows), axes.shape[1] + 1), rows.dtype)
    for first in range(0, len(rows), ROWS_PER_SEARCH):
        block = slice(first, first + ROWS_PER_SEARCH)
        precise = rows[block].astype(np.float64)  # a small difference of large numbers follows
        coordinates = precise @ axes
        left = np.einsum("ij,ij->i", precise, precise) - np.einsum("ij,ij->i", coordinates, coordinates)
        with np.errstate(over="ignore"):  # of what overflows, nothing is ruled out
            sketches[block, :-1], sketches[block, -1] = coordinates, np.sqrt(np.maximum(left, 0))
    return sketches


def choose_axes(centers: NDArray[Any]) -> NDArray[np.float64]:
    """Directions for sketches of the width that makes for the fastest search; none if that is by whole centres.

    It is found by some centres that look for their nearest neighbour, among as many others as cells hold. There are
    sketches of float32 only: they are computed in double precision, so that all their errors are those of float32.
    """
    n_features = centers.shape[1]
    others = centers[:: -(-centers.size // SKETCH_NUMBERS)].astype(np.float64)
    n_near = 1 + int(SHARE_IN_CELLS * len(others))
    if centers.dtype != np.float32 or len(others) <= n_near or n_features <= SKETCH_WIDTHS[0]:
        return np.empty((n_features, 0))
    sample = others[:: -(-len(others) // SKETCH_SAMPLE)]
    distances = euclidean_distances(sample, others, squared=True)
    ordered = np.partition(distances, (1, n_near), axis=1)  # the first is the centre itself
    reach, farthest = ordered[:, 1:2], ordered[:, n_near, np.newaxis]
    most = min(n_features, SKETCH_WIDTHS[-1])
    _, directions = eigh(np.cov(others.T), subset_by_index=(n_features - most, n_features - 1))
    best, lowest_cost = directions[:, :0], float(n_features)
    for width in SKETCH_WIDTHS:
        if width >= lowest_cost:
            break
        axes = directions[:, :-width:-1]
        apart = euclidean_distances(sketch(sample, axes), sketch(others, axes), squared=True)
        n_left = np.count_nonzero((apart < reach) & (distances <= farthest))
        cost = width + COST_OF_A_CENTER * n_left / (n_near * len(sample))
        if cost < lowest_cost:
            best, lowest_cost = axes, cost
    return np.ascontiguousarray(best)
