"""The nearest centre of any row, at any number of centres.

Up to some thousands of centres the search compares a row with all of them. Beyond, the centres are grouped into cells
by the library's own k-means, and a row is compared with the centres in the cells nearest to it; how many cells are
needed is measured on a sample of rows. Rows and centres rounded to bytes rule most centres out, which changes nothing
but the time. The result is a pure function of each row.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from closure_kmeans import validation as check
from closure_kmeans.arrays import check_centers
from closure_kmeans.cells import (
    GROUPING,
    Cells,
    check_grouping,
    count_cells,
    count_probes,
    group_centers,
    make_cells,
    visit_nearest,
    visit_several,
)
from closure_kmeans.nearest import (
    SAMPLE_ROWS,
    RoundedCenters,
    nearest_centers,
    nearest_of_all,
    round_centers,
    several_nearest_centers,
)
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.points import precision, shifted
from closure_kmeans.trees import grow_partition

# Centres above which a row is compared with some cells of them only.
MANY_CENTERS = 10_000
# Trees, and centres in a leaf, that find the closest other of nearly all centres.
N_TREES, TREE_LEAF_SIZE = 6, 128
# Prefix of the names of the arrays of cells in a file.
CELLS = "cells."
# Centres compared with all others at a time.
BLOCK_CENTERS = 1024


class CenterIndex:
    """Nearest centres of rows, for any number of centres.

    Up to 10,000 centres, a row is compared with all of them. Beyond, it is compared with the centres in the cells
    nearest to it, which finds the nearest centre for more than 99 % of rows like the sample. The cells are built on
    first use.

    Parameters
    ----------
    centers : (k, d) array
        Centres from any library or file. float64 stays float64, everything else becomes float32.
    sample : (m, d) array, default=None
        About 2,000 rows like those that will be searched, to determine how many cells to visit. Without them, centres
        are searched among the other centres; as they are farther apart than rows and their centres, more cells are
        visited.
    n_threads : int, default=None
        Number of threads; by default all cores that the process may use.

    See Also
    --------
    ClosureKMeans : Fitted models have an index of their centres, ``center_index_``.

    Examples
    --------
    >>> from closure_kmeans import CenterIndex
    >>> index = CenterIndex([[0.0], [4.0], [10.0]])
    >>> index.nearest([[1.0], [9.0]])
    (array([0, 2], dtype=int32), array([1., 1.]))
    >>> labels, squared_distances = index.search([[1.0]], n_nearest=2)
    >>> labels.tolist(), squared_distances.tolist()
    ([[0, 1]], [[1.0, 9.0]])
    """

    n_threads: int | None

    def __init__(self, centers: ArrayLike, *, sample: ArrayLike | None = None, n_threads: int | None = None) -> None:
        check.integer("n_threads", n_threads, 1, optional=True)
        checked = check_centers("centers", centers)
        self._set(checked, None if sample is None else check.vectors("sample", sample, checked), None)
        self.n_threads = n_threads

    def _set(self, centers: NDArray[Any], sample: NDArray[Any] | None, offset: NDArray[Any] | None) -> None:
        self.centers = centers
        self.n_threads = None
        self.n_probes: int | None = None  # cells that are visited, once it is known
        self._sample = sample
        self._offset = offset  # subtracted from rows and centres; by default the mean of the centres
        self._grouping: list[NDArray[Any]] | None = None  # of the cells in the precision of the centres
        self._cells: dict[type[np.floating[Any]], Cells] = {}
        self._rounded: dict[type[np.floating[Any]], tuple[NDArray[Any], RoundedCenters]] = {}  # with the offset

    @classmethod
    def of(
        cls, centers: NDArray[Any], *, sample: NDArray[Any] | None = None, offset: NDArray[Any] | None = None
    ) -> Self:
        """The index of centres that need no check."""
        index = cls.__new__(cls)
        index._set(centers, sample, offset)
        return index

    def nearest(self, X: ArrayLike, *, exact: bool = False) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Find the nearest centre of each row.

        Parameters
        ----------
        X : (n, d) array
            Rows.
        exact : bool, default=False
            Whether to compare with all centres, whatever their number.

        Returns
        -------
        labels : (n,) array of int32
            Index of the nearest centre.
        squared_distances : (n,) array of float64
            Squared distance to it.

        See Also
        --------
        search : Several nearest centres.

        Examples
        --------
        >>> CenterIndex([[0.0], [4.0], [10.0]]).nearest([[1.0], [9.0]])
        (array([0, 2], dtype=int32), array([1., 1.]))
        """
        return self.find(check.vectors("X", X, self.centers), exact)

    def search(self, X: ArrayLike, n_nearest: int = 1) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Find several nearest centres of each row.

        Parameters
        ----------
        X : (n, d) array
            Rows.
        n_nearest : int, default=1
            Number of centres per row; all, if there are fewer.

        Returns
        -------
        labels : (n, n_nearest) array of int32
            Indices of the centres, nearest first.
        squared_distances : (n, n_nearest) array of float64
            Squared distances to them.

        See Also
        --------
        nearest : One centre per row, exact if wanted.

        Examples
        --------
        >>> labels, squared_distances = CenterIndex([[0.0], [4.0], [10.0]]).search([[1.0]], n_nearest=2)
        >>> labels.tolist(), squared_distances.tolist()
        ([[0, 1]], [[1.0, 9.0]])
        """
        check.integer("n_nearest", n_nearest, 1)
        return self.find_several(check.vectors("X", X, self.centers), n_nearest)

    def separations(self) -> NDArray[np.float64]:
        """Compute the distance of each centre to the nearest other centre.

        Beyond 10,000 centres it is searched in random partition trees, and may be missed.

        Returns
        -------
        (k,) array of float64
            Distances, not squared; infinite for a single centre.

        See Also
        --------
        search : Several nearest centres of any rows.

        Examples
        --------
        >>> CenterIndex([[0.0], [4.0], [10.0]]).separations().tolist()
        [4.0, 4.0, 6.0]
        """
        _, centers = self.relative(self.centers.dtype)
        with Threads(count_threads(self.n_threads)) as threads:
            return closest_distances(centers, threads)

    # -- rows that were checked ----------------------------------------------------------------------------------------

    def find(self, rows: NDArray[Any], exact: bool = False) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """``nearest`` without checks."""
        with Threads(count_threads(self.n_threads)) as threads:
            dtype = precision(rows.dtype)
            if len(self.centers) > MANY_CENTERS and not exact:
                return visit_nearest(rows, self.grouped(dtype, threads), self._count_probes(threads), threads)
            offset, rounded = self.rounded(dtype)
            return nearest_of_all(rows, rounded, offset, threads)

    def find_several(self, rows: NDArray[Any], n_nearest: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """``search`` without checks."""
        dtype = precision(rows.dtype)
        with Threads(count_threads(self.n_threads)) as threads:
            if n_nearest == 1:
                labels, distances = CenterIndex.find(self, rows)  # among all centres, also if a subclass has a tree
                return labels[:, np.newaxis], distances[:, np.newaxis]
            if len(self.centers) <= MANY_CENTERS:
                offset, centers = self.relative(dtype)
                return several_nearest_centers(rows, centers, offset, n_nearest, threads)
            return visit_several(rows, self.grouped(dtype, threads), self._count_probes(threads), n_nearest, threads)

    def relative(self, dtype: DTypeLike) -> tuple[NDArray[Any], NDArray[Any]]:
        """The offset, and the centres relative to it, in the precision of a dtype."""
        centers = self.centers.astype(precision(dtype), copy=False)
        offset = centers.mean(axis=0) if self._offset is None else self._offset.astype(centers.dtype)
        return offset, centers - offset

    def rounded(self, dtype: type[np.floating[Any]]) -> tuple[NDArray[Any], RoundedCenters]:
        """The offset, and all centres in bytes, in a precision: those of the cells, if there are cells."""
        if dtype in self._cells:
            return self._cells[dtype].offset, self._cells[dtype].centers
        if dtype not in self._rounded or len(self.centers) <= MANY_CENTERS:
            offset, centers = self.relative(dtype)
            if dtype not in self._rounded or not np.array_equal(self._rounded[dtype][1].centers, centers):
                # New, or changed in place.
                self._rounded[dtype] = offset, round_centers(centers, np.arange(len(centers), dtype=np.int32))
        return self._rounded[dtype]

    def grouped(self, dtype: type[np.floating[Any]], threads: Threads) -> Cells:
        """The cells in a precision."""
        if dtype not in self._cells:
            offset, centers = self.relative(dtype)
            is_own = dtype == precision(self.centers.dtype)
            if is_own and self._grouping is not None:
                self._cells[dtype] = make_cells(centers, offset, *self._grouping)
            else:
                cells = group_centers(offset, centers, threads)
                if is_own:
                    self._grouping = cells.grouping
                self._cells[dtype] = cells
        return self._cells[dtype]

    def _count_probes(self, threads: Threads) -> int:
        """The number of cells to visit, measured once, in the precision of the centres."""
        if self.n_probes is None:
            cells = self.grouped(precision(self.centers.dtype), threads)
            offset, centers = self.relative(self.centers.dtype)
            if self._sample is not None:
                rows = shifted(self._sample, offset)
                nearest, _ = nearest_of_all(self._sample, cells.centers, offset, threads)
            else:
                searched = np.arange(0, len(centers), max(2, -(-len(centers) // SAMPLE_ROWS)))
                others = np.delete(np.arange(len(centers)), searched)
                rows = centers[searched]
                nearest, _ = nearest_centers(rows, centers[others], np.zeros_like(offset), threads)
                nearest = others[nearest].astype(np.int32)
            self.n_probes = count_probes(cells, rows, nearest)
        return self.n_probes

    def __getstate__(self) -> dict[str, Any]:
        """State for pickling, without centres in bytes: how they are rounded depends on the processor."""
        return self.__dict__ | {"_cells": {}, "_rounded": {}}

    # -- files ---------------------------------------------------------------------------------------------------------

    def prepare(self) -> Self:
        """Build the cells now, if a search would need them.

        Returns
        -------
        CenterIndex
            The index itself.

        See Also
        --------
        nearest : Builds them on its first call otherwise.

        Examples
        --------
        >>> CenterIndex([[0.0], [4.0], [10.0]]).prepare().nearest([[1.0]])[0].tolist()
        [0]
        """
        if len(self.centers) > MANY_CENTERS:
            with Threads(count_threads(self.n_threads)) as threads:
                self.grouped(precision(self.centers.dtype), threads)
                self._count_probes(threads)
        return self

    def pack(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and facts for a file, from which ``unpack`` makes this index, given the centres."""
        if len(self.centers) <= MANY_CENTERS:
            return {}, {"n_probes": None}
        if self._grouping is None or self.n_probes is None:
            self.prepare()
        arrays = zip(GROUPING, self._grouping or [], strict=True)
        return {CELLS + name: array for name, array in arrays}, {"n_probes": self.n_probes}

    @classmethod
    def unpack(
        cls, centers: NDArray[Any], arrays: dict[str, NDArray[Any]], facts: dict[str, Any]
    ) -> tuple[Self, dict[str, NDArray[Any]]]:
        """The index of some centres from the arrays and facts of a file, and the other arrays.

        Raises ``ValueError`` if it cannot be the index of these centres.
        """
        index = cls.of(centers)
        own = {name: array for name, array in arrays.items() if name.startswith(CELLS)}
        others = {name: array for name, array in arrays.items() if name not in own}
        n_probes = facts["n_probes"]
        if n_probes is None and len(centers) <= MANY_CENTERS:
            return index, others
        if type(n_probes) is not int or not 0 < n_probes <= count_cells(len(centers)):
            raise ValueError(f"n_probes must be from 1 to {count_cells(len(centers))} cells, but is {n_probes}")
        index.n_probes = n_probes
        if own:  # files of version 0.1 have none
            index._grouping = [own[CELLS + name] for name in GROUPING]
            check_grouping(*index._grouping, centers=centers, n_probes=n_probes)
        return index, others


