"""What the baselines promise: what makes each of them exact, what none may do, and how they compare."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import AWKWARD, draw_k, rows
from models import bits, closures
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from closure_kmeans import PAPER, ClosureKMeans, parallel, validation
from closure_kmeans.baselines import ApproximateKMeans, CanopyKMeans, HierarchicalKMeans, LloydKMeans, approximate
from closure_kmeans.baselines.approximate import grow_forest, search_forest
from closure_kmeans.baselines.canopy import canopy_axes, centers_inside, draw_canopies
from closure_kmeans.baselines.flat import move
from closure_kmeans.baselines.hierarchical import assign_children, find_copies
from closure_kmeans.clusters import update
from closure_kmeans.datasets import load_sift
from closure_kmeans.iteration import Clustering
from closure_kmeans.parallel import Threads
from closure_kmeans.stores.memory import arrange_points

MONOTONE = {
    "Lloyd": lambda k, **parameters: LloydKMeans(k, **parameters),
    "RAKM": lambda k, **parameters: ApproximateKMeans(k, n_candidates=3, n_trees=2, refined=True, **parameters),
    "canopies": lambda k, **parameters: CanopyKMeans(k, loose=0.3, tight=0.2, canopy_dims=2, **parameters),
}
FLAT = MONOTONE | {"AKM": lambda k, **parameters: ApproximateKMeans(k, n_candidates=3, n_trees=2, **parameters)}
METHODS = FLAT | {"HKM": lambda k, **parameters: HierarchicalKMeans(max(2, round(k**0.5)), 2, **parameters)}
every_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(scope="module", name="X")
def sift():
    return load_sift()


def history(fitted):
    return [record.inertia for record in fitted.history_]


# -- exact where they should be --------------------------------------------------------------------------------------


def test_lloyd_is_scikit_learns(X):
    """From rows a little moved: whole numbers are often equally far from two others."""
    centers = X[:200] + np.random.default_rng(0).normal(0, 0.1, (200, 128))
    ours = LloydKMeans(200, init=centers, max_iter=12, tol=0).fit(X.astype(np.float64))
    exact = KMeans(200, init=centers, n_init=1, tol=0, max_iter=12, algorithm="lloyd").fit(X.astype(np.float64))
    np.testing.assert_allclose(ours.cluster_centers_, exact.cluster_centers_, atol=1e-9)
    np.testing.assert_array_equal(ours.relabel(X).labels_, exact.labels_)


def test_lloyd_ends_where_scikit_learn_ends(X):
    rows = X[:3000].astype(np.float64)
    ours = LloydKMeans(40, init=rows[:40], tol=0, max_iter=300).fit(rows)
    exact = KMeans(40, init=rows[:40], n_init=1, tol=0, algorithm="lloyd").fit(rows)
    assert ours.stopped_by_ == "converged"
    np.testing.assert_array_equal(ours.labels_, exact.labels_)
    assert ours.inertia_ == pytest.approx(exact.inertia_)


@pytest.mark.parametrize("refined", [False, True])
def test_akm_with_all_candidates_is_lloyd(X, refined):
    lloyd = LloydKMeans(32, random_state=0, max_iter=8).fit(X)
    akm = ApproximateKMeans(32, n_candidates=32, n_trees=2, refined=refined, random_state=0, max_iter=8).fit(X)
    np.testing.assert_array_equal(akm.labels_, lloyd.labels_)
    assert akm.inertia_ == lloyd.inertia_
    assert (
        {record.n_candidates for record in akm.history_} == {record.n_candidates for record in lloyd.history_} == {32}
    )


@settings(max_examples=40)
@given(X=rows(), n_trees=st.integers(1, 4), data=st.data())
def test_akm_with_all_candidates_is_lloyd_on_any_data(X, n_trees, data):
    k = draw_k(data, X)
    lloyd = LloydKMeans(k, random_state=0, n_threads=1).fit(X)
    akm = ApproximateKMeans(k, n_candidates=k, n_trees=n_trees, random_state=0, n_threads=1).fit(X)
    assert akm.inertia_ == pytest.approx(lloyd.inertia_, rel=1e-9, abs=1e-9 * np.square(X.astype(float)).sum())


def test_one_canopy_that_holds_everything_is_lloyd(X):
    """The widest distance of a sample is that of all rows if they are all in it."""
    some = X[:900].astype(np.float64)
    lloyd = LloydKMeans(30, random_state=0).fit(some)
    canopies = CanopyKMeans(30, loose=1, tight=1, canopy_dims=128, random_state=0).fit(some)
    np.testing.assert_array_equal(canopies.labels_, lloyd.labels_)
    assert canopies.history_[0].n_candidates == 31  # all, and one's own once more


def test_all_start_from_the_tree_that_closures_start_from(X):
    """One iteration with closures that cover everything is one of Lloyd's."""
    some = X[:1000].astype(np.float64)
    paper = closures(30, method=PAPER, leaf_size=1000, max_iter=1, tree_dims=16, random_state=5).fit(some)
    lloyd = LloydKMeans(30, max_iter=1, random_state=5).fit(some)
    np.testing.assert_array_equal(lloyd.labels_, paper.labels_)
    for method in FLAT.values():
        assert method(30, max_iter=1, random_state=5).fit(some).inertia_ > lloyd.inertia_ * (1 - 1e-12)


