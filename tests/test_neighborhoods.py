"""The leaves of an iteration (section 3.4): when they are grown, and what the first ones are."""

from itertools import count, pairwise
from unittest import mock

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import draw_k, rows
from models import closures, model

from closure_kmeans.datasets import load_sift
from closure_kmeans.kept import KeptNeighborhoods
from closure_kmeans.stores import memory
from closure_kmeans.stores.memory import MemoryStore
from closure_kmeans.trees import LARGEST_LEAF, FreshNeighborhoods, RandomPartition


@pytest.mark.parametrize("min_fall", [0.0, 0.01, 0.2])
@pytest.mark.parametrize("max_trees", [1, 3, 10])
def test_adaptive_neighborhoods_grow_when_they_are_used_up(min_fall, max_trees):
    X = load_sift()[:600]
    start = np.arange(600) % 40
    paper = model(40, "paper", init=start, min_fall=min_fall, max_trees=max_trees, tol=0, max_iter=60).fit(X)
    n_trees, inertia = 1, reference.inertia(X, start)
    for record in paper.history_:
        assert record.n_trees == n_trees
        used_up = record.n_active == 0 or 1 - record.inertia / inertia < min_fall
        inertia = record.inertia
        n_trees = min(n_trees + used_up, max_trees)
    assert paper.stopped_by_ == "converged"
    assert paper.history_[-1].n_trees == max_trees
    assert paper.history_[-1].n_active == 0


def test_few_clusters_are_all_tested_and_many_are_not():
    X = load_sift()[:600]
    few, many = (closures(k, leaf_size=8, random_state=0, max_iter=2).fit(X) for k in (128, 129))
    assert {(record.n_trees, record.n_candidates) for record in few.history_} == {(0, 128)}
    assert all(record.n_trees == 1 and record.n_candidates <= 8 for record in many.history_)


def test_static_and_fresh_neighborhoods_do_not_grow():
    X = load_sift()[:600]
    assert {record.n_trees for record in model(40, "static").fit(X).history_} == {4}
    assert {record.n_trees for record in model(40).fit(X).history_} == {1}


def test_kept_trees_are_grown_once_and_fresh_ones_every_time():
    trees = count()

    def grow(leaf_size):
        return next(trees), leaf_size

    fresh = FreshNeighborhoods(grow, leaf_size=8, largest=100, target_accuracy=0.9)
    assert [fresh.leaves() for _ in range(3)] == [[(0, 8)], [(1, 8)], [(2, 8)]]

    static = KeptNeighborhoods(grow, 8, 2, adaptive=False, min_fall=0.1)
    assert not static.expand(fall=0.0, settled=True, accuracy=0.5)
    assert static.leaves() == static.leaves() == [(3, 8), (4, 8)]

    adaptive = KeptNeighborhoods(grow, 8, 3, adaptive=True, min_fall=0.1)
    told = [(0.1, False, 0.5), (0.09, False, None), (0.5, True, 1.0), (0.0, True, 0.0)]
    assert [adaptive.expand(*how) for how in told] == [False, True, True, False]
    assert adaptive.leaves() == [(5, 8), (6, 8), (7, 8)]


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
