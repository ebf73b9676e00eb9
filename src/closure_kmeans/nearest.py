"""The nearest of all centres: rows and centres are rounded to bytes, which rule most pairs out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import kernels
from closure_kmeans.clusters import Members
from closure_kmeans.parallel import Threads
from closure_kmeans.points import rows_per_block, shifted

# The fewest rows of a thread, and the most that are searched together, which is few enough to fit the cache.
SEARCH_ROWS, ROWS_PER_SEARCH = 256, 4096
# Bytes of the centres that are compared with one panel of rows after the other: they stay in the second-level cache.
GROUP_BYTES = 1 << 17
# The relative rounding error of float32, in which bounds are computed.
FLOAT_EPSILON = 2.0**-23
# Rows per matrix product in a search for several nearest centres.
SEVERAL_ROWS = 64
# Rows of a fit that ``CenterIndex`` keeps as its sample.
SAMPLE_ROWS = 2000


class RoundedCenters(NamedTuple):
    """Centres, and the same rounded to bytes. There are ``NEAR_ROWS`` more codes than centres: tiles are read whole."""

    centers: NDArray[Any]  # (k, d)
    ids: NDArray[np.int32]  # (k,) the centre's place in the model
    codes: NDArray[np.int32]  # (k + NEAR_ROWS, words) four bytes in a word
    facts: NDArray[np.float32]  # (k + NEAR_ROWS, 4) scale, squared norm, and negative error and length: see near_tile
    largest_norm: float  # squared


class RoundedRows(NamedTuple):
    """Rows, and the same rounded to bytes."""

    rows: NDArray[Any]  # (n, d)
    codes: NDArray[np.int32]  # (n, words) four bytes in a word
    shifts: NDArray[np.int32]  # (n,) add to the product with the codes of a centre
    facts: NDArray[np.float32]  # (n, 3) step, length, and length of the error
    offsets: NDArray[np.float64]  # (n,) a centre is ruled out if its score exceeds the squared distance plus this


def round_centers(centers: NDArray[Any], ids: NDArray[np.int32]) -> RoundedCenters:
    """Round centres to bytes."""
    k = len(centers)
    codes, _, steps, norms, errors = round_vectors(
        centers, kernels.byte_tiles.CENTER_LEVELS, kernels.byte_tiles.NEAR_ROWS
    )
    facts = np.zeros((len(codes), 4), np.float32)
    with np.errstate(over="ignore"):
        facts[:k, 0] = -2 * steps
        facts[:k, 1] = np.minimum(norms, np.finfo(np.float32).max)  # bounds from below, also where squares overflow
        facts[:k, 2] = -2 * np.sqrt(errors)
        facts[:k, 3] = -2 * (np.sqrt(norms) + np.sqrt(errors))
    unsigned = codes.view(np.uint8) + np.uint8(byte_levels(centers, kernels.byte_tiles.CENTER_LEVELS))
    return RoundedCenters(centers, ids, unsigned.view(np.int32), facts, float(facts[:, 1].max()))


def round_rows(rows: NDArray[Any], centers: RoundedCenters) -> RoundedRows:
    """Round rows to bytes, to compare them with the centres."""
    codes, totals, steps, norms, errors = round_vectors(rows, kernels.byte_tiles.ROW_LEVELS)
    with np.errstate(over="ignore", invalid="ignore"):
        facts = np.stack([steps, np.sqrt(norms), np.sqrt(errors)], axis=1).astype(np.float32)
        offsets = (
            2 * (kernels.rows.SLACK + rows.shape[1]) * FLOAT_EPSILON * (norms + centers.largest_norm)
            + kernels.nearest.TINY
            - norms
        )
    shifts = -byte_levels(rows, kernels.byte_tiles.CENTER_LEVELS) * totals
    return RoundedRows(rows, codes.view(np.int32), shifts, facts, offsets)


def round_vectors(vectors: NDArray[Any], levels: int, n_more: int = 0) -> tuple[NDArray[Any], ...]:
    """Codes of vectors and so many zeros, their sums, steps, squared norms and squared errors.

    Codes are filled up with zeros to whole words.
    """
    n, width = vectors.shape
    codes = np.zeros((n + n_more, -(-width // 4) * 4), np.int8)
    totals, (steps, norms, errors) = np.empty(n, np.int32), np.empty((3, n))
    kernels.nearest.round_to_bytes(vectors, byte_levels(vectors, levels), codes, totals, steps, norms, errors)
    return codes, totals, steps, norms, errors


def byte_levels(vectors: NDArray[Any], levels: int) -> int:
    """The number of levels at which products of so many numbers fit into 32 bits."""
    return min(levels, int(np.sqrt(2.0**30 / vectors.shape[1])))


def nearest_centers(
    X: NDArray[Any], centers: NDArray[Any], offset: NDArray[Any], threads: Threads
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest of all centres of each row, the first of several, and the squared distance to it.

    The centres are relative to ``offset``, which is subtracted from the rows.
    """
    ids = np.arange(len(centers), dtype=np.int32)
    return nearest_of_all(X, round_centers(centers, ids), offset, threads)