# -- what holds for every run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*MONOTONE, "HKM"])
@settings(max_examples=40)
@given(X=rows(), weighted=st.booleans(), data=st.data())
def test_the_distortion_never_rises(method, X, weighted, data):
    weights = np.random.default_rng(0).choice([0.25, 1.0, 4.0], len(X)) if weighted else None
    fitted = METHODS[method](draw_k(data, X), tol=0, max_iter=20, random_state=0, n_threads=1)
    fitted.fit(X, sample_weight=weights)
    assert all(after <= before for before, after in pairwise(history(fitted)))
    X = X.astype(np.float64)
    rounding = 1e-6 * np.square(X).sum()
    assert fitted.inertia_ == pytest.approx(reference.inertia(X, fitted.labels_, weights), abs=rounding)


@pytest.mark.parametrize("method", [*MONOTONE, "HKM"])
def test_the_distortion_of_real_data_never_rises(X, method):
    fitted = METHODS[method](300, tol=0, max_iter=15, random_state=0).fit(X)
    assert all(after <= before for before, after in pairwise(history(fitted)))


@every_method
@pytest.mark.parametrize("weighted", [False, True])
def test_any_number_of_threads_and_any_blocks_give_the_same_bits(X, method, weighted, monkeypatch):
    weights = np.random.default_rng(0).random(9000) if weighted else None

    def fit(n_threads):
        return bits(
            METHODS[method](90, max_iter=3, random_state=0, n_threads=n_threads).fit(X[:9000], sample_weight=weights)
        )

    alone = fit(1)
    for n_threads, n_blocks in ((2, 16), (3, 16), (5, 16), (1, 1), (1, 7), (2, 10_000)):
        monkeypatch.setattr(parallel, "BLOCKS_PER_THREAD", n_blocks)
        assert fit(n_threads) == alone


@pytest.mark.parametrize("method", FLAT)
@pytest.mark.parametrize("kind", AWKWARD)
def test_exactly_k_clusters_for_seeds_0_to_19(method, kind):
    for seed in range(20):
        X, k = AWKWARD[kind](np.random.default_rng(seed))
        fitted = FLAT[method](k, init=["tree", "random"][seed % 2], random_state=seed, n_threads=1).fit(X)
        np.testing.assert_array_equal(np.unique(fitted.labels_), np.arange(k))
        assert fitted.inertia_ == pytest.approx(reference.inertia(X, fitted.labels_), abs=1e-9 * np.square(X).sum())


@pytest.mark.parametrize("method", FLAT)
@settings(max_examples=30)
@given(X=rows(), data=st.data())
def test_labels_that_leave_clusters_empty_are_refilled(method, X, data):
    k = draw_k(data, X)
    fitted = FLAT[method](k, init=np.zeros(len(X), int), n_threads=1).fit(X)
    np.testing.assert_array_equal(np.unique(fitted.labels_), np.arange(k))


