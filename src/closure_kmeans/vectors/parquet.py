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
from closure_kmeans.vectors.lists import check_present, choose_column, rows_of_lists
from closure_kmeans.vectors.rows import Group, Vectors, check_kind
from closure_kmeans.vectors.signatures import check_no_other_kind

# Batch size of pyarrow's decoder and size of its read buffer: without them it would hold several copies of a row group.
BATCH_ROWS, BUFFER_BYTES = 1024, 1 << 20


def open_parquet(path: Path, name: str | None = None) -> Vectors:
    """Open a column of lists of equal length; row groups are read one at a time.

    The file is not memory-mapped: if it shrinks while it is read, that raises an error instead of SIGBUS.
    """
    parquet = library("pyarrow.parquet", "io", "a Parquet file")
    size = file_size(path, minimum=12)
    check_no_other_kind(path, ".parquet")
    with reading(path, "Parquet"):
        file = parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)
        column = _Column(path, file, choose_column(str(path), file.schema_arrow, name))
        counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        label = column.label
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


class _Column:
    """Column of lists. Only one thread at a time may read it: pyarrow would crash the process."""

    def __init__(self, path: Path, file: Any, name: str) -> None:
        self.name, self.label = name, f"{path}:{name}"
        self._file = file
        kind = file.schema_arrow.field(name).type
        self.dtype = np.dtype(kind.value_type.to_pandas_dtype())
        self.width = kind.list_size if hasattr(kind, "list_size") else self._first_width()

    def _first_width(self) -> int:
        for batch in self._file.iter_batches(batch_size=1, columns=[self.name]):
            first = batch.column(0)[0]
            check_present(self.label, 0, first)
            return len(first)
        return 0

    def read(self, group: int, first: int) -> NDArray[Any]:
        """Read a row group; ``first`` is the number of its first row in the file, for errors."""
        rows = np.empty((self._file.metadata.row_group(group).num_rows, self.width), self.dtype)
        done = 0
        for batch in self._file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[self.name]):
            lists = batch.column(0)
            rows[done : done + len(lists)] = rows_of_lists(lists, self.width, self.label, first + done)
            done += len(lists)
        return rows[:done]
