"""The nearest of many centres, which are searched in cells."""

import pickle

import joblib
import numpy as np
import pytest
import reference

from closure_kmeans import CenterIndex, ClosureKMeans, cells, closure, load, search
from closure_kmeans.baselines import HierarchicalKMeans
from closure_kmeans.datasets import load_sift
from closure_kmeans.parallel import Threads


@pytest.fixture(scope="module")
def fitted():
    return ClosureKMeans(800, random_state=0).fit(load_sift()[:8000])


@pytest.fixture
def many_centers(monkeypatch):
    """The number of centres above which cells are searched, so that 800 are many."""
    monkeypatch.setattr(search, "MANY_CENTERS", 500)


def without_cells(fitted):
    """A copy of a model whose cells are yet to be built."""
    copy = pickle.loads(pickle.dumps(fitted))
    copy.cluster_centers_ = fitted.cluster_centers_.copy()
    return copy


@pytest.mark.usefixtures("many_centers")
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_nearly_all_rows_find_their_nearest_center(fitted, dtype):
    rows = load_sift()[10_000:18_000].astype(dtype)
    nearest, distances = reference.search_nearest(rows, fitted.cluster_centers_)
    assert np.mean(fitted.predict(rows) == nearest) > 0.98
    np.testing.assert_array_equal(fitted.predict(rows, exact=True), nearest)
    assert -fitted.score(rows) == pytest.approx(distances.sum(), rel=1e-3)


@pytest.mark.usefixtures("many_centers")
def test_not_all_centers_are_looked_at(fitted):
    rows = load_sift()[10_000:10_100]
    fitted.predict(rows)
    arrays, facts = fitted.center_index_.pack()
    assert facts["n_probes"] < len(arrays["cells.middles"]) / 3
    np.testing.assert_array_equal(np.sort(arrays["cells.ids"]), np.arange(800))


@pytest.mark.usefixtures("many_centers")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_label_is_a_function_of_the_row(fitted, dtype):
    rows = load_sift()[10_000:10_600].astype(dtype)
    labels = fitted.predict(rows)
    for batch in (1, 7, 300):
        parts = [fitted.predict(rows[first : first + batch]) for first in range(0, len(rows), batch)]
        np.testing.assert_array_equal(np.concatenate(parts), labels)
    np.testing.assert_array_equal(fitted.predict(rows[::-1]), labels[::-1])
    copy = pickle.loads(pickle.dumps(fitted)).set_params(n_threads=3)
    np.testing.assert_array_equal(copy.predict(rows), labels)


@pytest.mark.parametrize("limit", [500, 1000])
def test_several_nearest(fitted, monkeypatch, limit):
    """In cells or not, the first of them is what ``predict`` gives."""
    monkeypatch.setattr(search, "MANY_CENTERS", limit)
    rows = load_sift()[10_000:10_300]
    labels, distances = fitted.several_nearest(rows, 3)
    np.testing.assert_array_equal(labels[:, 0], fitted.predict(rows))
    truth = np.sort(fitted.transform(rows), axis=1)[:, :3].astype(np.float64) ** 2
    assert np.mean(distances <= truth * (1 + 1e-4)) > 0.97
    assert (np.diff(distances, axis=1) >= 0).all()
    np.testing.assert_array_equal(fitted.several_nearest(rows[::-1], 3)[0], labels[::-1])
    assert fitted.several_nearest(rows[:2], 5000)[0].shape == (2, 800)
    with pytest.raises(ValueError, match="n_nearest must be at least 1, got 0"):
        fitted.several_nearest(rows, 0)


@pytest.mark.usefixtures("many_centers")
def test_a_refit_has_new_cells(fitted):
    X = load_sift()[:3000]
    model = ClosureKMeans(600, random_state=0, max_iter=2).fit(X[:, :64])
    model.predict(X[:, :64])
    nearest, _ = reference.search_nearest(X[:500], model.fit(X).cluster_centers_)
    assert np.mean(model.predict(X[:500]) == nearest) > 0.98


