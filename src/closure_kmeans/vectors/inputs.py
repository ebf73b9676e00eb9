"""Inputs of other libraries: as an array that shares their memory, or as ``Vectors``, which are read block by block.

Libraries are recognised by the package of the object's class and never imported.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.files import FileFormatError
from closure_kmeans.points import check_uncut
from closure_kmeans.vectors.lists import DEFAULT_NAMES, choose_column, has_lists, is_list, rows_of_lists
from closure_kmeans.vectors.rows import Group, Vectors, by_chunks, check_kind, default_name

# Vectors in a column of pandas.
SEQUENCES = (list, tuple, np.ndarray)
# Rows of a Lance dataset read at a time.
READ_ROWS = 1 << 15
# What ``fit`` takes, for errors about other objects.
TAKEN = (
    "an array, a tensor, a frame or table of numbers, a column of lists of one length, a data set with one, "
    "or an iterator of batches"
)
# How to get that from other objects, by the package of their class.
ROWS_IN = {
    "datasets": "one split, such as X['train'], or an iterator of the arrays in its batches",
    "h5py": "one data set in it, such as X['train']",
    "polars": "X.collect()",
    "torch": "an iterator of its batches, if they are tensors: iter(X)",
    "zarr": "one array in it, such as X['train']",
}
# Hint in the error for several possible columns.
TAKE = "take, by passing that one alone"


def rows_of(X: Any) -> Any:
    """Rows of any object: an array, ``Vectors``, or a frame with its names, of which scikit-learn makes an array."""
    if isinstance(X, str | os.PathLike):
        path = os.fspath(X)
        raise TypeError(
            f"X must be an array of rows, got the path {path!r}: pass closure_kmeans.vectors.open_vectors({path!r})"
        )
    from scipy.sparse import issparse

    if issparse(X):
        raise TypeError(f"X must be dense, got a sparse {type(X).__name__}: convert it, with X.toarray()")
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


def _becomes_an_array(X: Any) -> bool:
    """Whether scikit-learn makes rows of an object, or says itself why not."""
    is_rows = all(hasattr(X, name) for name in ("shape", "dtype", "__getitem__"))
    return is_rows or isinstance(X, Sequence) or hasattr(X, "__array__") or X is None or np.isscalar(X)


def as_rows(X: Any) -> Any:
    """Convert rows of another library to an array or ``Vectors``; return anything else, such as frames of numbers."""
    if hasattr(X, "__next__"):
        return rows_of_batches(X)
    if hasattr(X, "detach"):  # PyTorch
        return _of_tensor(X.detach().cpu())
    if isinstance(X, np.ndarray):
        return _widened(X.shape, lambda some: X[some].astype(np.float32)) if _is_ml_dtype(X.dtype) else X
    packages = (kind.__module__.partition(".")[0] for kind in type(X).__mro__)
    convert = next((CONVERTERS[package] for package in packages if package in CONVERTERS), None)
    return X if convert is None else convert(X)


class Widened(NamedTuple):
    """Rows of a dtype that NumPy lacks, such as bfloat16, read as float32."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[slice], NDArray[np.float32]]

    def __getitem__(self, rows: Any) -> Any:
        return self.read(rows)


def _widened(shape: tuple[int, ...], read: Callable[[slice], NDArray[np.float32]]) -> Vectors:
    return Vectors([Widened(tuple(shape), np.dtype(np.float32), read)], ["X"])


def _is_ml_dtype(dtype: np.dtype[Any]) -> bool:
    return dtype.type.__module__.partition(".")[0] == "ml_dtypes" and np.can_cast(dtype, np.float32)


def _of_tensor(tensor: Any) -> Any:
    if str(getattr(tensor, "dtype", None)) == "torch.bfloat16":
        return _widened(tensor.shape, lambda some: tensor[some].float().numpy())
    return tensor.numpy()


def _of_jax(array: Any) -> Any:
    return as_rows(np.asarray(array))


# -- frames, tables and columns ----------------------------------------------------------------------------------------


def _of_arrow(X: Any) -> Any:
    """A column of lists, a table with one, or a table of numbers."""
    if hasattr(X, "to_table"):  # a data set
        return _of_arrow_dataset(X)
    if hasattr(X, "schema"):  # a table or a batch
        if not X.num_columns:
            raise FileFormatError("'X' must have columns, but has none")
        if not has_lists(X.schema):
            return np.stack([column.to_numpy(zero_copy_only=False) for column in map(_whole, X.columns)], axis=1)
        name = choose_column("X", X.schema, how=TAKE)
        return _of_lists(X[name], f"X:{name}")
    return _of_lists(X, "X") if is_list(getattr(X, "type", None)) else X


def _whole(column: Any) -> Any:
    """A column as one chunk."""
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _of_lists(column: Any, label: str, first: int = 0) -> Any:
    """A column of lists: a view of the values of one chunk, or ``Vectors`` of several; ``first`` is its first row."""
    chunks = [chunk for chunk in getattr(column, "chunks", [column]) if len(chunk)]
    if not chunks:
        raise FileFormatError(f"'{label}' must have rows, but has none")
    chunks = [getattr(chunk, "storage", chunk) for chunk in chunks]  # of tensors of fixed shape
    width = len(chunks[0][0]) if chunks[0][0].is_valid else 0
    if width == 0 and chunks[0][0].is_valid:
        raise FileFormatError(f"'{label}' must hold lists with values, but row {first} is empty")
    parts = []
    for chunk in chunks:
        parts.append(rows_of_lists(chunk, width, label, first))
        first += len(chunk)
    return parts[0] if len(parts) == 1 else Vectors(parts, [label] * len(parts))


