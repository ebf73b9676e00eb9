"""Limit BLAS to one thread while the library computes.

The last bits of a product depend on the number of BLAS threads, and these would compete with ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from threadpoolctl import ThreadpoolController


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