def arranged(X, labels, k):
    """Points in the order of the rows, and a state of theirs."""
    with Threads(1) as threads:
        points, _ = arrange_points(X, np.ones(1), 1, None, np.random.default_rng(0), threads)
        return points, Clustering(labels, update(points, labels, k, threads))


@pytest.mark.parametrize("may_rise", [False, True])
def test_a_step_that_raises_the_distortion_is_dropped_unless_it_may(X, may_rise):
    labels = LloydKMeans(20, random_state=0).fit(X[:500]).labels_
    points, state = arranged(X[:500], labels, 20)
    with Threads(1) as threads:
        step = move(points, state, np.roll(labels, 1), 7, threads, may_rise=may_rise)
    assert (step.state is state) == (step.n_active == 0) == (not may_rise)
    assert (step.state.clusters.inertia > state.clusters.inertia) == may_rise


# -- approximate k-means ---------------------------------------------------------------------------------------------


def test_more_candidates_and_more_trees_find_the_nearest_centre_more_often(X):
    centers, queries = X[:1000].astype(np.float32), X[1000:1200]
    exact, _ = reference.search_nearest(queries, centers)

    def accuracy(n_trees, n_candidates):
        with Threads(1) as threads:
            forest = grow_forest(centers, n_trees, np.random.default_rng(0), threads)
            labels, _ = search_forest(queries, centers, np.zeros(128, np.float32), forest, n_candidates, None, threads)
        return np.mean(labels == exact)

    assert accuracy(8, 10) < accuracy(8, 50) < accuracy(8, 250) < accuracy(8, 1000) == 1
    assert accuracy(1, 50) < accuracy(8, 50)


def test_trees_are_cut_as_a_random_sample_of_their_centres_shows():
    """Of centres in order, the first hundred would say that the middle is at 50."""
    centers = np.arange(1000, dtype=np.float32)[:, np.newaxis]
    with Threads(1) as threads:
        forest = grow_forest(centers, 20, np.random.default_rng(0), threads)
    roots = forest.cuts[:: 2 * len(centers) - 1]
    assert np.ptp(roots) > 20
    assert roots == pytest.approx(500, abs=120)


def test_refinement_lowers_the_distortion(X):
    akm, rakm = (
        ApproximateKMeans(500, n_candidates=20, refined=refined, random_state=0).fit(X[:8000])
        for refined in (False, True)
    )
    assert rakm.inertia_ < akm.inertia_
    assert rakm.history_[-1].accuracy > akm.history_[-1].accuracy


def test_a_fit_goes_on_when_the_distortion_rises_and_it_never_does_if_refined(X):
    """The start is exact and the search is not, so that the first iteration loses some of it."""
    start = LloydKMeans(500, max_iter=2, random_state=0).fit(X[:5000])
    settings = {"n_candidates": 10, "n_trees": 2, "init": start.labels_, "random_state": 0}
    akm, rakm = (ApproximateKMeans(500, refined=refined, **settings).fit(X[:5000]) for refined in (False, True))
    assert akm.history_[0].inertia > start.inertia_
    *changes, last = (abs(1 - after / before) for before, after in pairwise([start.inertia_, *history(akm)]))
    assert akm.stopped_by_ == "converged"
    assert akm.n_iter_ > 1
    assert last < akm.tol <= min(changes)
    assert all(after <= before for before, after in pairwise([start.inertia_, *history(rakm)]))


@pytest.mark.parametrize("refined", [False, True])
def test_only_without_refinement_a_step_may_raise_the_distortion(X, refined, monkeypatch):
    def search(rows, centers, *arguments):
        return np.arange(len(rows), dtype=np.int32) % len(centers), len(rows)

    monkeypatch.setattr(approximate, "search_forest", search)
    start = LloydKMeans(20, random_state=0).fit(X[:500])
    fitted = ApproximateKMeans(20, init=start.labels_, refined=refined, max_iter=1).fit(X[:500])
    assert (fitted.inertia_ > 1.1 * start.inertia_) == (not refined)
    assert (fitted.history_[0].n_active == 0) == refined


