import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from models import closures
from mutations import read_mutated
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.base import clone

import closure_kmeans
from closure_kmeans import PAPER, ClosureKMeans, Method, files, iteration, load
from closure_kmeans.checkpoint import _checksum, read_centers, read_status
from closure_kmeans.clusters import sample_accuracy
from closure_kmeans.datasets import load_sift
from closure_kmeans.stores import memory
from closure_kmeans.tensors import KEY
from closure_kmeans.vectors import FileFormatError

MODES = {
    "default": {"neighborhoods": "fresh"},
    "all clusters": {"neighborhoods": "all"},
    "paper": {"method": PAPER},
    "paper, given centres": {"method": PAPER, "init": load_sift()[:40].astype(np.float32)},
    "static": {"neighborhoods": "kept", "adaptive": False, "max_trees": 3},
    "random start": {"neighborhoods": "fresh", "init": "random"},
    "leaves that grow": {"neighborhoods": "fresh", "leaf_size": 8, "tol": 0.01, "target_accuracy": 0.99},
}


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


def model(**parameters):
    return closures(**({"n_clusters": 60, "random_state": 3} | parameters))


def check_same(fitted, other):
    np.testing.assert_array_equal(fitted.cluster_centers_, other.cluster_centers_)
    np.testing.assert_array_equal(fitted.labels_, other.labels_)
    assert (fitted.inertia_, fitted.stopped_by_) == (other.inertia_, other.stopped_by_)
    timeless = [[record._replace(seconds=0) for record in one.history_] for one in (fitted, other)]
    assert timeless[0] == timeless[1]


def reorder(monkeypatch):
    """Have points come in another order, and centres with another offset, as they may on another processor."""
    for store in ("memory", "layout"):
        monkeypatch.setattr(f"closure_kmeans.stores.{store}.mean_of", lambda sample: sample[0] / 2)
        monkeypatch.setattr(
            f"closure_kmeans.stores.{store}.principal_axes", lambda sample, n_axes, _: np.eye(128, n_axes, dtype="f")
        )


def test_a_stopped_fit_ends_like_one_that_was_not(mode, tmp_path):
    X = load_sift()[:1500]
    whole = model(**mode).fit(X)
    for stop in range(1, whole.n_iter_, 3):
        path = tmp_path / f"{stop}"
        model(checkpoint=path, max_iter=stop, **mode).fit(X)
        assert os.listdir(path) == ["checkpoint.safetensors"]
        resumed = model(checkpoint=path, n_threads=1 + stop % 2, **mode).fit(X, resume=True)
        check_same(resumed, whole)
        assert all(np.diff([record.seconds for record in resumed.history_]) > 0)


def test_a_stop_at_max_iter_that_is_resumed_with_nothing_to_do(tmp_path):
    X = load_sift()[:1500]
    whole = model(max_iter=4).fit(X)
    assert whole.history_[-1].accuracy > 0
    assert [record.accuracy for record in whole.history_[:-1]] == [None] * 3
    for _ in range(2):
        check_same(model(checkpoint=tmp_path, max_iter=4).fit(X, resume=True), whole)


def test_a_resumed_fit_replaces_its_file(mode, tmp_path, refused):
    X = load_sift()[:1500]
    parameters = {"checkpoint": tmp_path, "checkpoint_every": 0, **mode}
    model(**parameters, max_iter=2).fit(X)
    model(**parameters, max_iter=4).fit(X, resume=True)
    assert (refused, len(read_status(tmp_path).history)) == ([], 4)
    other = model(**parameters | {"n_clusters": 50})
    with pytest.raises(FileFormatError, match="belongs to another fit") as error:
        other.fit(X, resume=True)
    (tmp_path / "checkpoint.safetensors").unlink()  # though the error has it in its traceback
    assert error


def test_many_stops(mode, tmp_path):
    X = load_sift()[:1500].astype(np.float64)
    weights = np.random.default_rng(0).integers(0, 3, len(X))
    whole = model(**mode).fit(X, sample_weight=weights)
    for _ in range(whole.n_iter_ + 1):  # one iteration each
        part = model(checkpoint=tmp_path, max_time=0, **mode).fit(X, sample_weight=weights, resume=True)
    check_same(part, whole)


