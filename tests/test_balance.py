"""Balanced clusters: what is wanted of the largest, and what all clusters are promised."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import closures

from closure_kmeans import ClosureKMeans, balance, closure
from closure_kmeans.clusters import Clusters
from closure_kmeans.datasets import load_sift


@pytest.fixture(scope="module", name="X")
def sift():
    return load_sift()[:6000]


@pytest.fixture(scope="module", name="free")
def fit_freely(X):
    return ClosureKMeans(200, random_state=0).fit(X)


def bits(model):
    return model.labels_.tobytes(), model.cluster_centers_.tobytes(), [record.inertia for record in model.history_]


@pytest.mark.parametrize(
    ("parameters", "cost"),
    [
        ({"max_size": 60}, 0.01),
        ({"max_size": 36}, 0.03),
        ({"max_size": 33}, 0.05),
        ({"max_size": 60, "rule": "lloyd", "extrapolate": False}, 0.05),
        ({"max_size": 60, "neighborhoods": "all"}, 0.01),
        ({"max_size": 60, "memory_limit": "5MB"}, 0.02),
    ],
)
def test_no_cluster_is_larger(X, free, parameters, cost):
    assert free.cluster_sizes_.max() > 75
    model = closures(200, random_state=0, **parameters).fit(X)
    assert model.stopped_by_ == "converged"
    assert model.cluster_sizes_.max() <= parameters["max_size"]
    assert model.cluster_sizes_.min() > 0
    np.testing.assert_array_equal(model.cluster_sizes_, np.bincount(model.labels_, minlength=200))
    means = [X[model.labels_ == j].mean(axis=0) for j in range(200)]
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=1e-4, atol=1e-4)
    assert model.inertia_ < (1 + cost) * free.inertia_
    assert model.history_[-1].accuracy is None


def test_clusters_that_are_too_large_shrink(X, free):
    model = ClosureKMeans(200, init=free.cluster_centers_, random_state=0, max_size=60).fit(X)
    assert model.cluster_sizes_.max() <= 60


def test_a_target_that_all_are_below_changes_nothing(X, free):
    model = ClosureKMeans(200, random_state=0, max_size=len(X), target_accuracy=0).fit(X)
    same = ClosureKMeans(200, random_state=0, target_accuracy=0).fit(X)
    assert bits(model) == bits(same)


def test_weights_count(X):
    weights = np.random.default_rng(0).choice([1.0, 2.0, 5.0], len(X))
    target = 2 * weights.sum() / 200
    assert ClosureKMeans(200, random_state=0).fit(X, sample_weight=weights).cluster_sizes_.max() > target
    model = ClosureKMeans(200, random_state=0, max_size=target).fit(X, sample_weight=weights)
    assert model.cluster_sizes_.max() <= target
    np.testing.assert_allclose(model.cluster_sizes_, np.bincount(model.labels_, weights, 200))


def test_the_same_bits_on_any_number_of_threads_and_after_a_resume(X, tmp_path):
    one, two = (ClosureKMeans(200, random_state=0, max_size=40, n_threads=n_threads).fit(X) for n_threads in (1, 2))
    assert bits(one) == bits(two)
    stopped = ClosureKMeans(200, random_state=0, max_size=40, checkpoint=tmp_path, max_iter=3).fit(X)
    assert stopped.n_iter_ == 3 < one.n_iter_
    assert bits(stopped.set_params(max_iter=100).fit(X, resume=True)) == bits(one)


@settings(max_examples=50)
@given(
    seed=st.integers(0, 99),
    k=st.integers(1, 12),
    slack=st.floats(1, 2),
    rule=st.sampled_from(["hartigan", "lloyd"]),
    metric=st.sampled_from(["euclidean", "cosine"]),
)
def test_the_penalised_objective_never_rises_in_an_iteration(seed, k, slack, rule, metric):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(80, 3)) ** 3
    steps = []

    def observed(points, state, *arguments, **options):
        outcome = lower(points, state, *arguments, **options)
        np.testing.assert_array_equal(outcome.state.clusters.penalties, state.clusters.penalties)
        steps.append((state.clusters.penalized_inertia, outcome.state.clusters.penalized_inertia))
        return outcome

    lower = closure.lower
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closure, "lower", observed)
        model = closures(
            k, max_size=slack * -(-80 // k), rule=rule, metric=metric, leaf_size=20, neighborhoods="fresh", max_iter=15
        ).fit(X)
    assert len(steps) == model.n_iter_
    assert all(after <= before for before, after in steps)
    assert np.bincount(model.labels_, minlength=k).min() > 0


def test_penalties_follow_the_sizes():
    sizes = np.array([90.0, 135.0, 900.0, 45.0])
    clusters = Clusters(np.zeros((4, 1)), np.zeros(4), sizes, sizes * 2, np.array([1.0, 1.0, 0.0, 0.05]))
    adapted = balance.adapt_penalties(clusters, 100)
    step = balance.STEP * 2  # the mean squared distance is 2
    np.testing.assert_allclose(adapted.penalties, [1, 1 + step / 2, step, max(0.0, 0.05 - step / 2)])


def admitted(labels, new_labels, weights, max_size):
    """The labels after those have been sent back who find no room."""
    result, weights = np.array(new_labels), np.array(weights, np.float64)
    sizes = np.bincount(labels, np.broadcast_to(weights, len(labels)), 4)
    balance.admit(np.array(labels), result, weights, sizes, max_size)
    np.testing.assert_allclose(sizes, np.bincount(result, np.broadcast_to(weights, len(labels)), 4))
    return result.tolist()


def test_who_finds_no_room_is_sent_back():
    assert admitted([0, 0, 1, 1], [0, 1, 0, 1], [1.0], 2) == [0, 1, 0, 1]  # an exchange
    assert admitted([0, 0, 1, 2], [3, 3, 3, 3], [1.0], 2) == [3, 3, 1, 2]
    assert admitted([0, 0, 1, 2], [3, 3, 3, 3], [1.0, 1.0, 5.0, 1.0], 2) == [3, 3, 1, 2]
    # The last to come to 1 goes back to 0, which then has no room for who came from 2.
    assert admitted([2, 0, 0, 1, 1], [0, 0, 1, 1, 1], [1.0], 2) == [2, 0, 0, 1, 1]
    # Too large before: it may lose points, and admits nobody.
    assert admitted([0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [1.0], 2) == [0, 0, 0, 1, 1]


@given(seed=st.integers(0, 999), n=st.integers(1, 40), room=st.floats(1, 2), weighted=st.booleans())
def test_nobody_is_admitted_beyond_the_room(seed, n, room, weighted):
    rng = np.random.default_rng(seed)
    labels, wanted = np.arange(n) % 4, rng.integers(4, size=n)
    weights = rng.random(n) + 0.5 if weighted else np.ones(n)
    before = np.bincount(labels, weights, 4)
    max_size = room * before.max()
    result = np.array(admitted(labels, wanted, weights, max_size))
    assert np.bincount(result, weights, 4).max() <= max_size * (1 + 1e-9)
    assert ((result == wanted) | (result == labels)).all()
    if np.bincount(wanted, weights, 4).max() <= max_size:
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize(
    ("max_size", "error", "message"),
    [
        ("large", TypeError, "max_size must be a number, got 'large'"),
        (-1, ValueError, "max_size must be at least 0, got -1"),
        (29, ValueError, "max_size must be at least the mean size of a cluster, 30, got 29"),
        (float("nan"), ValueError, "max_size must be at least 0, got nan"),
        (
            30.5,
            ValueError,
            "max_size must leave room for all 6050 rows: 200 clusters of at most 30.5 hold 30 whole rows each; "
            "it must be at least 31",
        ),
    ],
)
def test_bad_targets(X, max_size, error, message):
    X = X if max_size != 30.5 else np.concatenate([X, X[:50]])
    with pytest.raises(error, match=message):
        ClosureKMeans(200, max_size=max_size).fit(X)


def test_whole_rows_must_fit(X):
    """Eight clusters of up to seven and a half rows hold 56 of 60."""
    with pytest.raises(ValueError, match=r"hold 7 whole rows each; it must be at least 8$"):
        ClosureKMeans(8, max_size=7.5).fit(X[:60])
    with pytest.raises(ValueError, match=r"hold 7 whole rows each; it must be at least 4$"):
        ClosureKMeans(8, max_size=3.75).fit(X[:60], sample_weight=np.full(60, 0.5))
    with pytest.raises(ValueError, match=r"max_size must be at least the weight of the heaviest row, 9, got 8\.6"):
        ClosureKMeans(8, max_size=8.6).fit(X[:60], sample_weight=[9.0] + [1.0] * 59)
    with pytest.raises(ValueError, match=r"room for all 59 rows: 8 clusters of at most 7\.5 hold 7 whole rows each"):
        ClosureKMeans(8, max_size=7.5).fit(X[:60], sample_weight=[0.0] + [1.0] * 59)
    with pytest.raises(ValueError, match="hold 7 whole rows each"):
        ClosureKMeans(8, max_size=7.6).fit(X[:60], sample_weight=[1.0001] + [1.0] * 59)
    tenths = ClosureKMeans(10, max_size=0.3, random_state=0).fit(X[:30], sample_weight=np.full(30, 0.1))
    np.testing.assert_allclose(tenths.cluster_sizes_, 0.3)
    assert ClosureKMeans(8, max_size=8, random_state=0).fit(X[:60]).cluster_sizes_.max() <= 8


def test_a_hierarchy_is_not_balanced(X):
    model = ClosureKMeans(200, random_state=0, max_size=40, max_iter=3).fit(X)
    assert model.hierarchy([20])[0].sizes.sum() == len(X)
