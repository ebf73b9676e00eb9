"""The first labels of fits on one machine: by random rows, by labels, and by the centres of a model."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.cluster import KMeans

from closure_kmeans import ClosureKMeans, load
from closure_kmeans.baselines import HierarchicalKMeans
from closure_kmeans.datasets import load_sift
from closure_kmeans.parallel import Threads
from closure_kmeans.starts import draw_rows
from closure_kmeans.stores.memory import MemoryStore


@pytest.fixture(scope="module", name="X")
def sift():
    return load_sift()[:3000]


def test_random_rows_are_drawn_by_weight():
    """Twenty different rows, and the heavy ones first."""
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(200, 2)), np.where(np.arange(200) < 15, 1e9, 1.0)
    with Threads(1) as threads:
        store = MemoryStore(X, weights, 20, tree_dims=None, rng=rng, threads=threads)
    drawn = store.order[draw_rows(store)]
    assert len(set(drawn)) == 20
    assert set(range(15)) < set(drawn)


def test_ids_are_kept_when_rows_are_added(X):
    model = ClosureKMeans(150, random_state=0).fit(X[:2700])
    after = ClosureKMeans(150, init=model.cluster_centers_, random_state=1).fit(X)
    assert (after.labels_[:2700] == model.labels_).mean() > 0.8
    distances = np.linalg.norm(after.cluster_centers_[:, np.newaxis] - model.cluster_centers_, axis=2)
    assert (distances.argmin(axis=1) == np.arange(150)).mean() > 0.95


def test_clusters_are_added_to_those_of_a_model(X):
    model = ClosureKMeans(100, random_state=0).fit(X)
    grown = ClosureKMeans(160, init=model.cluster_centers_, random_state=0, max_iter=1)
    larger = clone(grown).fit(X)
    assert len(np.unique(larger.labels_)) == 160
    kept = larger.labels_ < 100
    assert (larger.labels_[kept] == model.labels_[kept]).mean() > 0.8
    assert larger.inertia_ < model.inertia_


def test_models_of_scikit_learn_and_of_the_baselines(X):
    for model in (KMeans(10, n_init=1, max_iter=2, random_state=0), HierarchicalKMeans(5, 2, max_iter=1)):
        model.fit(X)
        k = len(model.cluster_centers_)
        start = ClosureKMeans(k, init=model.cluster_centers_, random_state=0, max_iter=1).fit(X)
        assert start.inertia_ <= -model.score(X) * (1 + 1e-6)


def test_a_model_is_no_start(X):
    with pytest.raises(TypeError, match=r"init=model was removed in version 0\.2: use init=model"):
        ClosureKMeans(10, init=ClosureKMeans(10)).fit(X)
    for k, width in ((11, 128), (10, 64)):
        message = rf"\(at most n_clusters, n_features\) = \(10, 128\), got \({k}, {width}\)"
        with pytest.raises(ValueError, match=message):
            ClosureKMeans(10, init=ClosureKMeans(k).fit(X[:, :width]).cluster_centers_).fit(X)


def test_a_fit_from_centers_can_be_saved(X, tmp_path):
    centers = ClosureKMeans(20, random_state=0).fit(X).cluster_centers_
    ClosureKMeans(20, init=centers, random_state=0).fit(X).save(tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").init == "tree"