def test_a_checkpoint_is_written_in_time(tmp_path):
    X = load_sift()[:1000]
    path = tmp_path / "fit.safetensors"
    seen = []
    model(checkpoint=path, checkpoint_every=0, max_iter=3, callback=lambda _: seen.append(path.exists())).fit(X)
    assert seen == [True] * 3
    path.unlink()
    seen.clear()
    model(checkpoint=path, checkpoint_every=1e9, max_iter=3, callback=lambda _: seen.append(path.exists())).fit(X)
    assert seen == [False] * 3
    assert path.exists()


def test_an_interrupt_saves_what_there_is(tmp_path):
    X = load_sift()[:1500]
    whole = model().fit(X)

    def interrupt(record):
        if record.iteration == 5:
            raise KeyboardInterrupt

    stopped = model(checkpoint=tmp_path, callback=interrupt)
    with pytest.raises(KeyboardInterrupt, match="the model is that of iteration 5"):
        stopped.fit(X)
    assert (stopped.n_iter_, stopped.stopped_by_) == (5, "interrupted")
    assert stopped.predict(X[:9]).shape == (9,)
    check_same(model(checkpoint=tmp_path).fit(X, resume=True), whole)


@pytest.mark.parametrize("extrapolate", [True, False])
def test_an_interrupt_between_an_assignment_and_its_record(extrapolate, tmp_path, monkeypatch):
    """The state that is saved is one iteration older than the last centres."""
    X = load_sift()[:3000]
    whole = model(method=Method(neighborhoods="fresh", extrapolate=extrapolate), tol=1e-9, max_iter=20).fit(X)
    calls = iter(range(3))

    def interrupt(*arguments):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return sample_accuracy(*arguments)

    monkeypatch.setattr(memory, "sample_accuracy", interrupt)
    stopped = clone(whole).set_params(checkpoint=tmp_path)
    monkeypatch.setattr(iteration, "ACCURACY_EVERY", 4)
    with pytest.raises(KeyboardInterrupt, match="of iteration 7"):
        stopped.fit(X)
    monkeypatch.undo()
    np.testing.assert_array_equal(read_centers(tmp_path), stopped.cluster_centers_)
    resumed = clone(whole).set_params(checkpoint=tmp_path).fit(X, resume=True)
    np.testing.assert_array_equal(resumed.labels_, whole.labels_)
    np.testing.assert_array_equal(resumed.cluster_centers_, whole.cluster_centers_)


def test_an_error_saves_what_there_is(tmp_path):
    X = load_sift()[:1500]

    def fail(record):
        if record.iteration == 5:
            raise RuntimeError("of the callback")

    with pytest.raises(RuntimeError, match="of the callback"):
        model(checkpoint=tmp_path, callback=fail).fit(X)
    records = []
    resumed = model(checkpoint=tmp_path, callback=records.append).fit(X, resume=True)
    assert records[0].iteration == 6
    check_same(resumed, model().fit(X))


def test_a_finished_fit_is_not_done_again(tmp_path):
    X = load_sift()[:1500]
    first = model(checkpoint=tmp_path).fit(X)
    records = []
    check_same(model(checkpoint=tmp_path, callback=records.append).fit(X, resume=True), first)
    assert records == []