def nearest_of_all(
    X: NDArray[Any], centers: RoundedCenters, offset: NDArray[Any], threads: Threads
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """``nearest_centers`` of centres that are rounded already."""
    labels = np.empty(len(X), np.int32)
    distances = np.empty(len(X), np.float64)

    def search(first: int, last: int) -> None:
        rows = shifted(X[first:last], offset)
        nearest = nothing_yet(len(rows))
        visit_all(round_rows(rows, centers), centers, nearest, Threads(1))
        settle(centers, nearest, labels[first:last], distances[first:last])

    threads.for_each_block(search, len(X), search_block(len(X), ROWS_PER_SEARCH, threads))
    return labels, distances


def search_blocks(search: Callable[[Threads, int, int], None], n_rows: int, at_once: int, threads: Threads) -> None:
    """Call ``search(threads, first, last)`` for blocks of rows.

    All threads search the same few rows, each among other centres: then reading the centres takes the time. Of
    ``at_once`` rows or more, each thread searches its own.
    """
    if 0 < n_rows < at_once:
        search(threads, 0, n_rows)
    else:
        block = search_block(n_rows, min(ROWS_PER_SEARCH, at_once), threads)
        threads.for_each_block(partial(search, Threads(1)), n_rows, block)


class Nearest(NamedTuple):
    """The nearest centre of each row so far, in one line for each thread, which searches among other centres."""

    distances: NDArray[np.float64]  # (n_threads, n) squared
    places: NDArray[np.int32]  # (n_threads, n) of the centres

    def repeated(self, n_lines: int) -> Nearest:
        """The same in several lines."""
        return Nearest(np.tile(self.distances, (n_lines, 1)), np.tile(self.places, (n_lines, 1)))


def nothing_yet(n_rows: int) -> Nearest:
    """One line: the first centre for each row, at no finite distance."""
    return Nearest(np.full((1, n_rows), np.inf), np.zeros((1, n_rows), np.int32))


def visit_all(rows: RoundedRows, centers: RoundedCenters, nearest: Nearest, threads: Threads) -> None:
    """Update the nearest centre of each row from all centres, group by group."""
    k, n_words = len(centers.ids), centers.codes.shape[1]
    size = min(GROUP_BYTES // (4 * n_words), -(-k // threads.n_threads))
    size = max(kernels.byte_tiles.NEAR_ROWS, -(-size // kernels.byte_tiles.NEAR_ROWS) * kernels.byte_tiles.NEAR_ROWS)
    groups = np.append(np.arange(0, k, size), k)
    n_rows, n_groups = len(rows.rows), len(groups) - 1
    visits = Members(np.tile(np.arange(n_rows, dtype=np.int32), n_groups), n_rows * np.arange(n_groups + 1))
    visit(rows, centers, groups, visits, nearest, threads)


def visit(
    rows: RoundedRows,
    centers: RoundedCenters,
    groups: NDArray[np.int64],
    visits: Members,
    nearest: Nearest,
    threads: Threads,
) -> None:
    """Update the nearest centre of each row from the groups of centres that it visits.

    Group g is the centres from ``groups[g]`` on, and ``visits`` says which rows visit it. Threads may share one line of
    ``nearest`` if every row visits one group only.
    """
    # A part of the groups for each thread, with equally many visits.
    cuts = np.searchsorted(visits.starts, np.linspace(0, len(visits.rows), threads.n_threads + 1))
    cuts[-1] = len(groups) - 1

    def visit_part(part: int, _: int) -> None:
        line = part % len(nearest.places)
        out = nearest.distances[line], nearest.places[line], kernels.nearest.panel_memory(centers.codes.shape[1])
        kernels.nearest.visit_groups(
            rows, centers, groups, visits.rows, visits.starts, *out, cuts[part], cuts[part + 1]
        )

    threads.for_each_block(visit_part, threads.n_threads, 1)


def settle(
    centers: RoundedCenters, nearest: Nearest, labels: NDArray[np.int32], distances: NDArray[np.float64]
) -> None:
    """Labels and squared distances from the nearest centres that the threads have found."""
    kernels.nearest.settle_rows(centers.ids, *nearest, labels, distances)


def several_nearest_centers(
    X: NDArray[Any], centers: NDArray[Any], offset: NDArray[Any], n_nearest: int, threads: Threads
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest of all centres of each row in ascending order, or all, and the squared distances to them.

    The centres are relative to ``offset``, which is subtracted from the rows.
    """
    n_nearest = min(n_nearest, len(centers))
    norms = np.einsum("ij,ij->i", centers, centers)
    labels = np.empty((len(X), n_nearest), np.int32)
    distances = np.empty((len(X), n_nearest), np.float64)

    def search(begin: int, end: int) -> None:
        best = np.empty(n_nearest, centers.dtype)
        for first in range(begin, end, SEVERAL_ROWS):
            block = slice(first, min(first + SEVERAL_ROWS, end))
            rows = shifted(X[block], offset)
            with np.errstate(over="ignore", invalid="ignore"):
                scores = norms - 2 * (rows @ centers.T)
            kernels.nearest.settle_several(rows, centers, norms.max(), scores, best, labels[block], distances[block])

    threads.for_each_block(search, len(X), search_block(len(X), rows_per_block(X), threads))
    return labels, distances


def search_block(n_rows: int, largest: int, threads: Threads) -> int:
    """Rows to search at a time: equally many for each thread and at most ``largest``, for large products."""
    n_blocks = threads.n_threads * -(-n_rows // (largest * threads.n_threads))
    return max(SEARCH_ROWS, -(-n_rows // max(n_blocks, 1)))
