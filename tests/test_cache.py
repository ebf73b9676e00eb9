import errno
import os
import shutil
import sys
import tempfile
from inspect import unwrap
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import pytest
from numba import config
from numba.core.dispatcher import Dispatcher

from closure_kmeans import cache
from closure_kmeans.baselines import kernels as of_baselines
from closure_kmeans.kernels import cells, emit, nearest, rows, tiles, trees
from closure_kmeans.retrieval import kernels as of_retrieval

WORDS = np.array([2, 2, 5])
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="takes the right to be another user"
)
needs_owners = pytest.mark.skipif(os.name == "nt", reason="is about the owners and modes of files")
NOBODY = 65534


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache, and nothing said yet."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_said", set())
    return cache.folders()[0]


def run_kernel(function=None):
    """Whether a kernel was loaded, in what is a new process to it; its result is right in any case."""
    compiled = cache.kernel(function or of_retrieval.end_of_run.py_func)
    assert compiled(WORDS, 0) == 2
    stats = compiled.stats
    assert sum(stats.cache_hits.values()) + sum(stats.cache_misses.values()) == 1
    return bool(stats.cache_hits)


def end_of_run(words, first):
    return first + 2


def cached_file(folder):
    (path,) = folder.iterdir()
    return path


def said(caplog):
    """What was said of the cache."""
    return [line for line in caplog.messages if "compiling kernels" not in line]


def test_a_kernel_is_compiled_once(folder, caplog):
    """Numba still asks our cache: it is told of it by an attribute that is its own."""
    assert isinstance(tiles.assign_leaves, Dispatcher)
    assert isinstance(tiles.assign_leaves._cache, cache.KernelCache)
    assert [run_kernel() for _ in range(3)] == [False, True, True]
    assert cached_file(folder).name.startswith("closure_kmeans.retrieval.kernels.end_of_run-")
    assert said(caplog) == []


def test_types_and_bounds_checks_have_files_of_their_own(folder, monkeypatch):
    run_kernel()
    assert cache.kernel(of_retrieval.end_of_run.py_func)(WORDS.astype(np.int32), 0) == 2
    monkeypatch.setattr(config, "BOUNDSCHECK", 1)
    assert [run_kernel(), run_kernel()] == [False, True]
    assert len(list(folder.iterdir())) == 3


def test_fields_of_a_named_tuple_count(folder):
    """Compiled code knows fields by their places, and the classes are defined in files that are not compiled."""
    from collections import namedtuple

    for fields in ("starts ends", "ends starts"):
        kind = namedtuple("Ranges", fields)
        assert cache.kernel(lambda ranges: ranges.starts)(kind(starts=1, ends=2)) == 1


def test_recompile(folder):
    compiled = cache.kernel(of_retrieval.end_of_run.py_func)
    compiled(WORDS, 0)
    compiled.recompile()
    assert sum(compiled.stats.cache_misses.values()) == 2


# -- the stamp -------------------------------------------------------------------------------------------------------


def test_all_that_is_compiled_in_is_stamped():
    """Whatever functions the kernels call are in one of the files."""
    files = {str(path) for path in cache.sources()} - {cache.__file__}
    modules = (rows, trees, tiles, nearest, cells, of_baselines, of_retrieval)
    found = [value.py_func for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)]
    assert len(found) > 60
    called = {emit.__file__}  # writes the code of operations when a kernel is compiled
    for function in found:
        called.add(function.__code__.co_filename)
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            value = unwrap(getattr(value, "py_func", value))
            assert not isinstance(value, ModuleType) or not value.__name__.startswith("closure_kmeans")
            if isinstance(value, FunctionType) and value.__module__.startswith("closure_kmeans"):
                called.add(value.__code__.co_filename)
    assert {str(Path(path).resolve()) for path in called} == files


@pytest.mark.parametrize("number", range(11))
def test_a_change_of_any_file_changes_the_stamp(number, tmp_path, monkeypatch):
    for path in cache.sources():
        copy = tmp_path / path.relative_to(cache.PACKAGE)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
    monkeypatch.setattr(cache, "PACKAGE", tmp_path)
    assert len(cache.sources()) == 11
    assert cache._stamp() == cache.STAMP
    with cache.sources()[number].open("a") as file:
        file.write("\n")
    assert cache._stamp() != cache.STAMP


