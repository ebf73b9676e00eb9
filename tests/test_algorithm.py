"""What holds for every run: the theorems of section 3.2, and what the threads and the order of rows may not change."""

import os
import pickle
import warnings
from itertools import count, pairwise
from pathlib import Path
from threading import Event
from unittest import mock

import numpy as np
import pytest
import reference
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from models import closures
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from closure_kmeans import PAPER, ClosureKMeans, Method, assignment, centers, closure, clusters, neighborhoods, parallel
from closure_kmeans.arrays import ALIGNMENT, empty_rows, largest
from closure_kmeans.assignment import assign_by_closures, with_means
from closure_kmeans.base import draw_rows
from closure_kmeans.closure import FIRST_EXTRAPOLATED, cluster_by_closures, lower
from closure_kmeans.clusters import update
from closure_kmeans.datasets import load_sift
from closure_kmeans.metrics import assignment_accuracy
from closure_kmeans.neighborhoods import LARGEST_LEAF, FreshNeighborhoods, KeptNeighborhoods
from closure_kmeans.parallel import Threads
from closure_kmeans.points import heights
from closure_kmeans.stores import Rule
from closure_kmeans.stores.memory import MemoryStore, arrange_points
from closure_kmeans.trees import RandomPartition, check_partition, cut_evenly, unite_leaves

MODES = {
    "default": Method(neighborhoods="fresh"),
    "all clusters": Method(neighborhoods="all"),
    "paper": PAPER,
    "static": PAPER._replace(adaptive=False, max_trees=4),
    "kept by Hartigan's rule": Method(neighborhoods="kept", leaf_size=12, max_trees=3),
}
every_mode = pytest.mark.parametrize("mode", MODES)
DTYPES = [np.float64, np.float32, np.float16, np.uint8, np.int8]


def model(k, mode="default", **parameters):
    return closures(k, **{"method": MODES[mode], "n_threads": 1, "random_state": 0} | parameters)


def store_of(X, k, threads, *, look_back=False, tree_dims=None):
    """The rows in memory, and the state of the start from the tree."""
    rng = np.random.default_rng(0)
    store = MemoryStore(X, np.ones(1), k, tree_dims=tree_dims, look_back=look_back, rng=rng, threads=threads)
    return store, store.begin(store.tree_labels())


class Spoiling:
    """A store whose outcomes are spoilt."""

    def __init__(self, store, spoil):
        self._store, self._spoil = store, spoil

    def __getattr__(self, name):
        return getattr(self._store, name)

    def assign(self, state, leaves, rule):
        return self._spoil(self._store.assign(state, leaves, rule), state, rule)


def bits(fitted):
    """All of a result but the time it took."""
    history = [record._replace(seconds=0) for record in fitted.history_]
    return fitted.labels_.tobytes(), fitted.cluster_centers_.tobytes(), fitted.inertia_, history, fitted.stopped_by_


@st.composite
def rows(draw, max_rows=80, dtypes=DTYPES):
    """Rows with and without structure, often repeated, near the origin or far from it."""
    rng = np.random.default_rng(draw(st.integers(0, 999), "seed"))
    shape = draw(st.integers(1, max_rows), "n"), draw(st.integers(1, 6), "d")
    X = rng.normal(size=shape) * rng.choice([0, 1, 1, 9], shape[1])
    if draw(st.booleans(), "clustered"):
        X += 15 * rng.normal(size=(5, shape[1]))[rng.integers(5, size=shape[0])]
    if draw(st.booleans(), "repeated"):
        X = X[rng.integers(shape[0], size=shape[0])]
    dtype = draw(st.sampled_from(dtypes), "dtype")
    if np.dtype(dtype).kind in "iu":
        return (X.clip(-60, 60) + 60).astype(dtype)
    return (X + draw(st.sampled_from([0, 1000]), "offset")).astype(dtype)


def draw_k(data, X, smallest=1):
    return data.draw(st.integers(smallest, len(np.unique(X, axis=0))), "n_clusters")


# -- theorem 1 -------------------------------------------------------------------------------------------------------


