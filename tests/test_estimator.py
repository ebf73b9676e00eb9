"""The estimator as its users meet it."""

import multiprocessing
import pickle
import signal
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, count
from types import SimpleNamespace

import numpy as np
import pytest
import reference
from models import closures
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from closure_kmeans import PAPER, ClosureKMeans, Iteration, Method, estimator, iteration, search, validation
from closure_kmeans.baselines import (
    ApproximateKMeans,
    CanopyKMeans,
    HierarchicalKMeans,
    LloydKMeans,
    approximate,
    canopy,
    flat,
    hierarchical,
)
from closure_kmeans.datasets import load_sift
from closure_kmeans.parallel import Threads
from closure_kmeans.stores import memory
from closure_kmeans.stores.memory import arrange_points

EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "the start and the trees are drawn over rows, so repeated rows are other rows; "
        "equality from a given start is tested in test_closure"
    ),
}


@parametrize_with_checks(
    [
        ClosureKMeans(),
        ClosureKMeans.paper(),
        LloydKMeans(),
        ApproximateKMeans(),
        ApproximateKMeans(refined=True),
        CanopyKMeans(),
        HierarchicalKMeans(branching=2),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module", name="X")
def sift():
    return load_sift()[:2000].astype(np.float32)


# Each estimator, to be made with 50 clusters unless told otherwise.
METHODS = {
    "closures": partial(ClosureKMeans, 50),
    "Lloyd": partial(LloydKMeans, 50),
    "AKM": partial(ApproximateKMeans, 50, n_candidates=20),
    "RAKM": partial(ApproximateKMeans, 50, n_candidates=20, refined=True),
    "canopies": partial(CanopyKMeans, 50, loose=0.2, tight=0.2),
    "HKM": partial(HierarchicalKMeans, branching=5, depth=2),
}
FLAT = [name for name in METHODS if name != "HKM"]
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
every_flat_method = pytest.mark.parametrize("make", [METHODS[name] for name in FLAT], ids=FLAT)


@pytest.fixture(scope="module")
def fitted(X):
    return ClosureKMeans(50, random_state=0).fit(X)


@pytest.fixture(scope="module", params=METHODS)
def fitted_by_any(X, request):
    return METHODS[request.param](random_state=0).fit(X)


def same(a, b):
    return (
        np.array_equal(a.labels_, b.labels_)
        and np.array_equal(a.cluster_centers_, b.cluster_centers_)
        and a.inertia_ == b.inertia_
    )


# -- what a fit leaves -----------------------------------------------------------------------------------------------


def test_attributes(fitted_by_any, X):
    model = fitted_by_any
    k = 25 if isinstance(model, HierarchicalKMeans) else 50
    assert model.labels_.dtype == np.int32
    assert model.labels_.shape == (2000,)
    np.testing.assert_array_equal(np.unique(model.labels_), np.arange(k))
    assert model.cluster_centers_.dtype == np.float32
    assert model.cluster_centers_.shape == (k, 128)
    assert isinstance(model.inertia_, float)
    assert model.inertia_ == pytest.approx(reference.inertia(X, model.labels_))
    assert model.n_features_in_ == 128
    assert model.n_iter_ == len(model.history_) > 1
    assert model.stopped_by_ == "converged"


def test_history(fitted_by_any, X):
    model = fitted_by_any
    assert all(isinstance(record, Iteration) for record in model.history_)
    columns = map(np.array, zip(*model.history_, strict=True))
    number, seconds, inertia, n_active, n_trees, n_candidates, accuracy = columns
    np.testing.assert_array_equal(number, np.arange(model.n_iter_) + 1)
    assert (np.diff(seconds, prepend=0) > 0).all()
    assert inertia[-1] == model.inertia_
    assert ((n_active >= 0) & (n_active <= 2000)).all()
    assert (n_trees == (8 if isinstance(model, ApproximateKMeans) else 0)).all()  # few clusters are all tested
    assert ((n_candidates > 1) & (n_candidates <= 2 * 50)).all()
    nearest, _ = reference.search_nearest(X, model.cluster_centers_)
    assert accuracy[-1] == pytest.approx(np.mean(nearest == model.labels_), abs=0.05)


@every_flat_method
def test_n_active_counts_the_rows_that_changed_their_cluster(X, make):
    start = np.arange(2000) % 50
    step = make(init=start, max_iter=1, random_state=0).fit(X)
    assert step.history_[0].n_active == np.count_nonzero(step.labels_ != start)


@every_flat_method
def test_one_iteration_from_given_centers_is_one_step(X, make):
    """The start's own assignment counts, as in scikit-learn."""
    centers = np.asarray(X[:50], np.float64)
    step = make(init=centers, max_iter=1, random_state=0).fit(X)
    nearest, _ = reference.search_nearest(X, centers)
    np.testing.assert_array_equal(step.labels_, nearest)
    means, _, _ = reference.update_clusters(X, np.ones(len(X)), nearest, centers)
    np.testing.assert_allclose(step.cluster_centers_, means, rtol=1e-5)
    assert (step.n_iter_, step.stopped_by_, len(step.history_)) == (1, "max_iter", 1)
    assert (step.history_[0].n_active, step.history_[0].n_candidates) == (len(X), 50)
    two = make(init=centers, max_iter=2, random_state=0).fit(X)
    assert two.n_iter_ == 2
    assert two.history_[0].inertia == step.inertia_ > two.inertia_


def test_a_callback_may_stop_after_the_start(X):
    seen = []
    model = ClosureKMeans(50, init=X[:50], callback=lambda record: seen.append(record) or True).fit(X)
    assert (model.stopped_by_, len(seen)) == ("callback", 1)


@pytest.mark.parametrize("k", [60, 800])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_labels_of_the_nearest_centers(k, metric):
    """The labels of a fit differ from the nearest centres for some rows; on request they are the same."""
    X = load_sift()[:8000].astype(np.float32)
    weights = np.random.default_rng(0).random(len(X)) + 0.5
    model = ClosureKMeans(k, metric=metric, random_state=0).fit(X, sample_weight=weights)
    before = model.labels_
    nearest = model.predict(X)
    assert 0 < np.count_nonzero(before != nearest) < 0.1 * len(X)
    assert model.relabel(X, weights) is model
    np.testing.assert_array_equal(model.labels_, nearest)
    np.testing.assert_allclose(model.cluster_sizes_, np.bincount(nearest, weights, k))
    assert model.inertia_ == pytest.approx(-model.score(X, sample_weight=weights))
    assert model.labels_.dtype == before.dtype
    with pytest.raises(ValueError, match="X must be the 8000 rows of the fit, got 7999"):
        model.relabel(X[1:])


def test_fit_predict_is_fit(X, fitted_by_any):
    np.testing.assert_array_equal(clone(fitted_by_any).fit_predict(X), fitted_by_any.labels_)


def test_a_refit_forgets_what_was_before(X, fitted_by_any):
    model = clone(fitted_by_any).fit(X[:100, :3])
    assert same(model.fit(X), fitted_by_any)
    assert model.n_features_in_ == 128


def test_the_seed_decides(X, fitted_by_any):
    assert same(clone(fitted_by_any).fit(X), fitted_by_any)
    assert not same(clone(fitted_by_any).set_params(random_state=1).fit(X), fitted_by_any)
    model = clone(fitted_by_any).set_params(random_state=np.random.RandomState(0))
    assert model.fit(X).inertia_ != model.fit(X).inertia_


@every_method
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint8", "int8", "int64", "bool"])
def test_precision(X, dtype, make):
    rows = (X[:500] // 2).astype(dtype)
    model = make(random_state=0).fit(rows)
    expected = np.float64 if dtype in ("float64", "int64", "bool") else np.float32
    assert model.cluster_centers_.dtype == expected
    assert model.transform(rows).dtype == expected
    assert model.inertia_ == pytest.approx(reference.inertia(rows, model.labels_), rel=1e-5)


@every_method
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_narrow_numbers_are_clustered_like_the_same_numbers_in_float32(X, dtype, make):
    rows = (X // 2).astype(dtype)
    narrow, wide = (make(random_state=0).fit(some) for some in (rows, rows.astype(np.float32)))
    assert narrow.inertia_ == pytest.approx(wide.inertia_, rel=0.01)
    np.testing.assert_array_equal(narrow.predict(rows), narrow.predict(rows.astype(np.float32)))


@pytest.mark.parametrize("tree_dims", [16, None])
def test_bytes_in_float32_are_clustered_as_bytes(X, tree_dims):
    model = closures(150, tree_dims=tree_dims, random_state=0)
    narrow, wide = (clone(model).fit(rows) for rows in (X.astype(np.uint8), X))
    assert same(narrow, wide)
    assert wide.cluster_centers_.dtype == np.float32


@pytest.mark.parametrize("value", [7, 0.5, -1, 256, 1e15])
def test_float32_is_held_as_bytes_only_if_that_loses_nothing(X, value):
    rows = np.vstack([X] * 7).astype(np.float32)  # the sample that is looked at first does not hold them all
    rows[-1, -1] = value
    with Threads(2) as threads:
        points, tree = arrange_points(rows, np.ones(1), 10, 16, np.random.default_rng(0), threads)
    assert points.rows.dtype == (np.uint8 if value == 7 else np.float32)
    np.testing.assert_array_equal(points.rows, rows[tree.members])


def test_lists_and_strided_arrays(X, fitted_by_any):
    for rows in (np.asfortranarray(X), np.repeat(X, 2, axis=0)[::2]):
        assert same(clone(fitted_by_any).fit(rows), fitted_by_any)
    two = {"branching": 2, "depth": 1} if isinstance(fitted_by_any, HierarchicalKMeans) else {"n_clusters": 2}
    model = clone(fitted_by_any).set_params(**two).fit([[0, 0], [0, 1], [9, 9]])
    assert model.labels_.tolist() in ([0, 0, 1], [1, 1, 0])


@every_flat_method
def test_the_input_is_left_alone(X, make):
    weights, centers, labels = np.ones(2000), X[:50].copy(), np.arange(2000) % 50
    given = [X.copy(), weights.copy(), centers.copy(), labels.copy()]
    for array in (weights, centers, labels):
        array.flags.writeable = False
    rows = X.copy()
    rows.flags.writeable = False
    for init in (centers, labels, "tree", "random"):
        model = make(init=init, max_iter=2).fit(rows, sample_weight=weights)
        model.predict(rows)
        model.transform(rows)
        model.score(rows, sample_weight=weights)
    for before, after in zip(given, (rows, weights, centers, labels), strict=True):
        np.testing.assert_array_equal(before, after)


# -- parameters ------------------------------------------------------------------------------------------------------


def test_the_paper_is_one_call():
    paper = ClosureKMeans.paper(7, random_state=3)
    assert paper.get_params() == ClosureKMeans(7, random_state=3).get_params() | {"method": PAPER}
    assert Method("kept", leaf_size=10, rule="lloyd", extrapolate=False, tree_dims=None) == PAPER


def test_the_constructor_fits_on_one_screen():
    assert len(ClosureKMeans().get_params()) == 16


@pytest.mark.parametrize("name", ["n_jobs", "leaf_size", "rule", "scratch", "tree_dims"])
def test_an_old_name_is_told_the_new_one(name):
    others = {"n_jobs": "n_threads", "scratch": "the environment variable TMPDIR"}
    new = others.get(name, rf"method=Method\({name}=...\)")
    message = rf"ClosureKMeans has no parameter '{name}' \(removed in version 0.2\): use {new}"
    with pytest.raises(TypeError, match=message):
        ClosureKMeans(**{name: 1})
    with pytest.raises(TypeError, match=message):
        ClosureKMeans().set_params(**{name: 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_cluster'"):
        ClosureKMeans(n_cluster=1)
    assert LloydKMeans(tree_dims=3).tree_dims == 3


def test_a_method_that_is_none():
    with pytest.raises(TypeError, match=r"method must be a Method, such as .*, got 'paper'"):
        ClosureKMeans(2, method="paper").fit([[0.0], [1.0]])


@pytest.mark.parametrize(
    "parameters",
    [
        {"n_clusters": np.int64(30), "tol": np.float32(0.01)},
        {"leaf_size": 1},
        {"leaf_size": 10**6},
        {"tree_dims": 1},
        {"tree_dims": 500},
        {"tree_dims": None},
        {"neighborhoods": "kept", "max_trees": 2, "min_fall": 0},
        {"neighborhoods": "kept", "adaptive": False, "max_trees": 3},
        {"rule": "lloyd"},
        {"extrapolate": False},
        {"max_time": 1000.0},
        {"target_accuracy": 1},
        {"target_accuracy": 0.0},
    ],
)
def test_parameters(X, parameters):
    model = closures(**{"n_clusters": 30, "random_state": 0} | parameters).fit(X[:500])
    np.testing.assert_array_equal(np.unique(model.labels_), np.arange(30))
    assert model.inertia_ == pytest.approx(reference.inertia(X[:500], model.labels_))


@every_flat_method
def test_starts(X, make):
    """Each ends near the others; a start from labels or centres is taken as it is."""
    random = np.random.default_rng(0)
    inits = ["tree", "random", X[random.choice(2000, 50, replace=False)], random.integers(50, size=2000)]
    inertias = [make(init=init, random_state=0).fit(X).inertia_ for init in inits]
    assert max(inertias) < 1.03 * min(inertias)


@pytest.mark.parametrize("mode", [*(METHODS[name] for name in FLAT if name != "AKM"), partial(ClosureKMeans.paper, 50)])
@pytest.mark.parametrize("start", ["cluster_centers_", "labels_"])
def test_a_warm_start_goes_on_from_where_it_is(X, mode, start):
    fitted = mode(max_iter=3, random_state=0).fit(X)
    warm = mode(init=getattr(fitted, start), random_state=1).fit(X)
    assert warm.inertia_ < fitted.inertia_
    assert all(record.inertia <= fitted.inertia_ for record in warm.history_)


@every_flat_method
def test_max_iter_and_tol(X, make):
    model = make(max_iter=3, random_state=0).fit(X)
    assert (model.n_iter_, model.stopped_by_) == (3, "max_iter")
    model = make(tol=0.01, random_state=0).fit(X)
    falls = 1 - np.array([b.inertia / a.inertia for a, b in zip(model.history_, model.history_[1:], strict=False)])
    assert model.stopped_by_ == "converged"
    assert falls[-1] < 0.01 <= falls[:-1].min()


@every_method
def test_max_time(X, make):
    model = make(max_time=0).fit(X)
    assert (model.n_iter_, model.stopped_by_) == (1, "max_time")
    assert make(max_time=1e6).fit(X).stopped_by_ == "converged"


def test_max_time_does_not_take_the_set_up_for_an_iteration(X, monkeypatch):
    """The clock shows a set-up of 6 seconds and iterations of one."""
    times = chain([0.0], count(6.0))
    for module in (estimator, iteration):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    model = ClosureKMeans(50, max_time=9, tol=0).fit(X)
    assert [record.seconds for record in model.history_] == [6, 7, 8, 9]
    assert model.stopped_by_ == "max_time"


@every_method
def test_verbose_shows_progress(X, capsys, make):
    make(verbose=1, max_iter=2).fit(X)
    assert "distortion" in capsys.readouterr().err
    make(max_iter=2).fit(X)
    assert capsys.readouterr() == ("", "")


# -- stopping --------------------------------------------------------------------------------------------------------


@every_method
def test_a_callback_sees_each_iteration_and_may_stop(X, make):
    seen = []

    def callback(record):
        seen.append(record)
        return len(seen) == 4

    model = make(callback=callback, random_state=0).fit(X)
    assert model.stopped_by_ == "callback"
    assert model.history_ == seen
    assert len(seen) == 4


@every_method
def test_an_error_in_a_callback_is_raised(X, make):
    def callback(record):
        raise ZeroDivisionError

    model = make(callback=callback)
    with pytest.raises(ZeroDivisionError):
        model.fit(X)
    with pytest.raises(NotFittedError):
        model.predict(X)


def interrupt_after(n_calls, function):
    """The function, with the user's Ctrl-C at a certain call."""
    calls = iter(range(n_calls))

    def interrupted(*arguments):
        if next(calls, None) is None:
            signal.raise_signal(signal.SIGINT)
        return function(*arguments)

    return interrupted


# What assigns the points, for each method, and how often it is called before the first iteration.
ASSIGNMENTS = {
    "closures": (memory, "assign_by_closures", 0),
    "Lloyd": (flat, "nearest_centers", 0),
    "AKM": (approximate, "search_forest", 0),
    "RAKM": (approximate, "search_forest", 0),
    "canopies": (canopy, "centers_inside", 0),
    "HKM": (hierarchical, "assign_children", 1),
}


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(("where", "n_done"), [("callback", 3), ("assignment", 2)])
@pytest.mark.parametrize("method", METHODS)
def test_an_interrupt_leaves_the_best_state_so_far(X, monkeypatch, method, where, n_done, n_threads):
    model = METHODS[method](random_state=0, n_threads=n_threads)
    expected = clone(model).set_params(callback=lambda record: record.iteration == n_done).fit(X)
    if where == "callback":
        model.set_params(callback=interrupt_after(2, lambda record: None))
    else:
        module, name, n_before = ASSIGNMENTS[method]
        monkeypatch.setattr(module, name, interrupt_after(2 + n_before, getattr(module, name)))
    with pytest.raises(KeyboardInterrupt, match=f"^the model is that of iteration {n_done}$"):
        model.fit(X)
    assert model.stopped_by_ == "interrupted"
    assert model.n_iter_ == n_done
    assert same(model, expected)
    assert model.inertia_ == pytest.approx(reference.inertia(X, model.labels_))


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupt_in_the_first_iteration_leaves_nothing(X, monkeypatch, method):
    module, name, n_before = ASSIGNMENTS[method]
    monkeypatch.setattr(module, name, interrupt_after(n_before, getattr(module, name)))
    model = METHODS[method]()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_an_interrupt_before_there_is_a_state_leaves_nothing(X, monkeypatch):
    begin = memory.MemoryStore.begin
    monkeypatch.setattr(memory.MemoryStore, "begin", interrupt_after(0, begin))
    model = ClosureKMeans(50)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_an_interrupt_while_rows_without_weight_are_labelled_leaves_the_model_as_it_was(X, monkeypatch):
    model = ClosureKMeans(20, random_state=0).fit(X)
    before = dict(vars(model))
    monkeypatch.setattr(search, "nearest_of_all", interrupt_after(0, search.nearest_of_all))
    with pytest.raises(KeyboardInterrupt):
        model.set_params(n_clusters=10).fit(X, sample_weight=np.arange(len(X)) % 2)
    assert {name: value is before[name] for name, value in vars(model).items() if name.endswith("_")} == dict.fromkeys(
        [name for name in before if name.endswith("_")], True
    )


# -- new rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint8"])
def test_predict_is_exact_and_a_function_of_the_row(fitted_by_any, dtype):
    fitted = fitted_by_any
    rows = load_sift()[5000:5300].astype(dtype)
    labels = fitted.predict(rows)
    expected, _ = reference.search_nearest(rows, fitted.cluster_centers_)
    np.testing.assert_array_equal(fitted.predict(rows, exact=True), expected)
    if not isinstance(fitted, HierarchicalKMeans):
        np.testing.assert_array_equal(labels, expected)
    assert labels.dtype == np.int32
    order = np.random.default_rng(0).permutation(len(rows))
    np.testing.assert_array_equal(fitted.predict(rows[order]), labels[order])
    for batch in (1, 7, 100):
        parts = [fitted.predict(rows[first : first + batch]) for first in range(0, len(rows), batch)]
        np.testing.assert_array_equal(np.concatenate(parts), labels)


def test_predict_decides_ties_the_same_way_in_any_batch():
    """On a grid with centres on the grid most rows have several nearest centres."""
    grid = np.stack(np.meshgrid(np.arange(20.0), np.arange(20.0)), axis=-1).reshape(-1, 2)
    model = ClosureKMeans(40, init=grid[::10], max_iter=1, n_threads=1).fit(grid)
    model.cluster_centers_ = grid[::10].copy()
    labels = model.predict(grid)
    np.testing.assert_array_equal(labels, reference.search_nearest(grid, grid[::10])[0])
    np.testing.assert_array_equal(labels, [model.predict(row[np.newaxis])[0] for row in grid])


def test_predict_far_from_the_origin():
    rows = (np.random.default_rng(0).normal(size=(300, 4)) + 1000).astype(np.float32)
    model = ClosureKMeans(60, random_state=0).fit(rows)
    np.testing.assert_array_equal(model.predict(rows), reference.search_nearest(rows, model.cluster_centers_)[0])
    assert model.inertia_ == pytest.approx(reference.inertia(rows, model.labels_), rel=1e-3)


def test_transform_and_score(fitted, X):
    distances = np.sqrt(reference.squared_distances(X[:200], fitted.cluster_centers_))
    np.testing.assert_allclose(fitted.transform(X[:200]), distances, rtol=1e-4)
    np.testing.assert_array_equal(fitted.transform(X[:200]).argmin(axis=1), fitted.predict(X[:200]))
    assert fitted.score(X[:200]) == pytest.approx(-(distances.min(axis=1) ** 2).sum())
    weights = np.arange(200)
    assert fitted.score(X[:200], sample_weight=weights) == pytest.approx(-(weights @ distances.min(axis=1) ** 2))
    assert 0 < -fitted.score(X) <= fitted.inertia_


# -- weights ---------------------------------------------------------------------------------------------------------


@every_method
def test_weights_enter_centers_and_inertia(X, make):
    weights = np.random.default_rng(0).random(2000)
    model = make(random_state=0).fit(X, sample_weight=weights)
    centers, _, errors = reference.update_clusters(X, weights, model.labels_, model.cluster_centers_)
    np.testing.assert_allclose(model.cluster_centers_, centers, rtol=1e-4, atol=1e-3)
    assert model.inertia_ == pytest.approx(errors.sum())


def test_equal_weights_are_no_weights(X, fitted_by_any):
    fitted = fitted_by_any
    assert same(clone(fitted).fit(X, sample_weight=np.ones(2000)), fitted)
    doubled = clone(fitted).fit(X, sample_weight=np.full(2000, 2.0))
    np.testing.assert_array_equal(doubled.labels_, fitted.labels_)
    assert doubled.inertia_ == pytest.approx(2 * fitted.inertia_)


@pytest.mark.parametrize("init", ["tree", "random", "centers", "labels"])
@every_flat_method
def test_rows_of_weight_zero_take_no_part_but_get_a_label(X, make, init):
    weights = np.random.default_rng(0).integers(0, 3, 2000)
    some = weights > 0
    whole = {"centers": X[:50], "labels": np.arange(2000) % 50}.get(init, init)
    part = whole[some] if init == "labels" else whole
    model = make(init=whole, random_state=0).fit(X, sample_weight=weights)
    without = make(init=part, random_state=0).fit(X[some], sample_weight=weights[some])
    np.testing.assert_array_equal(model.cluster_centers_, without.cluster_centers_)
    np.testing.assert_array_equal(model.labels_[some], without.labels_)
    np.testing.assert_array_equal(model.labels_[~some], model.predict(X[~some]))
    assert model.inertia_ == without.inertia_


def test_a_row_of_great_weight_has_a_cluster_of_its_own(X):
    weights = np.ones(2000)
    weights[7] = 1e9
    for init in ("tree", "random"):
        model = ClosureKMeans(50, init=init, random_state=0).fit(X, sample_weight=weights)
        np.testing.assert_allclose(model.cluster_centers_[model.labels_[7]], X[7], atol=1e-2)


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree_dims", [16, None])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
def test_rows_that_lie_apart_are_taken_as_they_are(X, dtype, tree_dims):
    """As in a TEXMEX file, where the width of each row lies between them; rows that lie in columns are copied."""
    rows = X[:2000].astype(dtype)
    apart = np.zeros((2000, X.shape[1] + 4), dtype)[:, 4:]
    apart[:] = rows
    model = closures(150, random_state=0, max_iter=3, tree_dims=tree_dims)
    assert np.shares_memory(validation.fitted_rows(apart, model), apart)
    assert validation.fitted_rows(np.asfortranarray(rows), model).flags.c_contiguous
    labels, centers = model.fit(rows).labels_, model.cluster_centers_
    for same in (apart, np.asfortranarray(rows)):
        np.testing.assert_array_equal(model.fit(same).labels_, labels)
        np.testing.assert_array_equal(model.cluster_centers_, centers)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "float32"])
@pytest.mark.parametrize("tree_dims", [16, None])
@every_flat_method
def test_read_only_memory_maps(X, tmp_path, dtype, tree_dims, make):
    rows = (X // 2).astype(dtype)
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    of_trees = {"method": Method(tree_dims=tree_dims)} if "method" in make().get_params() else {"tree_dims": tree_dims}
    model = make(**of_trees, random_state=0)
    assert same(clone(model).fit(mapped), model.fit(rows))
    np.testing.assert_array_equal(model.predict(mapped), model.predict(rows))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "float32"])
def test_no_widened_copy_of_the_whole(tmp_path, dtype):
    """A fit takes one copy, in the order of its first tree, and blocks of fixed size; a prediction only blocks."""
    n, d = 60_000, 256
    rows = np.random.default_rng(0).integers(0, 100, (n, d), np.uint8).astype(dtype)
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    model = ClosureKMeans(100, max_iter=2, random_state=0, n_threads=1)
    blocks = 30e6
    assert blocks < n * d * 4 / 2
    assert peak_memory(model.fit, mapped) < rows.nbytes + blocks
    assert peak_memory(model.predict, mapped) < blocks


def peak_memory(function, *arguments):
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# -- processes and threads -------------------------------------------------------------------------------------------


def test_pickle_and_clone(fitted_by_any, X):
    fitted = fitted_by_any
    copy = pickle.loads(pickle.dumps(fitted))
    assert same(copy, fitted)
    assert copy.history_ == fitted.history_
    np.testing.assert_array_equal(copy.predict(X), fitted.predict(X))
    assert clone(fitted).get_params() == fitted.get_params()


def test_two_fits_in_two_threads_are_as_alone(X):
    models = [ClosureKMeans(50, random_state=0, n_threads=2), ClosureKMeans.paper(60, random_state=1, n_threads=2)] * 3
    alone = [clone(model).fit(X) for model in models]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda model: clone(model).fit(X), models))
    assert all(same(*pair) for pair in zip(alone, together, strict=True))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_after_fit(X, fitted):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.map_async(clone(fitted).set_params(n_threads=2).fit, [X, X]).get(timeout=120)
        labels = pool.apply_async(fitted.predict, [X]).get(timeout=120)
    assert all(same(result, fitted) for result in results)
    np.testing.assert_array_equal(labels, fitted.predict(X))


# -- in company ------------------------------------------------------------------------------------------------------


def test_pipeline_and_names_of_the_output(X):
    pipeline = make_pipeline(StandardScaler(), ClosureKMeans(3, random_state=0)).fit(X)
    assert pipeline.predict(X).shape == (2000,)
    assert pipeline[-1].get_feature_names_out().tolist() == ["closurekmeans0", "closurekmeans1", "closurekmeans2"]


def test_set_output(X):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[:, :3], columns=["a", "b", "c"])
    model = ClosureKMeans(3, random_state=0).set_output(transform="pandas").fit(frame)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert model.transform(frame).columns.tolist() == ["closurekmeans0", "closurekmeans1", "closurekmeans2"]