def test_a_new_version_compiles_again(folder, monkeypatch, caplog):
    run_kernel()
    monkeypatch.setattr(cache, "__version__", "99")
    monkeypatch.setattr(cache, "STAMP", cache._stamp())
    assert [run_kernel(), run_kernel()] == [False, True]
    assert len(list(folder.iterdir())) == 1
    assert said(caplog) == []  # nothing is wrong


def test_old_kernels_of_other_versions_are_removed(folder, monkeypatch):
    """Functions that were renamed leave them behind; and processes that are killed, unfinished files."""
    run_kernel()
    kept = cached_file(folder)
    other = folder / "renamed-0.kernel"
    rest = bytes(32) + b"code"
    for name in ("young-0.kernel", other.name):
        (folder / name).write_bytes(cache._digest(name, rest) + rest)
    damaged, cut = folder / "damaged-0.kernel", folder / ".cut-0.kernel.01234567"
    damaged.write_bytes(rest)
    cut.touch()
    for path in (kept, other, damaged, cut):
        os.utime(path, (0, 0))
    cache._remove_old.cache_clear()
    cache.kernel(end_of_run)(WORDS, 0)
    names = {path.name for path in folder.iterdir()}
    assert {kept.name, "young-0.kernel"} < names
    assert len(names) == 3
    assert run_kernel() is True
    assert kept.stat().st_mtime > 0  # it is in use


def test_a_write_that_fails_leaves_no_old_code_under_a_new_stamp(folder, monkeypatch):
    run_kernel()
    monkeypatch.setattr(cache, "STAMP", bytes(32))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        assert run_kernel() is False
    assert run_kernel() is False
    assert run_kernel() is True
    assert len(list(folder.iterdir())) == 1


def test_sources_that_are_not_on_disk(folder, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(cache, "PACKAGE", tmp_path)
    monkeypatch.setattr(cache, "STAMP", cache._stamp())
    assert [run_kernel(), run_kernel()] == [False, False]
    (line,) = said(caplog)
    assert f"the sources of the kernels are not in '{tmp_path}'" in line


# -- files that are damaged, and disks that are full ------------------------------------------------------------------

DAMAGES = {
    "cut": lambda whole: whole[: len(whole) // 2],
    "cut in the stamp": lambda whole: whole[:40],
    "empty": lambda whole: b"",
    "zeros": lambda whole: bytes(len(whole)),
    "a bit": lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]),
    "of another stamp": lambda whole: whole[:32] + bytes(32) + whole[64:],
    "longer": lambda whole: whole + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_made_again(folder, caplog, damage):
    run_kernel()
    path = cached_file(folder)
    path.write_bytes(damage(path.read_bytes()))
    assert [run_kernel(), run_kernel()] == [False, True]
    assert said(caplog) == [
        f"closure-kmeans: a kernel of the cache is not used, but compiled again: '{path}' is damaged"
    ]


def test_the_file_of_another_kernel(folder, caplog):
    run_kernel()
    path = cached_file(folder)
    assert run_kernel(of_retrieval.end_of_run.py_func) is True
    other = cache.kernel(end_of_run)
    other(WORDS, 0)
    (theirs,) = set(folder.iterdir()) - {path}
    shutil.copy(theirs, path)
    assert [run_kernel(), run_kernel()] == [False, True]
    assert len(said(caplog)) == 1


def test_many_damaged_files_are_one_line(folder, caplog):
    for _ in range(2):
        cache.kernel(end_of_run)(WORDS, 0)
        run_kernel()
        for path in folder.iterdir():
            path.write_bytes(b"")
    cache.kernel(end_of_run)(WORDS, 0)
    assert len(said(caplog)) == 1


def test_a_folder_in_the_place_of_a_file(folder, caplog):
    run_kernel()
    path = cached_file(folder)
    path.unlink()
    path.mkdir()
    (path / "something").touch()
    assert [run_kernel(), run_kernel()] == [False, False]
    assert len(said(caplog)) == 2  # it can be neither read nor written


def test_a_full_disk(small_disk, monkeypatch, caplog):
    monkeypatch.setattr(config, "CACHE_DIR", str(small_disk))
    (small_disk / "filler").write_bytes(bytes(60_000))
    assert [run_kernel(), run_kernel()] == [False, False]
    (line,) = said(caplog)
    assert "because they cannot be cached: No space left on device in" in line
    assert list(cache.folders()[0].iterdir()) == []


# -- where it is -----------------------------------------------------------------------------------------------------


def test_no_folder_that_can_be_written_to(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "file"))
    assert [run_kernel(), run_kernel()] == [False, False]
    (line,) = said(caplog)
    assert line.startswith("closure-kmeans: kernels are compiled again in every process because they cannot be")
    assert line.endswith("; set NUMBA_CACHE_DIR to a folder that you, and nobody else, can write to")


