"""The one place that starts threads.

Compiled functions release the GIL and take a range, so a thread pool over ranges is all that is needed. A pool lives
as long as one call of the library: nothing is left running that a fork could meet.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from types import TracebackType
from typing import TypeVar

import joblib

from closure_kmeans.blas import blas
from closure_kmeans.compiler import acknowledge

Result = TypeVar("Result")

# Enough blocks for threads of unequal speed to finish together, few enough to cost nothing.
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

        # A task a thread, not a block: for small blocks, to hand out tasks takes longer than to do them.
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


class ProcessWideLimit:
    """A limit that belongs to the process: the first of its users sets it, and the last one lifts it.

    ``limit`` sets it, and returns what lifts it again.
    """

    def __init__(self, limit: Callable[[], Callable[[], None]]) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._users = 0
        self._lift: Callable[[], None]

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._lift = self._limit()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._lift()
