"""Small points, clusters and partitions, for tests of kernels."""

import numpy as np
import pytest
import reference

from closure_kmeans.clusters import Clusters
from closure_kmeans.points import Points, precision
from closure_kmeans.trees import RandomPartition

every_dtype = pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.uint8, np.int8])
both_precisions = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def make_points(rng, dtype, n=60, d=5, weighted=False):
    X = rng.normal(0, 40, (n, d)).clip(-128, 127) + 128 * (dtype == np.uint8)
    X = X.astype(dtype)
    mean = X.mean(axis=0, dtype=precision(dtype))
    weights = rng.choice([0.3, 1.0, 2.5], n) if weighted else np.array([1.5])
    rows = X.view(np.uint16) if dtype == np.float16 else X
    return Points(rows, mean, weights, rows, mean)


def numbers(points):
    """Shifted rows and the weight of each, in double precision."""
    return reference.widen(points.rows) - points.offset, np.broadcast_to(points.weights, len(points.rows))


def make_labels(rng, n, k):
    """Random labels; every cluster has points and the last one only one."""
    return rng.permutation(np.concatenate([np.arange(k), rng.integers(max(1, k - 1), size=n - k)])).astype(np.int32)


def make_clusters(points, labels, k):
    X, weights = numbers(points)
    centers, sizes, errors = reference.update_clusters(X, weights, labels, np.zeros((k, X.shape[1])))
    centers = centers.astype(points.offset.dtype)
    return Clusters(centers, (centers**2).sum(axis=1), sizes, errors, np.zeros(k))


def make_partition(rng, n, n_leaves):
    """Leaves of any size, the first of one point."""
    cuts = np.sort(rng.choice(np.arange(2, n), n_leaves - 2, replace=False))
    return RandomPartition(rng.permutation(n).astype(np.int32), np.concatenate([[0, 1], cuts, [n]]).astype(np.int64))


def largest_norm(points):
    return ((reference.widen(points.rows) - points.offset) ** 2).sum(axis=1).max()


def assert_close(actual, expected, dtype, scale=1.0):
    """Equal but for some units in the last place of the largest value."""
    eps = np.finfo(precision(dtype)).eps
    np.testing.assert_allclose(actual, expected, rtol=100 * eps, atol=100 * eps * scale)
