"""Encoding: greedy search, level by level, and beam search; numbers for rows with equal codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans.codes.residuals import normalize
from closure_kmeans.search import CenterIndex

# Residuals searched at a time; enough for the cells of an index to pay off.
BLOCK_ROWS = 1 << 15


def encode_greedily(left: NDArray[Any], indexes: Sequence[CenterIndex], normalized: bool) -> NDArray[np.int32]:
    """Nearest centre of each residual, level by level; ``left`` is overwritten by the final residuals."""
    codes = np.empty((len(left), len(indexes)), np.int32)
    for level, index in enumerate(indexes):
        if normalized:
            normalize(left)
        codes[:, level], _ = index.find(left)
        left -= index.centers[codes[:, level]]
    return codes


def encode_by_beam(
    rows: NDArray[Any], indexes: Sequence[CenterIndex], normalized: bool, beam: int
) -> NDArray[np.int32]:
    """Beam search: keeps the ``beam`` paths of least error after each level.

    A path continues to the ``beam`` centres nearest to its residual. Ties keep the first path.
    """
    n_rows, n_features = rows.shape
    codes = np.empty((n_rows, 1, 0), np.int32)
    left, scales = rows[:, np.newaxis], np.ones((n_rows, 1))  # of each path; left is the residual divided by its scale
    for index in indexes:
        flat = left.reshape(-1, n_features)
        if normalized:
            scales = scales * normalize(flat).reshape(scales.shape)
        labels, squares = index.find_several(flat, beam)
        errors = (squares.reshape(*scales.shape, -1) * scales[..., np.newaxis] ** 2).reshape(n_rows, -1)
        best = np.argsort(errors, axis=1, kind="stable")[:, :beam]
        paths = best // labels.shape[1]
        chosen = np.take_along_axis(labels.reshape(n_rows, -1), best, axis=1)
        codes = np.concatenate([np.take_along_axis(codes, paths[..., np.newaxis], axis=1), chosen[..., np.newaxis]], 2)
        left = np.take_along_axis(left, paths[..., np.newaxis], axis=1) - index.centers[chosen]
        scales = np.take_along_axis(scales, paths, axis=1)
    return codes[:, 0]


def count_collisions(codes: ArrayLike) -> NDArray[np.int32]:
    """Number of earlier rows with the same codes, for each row; as one more column it makes codes unique.

    Parameters
    ----------
    codes : array-like of int, shape (n, n_levels)
        Codes of the rows.

    Returns
    -------
    numbers : (n,) array of int32
        0 for the first row with its codes, 1 for the second, and so on.

    Raises
    ------
    ValueError
        If ``codes`` does not have two dimensions.

    See Also
    --------
    closure_kmeans.ResidualKMeans : Appends these numbers with ``unique=True``.

    Examples
    --------
    >>> count_collisions([[3, 5], [0, 1], [3, 5], [3, 5]]).tolist()
    [0, 0, 1, 2]
    """
    table = np.asarray(codes)
    if table.ndim != 2:
        raise ValueError(f"codes must have shape (n, n_levels), got {table.shape}")
    order = np.lexsort(table.T[::-1])
    in_order = table[order]
    is_first = np.ones(len(table), bool)
    is_first[1:] = (in_order[1:] != in_order[:-1]).any(axis=1)
    starts = np.flatnonzero(is_first)
    places = np.arange(len(table)) - np.repeat(starts, np.diff(np.append(starts, len(table))))
    numbers = np.empty(len(table), np.int32)
    numbers[order] = places
    return numbers
