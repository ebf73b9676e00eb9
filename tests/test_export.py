import errno
import os
import sys

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest

from closure_kmeans import ClosureKMeans
from closure_kmeans.datasets import load_sift
from closure_kmeans.export import list_members, save_faiss, save_members, save_table, to_faiss
from closure_kmeans.vectors import open_vectors, save_vectors


@pytest.fixture(scope="module")
def rows():
    return load_sift()[:2000]


@pytest.fixture(scope="module")
def model(rows):
    return ClosureKMeans(50, random_state=0).fit(rows)


def test_members(model, tmp_path):
    save_members(tmp_path / "members.npz", model.labels_, 50)
    with np.load(tmp_path / "members.npz") as file:
        rows, starts = file["rows"], file["starts"]
    assert starts[-1] == len(rows) == len(model.labels_)
    for cluster in range(50):
        np.testing.assert_array_equal(
            rows[starts[cluster] : starts[cluster + 1]], np.flatnonzero(model.labels_ == cluster)
        )


def test_bad_labels():
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.2, got values in 0\.\.3"):
        list_members([0, 3], 3)
    with pytest.raises(TypeError, match="labels must hold integers, got float64"):
        list_members([0.5], 3)


@pytest.mark.parametrize("graph", [None, False, True])
def test_faiss(model, rows, graph, tmp_path):
    path = tmp_path / "words.faiss"
    save_faiss(path, model, graph=graph)
    index = faiss.read_index(str(path))
    assert index.is_trained
    assert (index.nlist, index.d, index.ntotal) == (50, 128, 0)
    _, lists = index.quantizer.search(rows.astype(np.float32), 1)
    assert np.mean(lists[:, 0] == model.predict(rows)) > (0.99 if graph else 0.9999)
    index.add(rows.astype(np.float32))
    index.nprobe = 50
    _, found = index.search(rows[:9].astype(np.float32), 1)
    np.testing.assert_array_equal(found[:, 0], np.arange(9))


def test_many_centers_get_a_graph(model, monkeypatch):
    assert isinstance(faiss.downcast_index(to_faiss(model).quantizer), faiss.IndexFlatL2)
    monkeypatch.setattr("closure_kmeans.export.GRAPH_FROM", 50)
    assert isinstance(faiss.downcast_index(to_faiss(model).quantizer), faiss.IndexHNSWFlat)


def test_faiss_is_optional(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"an index of FAISS needs faiss: pip install 'closure-kmeans\[faiss\]'"):
        to_faiss(model)


def test_table(model, rows, tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    monkeypatch.setattr("closure_kmeans.points.BLOCK_VALUES", 128 * 300)  # several blocks
    distances = np.arange(len(rows), dtype=float) ** 2
    save_table(path, rows, model.labels_, distances)
    table = pq.read_table(path)
    assert table.column_names == ["id", "cluster", "distance", "x", "y", "vector"]
    np.testing.assert_array_equal(table["id"], np.arange(len(rows)))
    np.testing.assert_array_equal(table["cluster"], model.labels_)
    np.testing.assert_array_equal(table["distance"], np.arange(len(rows)))
    np.testing.assert_array_equal(np.asarray(open_vectors(path)), rows)
    places = np.stack([table["x"], table["y"]])
    assert abs(np.corrcoef(places)[0, 1]) < 0.01  # principal components are not correlated
    centered = rows - rows.mean(axis=0)
    variances = np.linalg.svd(centered, compute_uv=False)[:2] ** 2 / len(rows)
    np.testing.assert_allclose(places.var(axis=1), variances, rtol=0.02)


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("rows.npy", lambda path, model, rows: save_vectors(path, rows)),
        ("rows.u8bin", lambda path, model, rows: save_vectors(path, rows)),
        ("rows.bvecs", lambda path, model, rows: save_vectors(path, rows)),
        ("words.faiss", lambda path, model, rows: save_faiss(path, to_scale(model))),
        ("members.npz", lambda path, model, rows: save_members(path, np.tile(model.labels_, 10), 50)),
        ("table.parquet", lambda path, model, rows: save_table(path, rows, model.labels_, np.ones(len(rows)))),
    ],
)
def test_a_disk_that_fills(model, rows, small_disk, name, save):
    path = small_disk / name
    path.write_text("old")
    with pytest.raises(OSError, match=rf"{name}' could not be written: .*No space left on device") as caught:
        save(path, model, rows)
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(small_disk) == [name]
    assert path.read_text() == "old"


def to_scale(model):
    """The same model with more centres than a small disk holds."""
    large = ClosureKMeans(50)
    large.cluster_centers_ = np.tile(model.cluster_centers_, (10, 1))
    return large


def test_a_table_of_one_column(tmp_path):
    X = np.arange(5.0)[:, np.newaxis]
    save_table(tmp_path / "rows.parquet", X, np.zeros(5, np.int32), np.zeros(5))
    table = pq.read_table(tmp_path / "rows.parquet")
    np.testing.assert_array_equal(table["y"], np.zeros(5))
    assert np.ptp(table["x"]) == 4
