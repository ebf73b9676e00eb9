"""The search for the nearest of all centres."""

import numpy as np
import pytest
import reference
from small import both_precisions

from closure_kmeans.kernels import nearest as nearest_kernels
from closure_kmeans.nearest import nearest_centers
from closure_kmeans.parallel import Threads

pytestmark = pytest.mark.kernels


@both_precisions
def test_keep_nearest(dtype):
    rng = np.random.default_rng(0)
    products, norms = rng.normal(size=(7, 5)).astype(dtype), rng.random(20).astype(dtype)
    best, second, choice = np.full(5, -0.5, dtype), np.full(5, 0.5, dtype), np.zeros(5, np.int32)
    expected = reference.keep_nearest(products, norms, 4, best, second, choice)
    nearest_kernels.keep_nearest(products, norms, 4, best, second, choice)
    for actual, wanted in zip((best, second, choice), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-6)
    assert 0 < np.count_nonzero(choice) < 5


def search(rows, centers):
    with Threads(2) as threads:
        return nearest_centers(rows, centers, np.zeros_like(centers[0]), threads)


@both_precisions
@pytest.mark.parametrize(("n", "k", "d"), [(1, 1, 1), (300, 3, 4), (30, 600, 2), (270, 520, 1)])
def test_search_nearest(dtype, n, k, d):
    """In one product and in several."""
    rng = np.random.default_rng(0)
    rows, centers = rng.normal(size=(n, d)).astype(dtype), rng.normal(size=(k, d)).astype(dtype)
    labels, distances = search(rows, centers)
    expected_labels, expected_distances = reference.search_nearest(rows, centers)
    np.testing.assert_array_equal(labels, expected_labels)
    np.testing.assert_allclose(distances, expected_distances, rtol=1e-12)


@both_precisions
def test_search_takes_the_first_of_equally_near_centers(dtype):
    grid = np.stack(np.meshgrid(np.arange(5), np.arange(5)), axis=-1).reshape(-1, 2).astype(dtype)
    centers = np.concatenate([grid[::3], grid[::-4]])
    labels, _ = search(grid, centers)
    np.testing.assert_array_equal(labels, reference.search_nearest(grid, centers)[0])


def test_search_is_exact_where_products_are_not():
    """Centres so close together, and so far away, that products cannot tell them apart."""
    rng = np.random.default_rng(0)
    centers = (1000 + rng.normal(scale=1e-3, size=(20, 30))).astype(np.float32)
    rows = (1000 + rng.normal(size=(40, 30))).astype(np.float32)
    expected, _ = reference.search_nearest(rows, centers)
    products = (centers**2).sum(axis=1) - 2 * rows @ centers.T
    assert (products.argmin(axis=1) != expected).any()
    np.testing.assert_array_equal(search(rows, centers)[0], expected)


def test_squared_distance():
    a, b = np.array([1e4, 3], np.float32), np.array([1e4 + 1, 1], np.float32)
    assert nearest_kernels.squared_distance(a, b) == 5


@both_precisions
def test_plain_distance(dtype):
    a, b = np.random.default_rng(0).normal(size=(2, 9)).astype(dtype)
    assert nearest_kernels.plain_distance(a, b) == pytest.approx(reference.squared_distances([a], [b])[0, 0], rel=1e-6)


@both_precisions
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("n_nearest", [1, 2, 5, 30])
def test_settle_several(dtype, whole, n_nearest):
    """Also where scores are wrong by as much as they may be by rounding, or not a number."""
    rng = np.random.default_rng(0)
    draw = (lambda *shape: rng.integers(0, 4, shape)) if whole else (lambda *shape: rng.normal(size=shape))
    rows, centers = draw(50, 3).astype(dtype), draw(30, 3).astype(dtype)
    norms = (centers**2).sum(1)
    scores = norms - 2 * rows @ centers.T
    scores += np.finfo(dtype).eps * norms.max() * rng.choice([-1, 1], scores.shape).astype(dtype)
    scores[7] = np.nan
    labels, distances = np.empty((50, n_nearest), np.int32), np.empty((50, n_nearest))
    best = np.empty(n_nearest, dtype)
    nearest_kernels.settle_several(rows, centers, norms.max(), scores, best, labels, distances)
    squares = reference.squared_distances(rows, centers)
    expected = np.argsort(squares, axis=1, kind="stable")[:, :n_nearest]
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_allclose(distances, np.take_along_axis(squares, expected, axis=1), rtol=1e-12)