@pytest.mark.usefixtures("many_centers")
@pytest.mark.parametrize("init", ["random", "centers"])
def test_a_start_from_many_centers(init):
    X = load_sift()[:3000]
    centers = X[:700].astype(np.float64) if init == "centers" else "random"
    model = ClosureKMeans(700, init=centers, random_state=0, max_iter=2).fit(X)
    np.testing.assert_array_equal(np.unique(model.labels_), np.arange(700))
    assert model.inertia_ == pytest.approx(reference.inertia(X, model.labels_), rel=1e-5)


@pytest.mark.usefixtures("many_centers")
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_threads_change_nothing(fitted, n_threads):
    """Also for rows unlike those of the fit."""
    rows = np.concatenate([load_sift()[10_000:16_000], np.zeros((9, 128), np.uint8), load_sift()[:300, ::-1]])
    expected = fitted.center_index_.nearest(rows)
    model = pickle.loads(pickle.dumps(fitted)).set_params(n_threads=n_threads)
    for some in (slice(None), slice(7), slice(700)):
        np.testing.assert_array_equal(model.center_index_.nearest(rows[some]), [found[some] for found in expected])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("noise", [0, 1e-9, 1e-3])
def test_centers_in_few_dimensions_and_rows_that_are_not(dtype, noise):
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(16, 64))
    centers, rows = ((rng.normal(size=(n, 16)) @ directions) for n in (1000, 300))
    centers += noise * rng.normal(size=centers.shape)
    rows += 0.3 * rng.normal(size=rows.shape)
    centers, rows = centers.astype(dtype), rows.astype(dtype)
    with Threads(2) as threads:
        grouped = cells.group_centers(np.zeros(64, dtype), centers, threads)
        labels, distances = cells.visit_nearest(rows, grouped, len(grouped.middles), threads)
    expected, truth = reference.search_nearest(rows, centers)
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_allclose(distances, truth, rtol=1e-6)


@pytest.mark.parametrize("limit", [500, 1000])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_an_exact_search_builds_no_cells(fitted, monkeypatch, limit, dtype):
    model = without_cells(fitted)
    monkeypatch.setattr(search, "MANY_CENTERS", limit)
    monkeypatch.setattr(search, "group_centers", None)
    rows = load_sift()[10_000:13_000].astype(dtype)
    expected, distances = reference.search_nearest(rows, fitted.cluster_centers_)
    found, apart = model.center_index_.nearest(rows, exact=True)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(apart, distances, rtol=1e-6)


@pytest.mark.usefixtures("many_centers")
def test_an_exact_search_among_the_centers_of_cells(fitted):
    """Centres that were rounded for the cells are not rounded once more; ties go to the lowest id."""
    index = CenterIndex(np.concatenate([fitted.cluster_centers_, fitted.cluster_centers_[::-1]]))
    rows = load_sift()[10_000:10_500].astype(np.float32)
    index.nearest(rows)
    found, _ = index.nearest(rows, exact=True)
    np.testing.assert_array_equal(found, reference.search_nearest(rows, fitted.cluster_centers_)[0])
    assert index.rounded(np.float32)[1] is index.grouped(np.float32, None).centers


@pytest.mark.parametrize("with_sample", [True, False])
@pytest.mark.parametrize("kind", ["equal", "line", "far"])
def test_cells_of_awkward_centers(kind, with_sample, monkeypatch):
    monkeypatch.setattr(search, "MANY_CENTERS", 100)
    rng = np.random.default_rng(0)
    centers = {
        "equal": np.ones((300, 3)),
        "line": rng.normal(size=(300, 1)) * [1.0, 2.0, 3.0],
        "far": rng.normal(size=(300, 3)) + 1e5,
    }[kind]
    rows = centers[rng.integers(300, size=400)] + rng.normal(0, 0.01, (400, 3))
    index = CenterIndex(centers, sample=rows if with_sample else None, n_threads=2)
    _, distances = index.nearest(rows)
    _, expected = reference.search_nearest(rows, centers)
    assert np.mean(distances <= expected * (1 + 1e-6) + 1e-9) > 0.97


