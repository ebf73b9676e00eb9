"""Watches Numba compile the kernels: says so once, takes the time, and lets interrupts wait until it is done.

LLVM calls Python back, and an interrupt that is raised in there gets lost, leaves Numba without the code that it is
about to store, or crashes the process.

What is said goes to the logger ``closure_kmeans``, as warnings, which Python shows on standard error unless told
otherwise: none of it calls for an exception where warnings are errors.
"""

from __future__ import annotations

import logging
import signal
import threading
from time import perf_counter
from typing import Any

from tqdm import tqdm

PACKAGE = __name__.partition(".")[0]
LOGGER = logging.getLogger(PACKAGE)
STOPPING = "closure-kmeans: stopping when the compiler is done"


def say(text: str) -> None:
    """Log a line, above the progress bar if there is one."""
    with tqdm.external_write_mode():
        LOGGER.warning(text)


class CompilerWatch:
    """Listens to Numba begin and end to compile kernels of this library, in one thread at a time.

    SIGINT and SIGTERM are held back in between, but not twice, where Python would raise something: in the main thread.
    """

    def __init__(self) -> None:
        self.seconds = 0.0  # that compiling has taken so far
        self._depth = 0  # kernels are compiled inside others
        self._thread = 0
        self._began = 0.0
        self._said = False
        self._handlers: dict[int, Any] = {}
        self._came: list[int] = []

    @property
    def is_compiling(self) -> bool:
        """Whether a kernel is being compiled, in whatever thread."""
        return self._depth > 0

    def notify(self, occasion: Any) -> None:
        """Called by Numba."""
        if self._depth > 0:
            if threading.get_ident() == self._thread:
                self._depth += 1 if occasion.is_start else -1
                if self._depth == 0:
                    self._end()
        elif occasion.is_start and _is_ours(occasion.data["dispatcher"]):
            self._depth = 1
            self._begin()

    def _begin(self) -> None:
        self._thread = threading.get_ident()
        self._began = perf_counter()
        if not self._said:
            self._said = True
            say("closure-kmeans: compiling kernels for this processor and these types, which may take half a minute")
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self._came.append(number)
        if len(self._came) > 1:  # who insists does not wait
            self._handlers[number](number, frame)
        else:
            say(f"{STOPPING}; interrupt again to stop at once")

    def _end(self) -> None:
        self.seconds += perf_counter() - self._began
        while self._handlers:
            signal.signal(*self._handlers.popitem())
        came, self._came = self._came, []
        for number in came[:1]:
            signal.raise_signal(number)


WATCH = CompilerWatch()


class CompilerTime:
    """Seconds that the compiler has taken since they were last asked for."""

    def __init__(self) -> None:
        self._before = WATCH.seconds

    def lap(self) -> float:
        """The seconds, which are then counted from here."""
        before, self._before = self._before, WATCH.seconds
        return self._before - before


def acknowledge(error: BaseException) -> None:
    """Say that an interrupt was noticed, if it has to wait for a thread that compiles."""
    if isinstance(error, KeyboardInterrupt) and WATCH.is_compiling:
        say(STOPPING)


def _is_ours(dispatcher: Any) -> bool:
    """Whether a function is of this library; those that others generate may be of no module."""
    return str(dispatcher.__module__).startswith(f"{PACKAGE}.")


def watch_compiler() -> None:
    """From now on, for all kernels of the library."""
    from numba.core import event

    event.Listener.register(CompilerWatch)
    event.register("numba:compile", WATCH)
