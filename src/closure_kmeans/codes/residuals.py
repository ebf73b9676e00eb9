"""Residuals: rows minus the centres of their codes, computed block by block when read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.parallel import Threads
from closure_kmeans.points import empty_rows, forget, precision, rows_per_block
from closure_kmeans.spherical import unit_rows

# Values computed at a time when residuals are sliced; keeps temporaries small.
READ_VALUES = 1 << 17


class Residuals:
    """Residuals of rows after the first levels; an array whose slices are computed on demand.

    ``codes`` (n, l) holds the number of each row's centre in each of the ``codebooks`` (k, d). ``spherical``: rows are
    L2-normalised. ``normalized``: residuals are L2-normalised before each codebook and at the end, except those of
    length 0.
    """

    ndim = 2

    def __init__(
        self,
        rows: Any,
        codes: NDArray[np.int32],
        codebooks: Sequence[NDArray[Any]],
        *,
        spherical: bool,
        normalized: bool,
    ) -> None:
        self.shape, self.dtype = rows.shape, np.dtype(precision(rows.dtype))
        self._rows, self._codes, self._codebooks = rows, codes, codebooks
        self._spherical, self._normalized = spherical, normalized

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, some: slice) -> NDArray[Any]:
        wanted = range(*some.indices(len(self)))
        left = np.empty((len(wanted), self.shape[1]), self.dtype)
        size = rows_per_block(left, READ_VALUES)
        for first in range(0, len(left), size):
            left[first : first + size] = self._compute(wanted[first : first + size])
        return left

    def _compute(self, wanted: range) -> NDArray[Any]:
        some = slice(wanted.start, wanted.stop, wanted.step)
        left = as_floats(self._rows[some], self._spherical, wanted)
        forget(self._rows)
        codes = self._codes[some]
        for level, centers in enumerate(self._codebooks):
            if self._normalized:
                normalize(left)
            left -= centers[codes[:, level]]
        if self._normalized:
            normalize(left)
        return left

    def hold(self, dtype: Any, threads: Threads) -> NDArray[Any]:
        """Compute all residuals into an array."""
        held = empty_rows(self.shape, dtype)

        def fill(first: int, last: int) -> None:
            with np.errstate(over="ignore"):  # a fit names the row
                held[first:last] = self._compute(range(first, last))

        threads.for_each_block(fill, len(self), rows_per_block(held))
        return held


def as_floats(rows: Any, spherical: bool, numbers: range) -> NDArray[Any]:
    """Copy rows in the precision of the arithmetic; L2-normalise them if ``spherical``."""
    block = np.asarray(rows)
    return unit_rows(block, numbers=numbers) if spherical else block.astype(precision(block.dtype), order="C")


def normalize(rows: NDArray[Any]) -> NDArray[Any]:
    """L2-normalise float rows in place, except those of length 0; returns the lengths, 1 for these."""
    lengths: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    lengths[lengths == 0] = 1
    rows /= lengths[:, np.newaxis].astype(rows.dtype)
    return lengths


def fit_gains(
    rows: Any,
    codes: NDArray[np.int32],
    codebooks: Sequence[NDArray[Any]],
    weights: NDArray[np.float64],
    *,
    spherical: bool,
) -> NDArray[np.float64]:
    """Fit one factor per codebook by least squares, so that the sums of scaled centres approximate the rows."""
    n_levels = len(codebooks)
    products, targets = np.zeros((n_levels, n_levels)), np.zeros(n_levels)
    weights = np.broadcast_to(weights, len(rows))
    n_rows = rows_per_block(rows)
    for first in range(0, len(rows), n_rows):
        some = slice(first, min(first + n_rows, len(rows)))
        block = as_floats(rows[some], spherical, range(some.start, some.stop))
        parts = [centers[codes[some, level]] for level, centers in enumerate(codebooks)]
        for i in range(n_levels):
            targets[i] += weights[some] @ np.einsum("ij,ij->i", parts[i], block, dtype=np.float64)
            for j in range(n_levels):
                products[i, j] += weights[some] @ np.einsum("ij,ij->i", parts[i], parts[j], dtype=np.float64)
    return np.linalg.lstsq(products, targets, rcond=None)[0].astype(np.float64, copy=False)
