import json
import os
import subprocess
import sys
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
from mutations import read_mutated
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.exceptions import NotFittedError

import closure_kmeans
from closure_kmeans import ClosureKMeans, Method, cells, load, search, storage
from closure_kmeans.baselines import ApproximateKMeans, CanopyKMeans, HierarchicalKMeans, LloydKMeans
from closure_kmeans.points import map_of
from closure_kmeans.tensors import KEY
from closure_kmeans.vectors import FileFormatError


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def model(rows):
    return ClosureKMeans(50, random_state=0).fit(rows)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def check_same(saved, loaded, X):
    for new in (X, X.astype(np.float64), X.astype(np.float16)):
        np.testing.assert_array_equal(loaded.predict(new), saved.predict(new))
        np.testing.assert_array_equal(loaded.predict(new, exact=True), saved.predict(new, exact=True))
        assert loaded.score(new) == saved.score(new)
    np.testing.assert_array_equal(loaded.transform(X[:9]), saved.transform(X[:9]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.uint8, np.int8])
def test_a_loaded_model_is_the_saved_one(rows, path, dtype):
    X = (10 * rows).astype(np.int8).view(np.uint8).astype(dtype)
    saved = ClosureKMeans(50, random_state=0).fit(X)
    saved.save(path)
    loaded = load(path)
    assert isinstance(loaded, ClosureKMeans)
    assert loaded.get_params() == saved.get_params()
    assert loaded.cluster_centers_.dtype == saved.cluster_centers_.dtype
    assert (loaded.inertia_, loaded.n_iter_, loaded.stopped_by_) == (saved.inertia_, saved.n_iter_, saved.stopped_by_)
    check_same(saved, loaded, X)


@pytest.mark.parametrize(
    "saved",
    [
        LloydKMeans(50, random_state=0, max_iter=3),
        ApproximateKMeans(50, refined=True, random_state=0, max_iter=3),
        CanopyKMeans(50, random_state=0, max_iter=3),
        HierarchicalKMeans(branching=4, depth=3, random_state=0, max_iter=3),
    ],
    ids=lambda model: type(model).__name__,
)
def test_baselines(saved, rows, path):
    saved.fit(rows).save(path)
    before = path.read_bytes()
    loaded = load(path)
    assert type(loaded) is type(saved)
    assert loaded.get_params() == saved.get_params()
    check_same(saved, loaded, rows)
    if isinstance(saved, HierarchicalKMeans):
        np.testing.assert_array_equal(loaded.paths(rows), saved.paths(rows))
    loaded.save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"levels_.0.centers": np.full((4, 8), np.nan, np.float32)}, "the centres of level 0 must be finite"),
        ({"levels_.0.centers": np.ones((4, 7), np.float32)}, "the centres of level 0 must have the width and"),
        ({"levels_.0.starts": np.array([0, 5])}, "the 4 nodes of level 0 must be the children of those above"),
        ({"levels_.1.starts": np.array([0, 16])}, "level 1 must have the offsets of the children of 4 nodes"),
        ({"levels_.1.starts": np.array([0, 0, 8, 12, 16])}, "the 16 nodes of level 1 must be the children"),
        ({"levels_.3.starts": np.array([0, 16])}, r"levels_\.1\.centers"),
    ],
)
def test_bad_hierarchies(rows, path, arrays, message):
    HierarchicalKMeans(branching=4, depth=2, random_state=0, max_iter=2).fit(rows).save(path)
    with pytest.raises(FileFormatError, match=message):
        load(_edited(path, arrays))


def test_a_checkpoint_is_no_model(rows, path, tmp_path):
    for checkpoint in (path, tmp_path / "folder"):
        ClosureKMeans(9, random_state=0, max_iter=1, checkpoint=checkpoint).fit(rows)
        with pytest.raises(FileFormatError) as error:
            load(checkpoint)
        assert str(error.value) == (
            f"'{checkpoint}' must be a model, but is a checkpoint: resume it with fit(X, resume=True), or read its "
            f"centres with closure_kmeans.checkpoint.read_centers('{checkpoint}')"
        )


