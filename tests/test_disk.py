"""Data larger than memory: what holds in memory holds on disk."""

import os
import subprocess
import tempfile
from itertools import pairwise

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from models import closures

from closure_kmeans import ClosureKMeans, kernels
from closure_kmeans.clusters import Clusters, group_by_label
from closure_kmeans.datasets import load_sift
from closure_kmeans.points import Points
from closure_kmeans.stores import disk, layout
from closure_kmeans.stores.totals import Totals
from closure_kmeans.vectors import open_vectors, save_vectors


@pytest.fixture(scope="module", name="X")
def sift():
    return load_sift()


@pytest.fixture(autouse=True)
def small_slabs(monkeypatch):
    monkeypatch.setattr(layout, "SMALLEST_SLAB", 4)
    monkeypatch.setattr(layout, "N_PIECES", 64)


def limit(X, n_slabs, itemsize=None, weighted=False):
    """Bytes that make so many slabs."""
    width = np.dtype(np.float64 if X.dtype == np.float64 else np.float32).itemsize
    per_point = X.shape[1] * (itemsize or X.dtype.itemsize) + min(16, X.shape[1]) * width + layout.BYTES_PER_SLAB_POINT
    always = layout.WORKSPACE + (layout.BYTES_PER_POINT + layout.BYTES_PER_WEIGHT * weighted) * len(X)
    return always + per_point * -(-len(X) // n_slabs)


def bits(model):
    history = [record._replace(seconds=0) for record in model.history_]
    return model.labels_.tobytes(), model.cluster_centers_.tobytes(), model.inertia_, history, model.stopped_by_


@settings(max_examples=60)
@given(
    seed=st.integers(0, 999),
    n=st.integers(40, 120),
    d=st.integers(2, 20),
    dtype=st.sampled_from([np.float64, np.float32, np.float16, np.uint8, np.int8]),
    metric=st.sampled_from(["euclidean", "cosine"]),
    repeated=st.booleans(),
    weighted=st.booleans(),
    given_labels=st.booleans(),
    n_slabs=st.integers(1, 6),
    data=st.data(),
)
def test_the_distortion_never_rises(seed, n, d, dtype, metric, repeated, weighted, given_labels, n_slabs, data):
    rng = np.random.default_rng(seed)
    X = (20 * rng.normal(size=(n, d)) + 60).clip(1, 120).astype(dtype)
    X = X[rng.integers(n, size=n)] if repeated else X
    counted = X.astype(np.float64)
    if metric == "cosine":
        counted /= np.linalg.norm(counted, axis=1, keepdims=True)
    k = data.draw(st.integers(1, len(np.unique(np.round(counted, 5), axis=0))), "k")
    weights = rng.choice([0.5, 1.0, 3.0], n) if weighted else None
    start = rng.permutation(np.arange(n) % k) if given_labels else "tree"
    memory = limit(X, n_slabs, 4 if metric == "cosine" and dtype != np.float64 else None, weighted)
    model = closures(
        k, metric=metric, init=start, memory_limit=memory, leaf_size=10, tol=0, max_iter=12, random_state=0
    ).fit(X, sample_weight=weights)
    history = [record.inertia for record in model.history_]
    assert all(after <= before for before, after in pairwise(history))
    weights = np.ones(n) if weights is None else weights
    np.testing.assert_allclose(model.cluster_sizes_, np.bincount(model.labels_, weights, k))
    assert model.cluster_sizes_.min() > 0
    distances = ((counted - model.cluster_centers_[model.labels_]) ** 2).sum(axis=1)
    rounding = 1e-5 * (weights * (counted**2).sum(axis=1)).sum()
    assert model.inertia_ == pytest.approx((weights * distances).sum(), abs=rounding)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_same_bits_on_any_number_of_threads(X, metric):
    memory = limit(X, 7, None if metric == "euclidean" else 4)
    models = [
        ClosureKMeans(500, metric=metric, memory_limit=memory, random_state=0, max_iter=5, n_threads=n_threads).fit(X)
        for n_threads in (1, 2, 3)
    ]
    assert bits(models[0]) == bits(models[1]) == bits(models[2])


def test_it_is_as_good_as_in_memory(X):
    within, limited = (
        [ClosureKMeans(1000, memory_limit=memory, random_state=seed).fit(X) for seed in range(3)]
        for memory in (None, limit(X, 12))
    )
    assert sum(model.inertia_ for model in limited) < 1.003 * sum(model.inertia_ for model in within)
    assert min(model.history_[-1].accuracy for model in limited) > 0.95


def test_borders_are_none_for_clusters(X, monkeypatch):
    """Without the centres that are entered, and with the same slabs in every pass, points would be shut in."""
    good = ClosureKMeans(1000, memory_limit=limit(X, 12), random_state=0).fit(X).inertia_
    drawn = {}

    def same_slabs(store, leaf_size):
        first = drawn.setdefault("slabs", grow(store, leaf_size).slabs)
        return disk.SlabPartition(first, leaf_size, int(store.rng.integers(2**63)))

    grow = disk.DiskStore.grow
    monkeypatch.setattr(disk.DiskStore, "grow", same_slabs)
    monkeypatch.setattr(
        disk, "nearest_pieces", lambda pieces, coordinates, _: np.full((len(coordinates), 1), -1, np.int32)
    )
    shut_in = ClosureKMeans(1000, memory_limit=limit(X, 12), random_state=0).fit(X).inertia_
    assert shut_in > 1.01 * good


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_files(X, dtype, tmp_path):
    """A memory map, a reader and an array are the same rows; whole numbers are held as bytes."""
    X = X[:3000].astype(dtype) + dtype(0.5 if dtype == np.float16 else 0)
    np.save(tmp_path / "rows.npy", X)
    for i in range(2):
        save_vectors(tmp_path / f"{i}.npy", X[1500 * i : 1500 * i + 1500])
    (tmp_path / "shards").mkdir()
    for i in range(2):
        (tmp_path / f"{i}.npy").rename(tmp_path / "shards" / f"{i}.npy")
    column = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
    pq.write_table(pa.table({"vector": column}), tmp_path / "rows.parquet", row_group_size=700)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.create_dataset("train", data=X, chunks=(70, 128))
    model = ClosureKMeans(100, memory_limit=limit(X, 5), random_state=0, max_iter=4)
    expected = bits(model.fit(X))
    for name in ("rows.npy", "shards", "rows.parquet", "rows.h5"):
        for n_threads in (1, 4):
            assert bits(model.set_params(n_threads=n_threads).fit(open_vectors(tmp_path / name))) == expected


def test_a_start_from_centers(X):
    first = ClosureKMeans(300, random_state=0, max_iter=10).fit(X)
    after = ClosureKMeans(300, init=first.cluster_centers_, memory_limit=limit(X, 5), random_state=0, max_iter=1).fit(X)
    assert after.inertia_ < first.inertia_
    assert (after.labels_ == first.labels_).mean() > 0.7


def test_it_is_resumed(X, tmp_path):
    model = ClosureKMeans(300, memory_limit=limit(X, 5), random_state=0, tol=2e-3)
    expected = bits(model.fit(X))
    model.set_params(checkpoint=tmp_path, callback=lambda record: record.iteration == 3).fit(X)
    assert model.n_iter_ == 3
    for _ in range(2):  # to the end, and once more when there is nothing left to do
        assert bits(model.set_params(callback=None).fit(X, resume=True)) == expected
    with pytest.raises(ValueError, match="belongs to another fit: memory_limit was"):
        model.set_params(memory_limit=limit(X, 4)).fit(X, resume=True)


def test_a_copy_of_a_memory_map(X, tmp_path):
    np.save(tmp_path / "rows.npy", X)
    copy = np.load(tmp_path / "rows.npy", mmap_mode="r").astype(np.float32)  # of the class of a map, without one
    model = ClosureKMeans(100, memory_limit=limit(copy, 5), random_state=0, max_iter=2)
    assert bits(model.fit(copy)) == bits(model.fit(np.array(copy)))


def test_nothing_is_left_behind(X, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupt(_):
        assert not os.listdir(tmp_path)  # it has no name even while it is there
        raise KeyboardInterrupt

    model = ClosureKMeans(100, memory_limit=limit(X, 5), callback=interrupt, random_state=0)
    with pytest.raises(KeyboardInterrupt, match="the model is that of iteration 1"):
        model.fit(X)
    assert model.stopped_by_ == "interrupted"
    assert not os.listdir(tmp_path)


def test_a_disk_that_is_too_small(X, tmp_path, monkeypatch):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a small disk takes the right to mount one")
    try:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        rule = rf"\(TMPDIR\) must have room for 2,560,000 bytes, but '{tmp_path}': No space left on device"
        with pytest.raises(OSError, match=rule):
            ClosureKMeans(10, memory_limit="50MB").fit(X)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("max_size", [None, 250])
def test_equal_weights_count(X, max_size):
    rows = X[:3000]
    model = ClosureKMeans(50, memory_limit=limit(rows, 3), random_state=0, max_iter=8, max_size=max_size)
    plain = model.fit(rows)
    labels, sizes, inertia = plain.labels_, plain.cluster_sizes_, plain.inertia_
    if max_size is not None:
        model.set_params(max_size=4 * max_size)
    weighted = model.fit(rows, sample_weight=np.full(len(rows), 4.0))
    np.testing.assert_array_equal(weighted.labels_, labels)
    np.testing.assert_array_equal(weighted.cluster_sizes_, 4 * sizes)
    assert weighted.inertia_ == 4 * inertia


def test_weights_that_overflow(X):
    with pytest.raises(ValueError, match="the squares of the values of X, times sample_weight, must not overflow"):
        ClosureKMeans(10, memory_limit="50MB").fit(X, sample_weight=np.linspace(1, 1e308, len(X)))


def test_bad_limits(X):
    for value, error, message in (
        ("lots", ValueError, "memory_limit must be a number of bytes, or a text such as '500MB' or '1GB', got 'lots'"),
        (0, ValueError, "memory_limit must be at least 1, got 0"),
        (1.5, TypeError, "memory_limit must be an integer"),
        ("100kB", ValueError, "memory_limit must be at least 4,515,264 bytes for 20,000 x 128 uint8 rows, got 100,000"),
    ):
        with pytest.raises(error, match=message):
            ClosureKMeans(10, memory_limit=value).fit(X)
    for parameters, message in (
        ({"neighborhoods": "kept"}, "neighborhoods with memory_limit must be one of 'auto', 'fresh', got 'kept'"),
        ({"init": "random"}, "init with memory_limit must be one of 'tree', got 'random'"),
    ):
        with pytest.raises(ValueError, match=message):
            closures(10, memory_limit="1GB", **parameters).fit(X)
    with pytest.raises(TypeError, match="X must hold one of float64, float32, float16, uint8, int8 with memory_limit"):
        ClosureKMeans(10, memory_limit="1GB").fit(X.astype(np.int32))
    with pytest.raises(ValueError, match="sample_weight must be positive with memory_limit"):
        ClosureKMeans(10, memory_limit="1GB").fit(X, sample_weight=np.arange(len(X)))


def test_chunks_must_be_below_the_limit(X, tmp_path):
    X = np.tile(X, (3, 1))
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.create_dataset("train", data=X, chunks=X.shape)
    with pytest.raises(
        ValueError, match=r"at least 7,680,000 bytes for rows in chunks or row groups of this size, got"
    ):
        ClosureKMeans(10, memory_limit="6MB").fit(open_vectors(tmp_path / "rows.h5"))


@pytest.mark.parametrize("row", [0, 12_345])
def test_bad_values(X, row):
    X = X.astype(np.float32)
    X[row, 6] = np.nan
    with pytest.raises(ValueError, match=f"X must not contain NaN or infinity, but row {row} does"):
        ClosureKMeans(10, memory_limit="50MB").fit(X)


@pytest.mark.kernels
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_over_parts_are_the_update(weighted):
    rng = np.random.default_rng(0)
    rows, k = rng.normal(size=(60, 3)), 5
    labels = rng.integers(k - 1, size=60).astype(np.int32)  # the last is empty
    weights = rng.random(60) if weighted else np.ones(1)
    mean = np.full(3, 0.5)
    totals = Totals(np.zeros((k, 3)), np.zeros(k), np.zeros(k))
    for part in (slice(0, 25), slice(25, 60)):
        points = Points(rows[part], mean, weights[part] if weighted else weights, rows[part], mean)
        members, starts = group_by_label(labels[part], k)
        for j in range(k):
            kernels.rows.add_to_totals(points, members, starts, totals, j, j + 1)
    clusters = Clusters(np.full((k, 3), 9.0), np.zeros(k), np.ones(k), np.ones(k), np.zeros(k))
    kernels.rows.finish_clusters(totals, clusters, 0, 2)
    kernels.rows.finish_clusters(totals, clusters, 2, k)
    weights = weights if weighted else np.ones(60)
    centers, sizes, errors = reference.update_clusters(rows - mean, weights, labels, np.full((k, 3), 9.0))
    np.testing.assert_allclose(clusters.centers, centers)
    np.testing.assert_allclose(clusters.sizes, sizes)
    np.testing.assert_allclose(clusters.errors, errors, atol=1e-9)
