"""Checks of weights, starts and centres, and of rows that are compared with centres."""

import numpy as np
import pytest
from refusals import X, clusters, every_estimator, masked, refuses, with_value

from closure_kmeans import ClosureKMeans
from closure_kmeans.baselines import HierarchicalKMeans
from closure_kmeans.metrics import exact_labels
from closure_kmeans.vectors import Vectors, open_vectors, save_vectors


@pytest.mark.parametrize(("dtype", "value"), [(np.float32, 2e19), (np.float32, -3e38), (np.float64, 1e200)])
@every_estimator
def test_rows_to_predict_whose_squares_overflow(dtype, value, kind):
    model = kind(**clusters(kind, 4), random_state=0).fit(X)
    names = ["predict", "transform", "score", "medoids"] + ["paths"] * (kind is HierarchicalKMeans)
    methods = [getattr(model, name) for name in names]
    methods += [lambda rows: model.several_nearest(rows, 2), lambda rows: model.medoids(rows, model.labels_)]
    methods += [lambda rows: exact_labels(rows, model.cluster_centers_)]
    for method in methods:
        with pytest.raises(ValueError, match=rf"of X must not overflow {dtype.__name__}, but row 7 holds .*: scale"):
            method(with_value(value, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.uint8])
def test_rows_to_predict_are_checked_relative_to_the_centers(dtype):
    """Rows far from the origin, whose own squares overflow, are fitted and predicted; rows near it are too far away."""
    rows = np.float32(1e20 + 1e16 * (np.arange(20)[:, np.newaxis] % 4 + 0.01 * X))
    model = ClosureKMeans(4, random_state=0).fit(rows)
    np.testing.assert_array_equal(model.predict(rows), model.labels_)
    if dtype == np.float64:
        assert set(model.predict(np.ones((2, 3)))) <= set(range(4))
    else:
        with pytest.raises(ValueError, match=r"must not overflow float32, but row 0 holds 1: .* or pass float64"):
            model.predict(np.ones((2, 3), dtype))


def test_rows_of_any_length_have_a_direction():
    model = ClosureKMeans(4, metric="cosine", random_state=0).fit(np.float32(X))
    np.testing.assert_array_equal(model.predict(np.float32(X) * np.float32(1e37)), model.predict(np.float32(X)))
    for value, match in ((1e200, "must not overflow float64, but row 7"), (np.nan, "NaN or infinity, but row 7 does")):
        with pytest.raises(ValueError, match=match):
            model.predict(with_value(value))


def test_masked_weights_labels_and_starts(tmp_path):
    refuses(ValueError, "sample_weight must not have masked values, got 2", weights=masked(np.ones(20)))
    refuses(ValueError, "init must not have masked values, got 2", init=masked(X[:4]))
    refuses(ValueError, "init must not have masked values, got 2", init=masked(np.arange(20) % 4))
    refuses(ValueError, "vectors must not have masked values, got 2", masked(X), memory_limit="50MB")
    model = ClosureKMeans(4, random_state=0).fit(X)
    with pytest.raises(ValueError, match="labels must not have masked values, got 2"):
        model.medoids(X, masked(model.labels_))
    with pytest.raises(ValueError, match="sample_weight must not have masked values, got 2"):
        model.score(X, sample_weight=masked(np.ones(20)))
    with pytest.raises(ValueError, match="centers must not have masked values, got 2"):
        exact_labels(X, masked(X[:4]))
    with pytest.raises(ValueError, match="X must not have masked values, got 2"):
        save_vectors(tmp_path / "rows.npy", masked(X))
    with pytest.raises(ValueError, match="'here' must not have masked values, got 2"):
        np.asarray(Vectors([masked(X)], ["here"]))
    assert type(open_vectors(masked(X, 0))) is np.ndarray


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (np.where(np.arange(20) == 3, -0.5, 1), "sample_weight must not be negative, got -0.5"),
        (np.zeros(20), "sample_weight must not be zero for every row"),
        (np.where(np.arange(20) == 3, np.nan, 1), "sample_weight must not contain NaN or infinity"),
        (np.where(np.arange(20) == 3, np.inf, 1), "sample_weight must not contain NaN or infinity"),
        (np.ones(19), r"sample_weight must have shape \(20,\), one weight per row, got \(19,\)"),
        (np.ones((20, 1)), r"sample_weight must have shape \(20,\), one weight per row, got \(20, 1\)"),
        (2.0, r"sample_weight must have shape \(20,\), one weight per row, got \(\)"),
    ],
    ids=str.split("negative zero nan infinity short column scalar"),
)
@every_estimator
def test_weights(weights, match, kind):
    refuses(ValueError, match, weights=weights, kind=kind)
    with pytest.raises(ValueError, match=match):
        kind(**clusters(kind, 4), random_state=0).fit(X).score(X, sample_weight=weights)


@pytest.mark.parametrize("weights", [np.ones(20, complex), ["a"] * 20, [{}] * 20], ids=["complex", "text", "objects"])
def test_weights_that_are_no_numbers(weights):
    refuses((TypeError, ValueError), "sample_weight must hold numbers, got", weights=weights)


def test_rows_of_weight_zero_are_checked_too():
    refuses(ValueError, "NaN", with_value(np.nan), weights=np.arange(20) != 7)


@pytest.mark.parametrize(
    ("init", "error", "match"),
    [
        (
            X[:5],
            ValueError,
            r"init given as centres must have shape \(at most n_clusters, n_features\) = \(4, 3\), got \(5, 3\)",
        ),
        (X[:4, :2], ValueError, r"init given as centres must have shape .* = \(4, 3\), got \(4, 2\)"),
        (X[:4][np.newaxis], ValueError, r"init given as centres must have shape .*, got \(1, 4, 3\)"),
        (with_value(np.nan)[5:9], ValueError, "init given as centres must hold finite numbers only"),
        (X[:4].astype(complex), ValueError, "init given as centres must hold finite numbers only"),
        (X[:4].astype(str), ValueError, "init given as centres must hold finite numbers only"),
        (np.zeros(19, int), ValueError, r"init given as labels must have shape \(20,\), one per row, got \(19,\)"),
        (np.zeros(20), TypeError, "init given as labels must hold integers, got float64"),
        (np.arange(20), ValueError, r"init given as labels must lie in 0\.\.3, got values in 0\.\.19"),
        (np.full(20, -1), ValueError, r"init given as labels must lie in 0\.\.3, got values in -1\.\.-1"),
        (None, (TypeError, ValueError), "init .*got"),
        (7, (TypeError, ValueError), "init .*got"),
    ],
    ids=str.split("few narrow cube nan complex text short floats large negative none number"),
)
def test_starts(init, error, match):
    refuses(error, match, init=init)


def test_centers_whose_squares_overflow():
    refuses(ValueError, "init given as centres must", np.float32(X), init=X[:4] * 1e30)
    refuses(ValueError, "init given as centres must", np.float32(X), init=X[:4] * 1e300)
    refuses(ValueError, "init given as centres must", init=X[:4] * 1e200)
