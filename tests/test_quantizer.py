"""Prediction where the centres are many, and looked for in cells."""

import pickle

import numpy as np
import pytest
import reference

from closure_kmeans import ClosureKMeans, base, closure, quantizer
from closure_kmeans._parallel import Threads
from closure_kmeans.datasets import load_sift


@pytest.fixture(scope="module")
def fitted():
    return ClosureKMeans(800, random_state=0).fit(load_sift()[:8000])


@pytest.fixture
def many_centers(monkeypatch):
    """What counts as many, so that 800 are."""
    for module in (base, quantizer):
        monkeypatch.setattr(module, "MANY_CENTERS", 500)


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
    (some,) = (quantizer for dtype, quantizer in fitted._quantizers.items() if dtype == np.float32)
    assert some.n_probes < (len(some.cells.starts) - 1) / 3
    np.testing.assert_array_equal(np.sort(some.cells.ids), np.arange(800))


@pytest.mark.usefixtures("many_centers")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_label_is_a_function_of_the_row(fitted, dtype):
    rows = load_sift()[10_000:10_600].astype(dtype)
    labels = fitted.predict(rows)
    for batch in (1, 7, 300):
        parts = [fitted.predict(rows[first : first + batch]) for first in range(0, len(rows), batch)]
        np.testing.assert_array_equal(np.concatenate(parts), labels)
    np.testing.assert_array_equal(fitted.predict(rows[::-1]), labels[::-1])
    copy = pickle.loads(pickle.dumps(fitted)).set_params(n_jobs=3)
    np.testing.assert_array_equal(copy.predict(rows), labels)


@pytest.mark.parametrize("limit", [500, 1000])
def test_several_nearest(fitted, monkeypatch, limit):
    """In cells or not, the first of them is what ``predict`` gives."""
    for module in (base, quantizer):
        monkeypatch.setattr(module, "MANY_CENTERS", limit)
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


@pytest.mark.parametrize("width", [4, 31, 48])
def test_sketches_are_no_farther_apart_than_rows(width):
    """But for rounding; and not much less far, if the directions are those of most variance."""
    rows = load_sift()[:300].astype(np.float32)
    directions = np.linalg.eigh(np.cov(rows.T))[1]
    sketches = quantizer.sketch(rows, directions[:, :-width:-1])
    assert (sketches.shape, sketches.dtype) == ((300, width), np.float32)
    truth, apart = reference.squared_distances(rows, rows), reference.squared_distances(sketches, sketches)
    assert (apart <= truth * (1 + 1e-5) + 1e-2).all()
    assert width < 31 or apart.sum() > 0.8 * truth.sum()
    assert quantizer.sketch(rows, directions[:, :0]) is rows


@pytest.mark.parametrize("kind", ["sift", "noise", "few", "narrow", "equal"])
def test_sketches_are_used_where_they_pay(kind):
    """Not where all directions are alike, nor for a few dimensions."""
    rng = np.random.default_rng(0)
    centers = {
        "sift": load_sift()[:3000].astype(np.float32),
        "noise": rng.normal(size=(3000, 64)),
        "few": rng.normal(size=(1, 64)),
        "narrow": rng.normal(size=(3000, 2)) * [100, 1],
        "equal": np.ones((500, 64)),
    }[kind]
    n_features, n_axes = quantizer.choose_axes(centers).shape
    assert n_features == centers.shape[1]
    assert n_axes + 1 in quantizer.SKETCH_WIDTHS if kind == "sift" else n_axes == 0 or kind == "equal"


@pytest.mark.usefixtures("many_centers")
def test_sketches_change_nothing_but_the_time(fitted, monkeypatch):
    rows = load_sift()[10_000:18_000]
    expected = fitted.predict(rows)
    cells = fitted._quantizers[np.float32].cells
    assert cells.sketches.shape[1] < cells.centers.shape[1]
    monkeypatch.setattr(quantizer, "choose_axes", lambda centers: np.empty((centers.shape[1], 0)))
    model = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(model.predict(rows), expected)
    assert model._quantizers[np.float32].cells.sketches is model._quantizers[np.float32].cells.centers


@pytest.mark.parametrize("limit", [500, 1000])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_an_exact_search_by_sketches(fitted, monkeypatch, limit, dtype):
    """Of so many rows that cells are built for it, be the centres few or many."""
    for module in (base, quantizer):
        monkeypatch.setattr(module, "MANY_CENTERS", limit)
    rows = load_sift()[10_000:13_000].astype(dtype)
    expected = reference.search_nearest(rows, fitted.cluster_centers_)
    model = pickle.loads(pickle.dumps(fitted))
    for n_cells in (0, 1):  # not yet worth it; built for it; built before
        np.testing.assert_array_equal(model.predict(rows, exact=True), expected[0])
        assert len(model._quantizers) == n_cells
        monkeypatch.setattr(base, "MANY_PRODUCTS", 10**6)
    np.testing.assert_array_equal(model.predict(rows[:7], exact=True), expected[0][:7])
    np.testing.assert_allclose(model._nearest(rows, exact=True)[1], expected[1], rtol=1e-6)


@pytest.mark.parametrize("kind", ["equal", "line", "far"])
def test_cells_of_awkward_centers(kind):
    rng = np.random.default_rng(0)
    centers = {
        "equal": np.ones((300, 3)),
        "line": rng.normal(size=(300, 1)) * [1.0, 2.0, 3.0],
        "far": rng.normal(size=(300, 3)) + 1e5,
    }[kind]
    rows = centers[rng.integers(300, size=400)] + rng.normal(0, 0.01, (400, 3))
    mean = centers.mean(axis=0)
    with Threads(2) as threads:
        cells = quantizer.build_quantizer(centers - mean, mean, rows, threads)
        _, distances = quantizer.quantize(rows, cells, threads)
    _, expected = reference.search_nearest(rows, centers)
    assert np.mean(distances <= expected * (1 + 1e-6) + 1e-9) > 0.97


@pytest.mark.usefixtures("many_centers")
def test_an_interrupt_while_cells_are_built_is_not_lost(fitted, monkeypatch):
    def interrupt(*arguments, **settings):
        raise KeyboardInterrupt

    model = pickle.loads(pickle.dumps(fitted))
    monkeypatch.setattr(closure, "take_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.predict(load_sift()[:3])