@every_mode
@settings(max_examples=60)
@given(X=rows(), leaf_size=st.sampled_from([1, 2, 5, 20, 100]), weighted=st.booleans(), data=st.data())
def test_the_distortion_never_rises(mode, X, leaf_size, weighted, data):
    k = draw_k(data, X)
    rng = np.random.default_rng(0)
    weights = rng.choice([0.25, 1.0, 4.0], len(X)) if weighted else None
    start = rng.permutation(np.arange(len(X)) % k)
    fitted = model(k, mode, leaf_size=leaf_size, init=start, tol=0, max_iter=20).fit(X, sample_weight=weights)

    X = X.astype(np.float64)
    rounding = 1e-6 * np.square(X).sum()
    history = [record.inertia for record in fitted.history_]
    assert history[0] <= reference.inertia(X, start, weights) + rounding
    assert all(after <= before for before, after in pairwise(history))
    assert fitted.inertia_ == history[-1]
    assert fitted.inertia_ == pytest.approx(reference.inertia(X, fitted.labels_, weights), abs=rounding)
    weights = np.ones(len(X)) if weights is None else weights
    centers, sizes, _ = reference.update_clusters(X, weights, fitted.labels_, fitted.cluster_centers_)
    assert (sizes > 0).all()
    np.testing.assert_allclose(fitted.cluster_centers_, centers, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("hartigan", [False, True])
def test_a_step_that_would_raise_the_distortion_is_redone_by_the_papers_rule(hartigan, monkeypatch):
    monkeypatch.setattr(closure, "PARTS_OF_MOVERS", ())  # a small part of the points may lower it by chance
    with Threads(1) as threads:
        store, state = store_of(load_sift()[:300], 20, threads, look_back=True)
        labels = state.labels
        partitions = [store.grow(leaf_size) for leaf_size in (20, 100)]
        astray = state.clusters._replace(centers=np.roll(state.clusters.centers, 1, axis=1))
        monkeypatch.setattr(store, "target", lambda state, rule: astray if rule.ahead else state.clusters)
        step = lower(store, state, partitions, Rule(hartigan, ahead=True), tol=0)
        expected, _ = assign_by_closures(store.points, state.clusters, labels, partitions, Rule(), threads)
    np.testing.assert_array_equal(step.state.labels, expected)
    assert step.n_active == np.count_nonzero(expected != labels) > 0
    assert step.state.clusters.inertia < state.clusters.inertia


@pytest.mark.parametrize("undone", ["raised", "not lowered"])
def test_where_moves_undo_each_other_a_part_of_the_points_moves(undone):
    """Half of them, here; another half in another iteration."""

    def spoil(outcome, state, rule):
        worse = outcome.clusters._replace(errors=state.clusters.errors + (undone == "raised"))
        return outcome._replace(clusters=worse) if rule.part == 1 else outcome

    with Threads(1) as threads:
        store, state = store_of(load_sift()[:2000], 200, threads, look_back=True)  # the centres of the state are kept
        leaves = [store.grow(100)]
        joint, _ = assign_by_closures(store.points, state.clusters, state.labels, leaves, Rule(True), threads)
        steps = [lower(Spoiling(store, spoil), state, leaves, Rule(True, seed=number), 5e-4) for number in (1, 1, 2)]
    movers = joint != state.labels
    moved = [step.state.labels != state.labels for step in steps]
    assert all(step.state.clusters.inertia < state.clusters.inertia for step in steps)
    for some, step in zip(moved, steps, strict=True):
        np.testing.assert_array_equal(step.state.labels[some], joint[some])
        assert some.sum() == step.n_active == pytest.approx(movers.sum() / 2, rel=0.15)
    np.testing.assert_array_equal(moved[0], moved[1])
    assert 0.3 < (moved[0] & moved[2]).sum() / moved[0].sum() < 0.7


@pytest.mark.parametrize(("metric", "expected"), [("euclidean", 0.54), ("cosine", 0.65)])
@pytest.mark.parametrize("weighted", [False, True])
def test_small_clusters_of_rows_that_are_all_far_apart(metric, expected, weighted):
    """Many rows gain by a move, and lose by the moves of all others: 0.59 and 0.71 by the plain rule."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 128))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    weights = rng.integers(1, 4, 600).astype(np.float64) if weighted else np.ones(600)
    one, two = (ClosureKMeans(200, metric=metric, random_state=0, n_threads=n) for n in (1, 2))
    one.fit(X, sample_weight=weights)
    assert one.inertia_ / weights.sum() < expected
    assert all(after.inertia <= before.inertia for before, after in pairwise(one.history_))
    assert bits(two.fit(X, sample_weight=weights)) == bits(one)


def test_a_fit_whose_moves_undo_each_other_is_resumed(tmp_path):
    X = np.random.default_rng(0).normal(size=(600, 128))
    whole = ClosureKMeans(200, metric="cosine", random_state=0).fit(X)
    stopped = ClosureKMeans(200, metric="cosine", random_state=0, checkpoint=tmp_path)
    for n_iter in (3, 4, 100):
        stopped.set_params(callback=lambda record, last=n_iter: record.iteration == last).fit(X, resume=True)
    assert bits(stopped) == bits(whole)


def test_the_means_of_directions():
    """A mean lies on the way from the origin to its direction."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 8)) + 1
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    with Threads(1) as threads:
        points, _ = arrange_points(X, rng.random(300) + 0.5, 20, None, rng, threads)
        labels = rng.permutation(300).astype(np.int32) % 20
        clusters = update(points._replace(spherical=True), labels, 20, threads)
        means = with_means(clusters, points.offset, threads)
    expected, _, _ = reference.update_clusters(points.rows, points.weights, labels, np.zeros((20, 8)))
    np.testing.assert_allclose(means.centers + points.offset, expected, atol=1e-12)


@given(st.integers(0, 40), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_clusters_whose_points_are_the_same_are_taken_over(n_moves, spherical, weighted, seed):
    """The update is the same, bit for bit, whether or not it knows the clusters before; some of them are emptied."""
    rng = np.random.default_rng(seed)
    with Threads(1) as threads:
        weights = rng.random(300) + 0.5 if weighted else np.ones(1)
        points, _ = arrange_points(load_sift()[:300].astype(np.float32) / 7, weights, 20, None, rng, threads)
        points = points._replace(spherical=spherical)
        labels = rng.permutation(300).astype(np.int32) % 20
        before = update(points, labels, 20, threads)
        moved = labels.copy()
        moved[rng.integers(300, size=n_moves)] = rng.integers(20, size=n_moves)
        if n_moves > 30:
            moved[moved == 3] = 4
        alone, together = moved.copy(), moved.copy()
        expected = update(points, alone, 20, threads)
        found = update(points, together, 20, threads, before=(labels, before))
    np.testing.assert_array_equal(together, alone)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("rejected", [set(range(1, 7)), set(range(7, 13)), {7}, {8, 9}, set(range(7, 31))])
def test_centers_stay_as_they_are_when_all_of_a_step_is_rejected(rejected):
    """Their memory is used again, but not before its time. Calls are counted; a rejected step has six of them."""
    calls = count(1)

    def spoil(outcome, state, rule):
        worse = np.inf if next(calls) in rejected else 0
        return outcome._replace(clusters=outcome.clusters._replace(errors=outcome.clusters.errors + worse))

    def check(step, accuracy, converged):
        expected = update(store.points, step.state.labels.copy(), 5, threads)
        np.testing.assert_array_equal(step.state.clusters.centers, expected.centers)

    with Threads(1) as threads:
        store, state = store_of(load_sift()[:4000], 5, threads, look_back=True)
        store.accuracy = lambda state: 0.0  # so that it goes on, with larger leaves
        cluster_by_closures(
            Spoiling(store, spoil),
            state,
            FreshNeighborhoods(store.grow, 100, 4000, target_accuracy=1),
            Rule(hartigan=True),
            extrapolate_from=FIRST_EXTRAPOLATED,
            max_iter=8,
            tol=-1,
            on_iteration=check,
        )


# -- equality with Lloyd (section 3.2, "Accuracy") -------------------------------------------------------------------


def covering(k, **parameters):
    """The paper's rule with closures that cover everything."""
    return model(k, "paper", leaf_size=10_000, tol=0, **parameters)


@pytest.mark.parametrize("neighborhoods", ["fresh", "kept", "all"])
@pytest.mark.parametrize("weighted", [False, True])
@given(seed=st.integers(0, 999), n=st.integers(2, 100), d=st.integers(1, 5), data=st.data())
def test_covering_closures_give_lloyd(neighborhoods, weighted, seed, n, d, data):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    weights = rng.random(n) + 0.1 if weighted else None
    k = data.draw(st.integers(1, min(n, 10)), "k")
    max_iter = data.draw(st.integers(1, 8), "max_iter")
    centers = X[rng.choice(n, k, replace=False)]
    start, _ = reference.search_nearest(X, centers)
    exact = reference.lloyd(X, start, k, max_iter, weights)
    assume(exact is not None)
    labels, expected = exact
    for init, n_iter in ((centers, max_iter + 1), (start, max_iter)):  # from centres, the start is an iteration
        fitted = covering(k, init=init, max_iter=n_iter, neighborhoods=neighborhoods).fit(X, sample_weight=weights)
        np.testing.assert_array_equal(fitted.labels_, labels)
        np.testing.assert_allclose(fitted.cluster_centers_, expected, atol=1e-12)


def test_covering_closures_end_where_scikit_learn_ends():
    X = load_sift()[:1500].astype(np.float64)
    centers = X[:30]
    fitted = covering(30, init=centers, max_iter=300).fit(X)
    exact = KMeans(30, init=centers, n_init=1, tol=0, algorithm="lloyd").fit(X)
    assert fitted.stopped_by_ == "converged"
    np.testing.assert_array_equal(fitted.labels_, exact.labels_)
    np.testing.assert_allclose(fitted.cluster_centers_, exact.cluster_centers_, atol=1e-10)
    assert fitted.inertia_ == pytest.approx(exact.inertia_)


# -- what may not change the result ----------------------------------------------------------------------------------


@every_mode
@pytest.mark.parametrize("weighted", [False, True])
def test_any_number_of_threads_and_any_blocks_give_the_same_bits(mode, weighted, monkeypatch):
    X = load_sift()[:9000]
    weights = np.random.default_rng(0).random(len(X)) if weighted else None
    alone = bits(model(90, mode, max_iter=4).fit(X, sample_weight=weights))
    for n_threads, n_blocks in ((2, 16), (3, 16), (5, 16), (1, 1), (1, 7), (2, 10_000)):
        monkeypatch.setattr(parallel, "BLOCKS_PER_THREAD", n_blocks)
        for module in (assignment, centers, clusters):
            monkeypatch.setattr(module, "rows_per_block", lambda rows, n_blocks=n_blocks: -(-len(rows) // n_blocks))
        assert bits(model(90, mode, max_iter=4, n_threads=n_threads).fit(X, sample_weight=weights)) == alone


@settings(max_examples=40)
@given(X=rows(), mode=st.sampled_from(sorted(MODES)), n_threads=st.sampled_from([2, 3, 5]), data=st.data())
def test_small_data_on_any_number_of_threads(X, mode, n_threads, data):
    k, leaf_size = draw_k(data, X), data.draw(st.integers(1, 10), "leaf_size")
    alone, together = (model(k, mode, leaf_size=leaf_size, n_threads=n).fit(X) for n in (1, n_threads))
    assert bits(together) == bits(alone)


@st.composite
def whole_numbers_and_centers(draw):
    """Rows of whole numbers, whose sums are exact in any order, and centres from which Lloyd leaves none empty."""
    rng = np.random.default_rng(draw(st.integers(0, 999), "seed"))
    n, d = draw(st.integers(2, 60), "n"), draw(st.integers(2, 6), "d")
    X = rng.integers(0, 256, (n, d)).astype(np.uint8)
    centers = X[rng.choice(n, draw(st.integers(1, min(n, 9)), "k"), replace=False)] + rng.normal(0, 0.1, d)
    weights = rng.integers(1, 4, n)
    exact = reference.lloyd(X, reference.search_nearest(X, centers)[0], len(centers), 4, weights)
    assume(exact is not None)
    return X, centers, weights, rng


@given(whole_numbers_and_centers())
def test_the_order_of_the_rows_does_not_matter(example):
    """With closures that cover everything, from given centres."""
    X, centers, weights, rng = example
    order = rng.permutation(len(X))
    fitted = covering(len(centers), init=centers, max_iter=4).fit(X, sample_weight=weights)
    permuted = covering(len(centers), init=centers, max_iter=4).fit(X[order], sample_weight=weights[order])
    np.testing.assert_array_equal(permuted.labels_, fitted.labels_[order])
    np.testing.assert_array_equal(permuted.cluster_centers_, fitted.cluster_centers_)
    assert permuted.inertia_ == pytest.approx(fitted.inertia_, rel=1e-12)


@given(whole_numbers_and_centers())
def test_weights_are_repetitions(example):
    """With closures that cover everything, from given centres."""
    X, centers, weights, rng = example
    absent = rng.integers(0, 256, (3, X.shape[1])).astype(np.uint8)
    weighted = covering(len(centers), init=centers, max_iter=4)
    weighted.fit(np.append(absent, X, axis=0), sample_weight=np.append([0, 0, 0], weights))
    repeated = covering(len(centers), init=centers, max_iter=4).fit(np.repeat(X, weights, axis=0))
    np.testing.assert_array_equal(np.repeat(weighted.labels_[3:], weights), repeated.labels_)
    np.testing.assert_allclose(weighted.cluster_centers_, repeated.cluster_centers_, rtol=1e-6)
    assert weighted.inertia_ == pytest.approx(repeated.inertia_, rel=1e-6, abs=1e-2)


@every_mode
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("exponent", [-200, -1, 3, 200])
def test_the_unit_of_the_weights_does_not_matter(mode, dtype, exponent):
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(300, 4)).astype(dtype), rng.random(300)
    for some in (weights, np.ones(300)):
        fitted = model(20, mode).fit(X, sample_weight=some)
        rescaled = model(20, mode).fit(X, sample_weight=some * 2.0**exponent)
        np.testing.assert_array_equal(rescaled.labels_, fitted.labels_)
        assert rescaled.inertia_ == pytest.approx(fitted.inertia_ * 2.0**exponent, rel=1e-9)


# -- exactly k clusters ----------------------------------------------------------------------------------------------

AWKWARD = {
    "k = n": lambda rng: (rng.normal(size=(25, 3)), 25),
    "k = 1": lambda rng: (rng.normal(size=(25, 3)), 1),
    "one row": lambda rng: (rng.normal(size=(1, 3)), 1),
    "one feature": lambda rng: (rng.normal(size=(50, 1)), 20),
    "constant columns": lambda rng: (rng.normal(size=(50, 4)) * [0, 1, 0, 1] + 3, 20),
    "all columns but one constant": lambda rng: (np.outer(rng.permutation(30), [0.0, 1.0, 0.0]) - 7, 30),
    "on a line": lambda rng: (rng.normal(size=(50, 1)) * [1, -2, 3], 20),
    "k distinct rows": lambda rng: (rng.normal(size=(9, 2))[np.append(np.arange(9), rng.integers(9, size=60))], 9),
    "one row most of the time": lambda rng: (np.append(np.zeros((90, 2)), rng.normal(size=(9, 2)), axis=0), 10),
    "few whole numbers": lambda rng: (np.append(np.arange(5), rng.integers(5, size=60)).reshape(-1, 1) * 1.0, 5),
    "far from the origin": lambda rng: (rng.normal(size=(50, 3)) + 1e6, 20),
    "one far away": lambda rng: (np.append(rng.normal(size=(50, 3)), [[1e6, 0, 0]], axis=0), 20),
}


@pytest.mark.parametrize("mode", ["default", "paper"])
@pytest.mark.parametrize("kind", AWKWARD)
def test_exactly_k_clusters_for_seeds_0_to_99(mode, kind):
    for seed in range(100):
        X, k = AWKWARD[kind](np.random.default_rng(seed))
        fitted = model(k, mode, init=["tree", "random"][seed % 2], leaf_size=8, random_state=seed).fit(X)
        np.testing.assert_array_equal(np.unique(fitted.labels_), np.arange(k))
        assert fitted.inertia_ == pytest.approx(reference.inertia(X, fitted.labels_), abs=1e-9 * np.square(X).sum())


@given(st.lists(st.integers(-3, 5) | st.sampled_from([np.inf, -np.inf, np.nan]), max_size=20), st.integers(0, 25))
def test_largest(values, n):
    expected = np.argsort(-np.array(values, float), kind="stable")[:n]
    np.testing.assert_array_equal(largest(np.array(values, float), n), expected)


@pytest.mark.parametrize("shape", [(0, 16), (3, 2), (5, 128)])
def test_rows_begin_with_a_cache_line(shape):
    for dtype in (np.uint8, np.float32, np.float64):
        rows = empty_rows(shape, dtype)
        assert (rows.shape, rows.dtype) == (shape, dtype)
        assert rows.size == 0 or rows.ctypes.data % ALIGNMENT == 0
        assert rows.flags.c_contiguous
        rows[:] = 3
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(rows)), rows)


@every_mode
@settings(max_examples=40)
@given(X=rows(), data=st.data())
def test_labels_that_leave_clusters_empty_are_refilled(mode, X, data):
    k = draw_k(data, X)
    fitted = model(k, mode, init=np.zeros(len(X), int)).fit(X)
    np.testing.assert_array_equal(np.unique(fitted.labels_), np.arange(k))


@pytest.mark.parametrize("mode", ["default", "paper"])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("init", ["tree", "random"])
def test_copies_of_a_row_do_not_use_up_clusters(mode, dtype, init):
    """A few rows make up most of the data: no two centres are the same, and Lloyd from random rows is worse."""
    rng = np.random.default_rng(0)
    frequencies = 1 / np.arange(1, 401)
    copies = rng.choice(400, 4000, p=frequencies / frequencies.sum())
    X = load_sift()[np.append(np.arange(400), copies)].astype(dtype)
    fitted = model(300, mode, init=init).fit(X)
    assert len(np.unique(fitted.cluster_centers_, axis=0)) == 300
    exact = KMeans(300, init="random", n_init=1, random_state=0).fit(X.astype(np.float32))
    assert fitted.inertia_ < exact.inertia_


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_of_a_row_lie_equally_far(dtype):
    """Or else rounding alone would part them where their cluster is split."""
    rng = np.random.default_rng(0)
    for copies in range(2, 40):
        row, direction = rng.normal(size=(2, 20)).astype(dtype)
        far = heights(np.tile(row, (copies, 1)), direction)
        np.testing.assert_allclose(far, row @ direction, atol=1e-5)
        assert len(np.unique(far)) == 1


def test_as_many_clusters_as_distinct_rows_have_no_error():
    X = np.repeat(load_sift()[:40], 5, axis=0)
    fitted = model(40, leaf_size=16).fit(X)
    assert fitted.inertia_ == pytest.approx(0, abs=1e-6)
    np.testing.assert_array_equal(fitted.cluster_centers_[fitted.labels_], X)


def test_random_rows_are_drawn_by_weight():
    """Twenty different rows, and the heavy ones first."""
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(200, 2)), np.where(np.arange(200) < 15, 1e9, 1.0)
    with Threads(1) as threads:
        store = MemoryStore(X, weights, 20, tree_dims=None, rng=rng, threads=threads)
    drawn = store.order[draw_rows(store)]
    assert len(set(drawn)) == 20
    assert set(range(15)) < set(drawn)


