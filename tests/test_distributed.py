"""Fits on a Dask cluster: as good as on one machine, the same bytes whatever happens, and clear errors."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
import scipy.sparse
from click.testing import CliRunner
from models import closures
from sklearn.base import clone

import closure_kmeans
from closure_kmeans import PAPER, ClosureKMeans
from closure_kmeans.cli import main as commands
from closure_kmeans.datasets import load_sift
from closure_kmeans.distributed import DistributedClosureKMeans, layout, passes
from closure_kmeans.distributed.cluster import MERGED_TOGETHER, Cluster, local_cluster, plan_merges
from closure_kmeans.distributed.files import FIT, fit_folder, shared_folder
from closure_kmeans.distributed.store import FEWEST_MERGED, MERGED_BYTES, count_merged
from closure_kmeans.environment import environment
from closure_kmeans.parallel import Threads
from closure_kmeans.stores.layout import nearest_pieces
from closure_kmeans.stores.totals import Totals
from closure_kmeans.vectors import save_vectors

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
fsspec = pytest.importorskip("fsspec")
psutil = pytest.importorskip("psutil")
local_files = pytest.importorskip("fsspec.implementations.local")

can_kill = pytest.mark.skipif(sys.platform == "win32", reason="signals")

# Seconds that a test may take: what waits for a cluster could wait for ever. Many kills take longer.
LIMIT, LIMIT_OF_MANY_KILLS = 240, 3600


@pytest.fixture(autouse=True, name="_bounded")
def bound_the_time(request):
    """A test that hangs fails, and does not stop all others."""
    limit = LIMIT_OF_MANY_KILLS if request.node.get_closest_marker("exhaustive") else LIMIT

    def give_up(*_):
        raise TimeoutError(f"{request.node.name} must end within {limit} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(limit)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module", name="X")
def sift():
    return load_sift()[:5000]


@pytest.fixture(scope="module", name="all_rows")
def all_sift():
    return load_sift()


@pytest.fixture(scope="module", name="threads")
def client_of_threads():
    """One worker in this process, with three threads: quick to start, and what is patched here is patched there."""
    with (
        local_cluster(1, threads_per_worker=3, processes=False, host=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module", name="processes")
def client_of_processes():
    """Two workers, each a process."""
    with (
        local_cluster(2) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def new_model(client, n_clusters=100, **settings):
    parameters = {"n_partitions": 4, "random_state": 0, "max_iter": 6, "client": client} | settings
    return closures(n_clusters, kind=DistributedClosureKMeans, **parameters)


def bits(model):
    history = [record._replace(seconds=0) for record in model.history_]
    return model.labels_.tobytes(), model.cluster_centers_.tobytes(), model.inertia_, history, model.stopped_by_


# -- what it finds -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_is_as_good_as_on_one_machine(all_rows, threads):
    one = ClosureKMeans(400, random_state=0).fit(all_rows)
    for n_partitions in (3, 40):  # the sums of 40 are merged by tasks
        many = new_model(threads, 400, n_partitions=n_partitions, max_iter=100).fit(all_rows)
        assert many.inertia_ < 1.01 * one.inertia_
        assert many.history_[-1].accuracy > 0.95
        assert many.stopped_by_ == "converged"


@pytest.mark.slow
def test_borders_are_none_for_clusters(X, threads, monkeypatch):
    """Without the centres that are entered, points would be shut in."""
    good = new_model(threads, n_partitions=8, max_iter=12).fit(X).inertia_
    monkeypatch.setattr(passes, "centers_near", lambda arrays, layout, number: np.empty(0, np.int32))
    shut_in = new_model(threads, n_partitions=8, max_iter=12).fit(X).inertia_
    assert shut_in > 1.01 * good


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.uint8, np.int8])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_distortion_never_rises(dtype, metric, seed, threads):
    """Few rows, many clusters, copies: clusters run empty and are filled again."""
    rng = np.random.default_rng(seed)
    X = (20 * rng.normal(size=(120, 6)) + 60).clip(1, 120).astype(dtype)
    X = X[rng.integers(120, size=300)]
    counted = X.astype(np.float64)
    if metric == "cosine":
        counted /= np.linalg.norm(counted, axis=1, keepdims=True)
    k = len(np.unique(np.round(counted, 5), axis=0)) - (5 if seed else 60)
    model = new_model(threads, k, metric=metric, leaf_size=10, tol=0, max_iter=6, n_partitions=3, tree_dims=4).fit(X)
    assert all(after.inertia <= before.inertia for before, after in pairwise(model.history_))
    np.testing.assert_allclose(model.cluster_sizes_, np.bincount(model.labels_, minlength=k))
    assert model.cluster_sizes_.min() > 0
    distances = ((counted - model.cluster_centers_[model.labels_]) ** 2).sum()
    assert model.inertia_ == pytest.approx(distances, abs=1e-5 * (counted**2).sum())


def test_starts_from_centers(X, threads):
    first = ClosureKMeans(150, random_state=0, max_iter=10).fit(X)
    after = new_model(threads, 150, init=first.cluster_centers_, max_iter=1).fit(X)
    assert after.inertia_ < first.inertia_
    assert (after.labels_ == first.labels_).mean() > 0.7
    more = new_model(threads, 200, init=first.cluster_centers_, max_iter=1).fit(X)
    assert more.cluster_sizes_.min() > 0
    assert more.inertia_ < first.inertia_


def test_fewer_clusters_than_partitions(X, threads):
    model = new_model(threads, 2, n_partitions=7).fit(X[:2000])
    assert model.cluster_sizes_.sum() == 2000
    assert model.inertia_ < 1.02 * ClosureKMeans(2, random_state=0).fit(X[:2000]).inertia_


# -- what the model is good for ----------------------------------------------------------------------------------------


def test_it_is_a_model_like_others(X, threads, tmp_path):
    model = new_model(threads).fit(X)
    assert (model.predict(X) == model.labels_).mean() > 0.8
    assert model.medoids(X, model.labels_).min() >= 0
    assert [level.centers.shape for level in model.hierarchy([20, 4])] == [(20, 128), (4, 128)]
    model.save(tmp_path / "model.safetensors", training=True)
    loaded = closure_kmeans.load(tmp_path / "model.safetensors")
    assert isinstance(loaded, DistributedClosureKMeans)
    assert (loaded.predict(X) == model.predict(X)).all()
    assert (loaded.labels_ == model.labels_).all()
    assert clone(model).client is threads
    assert not hasattr(clone(model), "labels_")


def test_callbacks_and_interrupts(X, threads):
    seen = []
    model = new_model(threads, callback=lambda record: seen.append(record) or record.iteration == 2).fit(X)
    assert model.stopped_by_ == "callback"
    assert seen == model.history_

    def interrupt(record):
        if record.iteration == 2:
            raise KeyboardInterrupt

    model.set_params(callback=interrupt)
    with pytest.raises(KeyboardInterrupt, match="the model is that of iteration 2"):
        model.fit(X)
    assert (model.n_iter_, model.stopped_by_) == (2, "interrupted")
    distances = ((X - model.cluster_centers_[model.labels_].astype(np.float64)) ** 2).sum()
    assert model.inertia_ == pytest.approx(distances)


# -- the same bytes ----------------------------------------------------------------------------------------------------


@can_kill
def test_the_same_bytes_on_any_workers(X, threads, processes):
    """Three threads, two processes, and two processes one of which is killed and loses its results."""
    settings = {"n_partitions": 2 * FEWEST_MERGED, "max_iter": 4}  # so many sums are merged by tasks
    expected = bits(new_model(threads, **settings).fit(X))
    assert bits(new_model(processes, **settings).fit(X)) == expected

    def kill(record):
        if record.iteration == 2:
            os.kill(min(processes.run(os.getpid).values()), signal.SIGKILL)

    assert bits(new_model(processes, **settings, callback=kill).fit(X)) == expected


def test_rows_may_come_from_anywhere(X, threads, tmp_path):
    zarr = pytest.importorskip("zarr")
    X = X[:3000].astype(np.float32) / 2
    shards = tmp_path / "shards"
    shards.mkdir()
    for i, (first, last) in enumerate(pairwise([0, 700, 1900, 3000])):
        save_vectors(shards / f"{i}.npy", X[first:last])
    (tmp_path / "tables").mkdir()
    write_table(tmp_path / "tables" / "0.parquet", X)
    array = zarr.create_array(tmp_path / "rows.zarr", shape=X.shape, chunks=(500, 128), dtype=X.dtype)
    array[:] = X
    columns = da.from_array(X, chunks=(450, 60))
    sources = [X, str(shards), shards / "", tmp_path / "tables", tmp_path / "rows.zarr", columns]
    sources.append(columns[columns[:, 0] >= 0])  # of unknown length
    models = [new_model(threads, max_iter=4).fit(source) for source in sources]
    assert bits(models[1]) == bits(models[2])
    for model in models:  # that labels are in the order of the rows shows in the distortion
        distances = ((X - model.cluster_centers_[model.labels_].astype(np.float64)) ** 2).sum()
        assert model.inertia_ == pytest.approx(distances)
        assert model.inertia_ == pytest.approx(models[0].inertia_, rel=0.02)


def write_table(path, X):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(X.ravel()), X.shape[1])
    parquet.write_table(arrow.table({"vector": vectors}), path, row_group_size=800)


def test_storage_elsewhere(X, threads):
    """A place that is no folder: files are copied to where they can be mapped."""
    expected = bits(new_model(threads).fit(X))
    model = new_model(threads, storage="memory://fit")
    assert bits(model.fit(X)) == expected
    folder = fit_folder("memory://fit")
    assert folder.list("centers") == ["centers/000005.safetensors", "centers/000006.safetensors"]
    assert not folder.list("sorted")
    assert not folder.list("input")


def test_storage_elsewhere_of_several_processes(X, threads, processes, tmp_path):
    """A protocol that is not taken for a folder, though it is one: workers write there, and have copies."""
    expected = bits(new_model(threads, max_iter=2).fit(X))
    elsewhere = new_model(processes, max_iter=2, storage=f"simplecache::file://{tmp_path}/fit")
    assert bits(elsewhere.fit(X)) == expected


def test_shards_elsewhere(shards, threads):
    """Of an .npy file elsewhere only rows that are needed are fetched, and no copy is made."""
    expected = bits(new_model(threads, max_iter=3).fit(shards))
    folder = shared_folder("memory://shards")
    for path in shards.iterdir():
        folder.save(path.name, np.load(path))
    assert bits(new_model(threads, max_iter=3).fit("memory://shards")) == expected
    assert not list(folder._copies().glob("*"))
    files, root = folder.place()
    files.pipe_file(f"{root}/1.npy", files.cat_file(f"{root}/1.npy")[:-100])
    with pytest.raises(
        ValueError, match=r"'memory://.*shards/1.npy' should have 1000 x 128 values .* but has 512028 bytes"
    ):
        new_model(threads).fit("memory://shards")


def test_a_fit_goes_on(X, threads, tmp_path):
    expected = new_model(threads, max_iter=5).fit(X)
    first = new_model(threads, storage=tmp_path / "fit", max_iter=3).fit(X)
    assert first.n_iter_ == 3
    after = new_model(threads, storage=tmp_path / "fit", max_iter=5).fit(X, resume=True)
    assert bits(after)[:3] == bits(expected)[:3]
    with pytest.raises(ValueError, match=f"'{tmp_path}/fit/{FIT}' belongs to another fit: n_clusters was 100 and"):
        new_model(threads, 90, storage=tmp_path / "fit").fit(X, resume=True)
    with pytest.raises(ValueError, match="belongs to another fit: X was"):
        new_model(threads, storage=tmp_path / "fit").fit(X[1:], resume=True)


def test_other_values_in_a_dask_array_are_another_fit(threads, X, tmp_path):
    blocks = da.from_array(X, chunks=(500, -1))
    new_model(threads, storage=tmp_path, max_iter=2).fit(blocks)
    with pytest.raises(ValueError, match="belongs to another fit"):
        new_model(threads, storage=tmp_path, max_iter=2).fit(da.from_array(X[::-1], chunks=(500, -1)), resume=True)


def test_nothing_else_in_the_storage_is_touched(threads, X, tmp_path):
    for name in ("input", "labels", "centers", "sorted"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "own.npy", X[:900])
    new_model(threads, storage=tmp_path, max_iter=2).fit(tmp_path / "input")
    assert {path.parent.name for path in tmp_path.glob("*/own.npy")} == {"input", "labels", "centers", "sorted"}


@can_kill
@pytest.mark.exhaustive
def test_many_kills():
    """Twenty workers and five drivers, at random moments."""
    from benchmarks.scale import kills

    assert kills.kill_workers(20)["n_same"] == 20
    assert kills.kill_drivers(5)["n_same"] == 5


def test_a_fit_is_not_resumed_where_it_would_end_in_other_bits(X, threads, tmp_path, monkeypatch):
    new_model(threads, storage=tmp_path, max_iter=1).fit(X)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    monkeypatch.setattr("numba.config.CPU_NAME", "generic")
    message = "may end with other bits here: processor was '.*' and is 'generic .*or remove it to start over"
    with pytest.raises(ValueError, match=message) as refused:
        new_model(threads, storage=tmp_path).fit(X, resume=True)
    assert "continue with fit(X, resume='anyway')" in str(refused.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")} == before


def test_a_fit_goes_on_anyway(X, threads, tmp_path, monkeypatch):
    expected = bits(new_model(threads).fit(X))
    new_model(threads, storage=tmp_path, max_iter=2).fit(X)
    monkeypatch.setattr("sklearn.__version__", "9.9")
    with pytest.raises(ValueError, match="another fit: n_clusters was 100 and is 99"):
        new_model(threads, 99, storage=tmp_path).fit(X, resume="anyway")
    with pytest.warns(UserWarning, match=r"may end with other bits here: sklearn was '.*' and is '9\.9'$"):
        assert bits(new_model(threads, storage=tmp_path).fit(X, resume="anyway")) == expected
    assert bits(new_model(threads, storage=tmp_path).fit(X, resume=True)) == expected


@pytest.mark.parametrize("storage", ["{}", "simplecache::file://{}"])
def test_files_are_removed_where_none_may_be_that_is_mapped(X, threads, storage, tmp_path, refused):
    storage = storage.format(tmp_path / "fit")
    new_model(threads, storage=storage, max_iter=2).fit(X)
    new_model(threads, storage=storage, max_iter=3).fit(X, resume=True)
    assert refused == []
    assert len(list(tmp_path.rglob("centers/*"))) == 2
    assert len(list(tmp_path.rglob("labels/*/*"))) == 4


def test_a_file_that_is_mapped_stays(tmp_path, refused):
    """As a task of a lost worker may have it."""
    for folder in (shared_folder(str(tmp_path)), shared_folder(f"simplecache::file://{tmp_path}")):
        folder.save("some.npy", np.ones((2, 2)))
        mapped = folder.map("some.npy")
        place = folder.fetch("some.npy")
        folder.drop_copy("some.npy")
        if place.parent == tmp_path:
            folder.remove("some.npy")
        assert refused.pop() == str(place)
        assert place.exists()
        assert mapped.sum() == 4
        del mapped
        folder.remove("some.npy")
        folder.drop_copy("some.npy")
        assert not place.exists()


def test_the_processors_of_all_workers_count():
    class Client:
        def run(self, task, on_error):
            return {"first": task(), "second": task() | {"processor": "other"}}

    everywhere = Cluster(Client(), verbose=0).environment()
    assert everywhere == environment() | {"processor": " and ".join(sorted([environment()["processor"], "other"]))}


DRIVER = """
import os, signal, sys
from closure_kmeans.datasets import load_sift
from closure_kmeans.distributed import DistributedClosureKMeans

