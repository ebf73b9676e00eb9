"""Checks of centres, labels and weights, and of rows that are compared with centres."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from closure_kmeans.points import check_uncut, check_values, precision, rows_per_block, shifted, unmasked


def check_weights(sample_weight: ArrayLike, n_rows: int) -> NDArray[np.float64]:
    """Check the weights of rows: finite, not negative, not all zero, one for each row."""
    given = np.asarray(unmasked("sample_weight", sample_weight))
    if given.dtype.kind not in "biuf":
        raise TypeError(f"sample_weight must hold numbers, got {given.dtype}")
    weights = given.astype(np.float64)
    if weights.shape != (n_rows,):
        raise ValueError(f"sample_weight must have shape ({n_rows},), one weight per row, got {weights.shape}")
    if not np.isfinite(weights).all():
        raise ValueError("sample_weight must not contain NaN or infinity")
    if (weights < 0).any():
        raise ValueError(f"sample_weight must not be negative, got {weights.min()}")
    if not weights.any():
        raise ValueError("sample_weight must not be zero for every row")
    return weights


def check_labels(name: str, value: ArrayLike, n_rows: int, n_clusters: int) -> NDArray[Any]:
    """Check labels: integers below the number of clusters, one for each row."""
    array = np.asarray(unmasked(name, value))
    if array.shape != (n_rows,):
        raise ValueError(f"{name} must have shape ({n_rows},), one per row, got {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integers, got {array.dtype}")
    if n_rows and (array.min() < 0 or array.max() >= n_clusters):
        raise ValueError(f"{name} must lie in 0..{n_clusters - 1}, got values in {array.min()}..{array.max()}")
    return array


def check_start(value: ArrayLike, n_clusters: int, X: NDArray[Any]) -> NDArray[Any]:
    """Check a start given as labels, or as at most ``n_clusters`` centres."""
    if isinstance(value, BaseEstimator):
        raise TypeError("init=model was removed in version 0.2: use init=model.cluster_centers_")
    check_uncut(value)
    array = np.asarray(unmasked("init", value))
    if array.ndim == 0:
        raise ValueError(f"init must be one of 'tree', 'random', or an array of centres or labels, got {value!r}")
    if array.ndim == 1:
        return check_labels("init given as labels", array, len(X), n_clusters)
    if array.ndim != 2 or not 0 < len(array) <= n_clusters or array.shape[1] != X.shape[1]:
        raise ValueError(
            f"init given as centres must have shape (at most n_clusters, n_features) = ({n_clusters}, {X.shape[1]}), "
            f"got {array.shape}"
        )
    return _finite_centers("init given as centres", array, precision(X.dtype), centred=False)


def check_centers(name: str, value: ArrayLike) -> NDArray[Any]:
    """Check centres; float64 stays float64, all else becomes float32."""
    array = np.asarray(unmasked(name, value))
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} must be an array of shape (n_clusters, n_features), got {array.shape}")
    return _finite_centers(name, array, precision(array.dtype), centred=True)


def _finite_centers(name: str, array: NDArray[Any], dtype: type[np.floating[Any]], *, centred: bool) -> NDArray[Any]:
    """Convert centres to a precision; raise if they, or their squared norms, less the mean if ``centred``, overflow."""
    if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise ValueError(f"{name} must hold finite numbers only")
    with np.errstate(over="ignore", invalid="ignore"):
        found = array.astype(dtype, copy=False)
        squares = squares_to(found, found.mean(axis=0) if centred else np.zeros_like(found[0]))
    overflowing = np.flatnonzero(~np.isfinite(squares))
    if len(overflowing) > 0:
        raise ValueError(
            f"{name} must not hold values whose squares overflow {found.dtype}, but row {overflowing[0]} does"
        )
    return found


def check_new_rows(X: NDArray[Any], center: NDArray[Any], first: int = 0, name: str = "X") -> None:
    """Raise unless rows and their squared distances to a centre are finite, in the precision of their dtype.

    Errors call the rows ``name``, and the first one row ``first``. One sum bounds all distances:
    ‖x − c‖² ≤ 2 ‖x‖² + 2 ‖c‖². Only if it overflows, each row is checked.
    """
    check_uncut(X)
    center = center.astype(precision(X.dtype))
    total: Any = 0
    with np.errstate(over="ignore", invalid="ignore"):
        if X.dtype == center.dtype:
            total = np.einsum("ij,ij->", X, X)
        elif X.dtype.kind == "f":  # float16: no square of it overflows
            total = X.sum(dtype=np.float64)
        if not np.isfinite(2 * (total + np.einsum("i,i", center, center))):
            check_values(X, squares_to(X, center), first, name)


def squares_to(rows: NDArray[Any], point: NDArray[Any]) -> NDArray[Any]:
    """The squared distance of each row to a point."""
    dtype = precision(rows.dtype)
    squares = np.empty(len(rows), dtype)
    for first in range(0, len(rows), rows_per_block(rows)):
        apart = shifted(rows[first : first + rows_per_block(rows)], point.astype(dtype))
        squares[first : first + len(apart)] = np.einsum("ij,ij->i", apart, apart)
    return squares
