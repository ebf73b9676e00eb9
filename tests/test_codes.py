"""Residual k-means: codes, what they decode to, their quality, files, and other tools."""

import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from mutations import read_mutated
from sklearn.base import clone

from closure_kmeans import ClosureKMeans, ResidualKMeans
from closure_kmeans.checkpoint import read_status
from closure_kmeans.codes import as_text, count_collisions, save_table
from closure_kmeans.codes.residuals import Residuals
from closure_kmeans.datasets import load_sift
from closure_kmeans.vectors import FileFormatError, open_vectors, save_vectors

X = load_sift()[:3000]


def fitted(levels=(40, 30, 20), rows=X, **parameters):
    return ResidualKMeans(levels, **{"random_state": 0} | parameters).fit(rows)


def unit(rows):
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(lengths == 0, 1, lengths)


def definition(rows, model):
    """Codes by comparing each residual with all centres, in double precision."""
    left = np.asarray(rows, np.float64)
    left = unit(left) if model.metric == "cosine" else left
    codes = []
    for level in model.levels_:
        left = unit(left) if model.normalize_residuals else left
        centers = level.cluster_centers_.astype(np.float64)
        squares = (left**2).sum(1)[:, None] - 2 * left @ centers.T + (centers**2).sum(1)
        codes.append(squares.argmin(1))
        left = left - centers[codes[-1]]
    return np.stack(codes, axis=1)


@pytest.fixture(scope="module")
def model():
    return fitted()


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("normalize_residuals", [False, True])
def test_encode_takes_the_nearest_centre_of_each_residual(metric, normalize_residuals):
    model = fitted((20, 20), metric=metric, normalize_residuals=normalize_residuals)
    assert np.mean(model.encode(X) == definition(X, model)) > 0.999  # ties in rounding
    assert np.mean(model.codes_ == model.encode(X)) > 0.95


def test_each_level_is_a_fit_of_the_residuals(model):
    first, second, _ = model.levels_
    left = X - first.cluster_centers_[model.codes_[:, 0]]
    twin = ClosureKMeans(30, random_state=second.random_state).fit(left.astype(np.float16))
    np.testing.assert_array_equal(twin.cluster_centers_, second.cluster_centers_)
    np.testing.assert_array_equal(twin.labels_, model.codes_[:, 1])


def test_decoded_rows_are_sums_of_centres(model):
    codes = model.encode(X)
    expected = sum(level.cluster_centers_[codes[:, i]] for i, level in enumerate(model.levels_))
    np.testing.assert_array_equal(model.decode(codes), expected)
    assert model.decode(codes).dtype == np.float32


def test_the_report_is_that_of_the_definitions(model):
    codes = model.encode(X)
    report = model.report(X)
    errors = [
        ((X - sum(level.cluster_centers_[codes[:, i]] for i, level in enumerate(model.levels_[: n + 1]))) ** 2).sum(1)
        for n in range(3)
    ]
    np.testing.assert_allclose(report.distortion, [error.mean() for error in errors], rtol=1e-5)
    assert report.distortion[0] > report.distortion[1] > report.distortion[2]
    groups = np.unique(codes, axis=0, return_counts=True)[1]
    assert report.unique == len(groups) / len(X)
    assert report.largest_group == groups.max()
    shares = np.bincount(codes[:, 0], minlength=40) / len(X)
    assert report.used[0] == np.mean(shares > 0)
    shares = shares[shares > 0]
    assert report.perplexity[0] == pytest.approx(2 ** -(shares * np.log2(shares)).sum())
    assert model.report(X, model.codes_).distortion[0] == pytest.approx(model.levels_[0].inertia_ / len(X))


def test_a_beam_finds_better_codes_and_a_full_one_the_best():
    model = fitted((6, 5, 4))
    by_width = [model.report(X, model.encode(X, beam=beam)).distortion[-1] for beam in (1, 4, 30)]
    assert by_width[0] > by_width[1] >= by_width[2]
    every = np.stack(np.meshgrid(*map(np.arange, (6, 5, 4)), indexing="ij"), axis=-1).reshape(-1, 3)
    decoded = model.decode(every).astype(np.float64)
    squares = (decoded**2).sum(1) - 2 * X.astype(np.float64) @ decoded.T
    best = every[squares.argmin(1)]
    assert np.mean((model.encode(X, beam=30) == best).all(1)) > 0.999