@pytest.mark.usefixtures("many_centers")
def test_an_interrupt_while_cells_are_built_is_not_lost(fitted, monkeypatch):
    def interrupt(*arguments, **settings):
        raise KeyboardInterrupt

    model = without_cells(fitted)
    monkeypatch.setattr(closure, "lower", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.predict(load_sift()[:3])


@pytest.mark.usefixtures("many_centers")
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float64, int])
def test_centers_from_elsewhere(fitted, dtype):
    """Without rows to measure on, nearly all rows find their nearest centre, too."""
    rows = load_sift()[10_000:14_000]
    centers = fitted.cluster_centers_
    for index in (CenterIndex(centers), CenterIndex(centers, sample=load_sift()[:500]), CenterIndex(centers.tolist())):
        labels, distances = index.nearest(rows.astype(dtype))
        assert np.mean(labels == reference.search_nearest(rows, centers)[0]) > 0.98
        several, squares = index.search(rows.astype(dtype), n_nearest=1)
        np.testing.assert_array_equal(several[:, 0], labels)
        np.testing.assert_array_equal(squares[:, 0], distances)
        assert several.shape == (len(rows), 1)


@pytest.mark.parametrize(
    ("centers", "error", "message"),
    [
        (np.zeros(3), ValueError, r"centers must be an array of shape \(n_clusters, n_features\), got \(3,\)"),
        (np.zeros((0, 3)), ValueError, r"centers must be an array of shape .*, got \(0, 3\)"),
        ([[np.nan]], ValueError, "centers must hold finite numbers only"),
        ([["a"]], ValueError, "centers must hold finite numbers only"),
        ([[1e30], [2.0]], None, ""),
        (np.float32([[1.0], [1e30]]), ValueError, "squares overflow float32"),
    ],
    ids=str.split("flat none nan text double overflow"),
)
def test_bad_centers(centers, error, message):
    if error is None:
        assert CenterIndex(centers).nearest([[3.0]])[0].tolist() == [1]
        return
    with pytest.raises(error, match=message):
        CenterIndex(centers)


def test_bad_rows():
    index = CenterIndex(np.eye(3))
    for rows, message in (
        (np.zeros((2, 4)), "X must have 3 features like the centres, got 4"),
        ([[1.0, np.inf, 0.0]], "X must not contain NaN or infinity, but row 0 does"),
        (np.zeros((0, 3)), "minimum of 1 is required"),
    ):
        for search_rows in (index.nearest, index.search):
            with pytest.raises(ValueError, match=message):
                search_rows(rows)
    with pytest.raises(ValueError, match="sample must have 3 features like the centres, got 2"):
        CenterIndex(np.eye(3), sample=np.zeros((5, 2)))
    for value, message in (
        (np.nan, "sample must not contain NaN or infinity, but row 1 does"),
        (1e30, "the squares of the values of sample must not overflow float32, but row 1 holds 1e[+]30"),
    ):
        with pytest.raises(ValueError, match=message):
            CenterIndex(np.eye(3), sample=np.float32([[0, 0, 0], [value, 0, 0]]))
    with pytest.raises(ValueError, match="n_threads must be at least 1, got 0"):
        CenterIndex(np.eye(3), n_threads=0)


@pytest.mark.parametrize("limit", [500, 1000])
def test_separations(fitted, limit, monkeypatch):
    monkeypatch.setattr(search, "MANY_CENTERS", limit)
    squares = reference.squared_distances(fitted.cluster_centers_, fitted.cluster_centers_)
    np.fill_diagonal(squares, np.inf)
    truth = np.sqrt(squares.min(axis=1))
    found = fitted.center_index_.separations()
    assert np.mean(np.isclose(found, truth, rtol=1e-3)) > (0.95 if limit == 500 else 0.999)
    assert (found >= truth * (1 - 1e-3)).all()
    assert CenterIndex([[1.0]]).separations().tolist() == [np.inf]


