from itertools import pairwise

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from closure_kmeans.kept import check_partition
from closure_kmeans.kernels.trees import LANCZOS_STEPS
from closure_kmeans.parallel import Threads
from closure_kmeans.stores.memory import arrange_points
from closure_kmeans.trees import (
    N_DRAWS,
    NODE_SAMPLE,
    RandomPartition,
    cut_evenly,
    grow_partition,
    unite_leaves,
)

AWKWARD = {
    "random": lambda rng, n: rng.normal(size=(n, 3)),
    "all equal": lambda rng, n: np.full((n, 2), 5.0),
    "two places": lambda rng, n: np.repeat(rng.integers(2, size=(n, 1)), 2, axis=1) * 1.0,
    "mostly one place": lambda rng, n: np.where(np.arange(n) % 10, 3.0, rng.normal(size=n))[:, np.newaxis],
    "on a line": lambda rng, n: rng.normal(size=(n, 1)) * [1.0, 2.0, -3.0],
    "in order on a line": lambda rng, n: np.arange(n)[:, np.newaxis] * [1.0, 1.0],
    "constant columns": lambda rng, n: rng.normal(size=(n, 3)) * [0.0, 1.0, 0.0],
    "one far away": lambda rng, n: np.eye(n, 1) * 1e9 + rng.normal(size=(n, 1)),
}


def grow(X, n_leaves, seed=0, n_threads=1):
    with Threads(n_threads) as threads:
        return grow_partition(X, X.mean(axis=0), n_leaves, np.random.default_rng(seed), threads)


@pytest.mark.kernels
@given(kind=st.sampled_from(sorted(AWKWARD)), n=st.integers(1, 90), seed=st.integers(0, 99), data=st.data())
def test_leaves_are_balanced_whatever_the_data(kind, n, seed, data):
    n_leaves = data.draw(st.integers(1, n) | st.just(n), "n_leaves")
    X = AWKWARD[kind](np.random.default_rng(seed), n)
    members, starts, _ = grow(X, n_leaves, seed)
    np.testing.assert_array_equal(np.sort(members), np.arange(n))
    assert len(starts) == n_leaves + 1
    assert (starts[0], starts[-1]) == (0, n)
    assert set(np.diff(starts)) <= {n // n_leaves, -(-n // n_leaves)}


@pytest.mark.kernels
@pytest.mark.parametrize("n_leaves", [1, 2, 63, 64, 65, 150])
def test_a_tree_is_that_of_the_recursion(n_leaves):
    """Level by level for many threads and subtree by subtree below: the same tree."""
    X = np.random.default_rng(0).normal(size=(150, 3))
    members, starts, _ = grow(X, n_leaves, seed=1)
    expected, draws = np.arange(150), np.random.default_rng(1).random(N_DRAWS)
    reference.grow_node(
        X, X.mean(axis=0), expected, starts, 0, n_leaves, draws, NODE_SAMPLE, LANCZOS_STEPS, max_depth=64
    )
    np.testing.assert_array_equal(members, expected)


@pytest.mark.parametrize("n_threads", [2, 3, 5])
def test_a_tree_does_not_depend_on_the_threads(n_threads):
    X = np.random.default_rng(0).normal(size=(5000, 8)).astype(np.float32)
    alone = grow(X, 500)
    np.testing.assert_array_equal(grow(X, 500, n_threads=n_threads).members, alone.members)
    assert (grow(X, 500, seed=1).members != alone.members).any()


def test_points_of_a_leaf_are_neighbors():
    X = np.random.default_rng(0).random((2000, 3))
    members, starts, _ = grow(X, 100)
    labels = np.empty(2000, int)
    labels[members] = np.repeat(np.arange(100), np.diff(starts))
    # 100 cubes of side 100^(-1/3) would leave a hundredth, to the power of two thirds, of the distortion.
    assert reference.inertia(X, labels) < 1.5 * 100 ** (-2 / 3) * reference.inertia(X, np.zeros(2000, int))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.uint8, np.int8])
@pytest.mark.parametrize("n_axes", [None, 2, 9])
def test_points_are_the_rows_in_the_order_of_the_tree(dtype, n_axes):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 100, (200, 5)).astype(dtype)
    weights = rng.random(200)
    with Threads(2) as threads:
        points, (members, starts, _) = arrange_points(X, weights, 20, n_axes, rng, threads)
    ordered = X[members].astype(np.float64)
    np.testing.assert_array_equal(reference.widen(points.rows), ordered)
    np.testing.assert_array_equal(points.weights, weights[members])
    np.testing.assert_allclose(points.offset, X.mean(axis=0, dtype=np.float64), atol=0.5)
    assert points.coordinates.shape == (200, 2 if n_axes == 2 else 5)
    np.testing.assert_array_equal(starts, np.arange(0, 201, 10))


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=30), seed=st.integers(0, 99), n_groups=st.integers(1, 30))
def test_unite_leaves(sizes, seed, n_groups):
    starts, order = np.append(0, np.cumsum(sizes)), np.random.default_rng(seed).permutation(len(sizes))
    groups = RandomPartition(order, cut_evenly(len(sizes), min(n_groups, len(sizes))))
    united = unite_leaves(starts, groups)
    check_partition(united)
    for (low, high), (first, last) in zip(pairwise(groups.starts), pairwise(united.starts), strict=True):
        expected = [np.arange(starts[leaf], starts[leaf + 1]) for leaf in order[low:high]]
        np.testing.assert_array_equal(united.members[first:last], np.concatenate(expected))