def test_a_beam_helps_with_normalized_residuals_too():
    model = fitted((12, 12), normalize_residuals=True)
    left = X.astype(np.float64)
    errors = []
    for codes in (model.encode(X), model.encode(X, beam=6)):
        lengths, rest = 1.0, left
        for i, level in enumerate(model.levels_):
            lengths = lengths * np.linalg.norm(rest, axis=1)
            rest = unit(rest) - level.cluster_centers_[codes[:, i]]
        errors.append((lengths * np.linalg.norm(rest, axis=1)) ** 2)
    assert (errors[1] <= errors[0] * 1.0001).all()
    assert errors[1].mean() < errors[0].mean()


@pytest.mark.parametrize("beam", [1, 3])
def test_codes_are_a_pure_function_of_each_row(model, beam, monkeypatch):
    whole = model.encode(X, beam=beam)
    np.testing.assert_array_equal(model.encode(X[7:8], beam=beam), whole[7:8])
    monkeypatch.setattr("closure_kmeans.codes.estimator.BLOCK_ROWS", 64)
    np.testing.assert_array_equal(model.encode(X[500:900], beam=beam), whole[500:900])


@pytest.mark.parametrize("parameters", [{}, {"normalize_residuals": True}, {"memory_limit": "6MB"}], ids=str)
def test_the_same_bits_on_any_number_of_threads(parameters):
    one, four = (fitted(n_threads=n, **parameters) for n in (1, 4))
    for a, b in zip(one.levels_, four.levels_, strict=True):
        np.testing.assert_array_equal(a.cluster_centers_, b.cluster_centers_)
    np.testing.assert_array_equal(one.gains_, four.gains_)
    np.testing.assert_array_equal(one.codes_, four.codes_)
    np.testing.assert_array_equal(one.encode(X), four.encode(X))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8])
def test_rows_of_any_dtype(dtype):
    rows = (X - 128.0 * (dtype == np.int8)).clip(-128, 127 if dtype == np.int8 else 255).astype(dtype)
    model = fitted((20, 20), rows)
    assert model.decode(model.encode(rows)).dtype == (np.float64 if dtype == np.float64 else np.float32)
    best = fitted((20, 20), rows.astype(np.float64)).report(rows.astype(np.float64)).distortion[-1]
    assert model.report(rows).distortion[-1] == pytest.approx(best, rel=0.05)


def test_residuals_of_narrow_rows_are_held_in_float16(monkeypatch):
    given = []
    fit = ClosureKMeans.fit
    monkeypatch.setattr(ClosureKMeans, "fit", lambda self, X, **kwargs: given.append(X) or fit(self, X, **kwargs))
    fitted((9, 9))
    fitted((9, 9), X.astype(np.float32), metric="cosine")
    fitted((9, 9), memory_limit="6MB")
    assert [rows.dtype for rows in given] == [np.uint8, np.float16, np.float32, np.float32, np.uint8, np.float32]
    assert not isinstance(given[-1], np.ndarray)


def test_slices_of_residuals_take_no_more_than_themselves():
    rows = np.ones((200_000, 64), np.uint8)
    residuals = Residuals(
        rows, np.zeros((200_000, 2), np.int32), [np.ones((1, 64), np.float32)] * 2, spherical=True, normalized=True
    )
    residuals[:9]
    tracemalloc.start()
    left = residuals[1::2]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert left.shape == (100_000, 64)
    assert peak < 1.3 * left.nbytes
    np.testing.assert_array_equal(left[:5000], residuals[1:10_000:2])


def test_weights_are_repetitions():
    weights = np.random.default_rng(0).integers(0, 3, len(X))
    model = ResidualKMeans([20, 20], normalize_residuals=True, random_state=0).fit(X, sample_weight=weights)
    assert all(level.cluster_sizes_.sum() == weights.sum() for level in model.levels_)
    assert model.codes_.shape == (len(X), 2)
    repeated = np.repeat(np.arange(len(X)), weights)
    parts = [level.cluster_centers_[model.codes_[repeated, i]] for i, level in enumerate(model.levels_)]
    design = np.stack([part.ravel() for part in parts], axis=1).astype(np.float64)
    np.testing.assert_allclose(model.gains_, np.linalg.lstsq(design, X[repeated].ravel() * 1.0)[0], rtol=1e-4)


def test_gains_lower_the_distortion_of_normalized_residuals():
    model = fitted((20, 20), normalize_residuals=True)
    distortion = model.report(X).distortion
    assert distortion[1] < distortion[0]
    assert fitted((20, 20)).report(X).distortion[1] < distortion[1]
    np.testing.assert_array_equal(fitted((20, 20)).gains_, 1)


