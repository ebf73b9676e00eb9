"""Cells of centres: groups of centres that a search visits, and sketches that rule most centres of a cell out."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from closure_kmeans import kernels
from closure_kmeans.closure import FIRST_EXTRAPOLATED, cluster_by_closures
from closure_kmeans.clusters import group_by_label
from closure_kmeans.method import Method
from closure_kmeans.nearest import SEARCH_ROWS, search_block
from closure_kmeans.neighborhoods import FreshNeighborhoods
from closure_kmeans.parallel import Threads
from closure_kmeans.points import shifted
from closure_kmeans.stores import Rule
from closure_kmeans.stores.memory import MemoryStore

# The share of sample rows whose nearest centre must be found. Rows that a model has not seen are harder than those that
# it has, so this is more than the promised 0.99.
RECALL = 0.998
# Iterations and leaf size of the k-means over the centres.
CELL_ITERATIONS, CELL_LEAF_SIZE = 12, 256
# Rows that are sent to the cells together: enough for large products, few enough to fit the cache; and their visits.
ROWS_PER_SEARCH, VISITS_PER_SEARCH = 4096, 1 << 20
# Widths that sketches may have, and the cost of a centre that one does not rule out, in numbers of sketches.
SKETCH_WIDTHS = (32, 48, 64, 96, 128, 192, 256)
COST_OF_A_CENTER = 600
# Centres whose sketches are tried, the most numbers of the others, and the share of these in cells.
SKETCH_SAMPLE, SKETCH_NUMBERS, SHARE_IN_CELLS = 50, 50_000 * 128, 0.05
# Deviation of the directions of sketches in a file from orthonormal ones.
ORTHONORMAL = 1e-9


class Cells(NamedTuple):
    """Centres grouped into cells, for a search that visits a few of them. Vectors are relative to ``offset``."""

    offset: NDArray[Any]  # (d,)
    centers: NDArray[Any]  # (k, d) cell after cell
    ids: NDArray[np.int32]  # (k,) the centre's place in the model
    starts: NDArray[np.int64]  # (n_cells + 1,) cell c holds centers[starts[c]:starts[c + 1]]
    middles: NDArray[Any]  # (n_cells, d) means of the cells
    middle_norms: NDArray[Any]  # (n_cells,)
    axes: NDArray[np.float64]  # (d, m - 1) principal directions of the centres, orthonormal; none if m = d
    sketches: NDArray[Any]  # (k, m) of the centres; the centres themselves if m = d
    sketch_norms: NDArray[Any]  # (k,) squared norms


# Arrays that say how centres are grouped, from which the other fields of ``Cells`` follow.
GROUPING = ("ids", "starts", "middles", "axes")


def visit_nearest(
    X: NDArray[Any], cells: Cells, n_probes: int, threads: Threads
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest centre of each row among the centres in the ``n_probes`` nearest cells, and the squared distance.

    All threads search the same few rows, each in other cells: then reading the centres takes the time. Of many rows,
    each thread searches its own.
    """
    labels = np.empty(len(X), np.int32)
    distances = np.empty(len(X), np.float64)

    def search(helpers: Threads, first: int, last: int) -> None:
        search_cells(X[first:last], cells, n_probes, labels[first:last], distances[first:last], helpers)

    at_once = min(ROWS_PER_SEARCH, VISITS_PER_SEARCH // n_probes + 1)
    if len(X) < at_once:
        search(threads, 0, len(X))
    else:
        block = search_block(len(X), at_once, threads)
        threads.for_each_block(partial(search, Threads(1)), len(X), block)
    return labels, distances


def search_cells(
    X: NDArray[Any],
    cells: Cells,
    n_probes: int,
    labels: NDArray[np.int32],
    distances: NDArray[np.float64],
    threads: Threads,
) -> None:
    """Choose the cells of each row, compare each cell with its rows, and take the best of all visits."""
    rows = np.empty(X.shape, cells.centers.dtype)
    sketches = np.empty((len(X), cells.sketches.shape[1]), rows.dtype)
    chosen = np.empty((len(X), n_probes), np.int32)
    nearest = np.empty(len(X), np.int32)
    known, offsets = np.empty((2, len(X)))

    largest_norm = cells.sketch_norms.max()

    def choose(first: int, last: int) -> None:
        rows[first:last] = shifted(X[first:last], cells.offset)
        sketches[first:last] = sketch(rows[first:last], cells.axes)
        choose_cells(rows[first:last], cells, chosen[first:last])
        kernels.cells.bound_rows(
            rows, sketches, cells.centers, cells.starts, largest_norm, chosen, nearest, known, offsets, first, last
        )

    each = -(-len(X) // threads.n_threads)
    threads.for_each_block(choose, len(X), each)
    visits, starts = group_by_label(chosen.ravel(), len(cells.middles))
    visitors = visits // n_probes
    # A part of the cells for each thread, with equally many visits.
    cuts = np.searchsorted(starts, np.linspace(0, len(visits), threads.n_threads + 1))
    cuts[-1] = len(cells.middles)
    best, choice = (np.tile(begin, (threads.n_threads, 1)) for begin in (known, nearest))

    def visit(part: int, _: int) -> None:
        out = best[part], choice[part], kernels.cells.visit_memory(cells.sketches)
        kernels.cells.visit_cells(rows, sketches, cells, visitors, starts, offsets, *out, cuts[part], cuts[part + 1])

    threads.for_each_block(visit, threads.n_threads, 1)
    settle = partial(kernels.cells.settle_rows, cells.ids, best, choice, labels, distances)
    threads.for_each_block(settle, len(X), each)


def choose_cells(rows: NDArray[Any], cells: Cells, chosen: NDArray[np.int32]) -> None:
    """Choose the nearest cells of each row, one for each column of ``chosen``."""
    memory = kernels.cells.choice_memory(cells.middles)
    largest_norm = cells.middle_norms.max()
    for first in range(0, len(rows), SEARCH_ROWS):
        block = slice(first, first + SEARCH_ROWS)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = cells.middle_norms - 2 * (rows[block] @ cells.middles.T)
        kernels.cells.take_cells(rows[block], cells.middles, scores, largest_norm, chosen[block], memory)


def visit_several(
    X: NDArray[Any], cells: Cells, n_probes: int, n_nearest: int, threads: Threads
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest centres of each row among the centres in the nearest cells, and the squared distances."""
    n_nearest = min(n_nearest, len(cells.centers))
    labels = np.empty((len(X), n_nearest), np.int32)
    distances = np.empty((len(X), n_nearest), np.float64)
    # Even the smallest cells must hold n_nearest centres.
    n_probes = max(n_probes, 1 + int(np.searchsorted(np.sort(np.diff(cells.starts)).cumsum(), n_nearest)))

    def search(first: int, last: int) -> None:
        rows = shifted(X[first:last], cells.offset)
        scores, probed = np.empty_like(cells.middle_norms), np.empty(n_probes, np.int32)
        out = labels[first:last], distances[first:last], kernels.cells.choice_memory(cells.middles)
        kernels.cells.search_several(rows, cells, scores, probed, *out)

    threads.for_each_block(search, len(X), search_block(len(X), ROWS_PER_SEARCH, threads))
    return labels, distances


def count_probes(cells: Cells, rows: NDArray[Any], nearest: NDArray[Any]) -> int:
    """The number of cells to visit to find the ``nearest`` centre of the rows, which are relative to the offset."""
    cell = np.empty(len(cells.ids), np.int32)
    cell[cells.ids] = np.repeat(np.arange(len(cells.starts) - 1, dtype=np.int32), np.diff(cells.starts))
    scores = cells.middle_norms - 2 * rows @ cells.middles.T
    ranks = (scores < scores[np.arange(len(rows)), cell[nearest], np.newaxis]).sum(axis=1)
    return 1 + int(np.quantile(ranks, RECALL, method="higher"))


def count_cells(n_centers: int) -> int:
    """The number of cells for which choosing cells takes about as long as visiting them, by sketches."""
    return int(2 * np.sqrt(n_centers))


def group_centers(offset: NDArray[Any], centers: NDArray[Any], threads: Threads) -> Cells:
    """Group centres into cells, by k-means."""
    n_cells = count_cells(len(centers))
    rng = np.random.default_rng(0)
    store = MemoryStore(
        centers, np.ones(1), n_cells, tree_dims=Method().tree_dims, look_back=True, rng=rng, threads=threads
    )
    state, stopped_by = cluster_by_closures(
        store,
        store.begin(store.tree_labels()),
        FreshNeighborhoods(store.grow, CELL_LEAF_SIZE, len(centers), target_accuracy=0),
        Rule(hartigan=True),
        extrapolate_from=FIRST_EXTRAPOLATED,
        max_iter=CELL_ITERATIONS,
        tol=0.0,
        on_iteration=lambda *_: None,
    )
    if stopped_by == "interrupted":
        raise KeyboardInterrupt
    members, starts = group_by_label(state.labels, n_cells)
    middles = state.clusters.centers + store.offset
    return make_cells(centers, offset, store.order[members], starts, middles, choose_axes(centers))


def one_cell(centers: NDArray[Any], offset: NDArray[Any]) -> Cells:
    """All centres in one cell."""
    ids = np.arange(len(centers), dtype=np.int32)
    middles, no_axes = np.zeros((1, len(offset)), centers.dtype), np.empty((len(offset), 0))
    return make_cells(centers, offset, ids, np.array([0, len(centers)]), middles, no_axes)


def make_cells(
    centers: NDArray[Any],
    offset: NDArray[Any],
    ids: NDArray[np.int32],
    starts: NDArray[np.int64],
    middles: NDArray[Any],
    axes: NDArray[np.float64],
) -> Cells:
    """Cells of given grouping, middles and directions of sketches."""
    grouped = np.ascontiguousarray(centers[ids])
    sketches = sketch(grouped, axes)
    return Cells(
        offset=offset,
        centers=grouped,
        ids=ids,
        starts=starts,
        middles=middles,
        middle_norms=np.einsum("ij,ij->i", middles, middles),
        axes=axes,
        sketches=sketches,
        sketch_norms=np.einsum("ij,ij->i", sketches, sketches),
    )


def check_grouping(
    ids: NDArray[Any],
    starts: NDArray[Any],
    middles: NDArray[Any],
    axes: NDArray[Any],
    *,
    centers: NDArray[Any],
    n_probes: int,
) -> None:
    """Raise unless the arrays group all centres into cells."""
    n_centers, n_features = centers.shape
    fits = ids.shape == (n_centers,) and starts.shape == (len(middles) + 1,)
    fits = fits and middles.shape[1:] == (n_features,) and axes.ndim == 2 and len(axes) == n_features
    dtypes = ["int32", "int64", str(centers.dtype), "float64"]
    fits = fits and [str(array.dtype) for array in (ids, starts, middles, axes)] == dtypes
    if not (
        fits
        and np.array_equal(np.sort(ids), np.arange(n_centers))
        and starts[0] == 0
        and starts[-1] == n_centers
        and (np.diff(starts) > 0).all()  # a search begins with a centre of the nearest cell
        and np.isfinite(middles).all()
        and np.allclose(axes.T @ axes, np.eye(axes.shape[1]), rtol=0, atol=ORTHONORMAL)
        and n_probes <= len(middles)
    ):
        raise ValueError(f"all {n_centers} centres must be grouped into cells")


def sketch(rows: NDArray[Any], axes: NDArray[np.float64]) -> NDArray[Any]:
    """The coordinates of rows along some directions, and the length of the remainder.

    The distance of two sketches is a lower bound of that of the rows. Without directions, rows are their own sketches.
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
    """Directions of the sketches that make the search fastest; none if whole centres do.

    The width is found by a search of the nearest neighbour of some centres among as many others as cells hold. Sketches
    are made of float32 centres only, in double precision, so that all their errors are those of float32.
    """
    from sklearn.metrics.pairwise import euclidean_distances

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
