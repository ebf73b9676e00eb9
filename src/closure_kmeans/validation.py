"""Checks of parameters and inputs. Messages name the thing, the rule and the value."""

from __future__ import annotations

import math
import numbers
import os
import re
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state

from closure_kmeans.method import Method
from closure_kmeans.points import check_uncut, check_values, hash_rows, precision, squares_to, unmasked
from closure_kmeans.vectors import open_vectors
from closure_kmeans.vectors.inputs import as_rows

# Types of rows that are not converted; all others become the first.
DTYPES = (np.float64, np.float32, np.float16, np.uint8, np.int8)

# ``isbuiltin`` of a dtype that another library has registered, such as bfloat16.
REGISTERED = 2

# Point and cluster ids are 32 bits wide.
MAX_ROWS = 2**31 - 1

# What ``fit`` takes, for errors about other objects.
TAKEN = (
    "an array, a tensor, a frame or table of numbers, a column of lists of one length, a data set with one, "
    "or an iterator of batches"
)
# How to get that from other objects, by the package of their class.
ROWS_IN = {
    "datasets": "one split, such as X['train']",
    "h5py": "one data set in it, such as X['train']",
    "polars": "X.collect()",
    "torch": "an iterator of its batches, if they are tensors: iter(X)",
    "zarr": "one array in it, such as X['train']",
}


def method(value: object) -> Method:
    """The method that a parameter stands for, ``None`` for the default one."""
    if value is None:
        return Method()
    if not isinstance(value, Method):
        raise TypeError(f"method must be a Method, such as Method(rule='lloyd'), got {value!r}")
    choice("neighborhoods", value.neighborhoods, ("auto", "fresh", "kept", "all"))
    integer("leaf_size", value.leaf_size, 1, optional=True)
    integer("max_trees", value.max_trees, 1)
    boolean("adaptive", value.adaptive)
    number("min_fall", value.min_fall, 0)
    choice("rule", value.rule, ("hartigan", "lloyd"))
    boolean("extrapolate", value.extrapolate)
    integer("tree_dims", value.tree_dims, 1, optional=True)
    return value


def dtype(value: Any, fit: str) -> None:
    """What is taken as it is, by a kind of fit that converts nothing."""
    if value not in DTYPES:
        allowed = ", ".join(np.dtype(dtype).name for dtype in DTYPES)
        raise TypeError(f"X must hold one of {allowed} {fit}, got {value}")


def rows(X: Any) -> Any:
    """Rows as an array, ``Vectors``, or what scikit-learn makes an array of, such as a frame: with its names.

    Batches are written to a temporary file: rows are to be passed here once.
    """
    if isinstance(X, str | os.PathLike):
        path = os.fspath(X)
        raise TypeError(
            f"X must be an array of rows, got the path {path!r}: pass closure_kmeans.vectors.open_vectors({path!r})"
        )
    if issparse(X):
        raise TypeError(f"X must be dense, got a sparse {type(X).__name__}: convert it, with X.toarray()")
    if not isinstance(X, np.ndarray) or X.dtype.isbuiltin == REGISTERED:
        X = as_rows(X)
    if not _becomes_an_array(X):
        package = type(X).__module__.partition(".")[0]
        packages = [kind.__module__.partition(".")[0] for kind in type(X).__mro__]
        hint = next((f": pass {ROWS_IN[package]}" for package in packages if package in ROWS_IN), "")
        raise TypeError(f"X must be {TAKEN}, got a {package}.{type(X).__name__}{hint}")
    check_uncut(X)
    if hasattr(X, "__array__") and not isinstance(getattr(X, "dtype", None), np.dtype):
        return X if len(getattr(X, "shape", ())) == 2 else np.asarray(X)
    return X


def fitted_rows(X: Any, estimator: BaseEstimator) -> NDArray[Any]:
    """The rows of a fit as an array whose values lie side by side; taken as they are where they can be."""
    return side_by_side(
        check_array(native(X), dtype=DTYPES, ensure_all_finite=False, estimator=estimator, input_name="X")
    )


def stored_rows(X: Any) -> Any:
    """The rows of a fit with a memory limit: a memory map, vectors in a file, or an array."""
    X = without_names(X)
    found = open_vectors(X) if hasattr(X, "dtype") else check_array(X, dtype=DTYPES, ensure_all_finite=False)
    dtype(found.dtype, "with memory_limit")
    return found


def _becomes_an_array(X: Any) -> bool:
    """Whether scikit-learn makes rows of an object, or says itself why not."""
    is_rows = all(hasattr(X, name) for name in ("shape", "dtype", "__getitem__"))
    return is_rows or isinstance(X, Sequence) or hasattr(X, "__array__") or X is None or np.isscalar(X)


def without_names(X: Any) -> Any:
    """A frame of polars as an array of its dtype, which scikit-learn would widen; all else as it is."""
    return X.to_numpy() if hasattr(X, "to_numpy") and hasattr(X, "schema") else X


def native(X: ArrayLike) -> ArrayLike:
    """Rows whose bytes are in the order of this machine, which all others would be widened for; none is masked."""
    X = unmasked("X", without_names(X))
    if isinstance(X, np.ndarray) and not X.dtype.isnative:
        return X.astype(X.dtype.newbyteorder("="))
    return X


def new_rows(X: NDArray[Any], center: NDArray[Any], first: int = 0, name: str = "X") -> None:
    """New rows must be finite, and so must their squared distances to a centre, in the precision of their dtype.

    ``first`` is the number of the first one, for errors.

    One sum shows that of nearly all rows: |x - c|^2 is at most 2 |x|^2 + 2 |c|^2. Where it overflows, each row is
    looked at.
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


def n_bytes(name: str, value: object) -> int:
    """A number of bytes, or a text such as 500MB or 1GB."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+\.?\d*) ?([kMGT]?)(i?)B?", value)
        if match is None:
            raise ValueError(f"{name} must be a number of bytes, or a text such as '500MB' or '1GB', got {value!r}")
        return int(float(match[1]) * (1024 if match[3] else 1000) ** " kMGT".index(match[2] or " "))
    integer(name, value, 1)
    return int(cast(int, value))


def verbose(value: object) -> None:
    """A whole number, or a truth value."""
    if not isinstance(value, bool):
        integer("verbose", value, 0)


def integer(name: str, value: object, minimum: int | None = None, *, optional: bool = False) -> None:
    """A whole number, not a truth value, at or above a minimum; or None if it is ``optional``."""
    if optional and value is None:
        return
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if minimum is not None and value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")


def resume(value: object, name: str, place: object) -> None:
    """Check the argument ``resume`` of a fit that is saved in the ``place`` that the parameter ``name`` says."""
    if not isinstance(value, bool | np.bool_) and not (isinstance(value, str) and value == "anyway"):
        raise TypeError(f"resume must be True, False or 'anyway', got {value!r}")
    if value and place is None:
        raise ValueError(f"resume={value!r} needs {name}: where the fit was saved")


def boolean(name: str, value: object) -> None:
    """A truth value."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def number(name: str, value: object, minimum: float, maximum: float = math.inf, *, optional: bool = False) -> None:
    """A real number in a range; or None if it is ``optional``."""
    if optional and value is None:
        return
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not float(value) >= minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    if float(value) > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {value}")


def choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """One of several words."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def generator(random_state: int | np.random.RandomState | None) -> np.random.Generator:
    """One generator from whatever scikit-learn takes for a seed."""
    try:
        state = check_random_state(random_state)
    except ValueError as error:
        raise ValueError(
            f"random_state must be an integer from 0 to 2**32 - 1, a RandomState or None, got {random_state!r}"
        ) from error
    return np.random.default_rng(state.randint(2**32, size=4, dtype=np.uint32))


def init(value: str | ArrayLike, n_clusters: int, X: NDArray[Any]) -> str | NDArray[Any]:
    """A start: a name, labels, or centres, of which there may be fewer than clusters."""
    if isinstance(value, BaseEstimator):
        raise TypeError("init must not be a model since version 0.2: use its centres, init=model.cluster_centers_")
    check_uncut(value)
    array = np.asarray(unmasked("init", value))
    if array.ndim == 0:
        if not isinstance(value, str) or value not in ("tree", "random"):
            raise ValueError(f"init must be one of 'tree', 'random', or an array of centres or labels, got {value!r}")
        return value
    if array.ndim == 1:
        return labels("init given as labels", array, len(X), n_clusters)
    if array.ndim != 2 or not 0 < len(array) <= n_clusters or array.shape[1] != X.shape[1]:
        raise ValueError(
            f"init given as centres must have shape (at most n_clusters, n_features) = ({n_clusters}, {X.shape[1]}), "
            f"got {array.shape}"
        )
    return _finite_centers("init given as centres", array, precision(X.dtype), centred=False)


def centers(name: str, value: ArrayLike) -> NDArray[Any]:
    """Centres from anywhere: float64 stays float64, all else becomes float32."""
    array = np.asarray(unmasked(name, value))
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} must be an array of shape (n_clusters, n_features), got {array.shape}")
    return _finite_centers(name, array, precision(array.dtype), centred=True)