def test_rows_that_equal_their_centres_have_a_residual_of_length_0():
    rows = np.repeat(np.eye(4, dtype=np.float32), 5, axis=0)
    model = fitted((4, 1), rows, normalize_residuals=True)
    assert np.isfinite(model.levels_[1].cluster_centers_).all()
    np.testing.assert_allclose(model.decode(model.encode(rows)), rows, atol=1e-6)


def test_balanced_levels():
    model = fitted((40, 40), max_size=80)
    assert all(np.bincount(codes).max() <= 80 for codes in model.codes_.T)
    free = fitted((40, 40))
    assert model.report(X, model.codes_).perplexity[0] > free.report(X, free.codes_).perplexity[0]


def test_unique_codes():
    rows = np.concatenate([X, X[:50]])
    model = fitted((20, 20), rows, unique=True)
    codes = model.encode(rows)
    assert codes.shape == model.codes_.shape == (3050, 3)
    assert len(np.unique(codes, axis=0)) == len(np.unique(model.codes_, axis=0)) == 3050
    np.testing.assert_array_equal(codes[:, :2], fitted((20, 20), rows).encode(rows))
    np.testing.assert_array_equal(model.decode(codes), model.decode(codes[:, :2]))


def test_collisions_are_numbered_in_the_order_of_the_rows():
    codes = np.random.default_rng(0).integers(3, size=(200, 2))
    seen = {}
    expected = []
    for row in map(tuple, codes.tolist()):
        expected.append(seen.get(row, 0))
        seen[row] = expected[-1] + 1
    assert count_collisions(codes).tolist() == expected


def test_rows_that_are_read_block_by_block(tmp_path, model, monkeypatch):
    save_vectors(tmp_path / "rows.bvecs", X)
    vectors = open_vectors(tmp_path / "rows.bvecs")
    np.testing.assert_array_equal(model.encode(vectors), model.encode(X))
    limited = fitted(rows=vectors, memory_limit="6MB")
    assert limited.report(vectors).distortion[-1] == pytest.approx(model.report(X).distortion[-1], rel=0.1)


def test_levels_after_the_first_share_the_time():
    model = fitted(max_time=0.0)
    assert [level.n_iter_ for level in model.levels_] == [1, 1, 1]
    assert {level.stopped_by_ for level in model.levels_} == {"max_time"}


def test_the_callback_is_told_of_each_level_and_may_end_it():
    told = []
    model = fitted(callback=lambda level, record: told.append((level, record.iteration)) or record.iteration == 2)
    assert told == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]
    assert {level.stopped_by_ for level in model.levels_} == {"callback"}


def test_one_bar_shows_all_levels(capsys):
    fitted((5, 5), verbose=1)
    shown = capsys.readouterr().err
    assert "level 1 of 2" in shown
    assert "level 2 of 2" in shown
    assert "ClosureKMeans" not in shown


# -- checkpoints -------------------------------------------------------------------------------------------------------


class KilledError(Exception):
    pass


@pytest.mark.parametrize(("level", "iteration"), [(0, 2), (1, 1), (2, 3)])
@pytest.mark.parametrize("limits", [{}, {"max_time": 0.0}], ids=["", "max_time"])
def test_a_stopped_fit_goes_on_to_the_same_bits(tmp_path, level, iteration, limits):
    settings = {"checkpoint": tmp_path / "ck", "checkpoint_every": 0, "max_iter": 4, **limits}
    iteration = 1 if limits else iteration

    def kill(number, record):
        if (number, record.iteration) == (level, iteration):
            raise KilledError

    with pytest.raises(KilledError):
        fitted(callback=kill, **settings)
    with pytest.raises(FileExistsError, match=r"level-1\.safetensors' holds a fit"):
        fitted(**settings)
    model = ResidualKMeans((40, 30, 20), random_state=0, **settings).fit(X, resume=True)
    if not limits:
        whole = fitted(max_iter=4)
        np.testing.assert_array_equal(model.codes_, whole.codes_)
        np.testing.assert_array_equal(model.levels_[2].cluster_centers_, whole.levels_[2].cluster_centers_)
    assert all(read_status(tmp_path / "ck" / f"level-{i}.safetensors").ended for i in (1, 2, 3))


def test_a_checkpoint_of_other_rows_is_refused(tmp_path):
    fitted((5, 5), checkpoint=tmp_path)
    with pytest.raises(FileFormatError, match="another fit"):
        ResidualKMeans((5, 5), random_state=0, checkpoint=tmp_path).fit(X[::-1], resume=True)