def test_the_forest_is_grown_anew_in_every_iteration(X, monkeypatch):
    forests = []

    def grow(centers, *arguments):
        forests.append(grow_forest(centers, *arguments))
        return forests[-1]

    monkeypatch.setattr(approximate, "grow_forest", grow)
    fitted = ApproximateKMeans(40, n_trees=3, max_iter=4, tol=0, random_state=0).fit(X[:2000])
    assert [record.n_trees for record in fitted.history_] == [3, 3, 3, 3]
    assert len({forest.cuts.tobytes() for forest in forests}) == len(forests) == 4


# -- canopies --------------------------------------------------------------------------------------------------------


def test_canopies_are_drawn_in_principal_dimensions():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    X = rng.normal(size=(800, 6)) * [9, 5, 2, 1, 1, 1] @ turn + 30
    points, _ = arranged(X, np.zeros(800, np.int32), 1)
    axes = canopy_axes(points, 2, rng)
    np.testing.assert_allclose(np.abs(PCA(2).fit(X).components_ @ axes), np.eye(2), atol=1e-3)
    np.testing.assert_array_equal(canopy_axes(points, 6, rng), np.eye(6))


def test_canopies_are_those_of_the_definition(X):
    coordinates = X[:700, :4].astype(np.float64)
    with Threads(2) as threads:
        canopies = draw_canopies(coordinates, 0.1, 0.05, np.random.default_rng(0), threads)
        inside, starts = centers_inside(canopies, coordinates[:50], threads)
    rng = np.random.default_rng(0)
    sample = coordinates[rng.choice(700, 700, replace=False)]
    apart = np.sqrt(reference.squared_distances(sample, sample))[np.triu_indices(700, 1)]
    loose, tight = np.quantile(apart, [0.1, 0.05])
    assert canopies.radius == pytest.approx(loose)
    expected = reference.canopies(coordinates, rng.permutation(700), loose, tight)
    assert len(expected) == len(canopies.middles) > 10
    for number, (middle, members) in enumerate(expected):
        np.testing.assert_array_equal(canopies.middles[number], coordinates[middle])
        np.testing.assert_array_equal(canopies.members[canopies.starts[number] : canopies.starts[number + 1]], members)
        np.testing.assert_array_equal(inside[starts[number] : starts[number + 1]], members[members < 50])
    assert set(canopies.members) == set(range(700))


def test_canopies_that_would_exceed_the_memory_are_refused(X, monkeypatch):
    monkeypatch.setattr(validation, "physical_memory", lambda: 5e6)
    with pytest.raises(MemoryError, match=r"tight must be closer to loose=0.03 for 5,000 rows, got 0: .* memory"):
        CanopyKMeans(20, tight=0, random_state=0).fit(X[:5000])
    CanopyKMeans(20, random_state=0, max_iter=1).fit(X[:5000])


def test_wider_canopies_are_more_accurate_and_test_more_candidates(X):
    narrow, wide = (CanopyKMeans(200, loose=share, tight=0.01, random_state=0).fit(X[:5000]) for share in (0.01, 0.1))
    assert narrow.history_[-1].n_candidates < wide.history_[-1].n_candidates / 5
    assert narrow.history_[-1].accuracy < wide.history_[-1].accuracy
    assert narrow.inertia_ > wide.inertia_


# -- hierarchical k-means --------------------------------------------------------------------------------------------


def test_paths_descend_to_the_nearest_child(X):
    fitted = HierarchicalKMeans(4, 3, random_state=0).fit(X[:3000])
    new = X[3000:3500]
    paths = fitted.paths(new)
    assert [len(level.centers) for level in fitted.levels_] == [4, 16, 64]
    assert paths.shape == (500, 3)
    nodes = np.zeros(500, int)
    for (centers, starts), column in zip(fitted.levels_, paths.T, strict=True):
        np.testing.assert_array_equal(column, reference.nearest_children(new, centers, starts, nodes))
        nodes = column
    np.testing.assert_array_equal(fitted.predict(new), paths[:, -1])
    np.testing.assert_array_equal(fitted.levels_[-1].centers, fitted.cluster_centers_)
    assert -fitted.score(new) == pytest.approx(
        reference.squared_distances(new, fitted.cluster_centers_)[np.arange(500), paths[:, -1]].sum()
    )


