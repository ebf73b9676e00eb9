"""Clusters of a model and their items."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closure_kmeans import CenterIndex, ClosureKMeans
from closure_kmeans.arrays import squares_to
from closure_kmeans.explorer.catalog import Catalog, map_positions
from closure_kmeans.vectors import FileFormatError
from tests.explorer_data import make_metadata, make_rows


def test_what_is_known_of_clusters(catalog):
    squares = np.sum((catalog.rows - catalog.centers[catalog.labels]) ** 2, axis=1)
    for cluster in range(catalog.n_clusters):
        own = squares[catalog.labels == cluster]
        assert catalog.sizes[cluster] == len(own)
        assert catalog.spreads[cluster] == pytest.approx(np.sqrt(own.mean()), rel=1e-4)
        assert catalog.shares[cluster] == pytest.approx(own.sum() / squares.sum(), rel=1e-4)


def test_members_come_nearest_first(catalog):
    for cluster in range(catalog.n_clusters):
        members = catalog.members(cluster)
        assert sorted(members) == np.flatnonzero(catalog.labels == cluster).tolist()
        assert (np.diff(catalog.squares[members]) >= 0).all()
        assert catalog.choose(cluster, "nearest", 0, 3).tolist() == members[:3].tolist()
        assert catalog.choose(cluster, "farthest", 0, 3).tolist() == members[::-1][:3].tolist()
        drawn = [item for first in range(0, len(members), 4) for item in catalog.choose(cluster, "random", first, 4)]
        assert sorted(drawn) == sorted(members)  # page by page, each once


@pytest.mark.parametrize("measure", ["size", "spread", "share", "neighbor", "number"])
def test_clusters_are_sorted(catalog, measure):
    values = {"size": catalog.sizes, "spread": catalog.spreads, "share": catalog.shares}.get(measure)
    values = {"neighbor": catalog.separations, "number": np.arange(30)}.get(measure) if values is None else values
    assert measure in catalog.measures
    assert (np.diff(values[catalog.find(measure, descending=False)]) >= 0).all()
    assert (np.diff(values[catalog.find(measure, descending=True)]) <= 0).all()


def test_clusters_are_found_by_size_number_and_text(catalog):
    some = catalog.find("number", descending=False, least=8, most=12)
    assert some.tolist() == np.flatnonzero((catalog.sizes >= 8) & (catalog.sizes <= 12)).tolist()
    assert 7 in catalog.find("number", descending=False, text="#7")
    assert catalog.find("size", descending=True, text="THING 123").tolist() == [catalog.labels[123]]
    assert len(catalog.find("size", descending=True, text="nothing like it")) == 0


def test_where_an_item_stands(catalog):
    for item in (0, 17, 299):
        distances = np.linalg.norm(catalog.centers - catalog.rows[item], axis=1)
        standing = catalog.standing(item)
        own = catalog.labels[item]
        assert standing.own.cluster == own
        assert standing.own.distance == pytest.approx(distances[own], rel=1e-4)
        distances[own] = np.inf
        assert standing.second.cluster == distances.argmin()
        assert standing.ratio == pytest.approx(1 - standing.own.distance / distances.min(), rel=1e-3, abs=1e-6)


def test_items_like_one(catalog):
    distances = np.linalg.norm(catalog.rows - catalog.rows[5], axis=1)
    distances[5] = np.inf
    nearest = np.argsort(distances)[:6]
    similar = catalog.similar(5, 6)
    assert [item for item, _ in similar] == nearest.tolist()
    assert [distance for _, distance in similar] == pytest.approx(distances[nearest].tolist(), rel=1e-4)


def test_neighbors_of_a_cluster(catalog):
    distances = np.linalg.norm(catalog.centers - catalog.centers[4], axis=1)
    distances[4] = np.inf
    neighbors = catalog.neighbors([4], 5)[0]
    assert [neighbor.cluster for neighbor in neighbors] == np.argsort(distances)[:5].tolist()
    assert neighbors[0].distance == pytest.approx(catalog.separations[4], rel=1e-3)


def test_a_model_without_items(model):
    bare = Catalog(model)
    assert bare.measures == ["size", "neighbor", "number"]
    assert bare.shows == []
    assert len(bare.members(0)) == 0
    assert bare.sizes.sum() == 300


def test_labels_without_vectors(model):
    catalog = Catalog(model, labels=model.labels_)
    assert catalog.shows == ["random", "first"]
    assert catalog.choose(2, "first", 0, 3).tolist() == np.flatnonzero(model.labels_ == 2)[:3].tolist()
    assert catalog.standing(0) is None
    assert catalog.similar(0, 3) == []


def test_a_single_cluster():
    X = make_rows()
    model = ClosureKMeans(n_clusters=1, random_state=0).fit(X)
    catalog = Catalog(model, X, labels=model.labels_, squares=np.ones(300))
    assert catalog.neighbors([0], 3) == [[]]
    assert catalog.standing(0).second is None
    assert catalog.standing(0).ratio is None
    assert np.isfinite(catalog.positions).all()


def test_parts_must_be_as_many_as_the_items(model):
    with pytest.raises(ValueError, match="metadata must have one entry for each of 300 items, got 299"):
        Catalog(model, labels=model.labels_, metadata=make_metadata(299))


def test_directions_count_for_the_cosine_metric():
    X = make_rows() * np.random.default_rng(0).uniform(0.1, 10, (300, 1)).astype(np.float32)
    model = ClosureKMeans(n_clusters=10, metric="cosine", random_state=0).fit(X)
    catalog = Catalog(model, X, labels=model.labels_)
    row = X[3] / np.linalg.norm(X[3])
    assert catalog.standing(3).own.distance == pytest.approx(
        np.linalg.norm(row - model.cluster_centers_[model.labels_[3]]), rel=1e-3
    )


@given(n=st.integers(2, 60), seed=st.integers(0, 9))
def test_closest_centers_by_all_pairs(n, seed):
    centers = np.random.default_rng(seed).normal(100, 1, (n, 5)).astype(np.float32)
    squares = [squares_to(np.delete(centers, i, axis=0), centers[i]).min() for i in range(n)]
    assert CenterIndex(centers).separations() == pytest.approx(np.sqrt(squares), rel=1e-2)


def test_closest_centers_of_very_many(monkeypatch):
    centers = np.random.default_rng(0).normal(0, 1, (3000, 16)).astype(np.float32)
    exact = CenterIndex(centers).separations()
    monkeypatch.setattr("closure_kmeans.search.MANY_CENTERS", 1000)
    found = CenterIndex(centers).separations()
    assert (found >= exact * (1 - 1e-4)).all()
    assert np.mean(found <= exact * 1.02) > 0.6  # structureless data is the hardest
    assert np.median(found / exact) < 1.05


def test_the_map_holds_the_centers():
    centers = np.random.default_rng(0).normal(0, 1, (500, 8))
    positions = map_positions(centers)
    assert ((positions >= -0.2) & (positions <= 1.2)).all()
    assert np.ptp(positions, axis=0).max() > 0.9
    assert np.isfinite(map_positions(np.ones((1, 3)))).all()
    assert np.isfinite(map_positions(np.ones((5, 1)))).all()


@pytest.mark.skipif(os.name == "nt", reason="Windows does not let a mapped file be cut")
def test_rows_of_a_file_that_was_cut_are_an_error(tmp_path):
    X = make_rows()
    np.save(tmp_path / "rows.npy", X)
    model = ClosureKMeans(n_clusters=30, random_state=0).fit(X)
    catalog = Catalog(model, np.load(tmp_path / "rows.npy", mmap_mode="r"), labels=model.labels_)
    os.truncate(tmp_path / "rows.npy", 1000)
    for read in (catalog.row, catalog.standing):
        with pytest.raises(FileFormatError, match="must keep its"):
            read(len(X) - 1)