def index_size(n_centers: int, n_features: int, width: int) -> int:
    """The most bytes of the arrays of an index in a file; ``width`` is that of a value of the centres."""
    if n_centers <= MANY_CENTERS:
        return 0
    n_cells = count_cells(n_centers)
    return 4 * n_centers + 8 * (n_cells + 1) + n_cells * n_features * width


def closest_distances(centers: NDArray[Any], threads: Threads) -> NDArray[np.float64]:
    """The distance of each centre to the closest of all others, or beyond ``MANY_CENTERS`` of those in its leaves."""
    closest = np.full(len(centers), np.inf)
    everyone = np.arange(len(centers), dtype=np.int32)

    def compare(some: NDArray[np.int32], others: NDArray[np.int32]) -> None:
        here, there = centers[some], centers[others]
        norms = np.einsum("ij,ij->i", here, here)
        squares = norms[:, np.newaxis] - 2 * here @ there.T + np.einsum("ij,ij->i", there, there)
        squares[some[:, np.newaxis] == others] = np.inf
        closest[some] = np.minimum(closest[some], np.maximum(squares.min(axis=1), 0))

    def compare_leaves(members: NDArray[np.int32], starts: NDArray[np.int64], first: int, last: int) -> None:
        for leaf in range(first, last):
            together = members[starts[leaf] : starts[leaf + 1]]
            compare(together, together)

    if len(centers) <= MANY_CENTERS:
        threads.for_each_block(lambda first, last: compare(everyone[first:last], everyone), len(centers), BLOCK_CENTERS)
    else:
        rng = np.random.default_rng(0)
        for _ in range(N_TREES):
            n_leaves = -(-len(centers) // TREE_LEAF_SIZE)
            tree = grow_partition(centers, np.zeros_like(centers[0]), n_leaves, rng, threads)
            threads.for_each_block(partial(compare_leaves, tree.members, tree.starts), len(tree.starts) - 1)
    distances: NDArray[np.float64] = np.sqrt(closest)
    return distances


def compile_cells(X: NDArray[Any], centers: NDArray[Any], n_nearest: int = 1) -> None:
    """Search a few rows among a few centres by cells, as many centres are searched: it compiles the kernels for it."""
    index = CenterIndex(centers, sample=X)
    with Threads(count_threads(None)) as threads:
        cells = index.grouped(precision(X.dtype), threads)
        if n_nearest == 1:
            visit_nearest(X, cells, len(cells.middles), threads)
        else:
            visit_several(X, cells, len(cells.middles), n_nearest, threads)