def die(record):
    if record.iteration == 3:
        os.kill(os.getpid(), signal.SIGKILL)

model = DistributedClosureKMeans(
    100, n_partitions=4, random_state=0, max_iter=6, client=sys.argv[1], storage=sys.argv[2], callback=die
).fit(load_sift()[:5000])
"""


@can_kill
def test_a_killed_driver_is_resumed(X, threads, processes, tmp_path):
    expected = bits(new_model(threads).fit(X))
    command = [sys.executable, "-c", DRIVER, processes.scheduler.address, str(tmp_path / "fit")]
    assert subprocess.run(command, check=False, env=os.environ).returncode == -signal.SIGKILL
    assert (tmp_path / "fit" / FIT / "centers" / "000003.safetensors").exists()
    assert bits(new_model(processes, storage=tmp_path / "fit").fit(X, resume=True)) == expected


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.fixture(name="shards")
def folder_of_shards(X, tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    for i in range(3):
        save_vectors(folder / f"{i}.npy", X[1000 * i : 1000 * i + 1000].astype(np.float32))
    return folder


def cut(path: Path):
    path.write_bytes(path.read_bytes()[:-100])


def widen(path: Path):
    save_vectors(path, np.ones((10, 130), np.float32))


def narrow(path: Path):
    save_vectors(path, np.ones((10, 128), np.uint8))


def poison(path: Path):
    rows = np.load(path)
    rows[17, 3] = np.nan
    save_vectors(path, rows)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"1.npy' should have 1000 x 128 values of float32, 512128 bytes in all, but has 512028 bytes"),
        (widen, r"1.npy' must have the width of '.*0.npy', 128, but has 130"),
        (narrow, r"1.npy' must have the dtype of '.*0.npy', float32, but has uint8"),
        (poison, r"1.npy': X must not contain NaN or infinity, but row 17 does"),
    ],
)
def test_bad_shards(shards, threads, damage, message, tmp_path):
    damage(shards / "1.npy")
    with pytest.raises(ValueError, match=message):
        new_model(threads, storage=tmp_path / "fit").fit(shards, resume=True)
    assert not (tmp_path / "fit" / FIT / "centers").exists()  # nothing that could be taken for a fit


def test_a_shard_that_vanishes(shards, threads, monkeypatch):
    def remove_and_lay_out(*arguments, **settings):
        (shards / "1.npy").unlink()
        return lay_out(*arguments, **settings)

    lay_out = layout.lay_out
    monkeypatch.setattr("closure_kmeans.distributed.store.lay_out", remove_and_lay_out)
    with pytest.raises(ValueError, match=r"1\.npy' cannot be read as vectors: .*No such file"):
        new_model(threads).fit(shards)


def test_a_shard_that_shrinks(shards, threads, monkeypatch):
    """A file that is whole, but not the one that was looked at."""

    def cut_and_lay_out(*arguments, **settings):
        save_vectors(shards / "1.npy", np.load(shards / "1.npy")[:900])
        return lay_out(*arguments, **settings)

    lay_out = layout.lay_out
    monkeypatch.setattr("closure_kmeans.distributed.store.lay_out", cut_and_lay_out)
    with pytest.raises(ValueError, match=r"1\.npy' must stay as it was, but had 1000 rows or more, and now has 900"):
        new_model(threads).fit(shards)


@pytest.mark.parametrize("name", ["rows/000001.npy", "labels/000002/000001.npy", "centers/000002.safetensors"])
def test_files_of_a_fit_that_are_cut(X, threads, tmp_path, name):
    """Nothing half written is taken for whole."""
    new_model(threads, max_iter=2, storage=tmp_path).fit(X)
    cut(tmp_path / FIT / name)
    with pytest.raises(ValueError, match=name):
        new_model(threads, max_iter=3, storage=tmp_path).fit(X, resume=True)
    assert not (tmp_path / FIT / "centers" / "000003.safetensors").exists()


def test_bad_blocks_of_a_dask_array(X, threads):
    rows = X[:3000].astype(np.float32)
    rows[1017, 3] = np.nan
    message = r"block-000001.npy': X must not contain NaN or infinity, but row 17 does"
    with pytest.raises(ValueError, match=message):
        new_model(threads).fit(da.from_array(rows, chunks=(1000, -1)))
    wide = da.from_delayed(dask.delayed(np.ones)((10, 130), np.float32), (10, 128), np.float32)
    blocks = da.concatenate([da.from_array(rows[:1000]), wide])
    with pytest.raises(
        ValueError, match=r"block-000001.npy' must have the width of '.*block-000000.npy', 128, but has 130"
    ):
        new_model(threads).fit(blocks)
    masked = da.ma.masked_greater(da.from_array(X[:3000], chunks=(1000, -1)), 100)
    with pytest.raises(ValueError, match=r"block \d of X must not have masked values, got \d+"):
        new_model(threads).fit(masked)


def test_rows_without_a_direction(shards, threads):
    rows = np.load(shards / "2.npy")
    rows[5] = 0
    save_vectors(shards / "2.npy", rows)
    with pytest.raises(ValueError, match=r"2.npy': the rows of X must not be zero .* but row 5 is"):
        new_model(threads, metric="cosine").fit(shards)


@pytest.mark.parametrize("name", ["sorted/000000", "labels/000003/000001", "centers/000002"])
def test_storage_that_fills(X, threads, monkeypatch, tmp_path, name):
    """The error names the file; with room again the fit goes on."""
    replacing = closure_kmeans.files.replacing

    def fill(path):
        if name in str(path):
            raise OSError(errno.ENOSPC, f"'{path}' could not be written: No space left on device")
        return replacing(path)

    expected = bits(new_model(threads, max_iter=4).fit(X))
    with monkeypatch.context() as patch:
        patch.setattr("closure_kmeans.vectors.binary.replacing", fill)
        patch.setattr("closure_kmeans.tensors.replacing", fill)
        with pytest.raises(OSError, match=f"{name}.* could not be written: No space left on device"):
            new_model(threads, max_iter=4, storage=tmp_path / "fit").fit(X, resume=True)
    assert bits(new_model(threads, max_iter=4, storage=tmp_path / "fit").fit(X, resume=True)) == expected


@pytest.mark.parametrize("protocol", ["memory", "simplecache::file"])
def test_storage_elsewhere_that_fills(protocol, tmp_path, monkeypatch):
    """What was written in part has no name by which it could be taken for whole."""
    folder = shared_folder(f"{protocol}://{tmp_path}")
    folder.save("centers/000001.npy", np.ones((4, 2)))

    def put_a_part(source, target, **_):
        if protocol == "simplecache::file":
            Path(target).write_bytes(Path(source).read_bytes()[:-8])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder.place()[0], "put_file", put_a_part, raising=False)
    with pytest.raises(OSError, match=r"centers/000002\.npy' could not be written: No space left on device"):
        folder.save("centers/000002.npy", np.ones((4, 2)))
    assert folder.list("centers") == ["centers/000001.npy"]


def test_a_partition_is_called_by_its_place(tmp_path):
    """As in the error of a task that keeps ending its worker."""
    assert str(passes.Partition(shared_folder(str(tmp_path)), 2)) == f"partition 2 in '{tmp_path}'"


def end_the_worker():
    os.kill(os.getpid(), signal.SIGKILL)


@can_kill
@pytest.mark.slow
def test_a_worker_that_keeps_dying():
    # No other blocks: Dask blames all tasks that wait for the worker, and may name any of them.
    rows = da.from_delayed(dask.delayed(end_the_worker)(), (100, 128), np.uint8)
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), local_cluster(1) as cluster:
        message = r"looking at the rows: .*end_the_worker.* ended its worker 2 times, and is not run again"
        with pytest.raises(ChildProcessError, match=message):
            new_model(cluster.scheduler_address, 5).fit(rows)


class DeadlyFiles(local_files.LocalFileSystem):
    """A folder with a file that ends the worker that looks at it."""

    protocol = "deadly"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("deadly://"))

    def size(self, path):
        if path.endswith("0.npy"):
            end_the_worker()
        return super().size(path)


class KnowsDeadlyFiles(distributed.WorkerPlugin):
    def setup(self, worker):
        fsspec.register_implementation("deadly", DeadlyFiles, clobber=True)


@can_kill
@pytest.mark.slow
def test_a_shard_that_ends_its_worker(shards):
    fsspec.register_implementation("deadly", DeadlyFiles, clobber=True)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        local_cluster(1) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        client.register_plugin(KnowsDeadlyFiles())
        message = rf"reading the headers: deadly://{shards}/0.npy ended its worker 2 times, and is not run again"
        with pytest.raises(ChildProcessError, match=message):
            new_model(client).fit(f"deadly://{shards}")


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"n_clusters": 3001}, ValueError, "n_clusters must be at most the number of rows"),
        ({"n_partitions": 0}, ValueError, "n_partitions must be at least 1, got 0"),
        ({"n_partitions": 4000}, ValueError, "n_partitions must be at most the number of rows, 3000, got 4000"),
        ({"init": "random"}, ValueError, "init of a distributed fit must be one of 'tree', got 'random'"),
        (
            {"init": np.zeros(3000, int)},
            ValueError,
            r"must be .tree. or an array of centres, got labels, of",
        ),
        ({"storage": 5}, TypeError, "storage must be a path or a URL, got 5"),
        ({"storage_options": "key"}, TypeError, "storage_options must be a dict, got 'key'"),
    ],
)
def test_bad_parameters(X, threads, parameters, error, message):
    with pytest.raises(error, match=message):
        new_model(threads).set_params(**parameters).fit(X[:3000])


def test_storage_that_cannot_be_written_to(X, threads, tmp_path, monkeypatch):
    """Found out before the rows are looked at."""
    monkeypatch.setattr("closure_kmeans.distributed.estimator.open_source", lambda *_: pytest.fail("rows were read"))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        new_model(threads, storage=tmp_path / "file" / "fit").fit(X)


def test_storage_that_workers_do_not_share(X, processes, monkeypatch):
    """The memory of this process is not that of the workers."""
    monkeypatch.setattr("closure_kmeans.distributed.estimator.open_source", lambda *_: pytest.fail("rows were read"))
    message = (
        r"storage must be a folder or URL that all workers share, but the worker tcp://.* written to 'memory://own"
    )
    with pytest.raises(FileNotFoundError, match=message):
        new_model(processes, storage="memory://own").fit(X)
    files, root = fit_folder("memory://own").place()
    assert not files.find(root)


def test_the_papers_trees_are_for_one_machine(X):
    assert not hasattr(DistributedClosureKMeans, "paper")
    message = "neighborhoods of a distributed fit must be one of 'auto', 'fresh', got 'kept'"
    with pytest.raises(ValueError, match=message):
        DistributedClosureKMeans(10, method=PAPER).fit(X)


def test_a_fit_that_is_not_asked_for(X, threads, tmp_path):
    new_model(threads, storage=tmp_path, max_iter=1).fit(X)
    with pytest.raises(FileExistsError, match=r"holds a fit: resume it with fit\(X, resume=True\), or remove it"):
        new_model(threads, storage=tmp_path).fit(X)
    with pytest.raises(ValueError, match="resume=True needs storage"):
        new_model(threads).fit(X, resume=True)


def test_bad_rows(X, threads, tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing exists at"):
        new_model(threads).fit(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="must hold files of vectors of one kind, but there is none"):
        new_model(threads).fit(tmp_path)
    with pytest.raises(TypeError, match=r"X must hold one of float64, .* for a distributed fit, got int32"):
        new_model(threads).fit(X[:200].astype(np.int32))
    with pytest.raises(TypeError, match=r"X must be dense, got a sparse csr_array: convert it, with X\.toarray\(\)"):
        new_model(threads).fit(scipy.sparse.csr_array(X))
    with pytest.raises(ValueError, match="sample_weight must be None"):
        new_model(threads).fit(X[:200], sample_weight=np.ones(200))
    copies = np.repeat(X[:30], 20, axis=0)
    message = "n_clusters must be at most the number of distinct rows of X, which is 30, got 31"
    with pytest.raises(ValueError, match=message):
        new_model(threads, 31).fit(copies)
    assert new_model(threads, 30).fit(copies).inertia_ == 0


# -- parts -------------------------------------------------------------------------------------------------------------


def test_rows_are_shared_out_in_order(tmp_path):
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 6, (7, 11))
    n_points = counts.sum()
    starts = np.arange(6) * n_points // 5
    expected = [(cell, shard) for cell in range(11) for shard in range(7) for _ in range(counts[shard, cell])]
    in_shards = [np.repeat(np.arange(11), row) for row in counts]
    folder = shared_folder(str(tmp_path))
    for shard, row in enumerate(counts):
        folder.save(f"sorted/{shard:06}.starts.npy", np.cumsum([0, *row])[:, np.newaxis])
    for cuts, (first, last) in zip(
        pairwise(layout.cut_pieces(counts.sum(axis=0), starts)), pairwise(starts), strict=True
    ):
        pieces = layout.find_ranges(folder, 7, *cuts)
        found = [(int(cell), shard) for shard, begin, end in pieces for cell in in_shards[shard][begin:end]]
        assert sorted(found) == expected[first:last]


@pytest.mark.parametrize(("n_centers", "block_pairs"), [(5, 1 << 21), (700, 1 << 21), (700, 1000), (700, 1)])
def test_tasks_find_the_centers_near_partitions(tmp_path, n_centers, block_pairs, monkeypatch):
    """Those of the 64 nearest cells of each centre, and of the nearest centre of each cell; each pair once."""
    rng = np.random.default_rng(0)
    cells, centers = rng.normal(size=(360, 4)), rng.normal(size=(n_centers, 4))
    partition_of = np.repeat(np.arange(36, dtype=np.int32), 10)
    folder = shared_folder(str(tmp_path))
    found = passes.Layout(np.zeros(4), None, cells, partition_of, np.arange(37), cells[:1], 1, False)
    folder.save_record(passes.LAYOUT, found)
    folder.save("centers.npy", centers)
    monkeypatch.setattr(passes, "CENTERS_READ", 300)
    monkeypatch.setattr("closure_kmeans.stores.layout.BLOCK_PAIRS", block_pairs)
    near = [passes.find_near(passes.Partition(folder, i), "centers.npy", n_centers) for i in range(36)]
    pairs = [pair for part in near for pair in zip(part.partitions.tolist(), part.centers.tolist(), strict=True)]
    distances = ((centers[:, np.newaxis] - cells) ** 2).sum(axis=2)
    nearest_pieces = np.argsort(distances, axis=1)[:, :64]
    expected = {(partition_of[cell], i) for i in range(n_centers) for cell in nearest_pieces[i]}
    assert set(pairs) == expected
    assert len(pairs) == len(expected)
    assert (np.concatenate([part.nearest for part in near]) == distances.argmin(axis=0)).all()


def test_many_cells_take_no_more_memory():
    """Of as many partitions as there may be, only some scores are held at a time."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(64, 4)).astype(np.float32)
    peaks = []
    for n_cells in (1 << 15, 1 << 17):
        cells = rng.normal(size=(n_cells, 4)).astype(np.float32)
        tracemalloc.start()
        with Threads(1) as threads:
            nearest_pieces(cells, centers, threads, 8)
        peaks.append(tracemalloc.get_traced_memory()[1] - tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.parametrize("n_results", [1, 16, 31, 32, 33, 100, 160, 1600, 16000])
def test_the_tree_of_merges(n_results):
    """Every result is in one group of each level, in order; enough are left that none is a large part of all."""
    left = list(range(n_results))
    for groups in plan_merges(n_results, 16):
        assert all(1 <= group.stop - group.start <= MERGED_TOGETHER for group in groups)
        assert [i for group in groups for i in range(n_results)[group]] == list(range(n_results))
        n_results = len(groups)
    assert len(left) < 32 or 16 <= n_results < 32


def test_merged_sums_stay_small():
    assert count_merged(1000, 128) == FEWEST_MERGED
    assert 8 * 128 * 10_000_000 / count_merged(10_000_000, 128) < MERGED_BYTES


def test_sums_are_merged():
    rng = np.random.default_rng(0)
    parts, dense = [], np.zeros((20, 3))
    for _ in range(4):
        ids = np.sort(rng.choice(20, 8, replace=False)).astype(np.int32)
        sums = rng.normal(size=(8, 3))
        dense[ids] += sums
        parts.append(passes.Sums(ids, Totals(sums, np.ones(8), np.ones(8)), ids[:1], 2, 3))
    merged = passes.merge_sums(parts)
    np.testing.assert_allclose(merged.totals.sums, dense[merged.ids])
    assert set(merged.ids) == {i for part in parts for i in part.ids}
    assert merged.totals.sizes.sum() == 32
    assert (merged.n_active, merged.n_pairs, len(merged.watched)) == (8, 12, 4)


# -- connections -------------------------------------------------------------------------------------------------------


def test_our_workers_keep_freed_memory(processes):
    """What they keep is read by the C library as a process starts."""
    environments = processes.run(lambda: Path("/proc/self/environ").read_text()) if sys.platform == "linux" else {}
    for variables in environments.values():
        assert "MALLOC_MMAP_THRESHOLD_=33554432" in variables.split("\0")


def test_nobody_else_can_reach_our_workers():
    """All ports are those of this machine, and there is no dashboard."""
    with local_cluster(1) as cluster:
        ours = psutil.Process()
        ports = [port for process in (ours, *ours.children(recursive=True)) for port in process.net_connections()]
        assert {port.laddr.ip for port in ports if port.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
        for page in ("status", "info/main/workers.html", "json/counts.json"):
            with pytest.raises(HTTPError, match="404"):
                urlopen(cluster.dashboard_link.replace("status", page))


@pytest.fixture(name="security")
def certificate(tmp_path):
    """A certificate that vouches for itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    key, cert = (str(tmp_path / name) for name in ("key.pem", "cert.pem"))
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-days", "2"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    roles = {
        f"tls_{role}_{what}": path
        for role in ("scheduler", "worker", "client")
        for what, path in (("cert", cert), ("key", key))
    }
    return distributed.Security(tls_ca_file=cert, require_encryption=True, **roles)


def test_connections_may_be_encrypted(X, threads, security):
    expected = bits(new_model(threads, max_iter=2).fit(X))
    with local_cluster(1, processes=False, protocol="tls://", security=security) as cluster:
        assert cluster.scheduler_address.startswith("tls://")
        with distributed.Client(cluster.scheduler_address, set_as_default=False, security=security) as client:
            assert bits(new_model(client, max_iter=2).fit(X)) == expected
        files = {"ca-file": security.tls_ca_file}
        files |= {"client.cert": security.tls_client_cert, "client.key": security.tls_client_key}
        with dask.config.set({f"distributed.comm.tls.{name}": file for name, file in files.items()}):
            assert bits(new_model(cluster.scheduler_address, max_iter=2).fit(X)) == expected
        with pytest.raises((TypeError, RuntimeError, OSError), match=r"(?i)tls|security|ssl"):
            new_model(cluster.scheduler_address, max_iter=2).fit(X)


# -- the command line --------------------------------------------------------------------------------------------------


def run_command(*arguments):
    return CliRunner().invoke(commands, [*map(str, arguments)])


def test_the_command_line(shards, threads, tmp_path):
    """A cluster at an address, then one of its own."""
    output, labels, storage = (tmp_path / name for name in ("model.safetensors", "labels.npy", "fit"))
    command = ["fit", shards, "-k", 30, "-o", output, "--labels", labels, "--n-partitions", 3, "--max-iter", 2]
    command += ["--client", threads.scheduler.address, "--storage", storage]
    done = run_command(*command)
    assert done.exit_code == 0, done.output
    assert "3,000 x 128 float32 into 30 clusters" in done.output
    model = closure_kmeans.load(output)
    expected = new_model(threads, 30, n_partitions=3, max_iter=2).fit(shards)
    assert model.cluster_centers_.tobytes() == expected.cluster_centers_.tobytes()
    assert (np.load(labels) == expected.labels_).all()
    again = run_command(*command)
    assert again.exit_code == 2
    assert "holds a fit: add --resume to continue it" in again.output
    assert run_command(*command, "--resume").exit_code == 0
    local = ["--client", "local", "--n-threads", 2, "--n-partitions", 3, "--max-iter", 2]
    done = run_command("fit", shards, "-k", 30, "-o", output, *local)
    assert done.exit_code == 0, done.output
    assert closure_kmeans.load(output).cluster_centers_.tobytes() == expected.cluster_centers_.tobytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--storage", "somewhere"], "--storage and --n-partitions need --client"),
        (["--client", "local", "--paper"], "--paper cannot be combined with --client"),
        (["--client", "local", "--memory-limit", "1GB"], "--memory-limit cannot be combined with --client"),
        (["--client", "local", "--resume"], "--resume needs --storage"),
        (["memory://rows"], "vectors at a URL need --client, got 'memory://rows'"),
    ],
)
def test_bad_commands(shards, tmp_path, options, message):
    vectors = [] if "://" in options[0] else [shards]
    done = run_command("fit", *vectors, "-k", 10, "-o", tmp_path / "model.safetensors", *options)
    assert done.exit_code == 2
    assert message in done.output


def test_the_command_line_takes_urls(shards, threads, tmp_path):
    folder = shared_folder("memory://for-the-command")
    for path in shards.iterdir():
        folder.save(path.name, np.load(path))
    command = ["-k", 30, "-o", tmp_path / "model.safetensors", "--max-iter", 2, "--client", threads.scheduler.address]
    done = run_command("fit", "memory://for-the-command", *command)
    assert done.exit_code == 0, done.output
    missing = run_command("fit", "memory://nowhere", *command)
    assert missing.exit_code != 0
    assert "nothing exists at 'memory://nowhere'" in missing.output


def test_without_dask(monkeypatch, X):
    """Importing and loading need no Dask; fitting says what is missing."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"needs distributed: pip install 'closure-kmeans\[dask\]'"):
        DistributedClosureKMeans(10).fit(X)
