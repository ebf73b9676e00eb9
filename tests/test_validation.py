"""Bad input: the message names the thing, the rule and the value, and nothing is left half done."""

import numpy as np
import pytest
import scipy.sparse
from refusals import BASELINES, X, clusters, every_estimator, masked, refuses, tree, with_value
from sklearn.exceptions import NotFittedError

from closure_kmeans import ClosureKMeans, validation
from closure_kmeans.baselines import ApproximateKMeans, CanopyKMeans, HierarchicalKMeans, LloydKMeans

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


# -- masked arrays -----------------------------------------------------------------------------------------------------


@every_estimator
def test_masked_rows(kind):
    refuses(ValueError, "X must not have masked values, got 2: fill them, or remove their rows", masked(X), kind=kind)
    model = kind(**clusters(kind, 4), random_state=0).fit(masked(X, 0))
    assert model.predict(masked(X, 0)).tolist() == model.predict(X).tolist()
    for method in (model.predict, model.transform, model.score, model.medoids):
        with pytest.raises(ValueError, match="X must not have masked values, got 2"):
            method(masked(X))


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


def test_a_method_that_is_none():
    with pytest.raises(TypeError, match=r"method must be a Method, such as .*, got 'paper'"):
        ClosureKMeans(2, method="paper").fit([[0.0], [1.0]])
