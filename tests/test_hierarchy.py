"""Clusters of clusters, and the sizes of clusters."""

import numpy as np
import pytest

from closure_kmeans import ClosureKMeans, load
from closure_kmeans.datasets import load_sift


@pytest.fixture(scope="module", name="X")
def sift():
    return load_sift()[:3000]


def test_a_hierarchy_is_of_means(X):
    model = ClosureKMeans(300, random_state=0).fit(X)
    fine, coarse = model.hierarchy([40, 5])
    in_fine = fine.parents[model.labels_]
    for level, labels in ((fine, in_fine), (coarse, coarse.parents[in_fine])):
        n_clusters = len(level.centers)
        np.testing.assert_array_equal(np.bincount(labels, minlength=n_clusters), level.sizes)
        assert level.sizes.min() > 0
        means = [X[labels == j].mean(axis=0) for j in range(n_clusters)]
        np.testing.assert_allclose(level.centers, means, rtol=1e-4, atol=1e-3)
    direct = ClosureKMeans(40, random_state=0).fit(X).inertia_
    inertia = ((X - fine.centers[in_fine]) ** 2).sum()
    assert inertia < 1.1 * direct


def test_a_hierarchy_of_a_loaded_model(X, tmp_path):
    model = ClosureKMeans(100, random_state=0).fit(X)
    model.save(tmp_path / "model.safetensors")
    for own, loaded in zip(model.hierarchy([10]), load(tmp_path / "model.safetensors").hierarchy([10]), strict=True):
        np.testing.assert_array_equal(own.parents, loaded.parents)
        np.testing.assert_array_equal(own.centers, loaded.centers)


def test_levels_must_shrink(X):
    model = ClosureKMeans(10, random_state=0).fit(X)
    with pytest.raises(ValueError, match="fewer clusters than the level below, which has 10, got 10"):
        model.hierarchy([10])
    with pytest.raises(ValueError, match="which has 5, got 6"):
        model.hierarchy([5, 6])
    with pytest.raises(TypeError, match=r"levels must be an integer, got 2\.5"):
        model.hierarchy([2.5])
    with pytest.raises(TypeError, match=r"levels must be a sequence of integers, such as \[5\], got 5"):
        model.hierarchy(5)


def test_sizes(X):
    weights = np.random.default_rng(0).choice([0.0, 1.0, 2.5], len(X))
    model = ClosureKMeans(30, random_state=0).fit(X, sample_weight=weights)
    np.testing.assert_allclose(model.cluster_sizes_, np.bincount(model.labels_, weights, 30))
