"""Cells of centres: groups of centres, of which a search visits the nearest ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import kernels
from closure_kmeans.closure import FIRST_EXTRAPOLATED, cluster_by_closures
from closure_kmeans.clusters import group_by_label
from closure_kmeans.method import Method
from closure_kmeans.nearest import (
    ROWS_PER_SEARCH,
    SEARCH_ROWS,
    RoundedCenters,
    RoundedRows,
    nothing_yet,
    round_centers,
    round_rows,
    search_block,
    search_blocks,
    settle,
    visit,
)
from closure_kmeans.parallel import Threads
from closure_kmeans.points import shifted
from closure_kmeans.stores import Rule
from closure_kmeans.stores.memory import MemoryStore
from closure_kmeans.trees import FreshNeighborhoods

# The share of sample rows whose nearest centre must be found. Rows that a model has not seen are harder than those that
# it has, so this is more than the promised 0.99.
RECALL = 0.998
# Iterations and leaf size of the k-means over the centres.
CELL_ITERATIONS, CELL_LEAF_SIZE = 12, 256
# Visits of cells by rows that are searched together.
VISITS_PER_SEARCH = 1 << 20


class Cells(NamedTuple):
    """Centres grouped into cells, for a search that visits a few of them. Vectors are relative to ``offset``."""

    offset: NDArray[Any]
    centers: RoundedCenters  # cell after cell
    starts: NDArray[np.int64]  # (n_cells + 1,) cell c holds the centres from starts[c] to starts[c + 1]
    middles: NDArray[Any]  # (n_cells, d) means of the cells
    middle_norms: NDArray[Any]  # (n_cells,)

    @property
    def grouping(self) -> list[NDArray[Any]]:
        """What ``make_cells`` makes cells of, in the order of ``GROUPING``."""
        return [self.centers.ids, self.starts, self.middles]


# Names of the arrays that say how centres are grouped, from which the other fields of ``Cells`` follow.
GROUPING = ("ids", "starts", "middles")


def visit_nearest(
    X: NDArray[Any], cells: Cells, n_probes: int, threads: Threads
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest centre of each row among the centres in the ``n_probes`` nearest cells, and the squared distance."""
    labels = np.empty(len(X), np.int32)
    distances = np.empty(len(X), np.float64)

    def search(helpers: Threads, first: int, last: int) -> None:
        search_cells(X[first:last], cells, n_probes, labels[first:last], distances[first:last], helpers)

    search_blocks(search, len(X), min(ROWS_PER_SEARCH, VISITS_PER_SEARCH // n_probes + 1), threads)
    return labels, distances


def search_cells(
    X: NDArray[Any],
    cells: Cells,
    n_probes: int,
    labels: NDArray[np.int32],
    distances: NDArray[np.float64],
    threads: Threads,
) -> None:
    """Compare each row with the centres of the nearest cell, then with those of the others that it visits."""
    centers, n_cells = cells.centers, len(cells.middles)
    chosen = np.empty((len(X), n_probes), np.int32)

    def prepare(first: int, last: int) -> RoundedRows:
        rows = shifted(X[first:last], cells.offset)
        choose_cells(rows, cells, chosen[first:last])
        return round_rows(rows, centers)

    parts = threads.for_each_block(prepare, len(X), -(-len(X) // threads.n_threads))
    rows = parts[0] if len(parts) == 1 else RoundedRows(*map(np.concatenate, zip(*parts, strict=True)))
    nearest = nothing_yet(len(X))
    nearest.places[:] = cells.starts[chosen[:, 0]]
    visit(rows, centers, cells.starts, group_by_label(chosen[:, 0], n_cells), nearest, threads)
    nearest = nearest.repeated(threads.n_threads)
    if n_probes > 1:
        visits = group_by_label(chosen[:, 1:].ravel(), n_cells)
        visit(rows, centers, cells.starts, visits._replace(rows=visits.rows // (n_probes - 1)), nearest, threads)
    settle(centers, nearest, labels, distances)


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
    n_nearest = min(n_nearest, len(cells.centers.ids))
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
    cell = np.empty(len(cells.centers.ids), np.int32)
    cell[cells.centers.ids] = np.repeat(np.arange(len(cells.starts) - 1, dtype=np.int32), np.diff(cells.starts))
    scores = cells.middle_norms - 2 * rows @ cells.middles.T
    ranks = (scores < scores[np.arange(len(rows)), cell[nearest], np.newaxis]).sum(axis=1)
    return 1 + int(np.quantile(ranks, RECALL, method="higher"))


def count_cells(n_centers: int) -> int:
    """The number of cells for which choosing cells takes about as long as visiting them."""
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
    return make_cells(centers, offset, store.order[members], starts, middles)


def make_cells(
    centers: NDArray[Any],
    offset: NDArray[Any],
    ids: NDArray[np.int32],
    starts: NDArray[np.int64],
    middles: NDArray[Any],
) -> Cells:
    """Cells of given grouping and middles."""
    grouped = round_centers(np.ascontiguousarray(centers[ids]), ids)
    return Cells(offset, grouped, starts, middles, np.einsum("ij,ij->i", middles, middles))


def check_grouping(
    ids: NDArray[Any],
    starts: NDArray[Any],
    middles: NDArray[Any],
    *,
    centers: NDArray[Any],
    n_probes: int,
) -> None:
    """Raise unless the arrays group all centres into cells."""
    n_centers, n_features = centers.shape
    fits = ids.shape == (n_centers,) and starts.shape == (len(middles) + 1,)
    fits = fits and middles.shape[1:] == (n_features,)
    fits = fits and [str(array.dtype) for array in (ids, starts, middles)] == ["int32", "int64", str(centers.dtype)]
    if not (
        fits
        and np.array_equal(np.sort(ids), np.arange(n_centers))
        and starts[0] == 0
        and starts[-1] == n_centers
        and (np.diff(starts) > 0).all()  # a search begins with a centre of the nearest cell
        and np.isfinite(middles).all()
        and n_probes <= len(middles)
    ):
        raise ValueError(f"all {n_centers} centres must be grouped into cells")
