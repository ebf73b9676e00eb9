"""Random partition trees, and the leaves of an iteration (section 3.4)."""

from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import draw_k, rows
from models import closures, model

from closure_kmeans.datasets import load_sift
from closure_kmeans.kept import check_partition
from closure_kmeans.kernels.trees import LANCZOS_STEPS
from closure_kmeans.parallel import Threads
from closure_kmeans.stores import memory
from closure_kmeans.stores.memory import MemoryStore, arrange_points
from closure_kmeans.trees import (
    LARGEST_LEAF,
    N_DRAWS,
    NODE_SAMPLE,
    FreshNeighborhoods,
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


def test_few_clusters_are_all_tested_and_many_are_not():
    X = load_sift()[:600]
    few, many = (closures(k, leaf_size=8, random_state=0, max_iter=2).fit(X) for k in (128, 129))
    assert {(record.n_trees, record.n_candidates) for record in few.history_} == {(0, 128)}
    assert all(record.n_trees == 1 and record.n_candidates <= 8 for record in many.history_)


def test_the_first_partition_is_used_once_and_is_not_the_last_word():
    cells = RandomPartition(np.arange(1000, dtype=np.int32), np.array([0, 1000]))
    fresh = FreshNeighborhoods(lambda leaf_size: leaf_size, 100, 1000, 0.9, first=cells)
    assert fresh.leaves() == [cells]
    assert fresh.expand(0.0, settled=True, accuracy=1.0)  # whatever it showed: new trees show more
    assert fresh.leaves() == [100]
    assert not fresh.expand(0.0, settled=True, accuracy=1.0)
    resumed = FreshNeighborhoods(lambda leaf_size: leaf_size, 100, 1000, 0.9, first=cells)
    resumed.restore(fresh.state())
    assert resumed.leaves() == [100]


def test_the_first_iteration_looks_at_whole_cells_of_the_start():
    X = load_sift()

    def first_candidates(k, **options):
        return closures(k, random_state=0, max_iter=1, **options).fit(X).history_[0].n_candidates

    assert first_candidates(2048) == 32
    assert first_candidates(2048, leaf_size=20) <= 20
    assert first_candidates(2048, init=np.arange(len(X)) % 2048) > 40  # these are no cells
    assert first_candidates(2000) > 40  # too few


@settings(max_examples=60)
@given(X=rows(), weighted=st.booleans(), data=st.data())
def test_groups_of_cells_keep_the_promises(X, weighted, data):
    k = draw_k(data, X)
    weights = np.random.default_rng(0).choice([0.25, 1.0, 4.0], len(X)) if weighted else None
    starts = []

    def remember(store, labels):
        starts.append(begin(store, labels))
        return starts[-1]

    begin = MemoryStore.begin
    with (
        mock.patch.multiple(memory, LEAVES_TOGETHER=2, FEW_LEAVES=1),
        mock.patch.object(MemoryStore, "begin", remember),
    ):
        fits = [model(k, tol=0, max_iter=20, n_threads=n_threads).fit(X, sample_weight=weights) for n_threads in (1, 2)]
    history = [starts[0].clusters.inertia, *(record.inertia for record in fits[0].history_)]
    assert all(after <= before for before, after in pairwise(history))
    np.testing.assert_array_equal(np.unique(fits[0].labels_), np.arange(k))
    np.testing.assert_array_equal(fits[0].labels_, fits[1].labels_)
    np.testing.assert_array_equal(fits[0].cluster_centers_, fits[1].cluster_centers_)


def test_fresh_leaves_double_when_settled_short_of_the_accuracy_wanted():
    fresh = FreshNeighborhoods(lambda leaf_size: leaf_size, LARGEST_LEAF // 4, 10**6, target_accuracy=0.9)
    told = [(False, 0.5), (True, None), (True, 0.9), (True, 0.89), (True, 0.0), (True, 0.0)]
    assert [fresh.expand(0.0, *how) for how in told] == [False, False, False, True, True, False]
    assert fresh.leaves() == [LARGEST_LEAF]


def test_a_fit_reaches_the_accuracy_wanted():
    X = load_sift()[:3000]
    hasty, thorough = (model(100, leaf_size=4, tol=0.05, target_accuracy=target).fit(X) for target in (0, 0.95))
    assert accuracy(X, hasty) < 0.85 < 0.93 < accuracy(X, thorough)
    assert thorough.inertia_ < hasty.inertia_
    assert thorough.history_[-1].accuracy >= 0.95


def accuracy(X, fitted):
    nearest, _ = reference.search_nearest(X, fitted.cluster_centers_)
    return np.mean(nearest == fitted.labels_)