# -- neighbourhoods (section 3.4) ------------------------------------------------------------------------------------


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


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=30), seed=st.integers(0, 99), n_groups=st.integers(1, 30))
def test_unite_leaves(sizes, seed, n_groups):
    starts, order = np.append(0, np.cumsum(sizes)), np.random.default_rng(seed).permutation(len(sizes))
    groups = RandomPartition(order, cut_evenly(len(sizes), min(n_groups, len(sizes))))
    united = unite_leaves(starts, groups)
    check_partition(united)
    for (low, high), (first, last) in zip(pairwise(groups.starts), pairwise(united.starts), strict=True):
        expected = [np.arange(starts[leaf], starts[leaf + 1]) for leaf in order[low:high]]
        np.testing.assert_array_equal(united.members[first:last], np.concatenate(expected))


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
        mock.patch.multiple(neighborhoods, LEAVES_TOGETHER=2, FEW_LEAVES=1),
        mock.patch.object(MemoryStore, "begin", remember),
    ):
        fits = [model(k, tol=0, max_iter=20, n_threads=n_threads).fit(X, sample_weight=weights) for n_threads in (1, 2)]
    history = [starts[0].clusters.inertia, *(record.inertia for record in fits[0].history_)]
    assert all(after <= before for before, after in pairwise(history))
    np.testing.assert_array_equal(np.unique(fits[0].labels_), np.arange(k))
    np.testing.assert_array_equal(fits[0].labels_, fits[1].labels_)
    np.testing.assert_array_equal(fits[0].cluster_centers_, fits[1].cluster_centers_)