def test_a_fit_without_a_seed_keeps_its_generator(tmp_path):
    X = load_sift()[:1500]
    stopped = model(checkpoint=tmp_path, random_state=None, max_iter=3).fit(X)
    resumed = model(checkpoint=tmp_path, random_state=None).fit(X, resume=True)
    assert resumed.history_[:2] == stopped.history_[:2]
    assert resumed.history_[2] == stopped.history_[2]._replace(accuracy=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_clusters": 61}, "n_clusters was 60 and is 61"),
        ({"random_state": 4}, "random_state was 3 and is 4"),
        ({"tol": 0.5, "rule": "lloyd"}, "tol was 0.0005 and is 0.5; rule was 'hartigan' and is 'lloyd'"),
        ({"init": np.zeros(1500, int)}, "init was 'tree' and is 'an array with digest"),
    ],
)
def test_other_parameters_are_named(change, message, tmp_path):
    X = load_sift()[:1500]
    model(checkpoint=tmp_path, max_iter=2).fit(X)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    with pytest.raises(FileFormatError, match=f"belongs to another fit: {message}.*Remove it to start over"):
        model(checkpoint=tmp_path, **change).fit(X, resume=True)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_other_data_is_named(tmp_path):
    X = load_sift()[:1500]
    model(checkpoint=tmp_path, max_iter=2).fit(X)
    again = model(checkpoint=tmp_path)
    with pytest.raises(FileFormatError, match="X was '1500 x 128 uint8' and is '1499 x 128 uint8'"):
        again.fit(X[:-1], resume=True)
    with pytest.raises(FileFormatError, match="X was '1500 x 128 uint8' and is '1500 x 128 float32'"):
        again.fit(X.astype(np.float32), resume=True)
    with pytest.raises(FileFormatError, match="another fit: the digest of X was"):
        again.fit(X[::-1], resume=True)
    with pytest.raises(FileFormatError, match="sample_weight was"):
        again.fit(X, sample_weight=np.arange(1, 1501), resume=True)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("numba.config.CPU_NAME", "generic", r"processor was '.*' and is 'generic \(.*\), instructions "),
        ("numpy.show_config", lambda mode: {}, "processor was '.*, instructions .*' and is '.*, instructions "),
        ("closure_kmeans.environment.blas_libraries", list, "BLAS was '.*' and is 'unknown'"),
        ("closure_kmeans.__version__", "9.9", r"closure_kmeans was '.*' and is '9\.9'"),
        ("sklearn.__version__", "9.9", r"sklearn was '.*' and is '9\.9'"),
    ],
    ids=str.split("processor instructions BLAS version library"),
)
def test_other_bits_than_elsewhere_are_an_error(name, value, message, tmp_path, monkeypatch):
    X = load_sift()[:1500]
    begun = model(checkpoint=tmp_path, max_iter=2).fit(X)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    monkeypatch.setattr(name, value)
    with pytest.raises(FileFormatError, match=f"may end with other bits here: {message}") as refused:
        model(checkpoint=tmp_path).fit(X, resume=True)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert "continue with fit(X, resume='anyway'), on the command line with --resume-anyway, or start" in str(
        refused.value
    )
    advice = re.search(
        r"start another fit from its centres, with init=(.*) and another checkpoint$", str(refused.value)
    )
    centers = eval(advice[1], {"closure_kmeans": closure_kmeans})
    np.testing.assert_array_equal(centers, begun.cluster_centers_)
    gone_on = model(init=centers, checkpoint=tmp_path / "elsewhere").fit(X)
    assert gone_on.inertia_ < begun.inertia_


def test_a_fit_goes_on_anyway(mode, tmp_path, monkeypatch):
    """With another version that computes the same bits it ends in the same bits."""
    X = load_sift()[:1500]
    whole = model(**mode).fit(X)
    model(checkpoint=tmp_path, max_iter=3, **mode).fit(X)
    monkeypatch.setattr("sklearn.__version__", "9.9")
    with pytest.raises(FileFormatError, match="another fit: tol was"):
        model(checkpoint=tmp_path, **mode | {"tol": 0.5}).fit(X, resume="anyway")
    with pytest.raises(FileFormatError, match="another fit: X was"):
        model(checkpoint=tmp_path, **mode).fit(X[1:], resume="anyway")
    with pytest.warns(UserWarning, match=r"may end with other bits here: sklearn was '.*' and is '9\.9'$") as told:
        resumed = model(checkpoint=tmp_path, **mode).fit(X, resume="anyway")
    assert told[0].filename == __file__
    check_same(resumed, whole)
    assert read_status(tmp_path).environment["sklearn"] == "9.9"
    model(checkpoint=tmp_path, **mode).fit(X, resume=True)  # it was saved here


@pytest.mark.parametrize(
    "settings", [*MODES.values(), {"memory_limit": "5MB"}, {"max_size": 30}, {"metric": "cosine"}], ids=str
)
def test_the_points_come_in_another_order(settings, tmp_path, monkeypatch):
    """As they may on another processor: the fit goes on from the same clusters."""
    X = load_sift()[:1500]
    parameters = {"checkpoint": tmp_path, **settings}
    begun = model(**parameters, max_iter=4).fit(X)
    reorder(monkeypatch)
    with pytest.raises(FileFormatError, match=r"another order .* equal: continue with fit.* or start another fit"):
        model(**parameters).fit(X, resume=True)
    with pytest.warns(UserWarning, match="have another order or offset here$") as told:
        same = model(**parameters, max_iter=4).fit(X, resume="anyway")
    assert told[0].filename == __file__
    np.testing.assert_array_equal(same.labels_, begun.labels_)
    np.testing.assert_allclose(same.cluster_centers_, begun.cluster_centers_, rtol=1e-4, atol=1e-3)
    assert same.inertia_ == pytest.approx(begun.inertia_)
    with pytest.warns(UserWarning, match="have another order"):
        resumed = model(**parameters).fit(X, resume="anyway")
    falls = [record.inertia for record in resumed.history_]
    assert len(falls) > 4 or resumed.stopped_by_ == "converged"
    if "max_size" in settings:
        assert resumed.cluster_sizes_.max() <= 33
    else:
        assert all(after <= before * (1 + 1e-6) for before, after in pairwise(falls))
    check_same(model(**parameters).fit(X, resume=True), resumed)  # it was saved here


