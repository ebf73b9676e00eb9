"""Checks of parameters and inputs. Messages name the thing, the rule and the value."""

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
    if not isinstance(X, np.ndarray) or X.dtype.isbuiltin == REGISTERED:
        return rows_of(X)
    check_uncut(X)
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


def without_names(X: Any) -> Any:
    """A frame of polars as an array of its dtype, which scikit-learn would widen; all else as it is."""
    return X.to_numpy() if hasattr(X, "to_numpy") and hasattr(X, "schema") else X


def native(X: ArrayLike) -> ArrayLike:
    """Rows whose bytes are in the order of this machine, which all others would be widened for; none is masked."""
    X = unmasked("X", without_names(X))
    if isinstance(X, np.ndarray) and not X.dtype.isnative:
        return X.astype(X.dtype.newbyteorder("="))
    return X


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


def vectors(name: str, value: ArrayLike, centers: NDArray[Any]) -> NDArray[Any]:
    """Rows to compare with centres, whose values lie side by side."""
    found = side_by_side(check_array(native(rows(value)), dtype=DTYPES, ensure_all_finite=False, input_name=name))
    if found.shape[1] != centers.shape[1]:
        raise ValueError(f"{name} must have {centers.shape[1]} features like the centres, got {found.shape[1]}")
    check_new_rows(found, centers[0], name=name)
    return found


def side_by_side(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows whose values lie side by side; the rows themselves may be apart, as they are in some files."""
    return rows if rows.strides[1] == rows.itemsize else np.ascontiguousarray(rows)


def init(value: str | ArrayLike, n_clusters: int, X: NDArray[Any]) -> str | NDArray[Any]:
    """A start: a name, labels, or centres, of which there may be fewer than clusters."""
    if isinstance(value, str) and value in ("tree", "random"):
        return value
    return check_start(value, n_clusters, X)


def sample_weight(value: ArrayLike | None, X: NDArray[Any]) -> NDArray[np.float64]:
    """Weights of the rows, or a single one where all weigh the same."""
    if value is None:
        return np.ones(1)
    weights = check_weights(value, len(X))
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
