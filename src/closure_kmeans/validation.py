"""Checks of parameters and of the rows of a fit. Messages name the parameter, the rule and the value."""

from __future__ import annotations

import math
import numbers
import os
import re
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state

from closure_kmeans.arrays import check_new_rows, check_start, check_weights
from closure_kmeans.method import Method
from closure_kmeans.points import check_uncut, hash_rows, precision, unmasked
from closure_kmeans.vectors import open_vectors
from closure_kmeans.vectors.inputs import rows_of

# Types of rows that are not converted; all others become the first.
DTYPES = (np.float64, np.float32, np.float16, np.uint8, np.int8)

# ``isbuiltin`` of a dtype that another library has registered, such as bfloat16.
REGISTERED = 2

# Point and cluster ids are 32 bits wide.
MAX_ROWS = 2**31 - 1


def method(value: object) -> Method:
    """Check the parameter ``method``; ``None`` is the default one."""
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
    """Raise if a dtype would have to be converted: some kinds of ``fit`` convert nothing."""
    if value not in DTYPES:
        allowed = ", ".join(np.dtype(dtype).name for dtype in DTYPES)
        raise TypeError(f"X must hold one of {allowed} {fit}, got {value}")


def rows(X: Any) -> Any:
    """Rows as an array, as ``Vectors``, or as a frame with its names, which scikit-learn converts.

    An iterator of batches is read only once, into a temporary file.
    """
    if not isinstance(X, np.ndarray) or X.dtype.isbuiltin == REGISTERED:
        return rows_of(X)
    check_uncut(X)
    return X


def fitted_rows(X: Any, estimator: BaseEstimator) -> NDArray[Any]:
    """The rows of a fit as an array of contiguous rows, without a copy where possible."""
    return contiguous_rows(
        check_array(native(X), dtype=DTYPES, ensure_all_finite=False, estimator=estimator, input_name="X")
    )


def stored_rows(X: Any) -> Any:
    """The rows of a fit with a memory limit: a memory map, vectors in a file, or an array."""
    X = without_names(X)
    found = open_vectors(X) if hasattr(X, "dtype") else check_array(X, dtype=DTYPES, ensure_all_finite=False)
    dtype(found.dtype, "with memory_limit")
    return found


def without_names(X: Any) -> Any:
    """Convert a frame of polars to an array of its dtype, which scikit-learn would widen; return all else unchanged."""
    return X.to_numpy() if hasattr(X, "to_numpy") and hasattr(X, "schema") else X


def native(X: ArrayLike) -> ArrayLike:
    """Convert rows to native byte order, without which scikit-learn widens them; raise if values are masked."""
    X = unmasked("X", without_names(X))
    if isinstance(X, np.ndarray) and not X.dtype.isnative:
        return X.astype(X.dtype.newbyteorder("="))
    return X


def n_bytes(name: str, value: object) -> int:
    """Parse a number of bytes, or a text such as 500MB or 1GB."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+\.?\d*) ?([kMGT]?)(i?)B?", value)
        if match is None:
            raise ValueError(f"{name} must be a number of bytes, or a text such as '500MB' or '1GB', got {value!r}")
        return int(float(match[1]) * (1024 if match[3] else 1000) ** " kMGT".index(match[2] or " "))
    integer(name, value, 1)
    return int(cast(int, value))


def verbose(value: object) -> None:
    """Check that ``verbose`` is an integer or a boolean."""
    if not isinstance(value, bool):
        integer("verbose", value, 0)


def integer(name: str, value: object, minimum: int | None = None, *, optional: bool = False) -> None:
    """Check that a value is an integer, not a boolean, and at least ``minimum``; or None if ``optional``."""
    if optional and value is None:
        return
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if minimum is not None and value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")


def resume(value: object, name: str, place: object) -> None:
    """Check the argument ``resume`` of a fit; ``place`` is the value of its parameter ``name``."""
    if not isinstance(value, bool | np.bool_) and not (isinstance(value, str) and value == "anyway"):
        raise TypeError(f"resume must be True, False or 'anyway', got {value!r}")
    if value and place is None:
        raise ValueError(f"resume={value!r} needs {name}")


def boolean(name: str, value: object) -> None:
    """Check that a value is a boolean."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def number(name: str, value: object, minimum: float, maximum: float = math.inf, *, optional: bool = False) -> None:
    """Check that a value is a real number in a range; or None if ``optional``."""
    if optional and value is None:
        return
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not float(value) >= minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    if float(value) > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {value}")


def choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Check that a value is one of the allowed texts."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def generator(random_state: int | np.random.RandomState | None) -> np.random.Generator:
    """Make a random generator from a ``random_state`` of scikit-learn."""
    try:
        state = check_random_state(random_state)
    except ValueError as error:
        raise ValueError(
            f"random_state must be an integer from 0 to 2**32 - 1, a RandomState or None, got {random_state!r}"
        ) from error
    return np.random.default_rng(state.randint(2**32, size=4, dtype=np.uint32))


def vectors(name: str, value: ArrayLike, centers: NDArray[Any]) -> NDArray[Any]:
    """Check rows that are compared with centres; returns them with contiguous rows."""
    found = contiguous_rows(check_array(native(rows(value)), dtype=DTYPES, ensure_all_finite=False, input_name=name))
    if found.shape[1] != centers.shape[1]:
        raise ValueError(f"{name} must have {centers.shape[1]} features like the centres, got {found.shape[1]}")
    check_new_rows(found, centers[0], name=name)
    return found


def contiguous_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Copy rows that are not contiguous; the stride between rows may be larger, as in TEXMEX files."""
    return rows if rows.strides[1] == rows.itemsize else np.ascontiguousarray(rows)


def init(value: str | ArrayLike, n_clusters: int, X: NDArray[Any]) -> str | NDArray[Any]:
    """Check the parameter ``init``: a name, labels, or at most ``n_clusters`` centres."""
    if isinstance(value, str) and value in ("tree", "random"):
        return value
    return check_start(value, n_clusters, X)


def sample_weight(value: ArrayLike | None, X: NDArray[Any]) -> NDArray[np.float64]:
    """Check the weights of the rows; returns a single one if all are equal."""
    if value is None:
        return np.ones(1)
    weights = check_weights(value, len(X))
    return weights[:1] if (weights == weights[0]).all() else weights


def enough_rows(n_clusters: int, X: NDArray[Any]) -> None:
    """Check that there are as many distinct rows as clusters; reads only as many rows as that takes."""
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
    """Raise if a fit would allocate more than the memory of the machine, by a lower bound."""
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
    """Bytes of physical memory; infinite if unknown."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf
