"""Bad input: the message names the thing, the rule and the value, and nothing is left half done."""

import numpy as np
import pytest
import scipy.sparse
from models import closures
from sklearn.exceptions import NotFittedError

from closure_kmeans import ClosureKMeans, validation
from closure_kmeans.baselines import ApproximateKMeans, CanopyKMeans, HierarchicalKMeans, LloydKMeans
from closure_kmeans.metrics import exact_labels
from closure_kmeans.vectors import Vectors, open_vectors, save_vectors

X = np.random.default_rng(0).normal(size=(20, 3))


BASELINES = (LloydKMeans, ApproximateKMeans, CanopyKMeans, HierarchicalKMeans)
every_estimator = pytest.mark.parametrize("kind", [ClosureKMeans, *BASELINES])


def clusters(kind, n):
    """The parameters that ask for so many clusters."""
    return {"branching": n, "depth": 1} if kind is HierarchicalKMeans else {"n_clusters": n}


def tree(kind, tree_dims):
    """How the first tree is grown, if there is one."""
    return {} if kind is HierarchicalKMeans else {"tree_dims": tree_dims}


def make(kind, **parameters):
    return closures(**parameters) if kind is ClosureKMeans else kind(**parameters)


def with_value(value, dtype=np.float64):
    rows = X.astype(dtype)
    rows[7, 1] = value
    return rows


def refuses(error, match, rows=X, weights=None, kind=ClosureKMeans, **parameters):
    """A fit is refused, of a new model and of a fitted one, and both stay what they were."""
    model = make(kind, **clusters(kind, 4) | parameters)
    with pytest.raises(error, match=match):
        model.fit(rows, sample_weight=weights)
    with pytest.raises(NotFittedError):
        model.predict(X)

    other = model.get_params(deep=False)
    model = kind(**clusters(kind, 2), random_state=0).fit(X[:, :2])
    before = dict(vars(model))
    with pytest.raises(error, match=match):
        model.set_params(**other).fit(rows, sample_weight=weights)
    fitted = [name for name in before if name.endswith("_")]
    assert {name: vars(model).get(name) is before[name] for name in fitted} == dict.fromkeys(fitted, True)
    assert not set(vars(model)) - set(before)


# -- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tree_dims", [None, 2])
@every_estimator
def test_nan_and_infinity(dtype, value, tree_dims, kind):
    message = "X must not contain NaN or infinity, but row 7 does"
    refuses(ValueError, message, with_value(value, dtype), kind=kind, **tree(kind, tree_dims))


@pytest.mark.parametrize("tree_dims", [None, 2])
@every_estimator
def test_squares_that_overflow(tree_dims, kind):
    message = "the squares of the values of X must not overflow float64, but row 7 holds 1e.200: scale the data$"
    refuses(ValueError, message, with_value(-1e200), kind=kind, **tree(kind, tree_dims))
    message = "must not overflow float32, but row 7 holds 1e.30: scale the data or pass float64$"
    refuses(ValueError, message, with_value(1e30, np.float32), kind=kind, **tree(kind, tree_dims))
    refuses(ValueError, "must not overflow float64", np.where(X > 0, 1e308, -1e308), kind=kind, **tree(kind, tree_dims))


def test_more_clusters_than_rows():
    refuses(ValueError, "n_clusters must be at most the number of rows, got n_clusters=21, n_samples=20", n_clusters=21)


def test_more_clusters_than_distinct_rows():
    message = "n_clusters must be at most the number of distinct rows of X, which is 3, got 4"
    few = X[np.arange(2000) % 3]
    for dtype in (np.float64, np.float32, np.float16, np.int8):
        refuses(ValueError, message, (9 * few).astype(dtype))
    refuses(ValueError, "which is 1, got 2", np.array([[0.0], [-0.0]]), n_clusters=2)
    assert ClosureKMeans(3).fit(few).inertia_ == pytest.approx(0, abs=1e-9)


def test_distinct_rows_are_counted_among_those_with_weight():
    refuses(ValueError, "number of rows, got n_clusters=4, n_samples=3", weights=[1, 1, 1] + 17 * [0])


@every_estimator
def test_no_rows_and_no_columns(kind):
    refuses(ValueError, r"Found array with 0 sample\(s\)", np.empty((0, 3)), kind=kind)
    refuses(ValueError, r"Found array with 0 feature\(s\)", np.empty((3, 0)), kind=kind)


def test_one_row():
    refuses(ValueError, "n_clusters=4, n_samples=1", X[:1])
    model = ClosureKMeans(1).fit(X[:1])
    assert model.labels_.tolist() == [0]
    assert model.inertia_ == 0
    np.testing.assert_allclose(model.cluster_centers_, X[:1])


@pytest.mark.parametrize(
    ("rows", "error", "match"),
    [
        (X[0], ValueError, "Expected 2D array, got 1D array instead"),
        (3.0, ValueError, "Expected 2D array, got scalar array instead"),
        (X[np.newaxis], ValueError, "Found array with dim 3"),
        ([[1, 2], [3]], ValueError, "inhomogeneous"),
        (X.astype(complex), ValueError, "Complex data not supported"),
        (np.array([["a", "b"]] * 5), ValueError, "could not convert string to float"),
        (np.array([[{}, 1]] * 5, dtype=object), TypeError, "must be a string or a real number"),
        (scipy.sparse.csr_array(X), TypeError, r"X must be dense, got a sparse csr_array: convert it, with X\.toarray"),
        (None, ValueError, "Expected 2D array, got scalar array instead|contains NaN|must not contain NaN"),
    ],
    ids=str.split("vector scalar cube ragged complex strings objects sparse none"),
)
@every_estimator
def test_rows_of_the_wrong_kind(rows, error, match, kind):
    refuses(error, match, rows, kind=kind)


def of_package(module, name="Dataset", bases=(), **members):
    """An object of a class as a library has it that need not be installed."""
    return type(name, bases, {"__module__": module} | members)()


class Lines(list):
    """A column that is read as a sequence."""

    __module__ = "datasets.arrow_dataset"


def test_what_holds_rows_but_is_no_array(tmp_path):
    loader = of_package("torch.utils.data.dataloader", "DataLoader", __iter__=lambda _: iter([X]))
    inherited = of_package("__main__", "Mine", (type(loader),))
    for rows, message in (
        (
            "rows.npy",
            r"X must be an array of rows, got the path 'rows\.npy': pass .*vectors\.open_vectors\('rows\.npy'\)",
        ),
        (tmp_path / "rows.npy", "got the path '.*rows.npy': pass"),
        (of_package("datasets.dataset_dict", "DatasetDict", (dict,)), r"got a datasets\.DatasetDict: pass one split"),
        (loader, r"got a torch\.DataLoader: pass an iterator of its batches"),
        (inherited, r"got a __main__\.Mine: pass an iterator of its batches"),
        (object(), r"X must be an array, a tensor, a frame .*, got a builtins\.object"),
    ):
        refuses(TypeError, message, rows)
        refuses(TypeError, message, rows, memory_limit="100MB")
    np.testing.assert_array_equal(ClosureKMeans(4, random_state=0).fit(Lines(X.tolist())).labels_.shape, (20,))


def test_files_of_hdf5_and_tables_of_arrow(tmp_path):
    h5py, pyarrow = pytest.importorskip("h5py"), pytest.importorskip("pyarrow")
    with h5py.File(tmp_path / "rows.hdf5", "w") as file:
        file["train"] = X
        refuses(TypeError, r"got a h5py\.File: pass one data set in it, such as X\['train'\]", file)
        refuses(TypeError, r"got a h5py\.Group: pass", file.create_group("group"))
        expected = ClosureKMeans(4, random_state=0).fit(X).labels_
        np.testing.assert_array_equal(ClosureKMeans(4, random_state=0).fit(file["train"]).labels_, expected)
    lists = pyarrow.FixedSizeListArray.from_arrays(X.ravel(), 3)
    table = pyarrow.table({"vector": lists, "id": range(20)})
    for rows in (table, table["vector"], lists):
        np.testing.assert_array_equal(ClosureKMeans(4, random_state=0).fit(rows).labels_, expected)
    numbers = pyarrow.table({name: X[:, i] for i, name in enumerate("abc")})
    np.testing.assert_array_equal(ClosureKMeans(4, random_state=0).fit(numbers).labels_, expected)


def test_memory_that_will_not_suffice(monkeypatch):
    monkeypatch.setattr(validation, "physical_memory", lambda: 1.2e6)
    rows = np.zeros((400_000, 10), np.uint8)
    rows[:4] = np.arange(4)[:, np.newaxis]
    message = (
        r"clustering 400,000 x 10 uint8 rows into 4 clusters takes about 0\.\d GB beyond the input, "
        r"but this machine has 0\.0 GB"
    )
    model = ClosureKMeans(4)
    with pytest.raises(MemoryError, match=message):
        model.fit(rows)
    with pytest.raises(NotFittedError):
        model.predict(rows)


def test_physical_memory(monkeypatch):
    assert validation.physical_memory() > 1e8
    monkeypatch.delattr("os.sysconf", raising=False)
    assert validation.physical_memory() == np.inf


@every_estimator
def test_rows_to_predict(kind):
    model = kind(**clusters(kind, 4), random_state=0).fit(X)
    names = ["predict", "transform", "score"] + ["paths"] * (kind is HierarchicalKMeans)
    for method in (getattr(model, name) for name in names):
        with pytest.raises(ValueError, match=f"X has 2 features, but {kind.__name__} is expecting 3 features"):
            method(X[:, :2])
        with pytest.raises(ValueError, match="X must not contain NaN or infinity, but row"):
            method(with_value(np.nan))
        with pytest.raises(TypeError, match="X must be dense, got a sparse csr_array"):
            method(scipy.sparse.csr_array(X))
        with pytest.raises(TypeError, match=r"got the path 'rows\.npy': pass .*open_vectors\('rows\.npy'\)"):
            method("rows.npy")
        with pytest.raises(NotFittedError):
            getattr(kind(), method.__name__)(X)


@pytest.mark.parametrize(("dtype", "value"), [(np.float32, 2e19), (np.float32, -3e38), (np.float64, 1e200)])
@every_estimator
def test_rows_to_predict_whose_squares_overflow(dtype, value, kind):
    model = kind(**clusters(kind, 4), random_state=0).fit(X)
    names = ["predict", "transform", "score", "medoids"] + ["paths"] * (kind is HierarchicalKMeans)
    methods = [getattr(model, name) for name in names]
    methods += [lambda rows: model.several_nearest(rows, 2), lambda rows: model.medoids(rows, model.labels_)]
    methods += [lambda rows: exact_labels(rows, model.cluster_centers_)]
    for method in methods:
        with pytest.raises(ValueError, match=rf"of X must not overflow {dtype.__name__}, but row 7 holds .*: scale"):
            method(with_value(value, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.uint8])
def test_rows_to_predict_are_checked_relative_to_the_centers(dtype):
    """Rows far from the origin, whose own squares overflow, are fitted and predicted; rows near it are too far away."""
    rows = np.float32(1e20 + 1e16 * (np.arange(20)[:, np.newaxis] % 4 + 0.01 * X))
    model = ClosureKMeans(4, random_state=0).fit(rows)
    np.testing.assert_array_equal(model.predict(rows), model.labels_)
    if dtype == np.float64:
        assert set(model.predict(np.ones((2, 3)))) <= set(range(4))
    else:
        with pytest.raises(ValueError, match=r"must not overflow float32, but row 0 holds 1: .* or pass float64"):
            model.predict(np.ones((2, 3), dtype))


def test_rows_of_any_length_have_a_direction():
    model = ClosureKMeans(4, metric="cosine", random_state=0).fit(np.float32(X))
    np.testing.assert_array_equal(model.predict(np.float32(X) * np.float32(1e37)), model.predict(np.float32(X)))
    for value, match in ((1e200, "must not overflow float64, but row 7"), (np.nan, "NaN or infinity, but row 7 does")):
        with pytest.raises(ValueError, match=match):
            model.predict(with_value(value))


# -- masked arrays -----------------------------------------------------------------------------------------------------


def masked(array, n_masked=2):
    return np.ma.array(array, mask=np.arange(np.size(array)).reshape(np.shape(array)) < n_masked)


@every_estimator
def test_masked_rows(kind):
    refuses(ValueError, "X must not have masked values, got 2: fill them, or remove their rows", masked(X), kind=kind)
    model = kind(**clusters(kind, 4), random_state=0).fit(masked(X, 0))
    assert model.predict(masked(X, 0)).tolist() == model.predict(X).tolist()
    for method in (model.predict, model.transform, model.score, model.medoids):
        with pytest.raises(ValueError, match="X must not have masked values, got 2"):
            method(masked(X))


def test_masked_weights_labels_and_starts(tmp_path):
    refuses(ValueError, "sample_weight must not have masked values, got 2", weights=masked(np.ones(20)))
    refuses(ValueError, "init must not have masked values, got 2", init=masked(X[:4]))
    refuses(ValueError, "init must not have masked values, got 2", init=masked(np.arange(20) % 4))
    refuses(ValueError, "vectors must not have masked values, got 2", masked(X), memory_limit="50MB")
    model = ClosureKMeans(4, random_state=0).fit(X)
    with pytest.raises(ValueError, match="labels must not have masked values, got 2"):
        model.medoids(X, masked(model.labels_))
    with pytest.raises(ValueError, match="sample_weight must not have masked values, got 2"):
        model.score(X, sample_weight=masked(np.ones(20)))
    with pytest.raises(ValueError, match="centers must not have masked values, got 2"):
        exact_labels(X, masked(X[:4]))
    with pytest.raises(ValueError, match="X must not have masked values, got 2"):
        save_vectors(tmp_path / "rows.npy", masked(X))
    with pytest.raises(ValueError, match="'here' must not have masked values, got 2"):
        np.asarray(Vectors([masked(X)], ["here"]))
    assert type(open_vectors(masked(X, 0))) is np.ndarray


# -- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (np.where(np.arange(20) == 3, -0.5, 1), "sample_weight must not be negative, got -0.5"),
        (np.zeros(20), "sample_weight must not be zero for every row"),
        (np.where(np.arange(20) == 3, np.nan, 1), "sample_weight must not contain NaN or infinity"),
        (np.where(np.arange(20) == 3, np.inf, 1), "sample_weight must not contain NaN or infinity"),
        (np.ones(19), r"sample_weight must have shape \(20,\), one weight per row, got \(19,\)"),
        (np.ones((20, 1)), r"sample_weight must have shape \(20,\), one weight per row, got \(20, 1\)"),
        (2.0, r"sample_weight must have shape \(20,\), one weight per row, got \(\)"),
    ],
    ids=str.split("negative zero nan infinity short column scalar"),
)
@every_estimator
def test_weights(weights, match, kind):
    refuses(ValueError, match, weights=weights, kind=kind)
    with pytest.raises(ValueError, match=match):
        kind(**clusters(kind, 4), random_state=0).fit(X).score(X, sample_weight=weights)


@pytest.mark.parametrize("weights", [np.ones(20, complex), ["a"] * 20, [{}] * 20], ids=["complex", "text", "objects"])
def test_weights_that_are_no_numbers(weights):
    refuses((TypeError, ValueError), "sample_weight must hold numbers, got", weights=weights)


def test_rows_of_weight_zero_are_checked_too():
    refuses(ValueError, "NaN", with_value(np.nan), weights=np.arange(20) != 7)


# -- parameters ------------------------------------------------------------------------------------------------------


WHOLE_NUMBERS = [
    *((ClosureKMeans, name) for name in ("n_clusters", "max_iter", "leaf_size", "max_trees", "tree_dims")),
    *((kind, name) for kind in (LloydKMeans, ApproximateKMeans, CanopyKMeans) for name in ("n_clusters", "max_iter")),
    (ApproximateKMeans, "n_candidates"),
    (ApproximateKMeans, "n_trees"),
    (CanopyKMeans, "canopy_dims"),
    (HierarchicalKMeans, "depth"),
    (HierarchicalKMeans, "max_iter"),
    (HierarchicalKMeans, "branching"),
]
NUMBERS = [
    *((ClosureKMeans, name) for name in ("tol", "min_fall", "target_accuracy")),
    *((kind, "tol") for kind in BASELINES),
    (CanopyKMeans, "loose"),
    (CanopyKMeans, "tight"),
]


@pytest.mark.parametrize(("kind", "name"), WHOLE_NUMBERS)
def test_whole_numbers(kind, name):
    smallest = 2 if name == "branching" else 1
    refuses(ValueError, f"{name} must be at least {smallest}, got {smallest - 1}", kind=kind, **{name: smallest - 1})
    refuses(ValueError, f"{name} must be at least {smallest}, got -3", kind=kind, **{name: -3})
    for value in (2.0, "2", True, [2]):
        message = f"{name} must be an integer, got {value!r}".replace("[2]", r"\[2\]")
        refuses(TypeError, message, kind=kind, **{name: value})


@pytest.mark.parametrize(
    ("kind", "name"), [*(pair for pair in WHOLE_NUMBERS if pair[1] not in ("leaf_size", "tree_dims")), *NUMBERS]
)
def test_none_is_no_number(kind, name):
    refuses(TypeError, f"{name} must be an? (integer|number), got None", kind=kind, **{name: None})


def test_radii_of_canopies():
    refuses(ValueError, "loose must be at most 1, got 1.5", kind=CanopyKMeans, loose=1.5)
    refuses(ValueError, "tight must be at most 0.1, got 0.2", kind=CanopyKMeans, loose=0.1, tight=0.2)


def test_target_accuracy():
    refuses(ValueError, "target_accuracy must be at most 1, got 1.5", target_accuracy=1.5)


@pytest.mark.parametrize(("kind", "name"), [*NUMBERS, (ClosureKMeans, "max_time")])
def test_numbers(kind, name):
    refuses(ValueError, f"{name} must be at least 0, got -0.1", kind=kind, **{name: -0.1})
    refuses(ValueError, f"{name} must be at least 0, got nan", kind=kind, **{name: np.nan})
    for value in ("0.1", True, 1j):
        refuses(TypeError, f"{name} must be a number, got {value!r}", kind=kind, **{name: value})


@pytest.mark.parametrize(
    ("kind", "name"), [(ClosureKMeans, "adaptive"), (ClosureKMeans, "extrapolate"), (ApproximateKMeans, "refined")]
)
@pytest.mark.parametrize("value", ["no", None, 2])
def test_truth_values(kind, name, value):
    refuses(TypeError, f"{name} must be True or False, got {value!r}", kind=kind, **{name: value})


def test_n_threads():
    refuses(ValueError, "n_threads must be at least 1, got 0", n_threads=0)
    refuses(ValueError, "n_threads must be at least 1, got -1", n_threads=-1)
    refuses(TypeError, "n_threads must be an integer, got 1.5", n_threads=1.5)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("neighborhoods", "'auto', 'fresh', 'kept', 'all'"),
        ("rule", "'hartigan', 'lloyd'"),
        ("init", "'tree', 'random', or an array of centres or labels"),
    ],
)
def test_words(name, allowed):
    refuses(ValueError, f"{name} must be one of {allowed}, got 'k-means'", **{name: "k-means"})


@pytest.mark.parametrize("name", ["neighborhoods", "rule"])
def test_an_array_is_no_word(name):
    refuses((TypeError, ValueError), f"{name} must be one of .*, got array", **{name: np.ones(2)})


def test_callback_random_state_and_verbose():
    refuses(TypeError, "callback must be callable, got 3", callback=3)
    refuses((TypeError, ValueError), "random_state must be .*, got 'seed'", random_state="seed")
    refuses((TypeError, ValueError), "random_state must be .*, got -1", random_state=-1)
    refuses((TypeError, ValueError), "verbose must be .*, got 'yes'", verbose="yes")


# -- starts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "error", "match"),
    [
        (
            X[:5],
            ValueError,
            r"init given as centres must have shape \(at most n_clusters, n_features\) = \(4, 3\), got \(5, 3\)",
        ),
        (X[:4, :2], ValueError, r"init given as centres must have shape .* = \(4, 3\), got \(4, 2\)"),
        (X[:4][np.newaxis], ValueError, r"init given as centres must have shape .*, got \(1, 4, 3\)"),
        (with_value(np.nan)[5:9], ValueError, "init given as centres must hold finite numbers only"),
        (X[:4].astype(complex), ValueError, "init given as centres must hold finite numbers only"),
        (X[:4].astype(str), ValueError, "init given as centres must hold finite numbers only"),
        (np.zeros(19, int), ValueError, r"init given as labels must have shape \(20,\), one per row, got \(19,\)"),
        (np.zeros(20), TypeError, "init given as labels must hold integers, got float64"),
        (np.arange(20), ValueError, r"init given as labels must lie in 0\.\.3, got values in 0\.\.19"),
        (np.full(20, -1), ValueError, r"init given as labels must lie in 0\.\.3, got values in -1\.\.-1"),
        (None, (TypeError, ValueError), "init .*got"),
        (7, (TypeError, ValueError), "init .*got"),
    ],
    ids=str.split("few narrow cube nan complex text short floats large negative none number"),
)
def test_starts(init, error, match):
    refuses(error, match, init=init)


def test_centers_whose_squares_overflow():
    refuses(ValueError, "init given as centres must", np.float32(X), init=X[:4] * 1e30)
    refuses(ValueError, "init given as centres must", np.float32(X), init=X[:4] * 1e300)
    refuses(ValueError, "init given as centres must", init=X[:4] * 1e200)