def test_penalties_are_kept_in_another_order(tmp_path, monkeypatch):
    X = load_sift()[:1500]
    parameters = {"checkpoint": tmp_path, "max_size": 26, "tol": 0}
    begun = model(**parameters, max_iter=6).fit(X)
    with safe_open(tmp_path / "checkpoint.safetensors", "np") as file:
        penalties = file.get_tensor("state.clusters.penalties")
        np.testing.assert_array_equal(file.get_tensor("state.labels"), begun.labels_)  # in the order of the rows
    assert penalties.any()
    reorder(monkeypatch)
    seen = []

    def adapt(clusters, max_size):
        seen.append(clusters.penalties.copy())
        return clusters

    monkeypatch.setattr("closure_kmeans.closure.adapt_penalties", adapt)
    with pytest.warns(UserWarning, match="have another order"):
        model(**parameters, max_iter=7).fit(X, resume="anyway")
    np.testing.assert_array_equal(seen[0], penalties)


def test_centers_of_a_damaged_checkpoint(tmp_path):
    path = tmp_path / "fit.safetensors"
    model(checkpoint=path, max_iter=1).fit(load_sift()[:500])
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(FileFormatError, match="is damaged: its checksum"):
        read_centers(path)


def test_a_checkpoint_of_an_older_format(tmp_path):
    path = tmp_path / "fit.safetensors"
    X = load_sift()[:500]
    model(checkpoint=path, max_iter=1).fit(X)
    edited(path, format=1)
    message = r"'checkpoint', format 3, but is format 1: only the version of closure-kmeans that wrote it can read it"
    for read in (lambda path: model(checkpoint=path).fit(X, resume=True), read_centers, read_status):
        with pytest.raises(FileFormatError, match=message):
            read(path)


def test_another_order_of_the_points_is_noticed(tmp_path, monkeypatch):
    X = load_sift()[:1500]
    model(checkpoint=tmp_path, max_iter=2).fit(X)
    reorder(monkeypatch)
    with pytest.raises(FileFormatError, match="have another order or offset here, although"):
        model(checkpoint=tmp_path).fit(X, resume=True)


def test_a_checkpoint_that_is_not_asked_for(tmp_path):
    X = load_sift()[:500]
    model(checkpoint=tmp_path, max_iter=2).fit(X)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match=r"'.*checkpoint\.safetensors' holds a fit: resume it with fit"):
        model(checkpoint=tmp_path).fit(X)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    with pytest.raises(ValueError, match="resume=True needs checkpoint"):
        model().fit(X, resume=True)
    for resume in (1, "yes"):
        with pytest.raises(TypeError, match=f"resume must be True, False or 'anyway', got {resume!r}"):
            model(checkpoint=tmp_path).fit(X, resume=resume)
    with pytest.raises(ValueError, match="resume='anyway' needs checkpoint"):
        model().fit(X, resume="anyway")


def test_bad_paths(tmp_path):
    X = load_sift()[:500]
    with pytest.raises(TypeError, match="checkpoint must be a path, got 5"):
        model(checkpoint=5).fit(X)
    with pytest.raises(ValueError, match="checkpoint_every must be at least 0, got -1"):
        model(checkpoint=tmp_path, checkpoint_every=-1).fit(X)
    (tmp_path / "file").write_text("")
    message = r"checkpoint must be a folder, or a file whose name ends in \.safetensors, got the file '.*file'"
    with pytest.raises(NotADirectoryError, match=message):
        model(checkpoint=tmp_path / "file").fit(X)
    for below in ("x", "x/y", "x.safetensors", "x/y.safetensors"):
        with pytest.raises(NotADirectoryError, match=r"checkpoint must be a folder, .* got .*the file '.*file'$"):
            model(checkpoint=tmp_path / "file" / below).fit(X)
    fitted = model(max_iter=1).fit(X)
    fitted.save(tmp_path / "model.safetensors")
    with pytest.raises(FileFormatError, match="must be 'checkpoint', but is 'model'"):
        model(checkpoint=tmp_path / "model.safetensors").fit(X, resume=True)


