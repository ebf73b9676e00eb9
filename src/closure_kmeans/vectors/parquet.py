"""Parquet files with a column of lists of numbers."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.files import FileFormatError, file_size, library, reading
from closure_kmeans.vectors.hdf5 import LARGEST_COMPRESSION
from closure_kmeans.vectors.rows import Group, Vectors, check_kind, default_name, listed
from closure_kmeans.vectors.signatures import check_no_other_kind

# Default columns, in this order.
DEFAULT_NAMES = ("vector", "embedding")
# Batch size of pyarrow's decoder and size of its read buffer: without them it would hold several copies of a row group.
BATCH_ROWS, BUFFER_BYTES = 1024, 1 << 20


def open_parquet(path: Path, name: str | None = None) -> Vectors:
    """Open a column of lists of equal length; row groups are read one at a time.

    The file is not memory-mapped: if it shrinks while it is read, that raises an error instead of SIGBUS.
    """
    parquet = library("pyarrow.parquet", "io", "a Parquet file")
    types = library("pyarrow.types", "io", "a Parquet file")
    size = file_size(path, minimum=12)
    check_no_other_kind(path, ".parquet")
    with reading(path, "Parquet"):
        file = parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)
        column = _Column(path, file, _choose(path, file.schema_arrow, types, name))
        counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        label = f"{path}:{column.name}"
        n_bytes = sum(counts) * column.width * column.dtype.itemsize
        check_kind(label, (sum(counts), column.width), column.dtype)
        if min(counts) < 0 or n_bytes > LARGEST_COMPRESSION * size:
            raise FileFormatError(f"'{label}' should have {n_bytes} bytes of values, but the file has {size} bytes")
    groups = [
        Group((count, column.width), column.dtype, partial(column.read, number, first))
        for number, (count, first) in enumerate(zip(counts, accumulate(counts, initial=0), strict=False))
        if count > 0
    ]
    return Vectors(groups, [label] * len(groups))


def _choose(path: Path, schema: Any, types: Any, name: str | None) -> str:
    """Column by name, or the default one."""
    found = [field.name for field in schema if _is_list(field.type, types) and _is_number(field.type.value_type, types)]
    if name is None:
        name = default_name(path, "columns of lists", found, [usual for usual in DEFAULT_NAMES if usual in found])
    if name is None or name not in found:
        wanted = "a column" if name is None else f"a column '{name}'"
        n_numbers = sum(_is_number(field.type, types) for field in schema)
        hint = f"; join its {n_numbers} columns of numbers into one, if they are the vectors" if n_numbers > 1 else ""
        raise FileFormatError(
            f"'{path}' must have {wanted} of lists of numbers; the columns of lists are: {listed(found)}"
            + ("" if found else hint)
        )
    return name


def _is_list(kind: Any, types: Any) -> bool:
    return bool(types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind))


def _is_number(kind: Any, types: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind))


class _Column:
    """Column of lists. Only one thread at a time may read it: pyarrow would crash the process."""

    def __init__(self, path: Path, file: Any, name: str) -> None:
        self.name = name
        self._path = path
        self._file = file
        kind = file.schema_arrow.field(name).type
        self.dtype = np.dtype(kind.value_type.to_pandas_dtype())
        self.width = kind.list_size if hasattr(kind, "list_size") else self._first_width()

    def _first_width(self) -> int:
        for batch in self._file.iter_batches(batch_size=1, columns=[self.name]):
            first = batch.column(0)[0]
            self._check_present(0, first)
            return len(first)
        return 0

    def read(self, group: int, first: int) -> NDArray[Any]:
        """Read a row group; ``first`` is the number of its first row in the file, for errors."""
        rows = np.empty((self._file.metadata.row_group(group).num_rows, self.width), self.dtype)
        done = 0
        for batch in self._file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[self.name]):
            lists = batch.column(0)
            values = lists.flatten()
            ragged = hasattr(lists, "offsets") and (np.diff(lists.offsets) != self.width).any()
            if ragged or lists.null_count or values.null_count:
                self._check_rows(lists, first + done)
            rows[done : done + len(lists)] = values.to_numpy(zero_copy_only=False).reshape(-1, self.width)
            done += len(lists)
        return rows[:done]

    def _check_rows(self, lists: Any, first: int) -> None:
        """Raise an error that names the first row with missing values or another length."""
        for row, values in enumerate(lists, first):
            self._check_present(row, values)
            if len(values) != self.width:
                raise FileFormatError(
                    f"'{self._path}:{self.name}' must hold lists of one length, {self.width}, "
                    f"but row {row} has {len(values)} values"
                )

    def _check_present(self, row: int, values: Any) -> None:
        if not values.is_valid or values.values.null_count:
            raise FileFormatError(f"'{self._path}:{self.name}' must have no missing values, but row {row} has some")