KILLED = """
import os, sys
from closure_kmeans import ResidualKMeans
from closure_kmeans.datasets import load_sift
def kill(level, record):
    if (level, record.iteration) == (1, 2):
        os.kill(os.getpid(), 9)
model = ResidualKMeans((40, 30), random_state=0, checkpoint=sys.argv[1], checkpoint_every=0, callback=kill)
model.fit(load_sift()[:3000])
"""


def test_a_killed_fit_goes_on(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True)
    assert done.returncode == -9
    model = ResidualKMeans((40, 30), random_state=0, checkpoint=tmp_path).fit(X, resume=True)
    whole = fitted((40, 30))
    np.testing.assert_array_equal(model.codes_, whole.codes_)
    for name, each in (("resumed", model), ("whole", whole)):
        each.save(tmp_path / f"{name}.safetensors")
    assert (tmp_path / "resumed.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"levels": 5}, TypeError, "levels must be a sequence of numbers of clusters, got 5"),
        ({"levels": []}, TypeError, "levels must be a sequence"),
        ({"levels": [5, 0]}, ValueError, "each of levels must be at least 1, got 0"),
        ({"levels": [5, 2.0]}, TypeError, "each of levels must be an integer"),
        ({"levels": [5], "metric": "l1"}, ValueError, "metric must be one of"),
        ({"levels": [5], "unique": 1}, TypeError, "unique must be True or False"),
        ({"levels": [5], "normalize_residuals": "no"}, TypeError, "normalize_residuals must be True or False"),
        ({"levels": [5], "callback": 1}, TypeError, "callback must be callable"),
        ({"levels": [5], "checkpoint": 1}, TypeError, "checkpoint must be a path"),
        ({"levels": [5], "max_iter": 0}, ValueError, "max_iter must be at least 1"),
        ({"levels": [5], "memory_limit": "1kB"}, ValueError, "memory_limit must be at least"),
        ({"levels": [5, 4000]}, ValueError, "levels must be at most the number of rows, 3000, got 4000"),
    ],
)
def test_parameters_that_cannot_be_used(parameters, error, message):
    with pytest.raises(error, match=message):
        ResidualKMeans(**parameters).fit(X)


def test_rows_with_too_few_distinct_residuals():
    rows = np.repeat(np.eye(4), 5, axis=0)
    with pytest.raises(ValueError, match="in level 2, where X is the residuals: n_clusters must be at most"):
        fitted((4, 2), rows)


def test_resume_needs_a_checkpoint():
    with pytest.raises(ValueError, match="resume=True needs checkpoint"):
        ResidualKMeans([5]).fit(X, resume=True)


@pytest.mark.parametrize(
    ("codes", "error", "message"),
    [
        (np.zeros((4, 2), int), ValueError, r"codes must have shape \(n, 3\), one number for each level, got \(4, 2\)"),
        (np.zeros(3, int), ValueError, r"codes must have shape"),
        (np.full((4, 3), 30), ValueError, r"codes of level 2 must lie in 0\.\.29, got values in 30\.\.30"),
        (np.full((4, 3), -1), ValueError, r"codes of level 1 must lie in 0\.\.39"),
        (np.zeros((4, 3)), TypeError, "codes of level 1 must hold integers"),
    ],
)
def test_codes_that_cannot_be_decoded(model, codes, error, message):
    with pytest.raises(error, match=message):
        model.decode(codes)


def test_rows_that_cannot_be_encoded(model, monkeypatch):
    with pytest.raises(ValueError, match="features"):
        model.encode(X[:, :5])
    with pytest.raises(ValueError, match="beam must be at least 1"):
        model.encode(X, beam=0)
    rows = X.astype(np.float32)
    rows[2000, 5] = np.nan
    monkeypatch.setattr("closure_kmeans.codes.estimator.BLOCK_ROWS", 256)
    with pytest.raises(ValueError, match="row 2000"):
        model.encode(rows)
    with pytest.raises(ValueError, match="must be of the 3000 rows of X, got 5"):
        model.report(X, model.codes_[:5])


def test_zero_rows_have_no_direction():
    with pytest.raises(ValueError, match="row 1 is"):
        fitted((2,), np.array([[1.0, 0], [0, 0], [0, 1]]), metric="cosine")


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters", [{}, {"normalize_residuals": True, "metric": "cosine"}, {"unique": True, "max_size": 200}], ids=str
)
def test_a_loaded_model_gives_the_same_codes(tmp_path, parameters):
    model = fitted((40, 30), **parameters)
    model.save(tmp_path / "m.safetensors")
    loaded = ResidualKMeans.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(loaded.encode(X), model.encode(X))
    np.testing.assert_array_equal(loaded.decode(model.codes_), model.decode(model.codes_))
    assert {**loaded.get_params(), "levels": (40, 30)} == model.get_params()
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "m.safetensors").read_bytes()
    assert not hasattr(loaded, "codes_")