def _of_arrow_dataset(X: Any) -> Any:
    """A column of a ``pyarrow.dataset``, read as a whole, or of a Lance dataset, read block by block."""
    name = choose_column("X", X.schema, how=TAKE)
    if type(X).__module__.partition(".")[0] != "lance":
        return _of_lists(X.to_table(columns=[name])[name], f"X:{name}")

    def read(first: int, n_rows: int) -> NDArray[Any]:
        return np.asarray(_of_lists(X.to_table(columns=[name], offset=first, limit=n_rows)[name], f"X:{name}", first))

    n_rows, one = X.count_rows(), read(0, 1)
    groups = [
        Group((min(READ_ROWS, n_rows - first), one.shape[1]), one.dtype, partial(read, first, READ_ROWS))
        for first in range(0, n_rows, READ_ROWS)
    ]
    return Vectors(groups, [f"X:{name}"] * len(groups))


def _of_polars(X: Any) -> Any:
    """A series of lists or arrays, or a frame with one."""
    if not hasattr(X, "to_arrow"):  # lazy
        return X
    if hasattr(X, "schema"):
        nested = [name for name, kind in X.schema.items() if kind.is_nested()]
        return _of_arrow(X.select(nested).to_arrow()) if nested else X
    return _of_arrow(X.to_arrow()) if X.dtype.is_nested() else X


def _of_pandas(X: Any) -> Any:
    """A series of lists or arrays, or a frame with one."""
    if getattr(X, "ndim", 0) == 2:
        held = {str(name): X.iloc[:, i] for i, name in enumerate(X.columns) if _holds_vectors(X.iloc[:, i])}
        if not held:
            return X
        usual = [each for each in DEFAULT_NAMES if each in held]
        X = held[str(default_name("X", "columns of vectors", list(held), usual, TAKE))]
    if not _holds_vectors(X):
        return X
    if hasattr(X.array, "__arrow_array__") and X.dtype != object:
        return _of_arrow(X.array.__arrow_array__())
    width = next(len(row) for row in X if isinstance(row, SEQUENCES))
    for number, row in enumerate(X):
        if not isinstance(row, SEQUENCES):
            raise FileFormatError(f"'X' must have no missing values, but row {number} has some")
        if len(row) != width:
            raise FileFormatError(f"'X' must hold lists of one length, {width}, but row {number} has {len(row)} values")
    return np.stack([np.asarray(row) for row in X])


def _holds_vectors(series: Any) -> bool:
    """Whether the first value of a series that is not missing is a list or an array."""
    if isinstance(series.dtype, np.dtype) and series.dtype != object:
        return False
    return isinstance(next((row for row in series if row is not None), None), SEQUENCES)


def _of_datasets(X: Any) -> Any:
    """A Hugging Face dataset or one of its columns; both are Arrow tables in a file."""
    if hasattr(X, "select_columns") and hasattr(X, "num_rows") and not isinstance(X, dict):  # no stream, no splits
        return _of_arrow(X.with_format("arrow")[:])
    source: Any = getattr(X, "source", None)
    if hasattr(source, "select_columns"):
        return _of_arrow(source.select_columns([X.column_name]).with_format("arrow")[:][X.column_name])
    return X


def _of_zarr(X: Any) -> Any:
    """An array, read by whole chunks; zarr itself would need two copies of the whole."""
    if not hasattr(X, "chunks"):  # a group
        return X
    check_kind("X", X.shape, X.dtype)
    return by_chunks(X, "X")


CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "datasets": _of_datasets,
    "jaxlib": _of_jax,
    "lance": _of_arrow,
    "pandas": _of_pandas,
    "polars": _of_polars,
    "pyarrow": _of_arrow,
    "zarr": _of_zarr,
}


# -- batches -----------------------------------------------------------------------------------------------------------


def rows_of_batches(batches: Iterator[Any]) -> NDArray[Any]:
    """Write batches, which can be read only once, to an unlinked temporary file; returns its memory map."""
    n_rows, width, dtype = 0, 0, None
    with tempfile.TemporaryFile(prefix="closure-kmeans-") as file:
        for number, batch in enumerate(batches):
            rows = np.asarray(as_rows(batch))
            if rows.ndim != 2 or rows.dtype.kind not in "iuf" or (dtype is not None and rows.shape[1] != width):
                wanted = "rows of numbers" if dtype is None else f"rows of {width} numbers"
                raise ValueError(
                    f"the batches of X must be arrays of {wanted}, "
                    f"but batch {number} is {_described(batch)} of shape {rows.shape}"
                )
            if dtype is None:
                width, dtype = rows.shape[1], rows.dtype
            if rows.dtype != dtype:
                raise ValueError(f"the batches of X must be of one dtype, {dtype}, but batch {number} is {rows.dtype}")
            file.write(np.ascontiguousarray(rows).data)
            n_rows += len(rows)
        if dtype is None or n_rows == 0 or width == 0:
            raise ValueError("X must have rows, but its iterator of batches gave none")
        file.flush()
        return np.memmap(file, dtype, "r", shape=(n_rows, width))


def _described(X: Any) -> str:
    kind = type(X)
    return f"a {kind.__module__.partition('.')[0]}.{kind.__name__}" if kind.__module__ != "builtins" else kind.__name__