def test_centers_are_extrapolated_after_two_iterations(monkeypatch):
    """The displacement from the start does not count."""
    ahead = []

    def target(store, state, rule):
        clusters = real(store, state, rule)
        ahead.append(bool((clusters.centers != state.clusters.centers).any()))
        return clusters

    real = MemoryStore.target
    monkeypatch.setattr(MemoryStore, "target", target)
    ClosureKMeans(200, random_state=0, max_iter=4).fit(load_sift())
    assert ahead == [False, False, True, True]


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


def test_candidates_are_the_clusters_of_the_neighbors():
    """With leaves of one point there are none but one's own, and with one leaf there are all."""
    X = load_sift()[:200]
    assert model(20, "paper", leaf_size=1, max_trees=1).fit(X).history_[0].n_candidates == 1
    assert covering(20).fit(X).history_[0].n_candidates == 20


# -- quality ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "share_of_lloyd"), [(100, 0.99), (400, 0.95)])
def test_better_than_lloyd_by_default_and_as_good_in_the_paper(k, share_of_lloyd):
    """Measured 0.98 and 0.92 by default, 1.00 and 1.01 in the paper's mode, 1.05 and 1.07 with one tree."""
    X = load_sift()[:4000].astype(np.float32)
    lloyd, ours, paper, one_tree = np.transpose([list(distortions(X, k, seed)) for seed in range(3)])
    assert ours.mean() < share_of_lloyd * lloyd.mean()
    assert (ours < lloyd).all()
    assert (paper < 1.03 * lloyd).all()
    assert (paper < one_tree).all()


