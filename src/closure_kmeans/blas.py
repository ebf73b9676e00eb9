"""BLAS held to one thread while the library computes.

The last bits of a product depend on the number of threads that BLAS uses, and its threads would compete with ours.
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
    """A limit of one thread for some libraries, from any thread, for overlapping users.

    Most libraries have one number of threads for the whole process: the last user restores it. MKL, and some that are
    built on OpenMP, have one for each thread: every user restores that of its own.
    """

    def __init__(self, libraries: Callable[[], Sequence[Any]]) -> None:
        self._libraries = libraries  # controllers of threadpoolctl
        self._lock = threading.Lock()
        self._n_users = 0
        self._original: dict[Any, int] = {}  # numbers of threads of the process, for the last user to restore
        self._is_per_thread: dict[Any, bool] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the libraries to one thread in this thread; the threads that it starts call ``limit`` themselves."""
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
        """Set the limit in this thread wherever it does not hold, for as long as there are users.

        Other code may change the number at any time: another library's own limit may end. So this is called before
        every piece of work. Returns the numbers of threads that only this thread can restore.
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
                        # What is lower is another's limit, which is over by the time that this one is.
                        original[library] = max(n_threads, original.get(library, 1))
        return own


def _differs_elsewhere(library: Any) -> bool:
    """Whether another thread sees another number of threads than this one."""
    with ThreadPoolExecutor(1) as other:
        return bool(other.submit(lambda: library.num_threads).result() != library.num_threads)


def _set_threads(library: Any, n_threads: int) -> None:
    """Set a library's number of threads from any thread.

    Since threadpoolctl 3.8 the first thread that sets that of OpenBLAS is the only one that can, until it is cleared.
    """
    clear = getattr(library, "clear_controlling_thread", lambda force: None)
    clear(force=True)
    library.set_num_threads(n_threads)
    clear(force=True)


@cache
def blas_libraries() -> Sequence[Any]:
    """The libraries that multiply for us, looked for once: that takes longer than to search a few rows."""
    import_module("scipy.linalg.cython_blas")  # compiled code calls it
    libraries: Sequence[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
    return libraries


blas = SingleThreadedBlas(blas_libraries)
