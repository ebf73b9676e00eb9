"""Thread pool over blocks of work, and the limit of one BLAS thread. No other module starts threads.

Compiled functions release the GIL and take a range, so a thread pool over ranges is all that is needed. A pool lives
as long as one call of the library: nothing is left running that a fork could meet.

BLAS has one thread while the library computes: the last bits of a product depend on the number of BLAS threads, and
these would compete with ours.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import TracebackType
from typing import Any, TypeVar

import joblib
from threadpoolctl import ThreadpoolController

from closure_kmeans.compiler import acknowledge

Result = TypeVar("Result")

# Blocks per thread: enough for threads of unequal speed to finish together, few enough that dispatch costs nothing.
BLOCKS_PER_THREAD = 8


class Threads:
    """A pool of threads over blocks of work, with BLAS held to one thread in each.

    >>> with Threads(2) as threads:
    ...     threads.for_each_block(lambda first, last: last - first, 10, 4)
    [4, 4, 2]
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        # The thread that calls is one of them.
        self._pool = ThreadPoolExecutor(n_threads - 1, "closure-kmeans") if n_threads > 1 else None
        self._blas = blas.held()

    def __enter__(self) -> Threads:
        self._blas.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._blas.__exit__(kind, error, trace)

    def for_each_block(
        self, work: Callable[[int, int], Result], n_items: int, block: int | None = None
    ) -> list[Result]:
        """Call ``work(first, last)`` on consecutive blocks of the items; the results in their order.

        An error in a block, the first one's if there are several, or an interrupt is raised here, after the blocks
        under way have ended.
        """
        if block is None:
            block = -(-n_items // (BLOCKS_PER_THREAD * self.n_threads))
        ranges = [(first, min(first + block, n_items)) for first in range(0, n_items, max(block, 1))]
        if self._pool is None or len(ranges) == 1:
            blas.limit()
            return [work(first, last) for first, last in ranges]
        waiting = deque(enumerate(ranges))
        results: dict[int, Result] = {}
        errors: dict[int, BaseException] = {}

        def take_blocks() -> None:
            blas.limit()
            while True:
                try:
                    place, (first, last) = waiting.popleft()
                except IndexError:
                    return
                try:
                    results[place] = work(first, last)
                except BaseException as error:
                    errors[place] = error
                    waiting.clear()
                    acknowledge(error)

        # One task per thread, not per block: dispatching a small block takes longer than computing it.
        tasks = [self._pool.submit(take_blocks) for _ in range(min(self.n_threads, len(ranges)) - 1)]
        try:
            take_blocks()
            wait(tasks)
        except BaseException as error:
            waiting.clear()
            acknowledge(error)
            wait(tasks)
            raise
        if errors:
            raise errors[min(errors)]
        return [results[place] for place in range(len(ranges))]


def count_threads(n_threads: int | None) -> int:
    """Threads to use: by default as many as the cores that the process may use."""
    if n_threads is not None:
        return n_threads
    return _count_cpus(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None)


@cache
def _count_cpus(affinity: int | None) -> int:
    """The least of the affinity, the CPU quota of the container, rounded up, and ``LOKY_MAX_CPU_COUNT``.

    Looked up once for each affinity: to read the quota takes as long as to search a row.
    """
    available: int = joblib.cpu_count()
    return available


class SingleThreadedBlas:
    """Limit of one BLAS thread, for overlapping users in any threads.

    Most BLAS libraries have one number of threads per process: the last user restores it. MKL, and some OpenMP builds,
    have one per thread: every user restores its own.
    """

    def __init__(self, libraries: Callable[[], Sequence[Any]]) -> None:
        self._libraries = libraries  # threadpoolctl controllers
        self._lock = threading.Lock()
        self._n_users = 0
        self._original: dict[Any, int] = {}  # process-wide numbers of threads, restored by the last user
        self._is_per_thread: dict[Any, bool] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Limit BLAS in this thread. Threads that it starts must call ``limit`` themselves."""
        with self._lock:
            self._n_users += 1
        original: dict[Any, int] = {}
        try:
            original = self.limit()
            yield
        finally:
            with self._lock:
                self._n_users -= 1
                if self._n_users == 0:
                    original |= self._original
                    self._original = {}
                for library, n_threads in original.items():
                    _set_threads(library, n_threads)

    def limit(self) -> dict[Any, int]:
        """Set the limit in this thread wherever it is not in effect, while there are users.

        Called before every piece of work, since other code may change the number, for example when its own limit ends.
        Returns the numbers of threads that only this thread can restore.
        """
        own: dict[Any, int] = {}
        for library in self._libraries():
            n_threads = library.num_threads or 1
            if n_threads > 1:
                with self._lock:
                    if self._n_users > 0:
                        _set_threads(library, 1)
                        if library not in self._is_per_thread:
                            self._is_per_thread[library] = _differs_elsewhere(library)
                        original = own if self._is_per_thread[library] else self._original
                        # A smaller number is another user's limit, which will have ended when this one ends.
                        original[library] = max(n_threads, original.get(library, 1))
        return own


def _differs_elsewhere(library: Any) -> bool:
    """Whether another thread sees another number of threads: the setting is per thread."""
    with ThreadPoolExecutor(1) as other:
        return bool(other.submit(lambda: library.num_threads).result() != library.num_threads)


def _set_threads(library: Any, n_threads: int) -> None:
    """Set a library's number of threads from any thread.

    Since threadpoolctl 3.8 only the first thread that sets OpenBLAS's number may do so, until it is cleared.
    """
    clear = getattr(library, "clear_controlling_thread", lambda force: None)
    clear(force=True)
    library.set_num_threads(n_threads)
    clear(force=True)


@cache
def blas_libraries() -> Sequence[Any]:
    """The loaded BLAS libraries; cached, since finding them takes longer than searching a few rows."""
    import_module("scipy.linalg.cython_blas")  # loads the BLAS that Numba calls
    libraries: Sequence[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
    return libraries


blas = SingleThreadedBlas(blas_libraries)