def test_the_folders(monkeypatch, tmp_path):
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    beside, in_home = cache.folders()
    assert beside == Path(cache.__file__).resolve().parent / "__pycache__" / "kernels"
    assert in_home.parent == tmp_path
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.folders() == [beside, tmp_path / "home" / ".cache" / in_home.name]
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.folders() == [beside, tmp_path / "home" / "Library" / "Caches" / in_home.name]
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    assert cache.folders() == [beside]


def test_the_next_folder_where_one_takes_nothing(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    places = [tmp_path / "file" / "kernels", tmp_path / "home"]
    monkeypatch.setattr(cache, "folders", lambda: places)
    assert [run_kernel(), run_kernel()] == [False, True]
    assert len(list(places[1].iterdir())) == 1
    assert said(caplog) == []


@pytest.fixture
def as_nobody():
    """A folder that all can read, and what makes this process that of another user."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        try:
            os.seteuid(NOBODY)
            if not os.access(place, os.R_OK, effective_ids=True):
                pytest.skip("temporary files are in a folder of root")
            os.seteuid(0)
            yield Path(place), lambda: os.seteuid(NOBODY)
        finally:
            os.seteuid(0)


@needs_root
def test_what_root_compiled_is_read_by_others(as_nobody, monkeypatch, caplog):
    place, become_nobody = as_nobody
    monkeypatch.setattr(config, "CACHE_DIR", str(place))
    before = os.umask(0)
    try:
        assert run_kernel() is False
    finally:
        os.umask(before)
    become_nobody()
    assert run_kernel() is True
    assert said(caplog) == []
    assert cache.kernel(end_of_run)(WORDS, 0) == 2  # which it may not write
    assert "Permission denied" in said(caplog)[0]


# -- who else could have written it ------------------------------------------------------------------------------------


@needs_owners
@pytest.mark.parametrize(
    ("which", "mode", "reason"),
    [
        ("folder", 0o777, "others can write to"),
        ("folder", 0o1777, "others can write to"),
        ("folder", 0o775, "others can write to"),
        ("file", 0o666, "others can write to"),
        ("file", 0o664, "others can write to"),
        ("above", 0o777, "everybody can write to"),
    ],
)
def test_what_others_can_write_to_is_refused(folder, caplog, which, mode, reason):
    run_kernel()
    path = {"folder": folder, "file": cached_file(folder), "above": folder.parent}[which]
    path.chmod(mode)
    assert run_kernel() is False
    assert f"{reason} '{path}'" in said(caplog)[0]
    assert "set NUMBA_CACHE_DIR" in said(caplog)[0]


@needs_owners
@pytest.mark.parametrize("mode", [0o1777, 0o755, 0o700])
def test_what_others_cannot_move_is_taken(folder, caplog, mode):
    run_kernel()
    folder.parent.chmod(mode)
    assert run_kernel() is True
    assert said(caplog) == []


@needs_root
@pytest.mark.parametrize("which", ["folder", "file"])
def test_what_belongs_to_others_is_refused(folder, caplog, which):
    run_kernel()
    path = folder if which == "folder" else cached_file(folder)
    os.chown(path, NOBODY, NOBODY)
    assert run_kernel() is False
    assert f"'{path}' belongs to user {NOBODY}, neither you nor root" in said(caplog)[0]


@needs_owners
def test_a_link_to_a_folder_is_refused(folder, caplog):
    run_kernel()
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")
    assert run_kernel() is False
    assert f"'{folder}' is a link" in said(caplog)[0]


@needs_owners
def test_a_pipe_in_the_place_of_a_kernel_is_not_opened(folder, caplog):
    run_kernel()
    path = cached_file(folder)
    path.unlink()
    os.mkfifo(path)
    assert run_kernel() is False
    assert "is not a file" in caplog.text


@needs_owners
def test_folders_are_safe_whatever_the_umask(folder):
    old = os.umask(0)
    try:
        assert [run_kernel(), run_kernel()] == [False, True]
    finally:
        os.umask(old)
    assert cache.objection(folder) is None
