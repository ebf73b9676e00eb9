"""Threads: how many there are, and that neither those of the caller nor those of BLAS change a result."""

import builtins
import io
import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import joblib
import numpy as np
import pytest
from methods import same
from sklearn.base import clone
from threadpoolctl import threadpool_info, threadpool_limits

from closure_kmeans import ClosureKMeans, Method, parallel
from closure_kmeans.datasets import load_sift
from closure_kmeans.parallel import SingleThreadedBlas, Threads, count_threads

# More than a machine may have: BLAS starts as many as it is told to.
BLAS_THREADS = 4


def blas_threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture
def many_blas_threads():
    with threadpool_limits(BLAS_THREADS, user_api="blas"):
        before = blas_threads()
        yield
        assert blas_threads() == before


def results(_=None):
    """The bits of a fit and of what the model says of rows, where the products of BLAS depend on its threads."""
    X = np.random.default_rng(0).normal(size=(3000, 33)).astype(np.float32)
    model = ClosureKMeans(40, method=Method(neighborhoods="fresh"), max_iter=5, random_state=0, n_threads=2).fit(X)
    rows = X[:1000].astype(np.float64)
    found = model.labels_, model.cluster_centers_, model.predict(rows), model.transform(rows)
    return [part.tobytes() for part in found]


@pytest.fixture(scope="module", name="X")
def sift():
    return load_sift()[:2000].astype(np.float32)


@pytest.fixture(scope="module")
def fitted(X):
    return ClosureKMeans(50, random_state=0).fit(X)


def test_any_thread_gives_the_same_bits_and_leaves_blas_as_it_was(many_blas_threads):
    expected = results()
    with ThreadPoolExecutor(1) as other:
        before = other.submit(blas_threads).result()  # some libraries have a number for each thread
    for n_threads in 1, 3:
        with ThreadPoolExecutor(n_threads) as pool:
            assert all(found == expected for found in pool.map(results, range(2 * n_threads)))
            assert all(found == before for found in pool.map(lambda _: blas_threads(), range(n_threads)))
    overlapping = joblib.Parallel(n_threads=3, backend="threading")(joblib.delayed(results)() for _ in range(6))
    assert all(found == expected for found in overlapping)


@pytest.mark.slow
def test_another_process_gives_the_same_bits(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", str(BLAS_THREADS))
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        assert processes.submit(results).result() == results()


def test_a_limit_of_another_library_that_ends_meanwhile(many_blas_threads):
    before = blas_threads()
    threads = Threads(2)
    with ThreadPoolExecutor(1) as other:
        with threadpool_limits(1, user_api="blas"):
            other.submit(threads.__enter__).result()
        assert blas_threads() == before  # the limit is over, while ``threads`` are at work
        seen = other.submit(threads.for_each_block, lambda *_: blas_threads(), 8, 1).result()
        assert all(n_threads <= {1} for n_threads in seen)
        other.submit(threads.__exit__, None, None, None).result()


class Library:
    """A BLAS that has a number of threads for the process, or one for each of its threads."""

    def __init__(self, per_thread):
        self._state = threading.local() if per_thread else type("State", (), {})()

    @property
    def num_threads(self):
        return getattr(self._state, "n_threads", 8)

    def set_num_threads(self, n_threads):
        self._state.n_threads = n_threads


@pytest.mark.parametrize("per_thread", [False, True])
def test_overlapping_users_hold_and_restore_blas(per_thread):
    library = Library(per_thread)
    blas = SingleThreadedBlas(lambda: [library])
    first, second = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    users = {thread: blas.held() for thread in (first, second)}

    def seen():
        return [thread.submit(lambda: library.num_threads).result() for thread in users]

    with first, second:
        for thread, user in users.items():
            thread.submit(user.__enter__).result()
        assert seen() == [1, 1]
        first.submit(users[first].__exit__, None, None, None).result()
        assert seen() == ([8, 1] if per_thread else [1, 1])
        second.submit(users[second].__exit__, None, None, None).result()
        assert seen() == [8, 8]
        blas.limit()
        assert library.num_threads == 8  # without users there is no limit


@pytest.mark.parametrize(
    "quota",
    [
        {"cpu.max": "250000 100000\n"},
        {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"},
    ],
    ids=["cgroup v2", "cgroup v1"],
)
def test_the_quota_of_a_container_counts(quota, monkeypatch):
    files = {f"/sys/fs/cgroup/{name}": content for name, content in quota.items()}
    exists, really_open = os.path.exists, builtins.open
    group = "/sys/fs/cgroup/"
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6), raising=False)
    monkeypatch.setattr(os.path, "exists", lambda path: path in files if str(path).startswith(group) else exists(path))
    monkeypatch.setattr(
        builtins,
        "open",
        lambda path, *args, **kwargs: io.StringIO(files[path]) if path in files else really_open(path, *args, **kwargs),
    )
    parallel._count_cpus.cache_clear()
    assert [count_threads(n_threads) for n_threads in (None, 5)] == [3, 5]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2), raising=False)
    assert count_threads(None) == 2
    parallel._count_cpus.cache_clear()


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_error_in_a_block_is_raised_where_the_call_was_made(n_threads):
    def work(first, last):
        if first == 4:
            raise ZeroDivisionError
        return first, last

    with Threads(n_threads) as threads:
        assert threads.for_each_block(work, 4, 3) == [(0, 3), (3, 4)]
        assert threads.for_each_block(work, 0) == []
        with pytest.raises(ZeroDivisionError):
            threads.for_each_block(work, 100, 1)
        assert threads.for_each_block(work, 2, 1) == [(0, 1), (1, 2)]


def test_of_several_errors_the_first_block_s_is_raised_and_no_other_block_is_begun():
    begun = []
    failed = threading.Event()

    def work(first, last):
        begun.append(first)
        if first == 1:
            failed.set()
            raise KeyError
        if first == 0:
            failed.wait()
            raise ZeroDivisionError

    with Threads(2) as threads, pytest.raises(ZeroDivisionError):
        threads.for_each_block(work, 100, 1)
    assert sorted(begun) == [0, 1]


def test_two_fits_in_two_threads_are_as_alone(X):
    models = [ClosureKMeans(50, random_state=0, n_threads=2), ClosureKMeans.paper(60, random_state=1, n_threads=2)] * 3
    alone = [clone(model).fit(X) for model in models]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda model: clone(model).fit(X), models))
    assert all(same(*pair) for pair in zip(alone, together, strict=True))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_after_fit(X, fitted):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.map_async(clone(fitted).set_params(n_threads=2).fit, [X, X]).get(timeout=120)
        labels = pool.apply_async(fitted.predict, [X]).get(timeout=120)
    assert all(same(result, fitted) for result in results)
    np.testing.assert_array_equal(labels, fitted.predict(X))