def test_a_full_disk_does_not_end_the_fit(tmp_path, monkeypatch):
    X = load_sift()[:1500]

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.warns(RuntimeWarning, match=r"continues without a new checkpoint: .* could not be written: No space"):
        fitted = model(checkpoint=tmp_path).fit(X)
    check_same(fitted, model().fit(X))
    assert os.listdir(tmp_path) == []


def test_leftovers_of_a_kill_are_removed(tmp_path):
    (tmp_path / ".checkpoint.safetensors.0123abcd.safetensors").write_text("half")
    others = [".checkpoint.safetensors.backup", ".other"]
    for name in others:
        (tmp_path / name).write_text("")
    model(checkpoint=tmp_path, max_iter=1).fit(load_sift()[:500])
    assert sorted(os.listdir(tmp_path)) == [*others, "checkpoint.safetensors"]


def edited(path, *, format=None, **changes):
    """The same checkpoint with other arrays, and a checksum that fits."""
    with safe_open(path, "np") as file:
        facts = json.loads(file.metadata()[KEY])
        facts["format"] = format or facts["format"]
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    arrays |= {name: np.ascontiguousarray(change(np.array(arrays[name]))) for name, change in changes.items()}
    save_file(arrays, path, {KEY: json.dumps(facts | {"checksum": _checksum(arrays)})})


@pytest.mark.parametrize(
    ("mode", "name", "change", "message"),
    [
        ("default", "state.labels", lambda a: a + 60, r"labels must lie in 0\.\.59"),
        ("default", "state.labels", lambda a: a[1:], r"labels must be \(1500,\) int32, but is \(1499,\) int32"),
        ("default", "state.clusters.centers", lambda a: a[:, 1:], "clusters.centers must be"),
        ("default", "state.previous", lambda a: a.astype(np.float64), "previous must be"),
        ("default", "offset", lambda a: a + 1, "have another order or offset here, although"),
        ("default", "neighborhoods.leaf_size", lambda a: 0 * a, "leaves must have at least one point, got 0"),
        (
            "paper",
            "neighborhoods.members.0",
            lambda a: a + 1,
            "members of a partition must be a permutation of 0..1499",
        ),
        (
            "paper",
            "neighborhoods.starts",
            lambda a: a[::-1].copy(),
            "starts of a partition must rise from 0 to 1500",
        ),
    ],
)
def test_bad_contents(mode, name, change, message, tmp_path):
    X = load_sift()[:1500]
    path = tmp_path / "fit.safetensors"
    model(checkpoint=path, max_iter=2, **MODES[mode]).fit(X)
    edited(path, **{name: change})
    with pytest.raises(FileFormatError, match=message):
        model(checkpoint=path, **MODES[mode]).fit(X, resume=True)


READ = """
import shutil
from closure_kmeans import PAPER, ClosureKMeans
from closure_kmeans.datasets import load_sift
X = load_sift()[:300]
whole = ClosureKMeans(9, random_state=0, max_iter=4).fit(X)
def read(path):
    copy = path.with_name("copy.safetensors")
    shutil.copy(path, copy)
    try:
        resumed = ClosureKMeans(9, random_state=0, max_iter=4, checkpoint=copy).fit(X, resume=True)
    except FileFormatError as error:
        raise FileFormatError(str(error).replace(str(copy), str(path)))
    assert (resumed.labels_ == whole.labels_).all()
"""


def damage(tmp_path, n_files):
    """Whatever is damaged: an error, or the very same result."""
    path = tmp_path / "fit.safetensors"
    ClosureKMeans(9, random_state=0, max_iter=2, checkpoint=path).fit(load_sift()[:300])
    read_mutated(path, READ, 0, n_files)


def test_damaged_checkpoints(tmp_path):
    damage(tmp_path, 200)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_thousands_of_damaged_checkpoints(tmp_path):
    damage(tmp_path, 10_000)


def kill_and_resume(tmp_path, n_kills):
    """Kill fits at random moments, and resume each: all end in the same bytes."""
    script = Path(__file__).with_name("killed_fit.py")
    done = subprocess.run([sys.executable, script, tmp_path, str(n_kills)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == n_kills


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_killed_fits_end_in_the_same_bytes(tmp_path):
    kill_and_resume(tmp_path, 5)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_fifty_killed_fits_end_in_the_same_bytes(tmp_path):
    kill_and_resume(tmp_path, 50)


def test_where_it_was_saved_is_not_part_of_the_model(tmp_path):
    fitted = model(checkpoint=tmp_path / "here", max_iter=1).fit(load_sift()[:500])
    fitted.save(tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").checkpoint is None