def test_models_of_many_clusters(rows, path, monkeypatch):
    monkeypatch.setattr(search, "MANY_CENTERS", 100)
    saved = ClosureKMeans(300, random_state=0).fit(rows)
    saved.predict(rows.astype(np.float64))  # in another precision first
    saved.save(path)
    before = path.read_bytes()
    loaded = load(path)
    assert loaded.center_index_.n_probes < cells.count_cells(300)
    with monkeypatch.context() as patch:
        patch.setattr(search, "group_centers", None)  # the cells are in the file
        loaded.predict(rows)
    check_same(saved, loaded, rows)
    loaded.save(path)
    assert path.read_bytes() == before
    for change, message in (
        ({"n_probes": None}, "n_probes must be from 1 to 34 cells, but is None"),
        ({"n_probes": 35}, "n_probes must be from 1 to 34 cells, but is 35"),
        ({"arrays": {"cells.ids": np.zeros(300, np.int32)}}, "all 300 centres must be grouped into cells"),
        ({"arrays": {"cells.ids": np.arange(299, dtype=np.int32)}}, "all 300 centres must be grouped into cells"),
        ({"arrays": {"cells.starts": np.arange(35)[::-1].copy()}}, "all 300 centres must be grouped into cells"),
        ({"arrays": {"cells.middles": np.full((34, 8), np.nan, np.float32)}}, "must be grouped into cells"),
    ):
        saved.save(path)
        with pytest.raises(FileFormatError, match=message):
            load(_edited(path, **change))


def test_a_loaded_model_does_not_need_its_file(rows, model, path):
    """Centres that were mapped ended the process when the file was cut, as it is when another is copied over it."""
    model.save(path, training=True)
    loaded = load(path)
    assert map_of(loaded.cluster_centers_) is None  # or what follows may end the process of the tests
    assert map_of(loaded.labels_) is not None  # they may be more than memory holds
    os.truncate(path, 0)
    check_same(model, loaded, rows)


def test_the_same_model_is_the_same_bytes(rows, model, path):
    model.save(path)
    first = path.read_bytes()
    ClosureKMeans(50, random_state=0, n_threads=1, max_time=1e6, callback=lambda _: None).fit(rows).save(path)
    assert path.read_bytes() == first
    load(path).save(path)
    assert path.read_bytes() == first
    code = f"from closure_kmeans import load; load({str(path)!r}).save({str(path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert path.read_bytes() == first


def test_traces_of_the_training_only_when_asked_for(model, path):
    model.save(path)
    assert not hasattr(load(path), "labels_")
    assert not hasattr(load(path), "history_")
    with safe_open(path, "np") as file:
        assert sorted(file.keys()) == ["cluster_centers_", "cluster_sizes_"]
    model.save(path, training=True)
    np.testing.assert_array_equal(load(path).labels_, model.labels_)
    assert load(path).history_ == model.history_


