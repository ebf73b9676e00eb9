"""Texts about the items."""

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from closure_kmeans.explorer.metadata import Metadata
from closure_kmeans.vectors import FileFormatError
from tests.explorer_data import make_metadata


def test_metadata_of_csv_are_texts(tmp_path):
    path = tmp_path / "about.csv"
    path.write_text('id,name\n007,"a, b"\n008,\n')
    known = Metadata.open(path)
    assert known.entries(0) == {"id": "007", "name": "a, b"}
    assert known.entries(1) == {"id": "008", "name": ""}
    assert known.title(0) == "a, b"
    assert len(known) == 2


def test_metadata_of_parquet_leave_out_vectors(tmp_path):
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"vector": [[1.0, 2.0]] * 3, "n": [1, None, 3], "t": ["a", "b", "c"]}), path)
    known = Metadata.open(path)
    assert known.entries(1) == {"n": "", "t": "b"}
    assert Metadata.has_columns(path)
    parquet.write_table(pyarrow.table({"vector": [[1.0, 2.0]] * 3}), path)
    assert not Metadata.has_columns(path)
    with pytest.raises(FileFormatError, match="must have a column of texts or numbers, but has none"):
        Metadata.open(path)


def test_search_and_frequent_values():
    known = make_metadata(9)
    assert known.search("RED").tolist() == [0, 3, 6]
    assert known.search("%").tolist() == []
    frequent = known.frequent(np.array([0, 3, 6, 1]))
    assert [(one.column, one.value, one.share) for one in frequent] == [
        ("color", "red", 0.75),
        ("color", "green", 0.25),
    ]
    assert known.frequent(np.array([], int)) == []


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", b""), ("a.parquet", b"PAR1 no"), ("a.txt", b"x"), ("b.csv", b"a,b\n1\n")]
)
def test_bad_metadata(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileFormatError, match=name):
        Metadata.open(tmp_path / name)
