"""What all stores share: the assignment step, the buffers of the centres, which take turns, and extrapolation."""

from itertools import count

import numpy as np
import pytest
from models import covering, model
from stores import Spoiling, store_of

from closure_kmeans import ClosureKMeans
from closure_kmeans.closure import FIRST_EXTRAPOLATED, cluster_by_closures
from closure_kmeans.clusters import update
from closure_kmeans.datasets import load_sift
from closure_kmeans.metrics import assignment_accuracy
from closure_kmeans.parallel import Threads
from closure_kmeans.stores import Rule
from closure_kmeans.stores.memory import MemoryStore
from closure_kmeans.trees import FreshNeighborhoods


def test_candidates_are_the_clusters_of_the_neighbors():
    """With leaves of one point there are none but one's own, and with one leaf there are all."""
    X = load_sift()[:200]
    assert model(20, "paper", leaf_size=1, max_trees=1).fit(X).history_[0].n_candidates == 1
    assert covering(20).fit(X).history_[0].n_candidates == 20


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