def test_names_of_features(rows, path):
    frame = pd.DataFrame(rows, columns=[f"f{i}" for i in range(8)])
    saved = ClosureKMeans(5, random_state=0).fit(frame)
    saved.save(path)
    assert list(load(path).feature_names_in_) == list(frame.columns)
    np.testing.assert_array_equal(load(path).predict(frame), saved.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        load(path).predict(frame.rename(columns={"f0": "other"}))


def test_parameters_that_are_no_plain_values_are_left_out(rows, path):
    given = ClosureKMeans(5, init=rows[:5], random_state=np.random.RandomState(0)).fit(rows)
    given.save(path)
    loaded = load(path)
    assert loaded.init == "tree"
    assert loaded.random_state is None
    np.testing.assert_array_equal(loaded.predict(rows), given.predict(rows))


def test_only_fitted_models_are_saved(path):
    with pytest.raises(NotFittedError):
        ClosureKMeans(5).save(path)
    assert not path.exists()


def test_only_our_own_classes_are_saved(rows, path):
    class Other(ClosureKMeans):
        pass

    with pytest.raises(TypeError, match="only estimators of this library can be saved, got Other"):
        Other(5, max_iter=1).fit(rows).save(path)
    assert not path.exists()


def test_files_that_are_no_models(model, path, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        load(path)
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match="at least 8 bytes, but is empty"):
        load(path)
    path.write_bytes(b"PK" + bytes(100))
    with pytest.raises(FileFormatError, match=r"model\.safetensors' cannot be read as a model"):
        load(path)
    save_file({"x": np.ones(3)}, path)
    with pytest.raises(FileFormatError, match="must be a file of closure-kmeans, but lacks the metadata"):
        load(path)
    with pytest.raises(FileFormatError, match="must be a file"):
        load(tmp_path)


def _edited(path, arrays=None, **facts):
    """The same file with other contents."""
    with safe_open(path, "np") as file:
        text = json.loads(file.metadata()[KEY]) | facts
        tensors = {name: file.get_tensor(name) for name in file.keys()} | (arrays or {})  # noqa: SIM118
    save_file(tensors, path, {KEY: json.dumps(text)})
    return path


FITTED = {"inertia_": 1.0, "n_iter_": 3, "stopped_by_": "converged"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "must be 'model', format 1, but is format 2: only the version of closure-kmeans that wrote it"),
        ({"kind": "checkpoint"}, "must be a model, but is a checkpoint"),
        ({"class": "os.system"}, "must hold a model of closure_kmeans, but holds a 'os.system'"),
        ({"class": "Iteration"}, "must hold a model of closure_kmeans, but holds a 'Iteration'"),
        ({"parameters": {"n_clusters": -1}}, "n_clusters must be at least 1, got -1"),
        ({"parameters": {"other": 1}}, "unexpected keyword argument 'other'"),
        ({"attributes": {}}, "cannot be read as a model: 'inertia_'"),
        ({"attributes": FITTED | {"inertia_": "low"}}, "inertia_ must be a number, got 'low'"),
        ({"attributes": FITTED | {"inertia_": True}}, "inertia_ must be a number, got True"),
        ({"attributes": FITTED | {"inertia_": float("nan")}}, "inertia_ must be at least 0, got nan"),
        ({"attributes": FITTED | {"inertia_": float("inf")}}, "inertia_ must be at most .*, got inf"),
        ({"attributes": FITTED | {"n_iter_": 2.5}}, "n_iter_ must be an integer, got 2.5"),
        ({"attributes": FITTED | {"stopped_by_": 1}}, "must hold stopped_by_ as a text, but it is 1"),
        ({"attributes": FITTED | {"n_features_in_": "8"}}, "must have centres of 8 features, but they have 8"),
        ({"attributes": FITTED, "arrays": {"inertia_": np.ones(2)}}, "inertia_ must be a number"),
        ({"attributes": {"n_features_in_": 9}}, "must have centres of 9 features, but they have 8"),
        ({"attributes": {"n_features_in_": 8, "predict": 1}}, "must hold fitted attributes, but holds 'predict'"),
        ({"attributes": {"n_features_in_": 8, "__class__": 1}}, "must hold fitted attributes, but holds '__class__'"),
        ({"feature_names": ["a"]}, "must have 8 names of features"),
        ({"n_probes": 10**6}, "n_probes must be from 1 to 14 cells, but is 1000000"),
        ({"arrays": {"cluster_centers_": np.full((50, 8), np.nan)}}, "must hold finite centres"),
        ({"arrays": {"cluster_centers_": np.ones((50, 8), np.int32)}}, "must hold centres as floats"),
        ({"arrays": {"cluster_centers_": np.ones((0, 8))}}, "must hold centres as floats"),
        ({"arrays": {"cluster_sizes_": np.ones(49)}}, "must hold the sizes of 50 clusters, all above 0"),
        ({"arrays": {"cluster_sizes_": np.zeros(50)}}, "must hold the sizes of 50 clusters, all above 0"),
        ({"arrays": {"labels_": np.full(9, 50, np.int32)}}, "must hold labels from 0 to 49"),
    ],
)
def test_bad_contents(model, path, change, message):
    model.save(path)
    with pytest.raises(FileFormatError, match=message):
        load(_edited(path, **change))


