"""Columns of lists of numbers, as Arrow has them: in Parquet files, tables and data sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.files import FileFormatError, library
from closure_kmeans.vectors.rows import default_name, listed

# Default columns, in this order.
DEFAULT_NAMES = ("vector", "embedding")


def choose_column(label: str, schema: Any, name: str | None = None, **settings: str) -> str:
    """A column of lists by name, or the default one; the settings are those of ``default_name``."""
    found = [field.name for field in schema if is_list(field.type) and is_number(field.type.value_type)]
    if name is None:
        usual = [each for each in DEFAULT_NAMES if each in found]
        name = default_name(label, "columns of lists", found, usual, **settings)
    if name is None or name not in found:
        wanted = "a column" if name is None else f"a column '{name}'"
        n_numbers = sum(is_number(field.type) for field in schema)
        hint = f"; join its {n_numbers} columns of numbers into one, if they are the vectors" if n_numbers > 1 else ""
        raise FileFormatError(
            f"'{label}' must have {wanted} of lists of numbers; the columns of lists are: {listed(found)}"
            + ("" if found else hint)
        )
    return name


def has_lists(schema: Any) -> bool:
    """Whether a table has a column of lists."""
    return any(is_list(field.type) for field in schema)


def is_list(kind: Any) -> bool:
    """Whether a type of Arrow is one of lists."""
    types = library("pyarrow.types", "io", "a column of lists")
    kind = getattr(kind, "storage_type", kind)  # of a tensor of fixed shape
    return bool(types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind))


def is_number(kind: Any) -> bool:
    """Whether a type of Arrow is one of numbers."""
    types = library("pyarrow.types", "io", "a column of lists")
    return bool(types.is_integer(kind) or types.is_floating(kind))


def rows_of_lists(lists: Any, width: int, label: str, first: int) -> NDArray[Any]:
    """The values of an array of lists, without a copy where there is none missing; ``first`` is its row, for errors."""
    values = lists.flatten()
    ragged = len(values) != len(lists) * width or (
        hasattr(lists, "offsets") and (np.diff(lists.offsets) != width).any()
    )
    if ragged or lists.null_count or values.null_count:
        for row, one in enumerate(lists, first):
            check_present(label, row, one)
            if len(one) != width:
                raise FileFormatError(
                    f"'{label}' must hold lists of one length, {width}, but row {row} has {len(one)} values"
                )
    rows: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(-1, width)
    return rows


def check_present(label: str, row: int, values: Any) -> None:
    """Raise if a list or a value of it is missing."""
    if not values.is_valid or values.values.null_count:
        raise FileFormatError(f"'{label}' must have no missing values, but row {row} has some")