def test_a_node_is_the_mean_of_its_points_and_its_children_share_them(X):
    fitted = HierarchicalKMeans(4, 2, random_state=0).fit(X[:3000].astype(np.float64))
    parents = np.searchsorted(fitted.levels_[1].starts, fitted.labels_, side="right") - 1
    for node, center in enumerate(fitted.levels_[0].centers):
        np.testing.assert_allclose(X[:3000][parents == node].mean(axis=0), center)


@pytest.mark.parametrize("kind", AWKWARD)
@pytest.mark.parametrize(("branching", "depth"), [(2, 1), (3, 3), (20, 2)])
def test_no_leaf_is_empty_and_copies_of_a_row_share_one(kind, branching, depth):
    for seed in range(10):
        X, _ = AWKWARD[kind](np.random.default_rng(seed))
        fitted = HierarchicalKMeans(branching, depth, random_state=seed, n_threads=1).fit(X)
        n_leaves = len(fitted.cluster_centers_)
        np.testing.assert_array_equal(np.unique(fitted.labels_), np.arange(n_leaves))
        _, row = np.unique(X, axis=0, return_inverse=True)
        n_rows = row.max() + 1
        assert min(branching, n_rows) <= n_leaves <= min(branching**depth, n_rows)
        assert len(set(zip(row, fitted.labels_, strict=True))) == n_rows


def test_a_child_without_points_takes_some_of_a_siblings(X):
    """Nodes of 200 points with 3 and 4 children, of which one in the first and two in the second are out of reach."""
    nodes = np.repeat(np.arange(2, dtype=np.int32), 200)
    points, _ = arranged(X[:400], nodes.copy(), 2)
    centers, starts = X[:7] - points.offset, np.array([0, 3, 7])
    centers[[1, 4, 6]] = 1e6
    with Threads(1) as threads:
        labels = assign_children(points, centers, nodes, starts, threads)
    np.testing.assert_array_equal(np.unique(labels[:200]), [0, 1, 2])
    np.testing.assert_array_equal(np.unique(labels[200:]), [3, 4, 5, 6])
    nearest = reference.nearest_children(X[:400] - points.offset, centers, starts, nodes)
    assert (labels == nearest).mean() > 0.3
    assert set(np.unique(nearest)) == {0, 2, 3, 5}


@pytest.mark.parametrize("weights", [np.array([2.5]), np.arange(1.0, 7)], ids=["alike", "weighted"])
def test_copies_of_a_row_weigh_together(weights):
    rows = np.array([[5, 5], [1, 2], [5, 5], [3, 3], [1, 2], [5, 5]])
    points, _ = arranged(rows.astype(np.float64), np.zeros(6, np.int32), 1)
    copies = find_copies(points._replace(rows=rows, weights=weights))
    each = np.broadcast_to(weights, 6)
    np.testing.assert_array_equal(copies.points, [0, 1, 3])
    np.testing.assert_allclose(copies.weights, [each[[0, 2, 5]].sum(), each[[1, 4]].sum(), each[3]])


def test_predict_may_search_all_leaves(X):
    fitted = HierarchicalKMeans(5, 2, random_state=0).fit(X[:3000])
    new = X[3000:4000]
    exact = fitted.predict(new, exact=True)
    np.testing.assert_array_equal(exact, reference.search_nearest(new, fitted.cluster_centers_)[0])
    assert 0 < (exact != fitted.predict(new)).mean() < 0.5


def test_the_first_children_are_drawn_by_weight(X):
    """Five rows weigh far more than all others: each is the first of a child, and keeps its centre near."""
    weights = np.ones(2000)
    weights[:5] = 1e6
    for seed in range(10):
        fitted = HierarchicalKMeans(5, 1, max_iter=1, random_state=seed).fit(X[:2000], sample_weight=weights)
        assert len(set(fitted.labels_[:5])) == 5


