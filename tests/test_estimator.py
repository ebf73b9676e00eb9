"""The estimator as its users meet it."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
import reference
from methods import FLAT, METHODS, every_flat_method, every_method, same
from models import closures
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from closure_kmeans import PAPER, ClosureKMeans, Method, validation
from closure_kmeans.baselines import ApproximateKMeans, CanopyKMeans, HierarchicalKMeans, LloydKMeans
from closure_kmeans.datasets import load_sift
from closure_kmeans.parallel import Threads
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


@pytest.fixture(scope="module", params=METHODS)
def fitted_by_any(X, request):
    return METHODS[request.param](random_state=0).fit(X)


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
    for alike in (apart, np.asfortranarray(rows)):
        np.testing.assert_array_equal(model.fit(alike).labels_, labels)
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