def distortions(X, k, seed):
    centers = X[np.random.default_rng(seed).choice(len(X), k, replace=False)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield KMeans(k, init=centers, n_init=1, max_iter=25, tol=0, algorithm="lloyd").fit(X).inertia_
    yield ClosureKMeans(k, random_state=seed, n_threads=1).fit(X).inertia_
    yield ClosureKMeans.paper(k, random_state=seed, n_threads=1).fit(X).inertia_
    yield closures(k, method=PAPER, random_state=seed, n_threads=1, max_trees=1).fit(X).inertia_


# -- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_error_in_a_block_is_raised_where_the_call_was_made(n_threads):
    def work(first, last):
        if first == 4:
            raise ZeroDivisionError
        return first, last

    with Threads(n_threads) as threads:
        assert threads.for_each_block(work, 4, 3) == [(0, 3), (3, 4)]
        assert threads.for_each_block(work, 0) == []
        with pytest.raises(ZeroDivisionError):
            threads.for_each_block(work, 100, 1)
        assert threads.for_each_block(work, 2, 1) == [(0, 1), (1, 2)]


def test_of_several_errors_the_first_block_s_is_raised_and_no_other_block_is_begun():
    begun = []
    failed = Event()

    def work(first, last):
        begun.append(first)
        if first == 1:
            failed.set()
            raise KeyError
        if first == 0:
            failed.wait()
            raise ZeroDivisionError

    with Threads(2) as threads, pytest.raises(ZeroDivisionError):
        threads.for_each_block(work, 100, 1)
    assert sorted(begun) == [0, 1]


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_clusters_far_smaller_than_the_spread_of_the_data(scale):
    """Blobs far apart: single precision suffices if it is spent where the points are."""
    rng = np.random.default_rng(0)
    blobs = rng.uniform(-1000, 1000, (8, 2))
    X = (blobs[rng.integers(8, size=4000)] + scale * rng.random((4000, 2))).astype(np.float32)
    single = ClosureKMeans(400, random_state=0).fit(X)
    double = ClosureKMeans(400, random_state=0).fit(X.astype(np.float64))
    assert single.inertia_ < 1.05 * double.inertia_
    assert assignment_accuracy(X, single.cluster_centers_, single.labels_) > 0.95


@pytest.mark.slow
def test_one_hundred_thousand_real_rows():
    """At or below exact Lloyd from random rows, and the paper's mode within 3 % of it."""
    path = Path(os.environ.get("CLOSURE_KMEANS_DATA", "")) / "caltech101_mser_sift_1m_u8.npy"
    if not path.is_file():
        pytest.skip("the folder that CLOSURE_KMEANS_DATA names does not hold the million SIFT descriptors")
    X = np.load(path, mmap_mode="r")[:100_000]
    rows = X.astype(np.float32)
    start = rows[np.random.default_rng(0).choice(len(rows), 1000, replace=False)]
    lloyd = KMeans(1000, init=start, n_init=1, max_iter=25, tol=0).fit(rows)
    assert ClosureKMeans(1000, random_state=0).fit(X).inertia_ <= lloyd.inertia_
    assert ClosureKMeans.paper(1000, random_state=0).fit(X).inertia_ <= 1.03 * lloyd.inertia_