def test_names_of_features_are_kept(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[:, :3].astype(np.float32), columns=["a", "b", "c"])
    fitted((5, 5), frame).save(tmp_path / "m.safetensors")
    loaded = ResidualKMeans.load(tmp_path / "m.safetensors")
    assert loaded.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        loaded.encode(frame.rename(columns={"a": "z"}))


def test_files_that_are_no_codes(tmp_path, model):
    model.levels_[0].save(tmp_path / "level.safetensors")
    with pytest.raises(FileFormatError, match="must be 'codes', but is 'model'"):
        ResidualKMeans.load(tmp_path / "level.safetensors")
    spoilt = clone(model).set_params(levels=(5, 5)).fit(X)
    spoilt.gains_ = np.array([1.0, np.nan])
    spoilt.save(tmp_path / "spoilt.safetensors")
    with pytest.raises(FileFormatError, match="a finite gain for each of 2 levels"):
        ResidualKMeans.load(tmp_path / "spoilt.safetensors")
    spoilt.gains_ = np.ones(2)
    spoilt.levels_[1] = ClosureKMeans(5, random_state=0).fit(X[:, :7])
    spoilt.save(tmp_path / "spoilt.safetensors")
    with pytest.raises(FileFormatError, match="levels of one width and dtype"):
        ResidualKMeans.load(tmp_path / "spoilt.safetensors")


READ = "from closure_kmeans import ResidualKMeans\nread = ResidualKMeans.load"


def test_damaged_files_end_in_a_clear_error(tmp_path):
    fitted((8, 8), X[:500, :16]).save(tmp_path / "m.safetensors")
    _, memory = read_mutated(tmp_path / "m.safetensors", READ, 0, 160)
    assert memory < 50e6


# -- other tools -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [(32, 16, 8), (40, 30, 21)])
def test_faiss_decodes_to_the_same_rows(tmp_path, levels):
    faiss = pytest.importorskip("faiss")
    from closure_kmeans.codes import save_faiss, to_faiss, to_faiss_ivf

    model = fitted(levels)
    codes = model.encode(X)
    decoded = model.decode(codes)
    for ivf in (False, True):
        save_faiss(tmp_path / "codes.faiss", model, codes, ivf=ivf)
        index = faiss.read_index(str(tmp_path / "codes.faiss"))
        assert index.ntotal == len(X)
        if ivf:
            index.make_direct_map()
        np.testing.assert_allclose(index.reconstruct_n(0, len(X)), decoded, rtol=1e-5, atol=1e-3)
        found = index.search(decoded[:20], 1)[1]  # rows with equal codes are equally near
        np.testing.assert_array_equal(codes[found.ravel()], codes[:20])
    flat, lists = to_faiss(model), to_faiss_ivf(model)
    flat.add(X.astype(np.float32))
    lists.add(X.astype(np.float32))
    lists.make_direct_map()
    for index in (flat, lists):  # FAISS finds the same codes
        agree = np.isclose(index.reconstruct_n(0, len(X)), decoded, rtol=1e-4, atol=1e-2).all(1)
        assert agree.mean() > 0.999


def test_faiss_has_no_normalized_residuals():
    pytest.importorskip("faiss")
    from closure_kmeans.codes import to_faiss, to_faiss_ivf

    with pytest.raises(ValueError, match="no residual quantizer with normalize_residuals=True"):
        to_faiss(fitted((5, 5), normalize_residuals=True))
    with pytest.raises(ValueError, match="needs two levels or more, got 1"):
        to_faiss_ivf(fitted((5,)))


def test_ids_as_text(tmp_path, monkeypatch):
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("closure_kmeans.codes.export.TABLE_ROWS", 7)
    codes = np.random.default_rng(0).integers(9999, size=(20, 3)).astype(np.int32)
    save_table(tmp_path / "ids.parquet", codes)
    table = pq.read_table(tmp_path / "ids.parquet")
    assert table["row"].to_pylist() == list(range(20))
    assert table["id"].to_pylist() == [f"<a_{a}><b_{b}><c_{c}>" for a, b, c in codes.tolist()]
    assert table["codes"].to_pylist() == codes.tolist()
    with pytest.raises(ValueError, match="at most 26 levels"):
        as_text(np.zeros((2, 27), int))
    json.dumps(as_text(codes))