def test_as_many_leaves_as_asked_for_if_there_are_rows_for_them(X):
    assert len(HierarchicalKMeans(10, 2, random_state=0).fit(X).cluster_centers_) == 100
    assert len(HierarchicalKMeans(150, 2, random_state=0).fit(X[:300]).cluster_centers_) == 300


def test_a_level_that_used_up_its_iterations_is_told_of(X):
    """The second one converges at once: its leaves are single rows."""
    fitted = HierarchicalKMeans(150, 2, max_iter=1, tol=0, random_state=0).fit(X[:300])
    assert [record.n_active > 0 for record in fitted.history_] == [True, False]
    assert fitted.stopped_by_ == "max_iter"


def test_a_fit_that_is_ended_early_leaves_fewer_levels(X):
    whole = HierarchicalKMeans(4, 3, max_iter=2, tol=0, random_state=0).fit(X[:3000])
    assert (whole.n_iter_, whole.stopped_by_) == (6, "max_iter")
    part = HierarchicalKMeans(4, 3, max_iter=2, tol=0, random_state=0, callback=lambda record: record.iteration == 4)
    part.fit(X[:3000])
    assert part.paths(X).shape == (20_000, 2)
    assert history(part) == history(whole)[:4]
    np.testing.assert_array_equal(part.levels_[1].centers, whole.levels_[1].centers)


# -- how they compare ------------------------------------------------------------------------------------------------


def test_the_order_of_the_methods(X):
    """Hierarchical clusters are the worst; those of closures, candidates from trees and canopies are near Lloyd's."""
    lloyd = LloydKMeans(512, random_state=0).fit(X).inertia_
    akm = ApproximateKMeans(512, random_state=0).fit(X).inertia_
    rakm = ApproximateKMeans(512, refined=True, random_state=0).fit(X).inertia_
    canopies = CanopyKMeans(512, random_state=0).fit(X).inertia_
    hkm = HierarchicalKMeans(8, 3, random_state=0).fit(X).inertia_
    paper = ClosureKMeans.paper(512, random_state=0).fit(X).inertia_
    assert lloyd < akm < 1.02 * lloyd
    assert hkm > 1.03 * akm
    assert all(0.99 * lloyd < other < 1.02 * lloyd for other in (rakm, canopies, paper))


@pytest.mark.slow
def test_one_hundred_thousand_real_rows():
    path = Path(os.environ.get("CLOSURE_KMEANS_DATA", "")) / "caltech101_mser_sift_1m_u8.npy"
    if not path.is_file():
        pytest.skip("the folder that CLOSURE_KMEANS_DATA names does not hold the million SIFT descriptors")
    X = np.load(path, mmap_mode="r")[:100_000]
    rng = np.random.default_rng(0)
    start = X[rng.choice(len(X), 1000, replace=False)] + rng.normal(0, 0.1, (1000, 128))
    lloyd = LloydKMeans(1000, init=start, max_iter=9, tol=0).fit(X.astype(np.float64))
    exact = KMeans(1000, init=start, n_init=1, max_iter=10, tol=0).fit(X.astype(np.float64))
    assert -lloyd.score(X) == pytest.approx(exact.inertia_)
    akm, rakm = (
        ApproximateKMeans(1000, refined=refined, max_iter=8, random_state=0).fit(X) for refined in (False, True)
    )
    closures = [make(1000, random_state=0, max_iter=8).fit(X) for make in (ClosureKMeans, ClosureKMeans.paper)]
    for fitted in (lloyd, rakm, *closures):
        assert all(after <= before for before, after in pairwise(history(fitted)))
    assert HierarchicalKMeans(10, 3, random_state=0).fit(X).inertia_ > akm.inertia_ > rakm.inertia_
    settings = {"max_iter": 2, "tol": 0, "random_state": 0}
    with_all_candidates = ApproximateKMeans(1000, n_candidates=1000, n_trees=1, **settings).fit(X)
    assert history(with_all_candidates) == pytest.approx(history(LloydKMeans(1000, **settings).fit(X)), rel=1e-9)
