"""Files are replaced as a whole or not at all."""

import errno
import os
import signal
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest

from closure_kmeans import ClosureKMeans, files, load
from closure_kmeans.files import unfinished, unless_held
from closure_kmeans.vectors import save_vectors


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def model(rows):
    return ClosureKMeans(50, random_state=0).fit(rows)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def test_a_file_that_is_held_elsewhere(model, path, refused):
    model.save(path, training=True)
    before = path.read_bytes()
    labels = load(path).labels_
    advice = "could not be written: .*mapped; close the arrays and programs that have it open or mapped$"
    with pytest.raises(PermissionError, match=advice):
        model.save(path)
    assert set(refused) == {str(path)}
    assert (path.read_bytes(), os.listdir(path.parent)) == (before, [path.name])
    assert len(labels) == 2000
    waiting = [labels]
    waiting.append(waiting)  # a cycle, as the traceback of an error may be
    del labels, waiting
    model.save(path)


KILLED = """
import resource, signal
from pathlib import Path
import numpy as np
from closure_kmeans.tensors import write_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # larger files are a reason to die
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
write_tensors(Path({path!r}), "model", {{"zeros": np.zeros(100_000)}}, {{}})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_kill_while_writing_leaves_what_can_be_found_again(path):
    done = subprocess.run([sys.executable, "-c", KILLED.format(path=str(path))])
    assert done.returncode == -signal.SIGXFSZ
    assert list(path.parent.iterdir()) == list(unfinished(path))
    assert len(list(unfinished(path))) == 1


def test_a_disk_that_fills(model, rows, small_disk):
    path = small_disk / "model.safetensors"
    model.save(path)
    before = path.read_bytes()
    large = ClosureKMeans(1900, max_iter=1, random_state=0).fit(np.tile(rows, 2))
    with pytest.raises(OSError, match=r"model\.safetensors' could not be written: No space left on device"):
        large.save(path)
    assert os.listdir(small_disk) == [path.name]
    assert path.read_bytes() == before


def test_a_folder_that_is_read_only(model, small_disk):
    path = small_disk / "model.safetensors"
    model.save(path)
    before = path.read_bytes()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError, match=r"model\.safetensors' could not be written: Read-only file system"):
        model.save(path)
    assert os.listdir(small_disk) == [path.name]
    assert path.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(model, path):
    path.parent.chmod(0o500)
    with pytest.raises(PermissionError, match="could not be written"):
        model.save(path)
    path.parent.chmod(0o700)


@pytest.mark.parametrize(("code", "passes"), [(32, False), (None, True)])
def test_only_files_that_are_held_may_stay(code, passes):
    """The error codes are those of Windows; any other refusal is an error."""
    error = PermissionError(13, "refused")
    error.winerror = code
    with pytest.raises(PermissionError) if passes else nullcontext(), unless_held():
        raise error


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes")
def test_links_stay_and_folders_and_devices_are_not_replaced(tmp_path):
    real, link = tmp_path / "real.npy", tmp_path / "link.npy"
    save_vectors(real, np.zeros((2, 2)))
    link.symlink_to(real)
    save_vectors(link, np.ones((2, 2)))
    assert link.is_symlink()
    assert np.load(real).all()
    (tmp_path / "folder.npy").mkdir()
    os.mkfifo(tmp_path / "pipe.npy")
    for name in ("folder.npy", "pipe.npy"):
        with pytest.raises(FileExistsError, match=f"{name}' could not be written: it exists and is not a regular file"):
            save_vectors(tmp_path / name, np.ones((2, 2)))
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("trouble", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, trouble):
    path = tmp_path / "a.npy"
    save_vectors(path, np.ones((2, 2)))

    def fail(_):
        raise trouble

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(type(trouble)) as caught:
        save_vectors(path, np.zeros((2, 2)))
    if isinstance(trouble, OSError):
        assert f"'{path}' could not be written: No space left" in str(caught.value)
        assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == [path]
    assert np.load(path).all()


@pytest.mark.parametrize("suffix", [".npy", ".fvecs", ".fbin"])
def test_a_write_that_ends_early_says_why(tmp_path, suffix):
    """The limit of the system on the size of files stands for a full disk."""
    resource = pytest.importorskip("resource")
    path = tmp_path / f"a{suffix}"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match=f"a{suffix}' could not be written: {os.strerror(errno.EFBIG)}"):
            save_vectors(path, np.ones((1000, 128), np.float32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