def _finite_centers(name: str, array: NDArray[Any], dtype: type[np.floating[Any]], *, centred: bool) -> NDArray[Any]:
    """Finite centres, whose squares, less their mean if ``centred``, do not overflow a precision."""
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


def vectors(name: str, value: ArrayLike, centers: NDArray[Any]) -> NDArray[Any]:
    """Rows to compare with centres, whose values lie side by side."""
    found = side_by_side(check_array(native(rows(value)), dtype=DTYPES, ensure_all_finite=False, input_name=name))
    if found.shape[1] != centers.shape[1]:
        raise ValueError(f"{name} must have {centers.shape[1]} features like the centres, got {found.shape[1]}")
    new_rows(found, centers[0], name=name)
    return found


def side_by_side(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows whose values lie side by side; the rows themselves may be apart, as they are in some files."""
    return rows if rows.strides[1] == rows.itemsize else np.ascontiguousarray(rows)


def labels(name: str, value: ArrayLike, n_rows: int, n_clusters: int) -> NDArray[Any]:
    """Whole numbers below the number of clusters, one a row."""
    array = np.asarray(unmasked(name, value))
    if array.shape != (n_rows,):
        raise ValueError(f"{name} must have shape ({n_rows},), one per row, got {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integers, got {array.dtype}")
    if n_rows and (array.min() < 0 or array.max() >= n_clusters):
        raise ValueError(f"{name} must lie in 0..{n_clusters - 1}, got values in {array.min()}..{array.max()}")
    return array


def weights_like(sample_weight: ArrayLike, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Weights: finite, not negative, one a row."""
    given = np.asarray(unmasked("sample_weight", sample_weight))
    if given.dtype.kind not in "biuf":
        raise TypeError(f"sample_weight must hold numbers, got {given.dtype}")
    weights = given.astype(np.float64)
    if weights.shape != (len(rows),):
        raise ValueError(f"sample_weight must have shape ({len(rows)},), one weight per row, got {weights.shape}")
    if not np.isfinite(weights).all():
        raise ValueError("sample_weight must not contain NaN or infinity")
    if (weights < 0).any():
        raise ValueError(f"sample_weight must not be negative, got {weights.min()}")
    if not weights.any():
        raise ValueError("sample_weight must not be zero for every row")
    return weights


def sample_weight(value: ArrayLike | None, X: NDArray[Any]) -> NDArray[np.float64]:
    """Weights of the rows, or a single one where all weigh the same."""
    if value is None:
        return np.ones(1)
    weights = weights_like(value, X)
    return weights[:1] if (weights == weights[0]).all() else weights


def enough_rows(n_clusters: int, X: NDArray[Any]) -> None:
    """There must be as many distinct rows as clusters: ever more rows are looked at, until enough are distinct."""
    if len(X) > MAX_ROWS:
        raise ValueError(f"X must have at most {MAX_ROWS:,} rows, got {len(X):,}")
    if n_clusters > len(X):
        raise ValueError(
            f"n_clusters must be at most the number of rows, got n_clusters={n_clusters}, n_samples={len(X)}"
        )
    distinct = np.empty(0, np.uint64)
    first, n_rows = 0, max(n_clusters, 1000)
    while first < len(X):
        distinct = np.union1d(distinct, hash_rows(X, first, first + n_rows))
        if len(distinct) >= n_clusters:
            return
        first, n_rows = first + n_rows, 2 * n_rows
    raise ValueError(
        f"n_clusters must be at most the number of distinct rows of X, which is {len(distinct)}, got {n_clusters}"
    )


def memory(n_clusters: int, X: NDArray[Any], tree_dims: int | None) -> None:
    """What a fit allocates beyond the input must not exceed what the machine has: a lower bound of it is compared."""
    width = np.dtype(precision(X.dtype)).itemsize
    n_axes = 0 if tree_dims is None else min(tree_dims, X.shape[1])
    per_point = X.shape[1] * X.dtype.itemsize + 2 * n_axes * width + 40
    per_cluster = 4 * X.shape[1] * width + 64
    needed = len(X) * per_point + n_clusters * per_cluster
    available = physical_memory()
    if needed > available:
        raise MemoryError(
            f"clustering {len(X):,} x {X.shape[1]:,} {X.dtype} rows into {n_clusters:,} clusters takes about "
            f"{needed / 1e9:.1f} GB beyond the input, but this machine has {available / 1e9:.1f} GB"
        )


def physical_memory() -> float:
    """Bytes of memory in the machine; infinite where it cannot be told."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf
