"""Metadata of items: columns of a CSV or Parquet file, as texts."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.files import FileFormatError, library, reading
from closure_kmeans.points import largest

FORMATS = (".csv", ".parquet", ".pq")
# Names of the title column, in this order.
TITLES = ("title", "name", "text", "caption", "word", "label")
# A column repeats its values if the fraction of distinct ones is at most this; only then are they counted.
REPEATED = 0.5
# Smallest fraction of items that makes a value frequent.
FREQUENT = 0.05
_library = partial(library, extra="explore", purpose="metadata")


class Column(NamedTuple):
    """A column, dictionary-encoded."""

    name: str
    codes: NDArray[np.int32]  # (n,)
    values: Any  # an Arrow array of texts

    @property
    def repeats(self) -> bool:
        """Whether items share values."""
        return len(self.values) <= REPEATED * len(self.codes)

    def texts(self, items: Any) -> list[str]:
        """Values of the items that an index selects."""
        texts: list[str] = self.values.take(self.codes[items]).to_pylist()
        return texts


class Frequent(NamedTuple):
    """A frequent value."""

    column: str
    value: str
    share: float


class Metadata:
    """Columns of texts about the items.

    Examples
    --------
    >>> import pyarrow
    >>> known = Metadata.of_table(pyarrow.table({"word": ["cat", "dog", "catfish"]}), "words.parquet")
    >>> known.search("Cat").tolist(), known.title(1)
    ([0, 2], 'dog')
    """

    def __init__(self, columns: list[Column], n_items: int) -> None:
        self.columns = columns
        self._n_items = n_items
        named = [column for title in TITLES for column in columns if column.name.lower() == title]
        self._title = (named or columns)[0]

    def __len__(self) -> int:
        return self._n_items

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Metadata:
        """Read a CSV file, or the columns of a Parquet file that are not lists."""
        path = Path(path)
        path.stat()
        if path.suffix.lower() not in FORMATS:
            raise FileFormatError(f"'{path}' must end in one of {', '.join(FORMATS)}")
        with reading(path, "metadata"):
            return cls.of_table(_read_csv(path) if path.suffix.lower() == ".csv" else _read_parquet(path), str(path))

    @staticmethod
    def has_columns(path: Path) -> bool:
        """Whether a Parquet file has columns other than lists."""
        parquet = _library("pyarrow.parquet")
        with reading(path, "metadata"):
            return bool(_plain_columns(parquet.read_schema(path)))

    @classmethod
    def of_table(cls, table: Any, label: str) -> Metadata:
        """Columns of an Arrow table that can be converted to texts."""
        arrow, compute = _library("pyarrow"), _library("pyarrow.compute")
        columns = []
        for name in table.column_names:
            try:
                texts = compute.fill_null(table.column(name).cast(arrow.string()), "").combine_chunks()
            except (arrow.ArrowNotImplementedError, arrow.ArrowInvalid):
                continue  # lists, structures, binary data
            encoded = texts.dictionary_encode()
            columns.append(Column(name, np.asarray(encoded.indices), encoded.dictionary))
        if not columns:
            raise FileFormatError(f"'{label}' must have a column of texts or numbers, but has none")
        return cls(columns, table.num_rows)

    def column(self, name: str) -> list[str] | None:
        """All values of a column, or None if there is no such column."""
        found = next((column for column in self.columns if column.name == name), None)
        return None if found is None else found.texts(slice(None))

    def title(self, item: int) -> str:
        """Title of an item."""
        return self._title.texts([item])[0]

    def typical(self, items: NDArray[Any]) -> str | None:
        """Title of the first of some items; None if titles repeat, since frequent values then say more."""
        return None if len(items) == 0 or self._title.repeats else self.title(int(items[0]))

    def entries(self, item: int) -> dict[str, str]:
        """All metadata of an item."""
        return {column.name: column.texts([item])[0] for column in self.columns}

    def search(self, text: str) -> NDArray[np.int64]:
        """Items with a text in any column, case-insensitive."""
        compute = _library("pyarrow.compute")
        found = np.zeros(self._n_items, bool)
        for column in self.columns:
            found |= np.asarray(compute.match_substring(column.values, text, ignore_case=True))[column.codes]
        return np.flatnonzero(found)

    def frequent(self, items: NDArray[Any], n_values: int = 3) -> list[Frequent]:
        """Most frequent values of some items, over all columns that repeat values."""
        frequent: list[Frequent] = []
        for column in self.columns if len(items) else []:
            if column.repeats:
                codes, counts = np.unique(column.codes[items], return_counts=True)
                most = largest(counts, n_values)
                values = column.values.take(codes[most]).to_pylist()
                shares = (counts[most] / len(items)).tolist()
                frequent += [Frequent(column.name, *pair) for pair in zip(values, shares, strict=True)]
        frequent = [one for one in frequent if one.value and one.share >= FREQUENT]
        return sorted(frequent, key=lambda one: -one.share)[:n_values]


def _read_csv(path: Path) -> Any:
    """Read all columns as texts, so that 007 is not converted to 7."""
    arrow, csv = _library("pyarrow"), _library("pyarrow.csv")
    lines = csv.ParseOptions(newlines_in_values=True)
    with csv.open_csv(path, parse_options=lines) as file:
        names = file.schema.names
    texts = csv.ConvertOptions(column_types=dict.fromkeys(names, arrow.string()), strings_can_be_null=False)
    return csv.read_csv(path, parse_options=lines, convert_options=texts)


def _read_parquet(path: Path) -> Any:
    file = _library("pyarrow.parquet").ParquetFile(path)
    return file.read(_plain_columns(file.schema_arrow))


def _plain_columns(schema: Any) -> list[str]:
    """Columns that are not lists or structures."""
    types = _library("pyarrow.types")
    return [field.name for field in schema if not types.is_nested(field.type)]