@pytest.mark.parametrize("limit", [500, 1000])
def test_a_pickle_holds_no_rows(fitted, limit, monkeypatch):
    """Nor does a copy: how many cells to visit is measured before."""
    monkeypatch.setattr(search, "MANY_CENTERS", limit)
    text = pickle.dumps(fitted)
    assert not any(row.tobytes() in text for row in load_sift()[:8000:40])
    copy = pickle.loads(text)
    rows = load_sift()[10_000:10_600]
    np.testing.assert_array_equal(copy.predict(rows), fitted.predict(rows))


@pytest.mark.usefixtures("many_centers")
@pytest.mark.parametrize("mmap_mode", [None, "r"])
@pytest.mark.parametrize("make", [ClosureKMeans, lambda k, **settings: HierarchicalKMeans(6, 4, **settings)])
def test_a_model_that_joblib_has_stored(make, mmap_mode, tmp_path, monkeypatch):
    """It stores each array by itself."""
    X = load_sift()[:3000]
    model = make(600, max_iter=2, random_state=0).fit(X)
    joblib.dump(model, tmp_path / "model.joblib")
    loaded = joblib.load(tmp_path / "model.joblib", mmap_mode=mmap_mode)
    monkeypatch.setattr(search, "group_centers", None)  # the cells are in the file
    assert loaded.center_index_.n_probes == model.center_index_.n_probes
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.center_index_ is loaded.center_index_


@pytest.mark.usefixtures("many_centers")
def test_centers_that_were_replaced(fitted, tmp_path):
    model = pickle.loads(pickle.dumps(fitted))
    model.cluster_centers_ = fitted.cluster_centers_[::-1].copy()
    rows = load_sift()[10_000:11_000]
    nearest, _ = reference.search_nearest(rows, model.cluster_centers_)
    assert np.mean(model.predict(rows) == nearest) > 0.98
    model.save(tmp_path / "model.safetensors")
    assert np.mean(load(tmp_path / "model.safetensors").predict(rows) == nearest) > 0.98


def test_centers_that_were_changed_in_place():
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    index = CenterIndex(rows[:10].copy())
    assert index.nearest(rows[9:10])[0] == 9
    index.centers[3] = rows[9] + 0.5
    index.centers[9] = 1000
    assert index.nearest(rows[9:10])[0] == 3


@pytest.mark.parametrize("limit", [10, 10_000])
def test_a_pickled_index_holds_no_bytes_of_this_processor(limit, monkeypatch):
    monkeypatch.setattr("closure_kmeans.search.MANY_CENTERS", limit)
    rows = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
    index = CenterIndex(rows[:100])
    found = index.nearest(rows)
    held = dict(vars(index))
    again = pickle.loads(pickle.dumps(index))
    assert vars(again)["_cells"] == vars(again)["_rounded"] == {}
    assert vars(index) == held
    for ours, theirs in zip(again.nearest(rows), found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_several_nearest_of_a_tree():
    """Of all centres; the tree may lead to another one."""
    model = HierarchicalKMeans(6, 3, random_state=0).fit(load_sift()[:3000])
    rows = load_sift()[10_000:10_300]
    labels, _ = model.several_nearest(rows, 1)
    np.testing.assert_array_equal(labels[:, 0], reference.search_nearest(rows, model.cluster_centers_)[0])
    np.testing.assert_array_equal(labels[:, 0], model.several_nearest(rows, 2)[0][:, 0])


def test_the_index_has_the_threads_of_the_model(fitted):
    model = pickle.loads(pickle.dumps(fitted)).set_params(n_threads=1)
    assert model.center_index_.n_threads == 1