# Of all estimators, the parameters that describe a model; a new one belongs here or in ``storage.RUNNING``.
DESCRIBING = {
    "branching",
    "canopy_dims",
    "depth",
    "init",
    "loose",
    "max_iter",
    "max_size",
    "memory_limit",
    "method",
    "metric",
    "n_candidates",
    "n_clusters",
    "n_partitions",
    "n_trees",
    "name",
    "random_state",
    "refined",
    "target_accuracy",
    "tight",
    "tol",
    "tree_dims",
}
ESTIMATORS = [
    getattr(module, name)
    for module in map(import_module, storage.HOMES)
    for name in module.__all__
    if hasattr(getattr(module, name), "save") and name != "ResidualKMeans"  # saves another kind of file
]


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_every_parameter_either_describes_the_model_or_says_how_to_run(kind):
    names = set(kind().get_params(deep=False))
    assert names - DESCRIBING == names & set(storage.RUNNING)
    model = kind().set_params(**dict.fromkeys(names - {"method"}, 1))
    switches = set(Method._fields) if "method" in names else set()
    assert set(storage.plain_parameters(model)) == (names & DESCRIBING) - {"method"} | switches


def test_no_parameter_is_classified_that_is_none():
    names = set().union(*(kind().get_params(deep=False) for kind in ESTIMATORS))
    assert names == DESCRIBING | set(storage.RUNNING)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_file_does_not_say_how_to_run(kind, model, rows, path, tmp_path):
    """A crafted file would otherwise make a later fit write where its author wanted."""
    if kind is HierarchicalKMeans:
        saved = kind(branching=2, depth=1, max_iter=1).fit(rows)
    else:
        saved = kind(50)
        vars(saved).update((name, value) for name, value in vars(model).items() if name not in saved.get_params())
    defaults = kind().get_params(deep=False)
    running = {name: str(tmp_path / "there") for name in defaults if name in storage.RUNNING}
    saved.set_params(**running).save(path)
    assert b"there" not in path.read_bytes()
    with safe_open(path, "np") as file:
        parameters = json.loads(file.metadata()[KEY])["parameters"]
    loaded = load(_edited(path, parameters=parameters | running | {"max_iter": 7, "random_state": [1]}))
    described = {name: parameters[name] for name in parameters if name in defaults}
    assert loaded.get_params(deep=False) == defaults | described | {"max_iter": 7, "random_state": None}


class Series:
    """Rows as a polars Series of arrays has them: of one dimension, and as an array of two."""

    def __init__(self, rows):
        self._rows = rows
        self.shape = rows.shape[:1]

    def __len__(self):
        return len(self._rows)

    def __array__(self, dtype=None, copy=None):
        return np.array(self._rows, dtype)


def test_rows_that_do_not_tell_their_width(rows, path):
    saved = ClosureKMeans(5, random_state=0).fit(rows[:, :3]).fit(Series(rows))
    assert saved.n_features_in_ == 8
    assert ClosureKMeans(5, random_state=0, memory_limit="100MB").fit(Series(rows)).n_features_in_ == 8
    np.testing.assert_array_equal(saved.predict(Series(rows)), saved.predict(rows))
    saved.save(path)
    for fitted in (saved, load(path)):
        with pytest.raises(ValueError, match="X has 7 features, but ClosureKMeans is expecting 8"):
            fitted.predict(rows[:, :7])
    older = load(_edited(path, attributes=FITTED))  # which could not be loaded
    assert older.n_features_in_ == 8
    np.testing.assert_array_equal(older.predict(rows), saved.predict(rows))


READ = """
import numpy as np
from closure_kmeans import load
rows = np.zeros((3, 8), np.float32)
def read(path):
    labels = load(path).predict(rows)
    assert labels.min() >= 0 and labels.max() < 50
"""


def test_damaged_models(model, path):
    model.save(path, training=True)
    n_read, memory = read_mutated(path, READ, 0, 400)
    assert 0 < n_read < 400
    assert memory < 4 * path.stat().st_size + (8 << 20)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ten_thousand_damaged_models(model, path):
    model.save(path, training=True)
    n_read, memory = read_mutated(path, READ, 0, 10_000)
    assert 0 < n_read < 10_000
    assert memory < 4 * path.stat().st_size + (8 << 20)


def test_it_is_exported():
    assert closure_kmeans.load is load
