"""What a fitted model says of rows, new and old."""

import pickle

import numpy as np
import pytest
import reference
from methods import METHODS, same
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from closure_kmeans import ClosureKMeans
from closure_kmeans.baselines import HierarchicalKMeans
from closure_kmeans.datasets import load_sift


@pytest.fixture(scope="module", name="X")
def sift():
    return load_sift()[:2000].astype(np.float32)


@pytest.fixture(scope="module")
def fitted(X):
    return ClosureKMeans(50, random_state=0).fit(X)


@pytest.fixture(scope="module", params=METHODS)
def fitted_by_any(X, request):
    return METHODS[request.param](random_state=0).fit(X)


@pytest.fixture(scope="module")
def integers():
    return load_sift()[:3000]


@pytest.mark.parametrize("k", [60, 800])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_labels_of_the_nearest_centers(k, metric):
    """The labels of a fit differ from the nearest centres for some rows; on request they are the same."""
    X = load_sift()[:8000].astype(np.float32)
    weights = np.random.default_rng(0).random(len(X)) + 0.5
    model = ClosureKMeans(k, metric=metric, random_state=0).fit(X, sample_weight=weights)
    before = model.labels_
    nearest = model.predict(X)
    assert 0 < np.count_nonzero(before != nearest) < 0.1 * len(X)
    assert model.relabel(X, weights) is model
    np.testing.assert_array_equal(model.labels_, nearest)
    np.testing.assert_allclose(model.cluster_sizes_, np.bincount(nearest, weights, k))
    assert model.inertia_ == pytest.approx(-model.score(X, sample_weight=weights))
    assert model.labels_.dtype == before.dtype
    with pytest.raises(ValueError, match="X must be the 8000 rows of the fit, got 7999"):
        model.relabel(X[1:])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint8"])
def test_predict_is_exact_and_a_function_of_the_row(fitted_by_any, dtype):
    fitted = fitted_by_any
    rows = load_sift()[5000:5300].astype(dtype)
    labels = fitted.predict(rows)
    expected, _ = reference.search_nearest(rows, fitted.cluster_centers_)
    np.testing.assert_array_equal(fitted.predict(rows, exact=True), expected)
    if not isinstance(fitted, HierarchicalKMeans):
        np.testing.assert_array_equal(labels, expected)
    assert labels.dtype == np.int32
    order = np.random.default_rng(0).permutation(len(rows))
    np.testing.assert_array_equal(fitted.predict(rows[order]), labels[order])
    for batch in (1, 7, 100):
        parts = [fitted.predict(rows[first : first + batch]) for first in range(0, len(rows), batch)]
        np.testing.assert_array_equal(np.concatenate(parts), labels)


def test_predict_decides_ties_the_same_way_in_any_batch():
    """On a grid with centres on the grid most rows have several nearest centres."""
    grid = np.stack(np.meshgrid(np.arange(20.0), np.arange(20.0)), axis=-1).reshape(-1, 2)
    model = ClosureKMeans(40, init=grid[::10], max_iter=1, n_threads=1).fit(grid)
    model.cluster_centers_ = grid[::10].copy()
    labels = model.predict(grid)
    np.testing.assert_array_equal(labels, reference.search_nearest(grid, grid[::10])[0])
    np.testing.assert_array_equal(labels, [model.predict(row[np.newaxis])[0] for row in grid])


def test_predict_far_from_the_origin():
    rows = (np.random.default_rng(0).normal(size=(300, 4)) + 1000).astype(np.float32)
    model = ClosureKMeans(60, random_state=0).fit(rows)
    np.testing.assert_array_equal(model.predict(rows), reference.search_nearest(rows, model.cluster_centers_)[0])
    assert model.inertia_ == pytest.approx(reference.inertia(rows, model.labels_), rel=1e-3)


def test_transform_and_score(fitted, X):
    distances = np.sqrt(reference.squared_distances(X[:200], fitted.cluster_centers_))
    np.testing.assert_allclose(fitted.transform(X[:200]), distances, rtol=1e-4)
    np.testing.assert_array_equal(fitted.transform(X[:200]).argmin(axis=1), fitted.predict(X[:200]))
    assert fitted.score(X[:200]) == pytest.approx(-(distances.min(axis=1) ** 2).sum())
    weights = np.arange(200)
    assert fitted.score(X[:200], sample_weight=weights) == pytest.approx(-(weights @ distances.min(axis=1) ** 2))
    assert 0 < -fitted.score(X) <= fitted.inertia_


def test_pickle_and_clone(fitted_by_any, X):
    fitted = fitted_by_any
    copy = pickle.loads(pickle.dumps(fitted))
    assert same(copy, fitted)
    assert copy.history_ == fitted.history_
    np.testing.assert_array_equal(copy.predict(X), fitted.predict(X))
    assert clone(fitted).get_params() == fitted.get_params()


def test_pipeline_and_names_of_the_output(X):
    pipeline = make_pipeline(StandardScaler(), ClosureKMeans(3, random_state=0)).fit(X)
    assert pipeline.predict(X).shape == (2000,)
    assert pipeline[-1].get_feature_names_out().tolist() == ["closurekmeans0", "closurekmeans1", "closurekmeans2"]


def test_set_output(X):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[:, :3], columns=["a", "b", "c"])
    model = ClosureKMeans(3, random_state=0).set_output(transform="pandas").fit(frame)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert model.transform(frame).columns.tolist() == ["closurekmeans0", "closurekmeans1", "closurekmeans2"]


def normalized(X):
    X = np.asarray(X, np.float64)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("given_labels", [False, True])
def test_medoids(integers, metric, given_labels):
    model = ClosureKMeans(100, metric=metric, random_state=0).fit(integers)
    labels = model.labels_ if given_labels else model.predict(integers)
    medoids = model.medoids(integers, labels if given_labels else None)
    rows = normalized(integers) if metric == "cosine" else integers.astype(np.float64)
    for j, center in enumerate(model.cluster_centers_.astype(np.float64)):
        own = np.flatnonzero(labels == j)
        distances = ((rows[own] - center) ** 2).sum(axis=1)
        assert labels[medoids[j]] == j
        assert ((rows[medoids[j]] - center) ** 2).sum() <= distances.min() * (1 + 1e-5)


def test_medoids_of_other_rows():
    X = np.array([[0.0], [1.0], [10.0], [11.0]])
    model = ClosureKMeans(2, random_state=0).fit(X)
    left, right = model.predict([[0.5], [10.5]])
    medoids = model.medoids([[1.0], [0.0], [1.0]])
    assert medoids[left] == 0  # of three equally near ones the first
    assert medoids[right] == -1
    assert medoids.dtype == np.int64


def test_medoids_of_bad_labels(integers):
    model = ClosureKMeans(10, random_state=0).fit(integers)
    with pytest.raises(ValueError, match=r"labels must have shape \(3000,\)"):
        model.medoids(integers, [1, 2])
