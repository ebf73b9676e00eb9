"""Watch Numba compile the kernels: announce it once, measure the time, and delay interrupts.

LLVM calls back into Python. An interrupt raised in a callback gets lost, corrupts Numba's state, or crashes the
process.

Messages are warnings of the logger ``closure_kmeans``, which Python prints on standard error by default. They are not
``warnings``, which would become exceptions where warnings are errors.
"""

from __future__ import annotations

import gc
import logging
import signal
import threading
from time import perf_counter
from typing import Any

PACKAGE = __name__.partition(".")[0]
LOGGER = logging.getLogger(PACKAGE)
STOPPING = "closure-kmeans: stopping when the compiler is done"


def say(text: str) -> None:
    """Log a line, without disturbing a progress bar."""
    from tqdm import tqdm

    with tqdm.external_write_mode():
        LOGGER.warning(text)


class CompilerWatch:
    """Listener to Numba's compile events for kernels of this library, in one thread at a time.

    In the main thread, the first SIGINT or SIGTERM is delayed until the compilation ends; the second is not. The
    garbage collector waits, too: among all that Numba makes, it would take a fifth of the time.
    """

    def __init__(self) -> None:
        self.seconds = 0.0  # total compile time
        self._depth = 0  # compilations are nested
        self._thread = 0
        self._began = 0.0
        self._said = False
        self._collects = False  # whether the garbage collector was on
        self._handlers: dict[int, Any] = {}
        self._came: list[int] = []

    @property
    def is_compiling(self) -> bool:
        """Whether any thread is compiling a kernel."""
        return self._depth > 0

    def notify(self, occasion: Any) -> None:
        """Called by Numba at the start and end of a compilation."""
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
        self._collects = gc.isenabled()
        gc.disable()
        if not self._said:
            self._said = True
            say("closure-kmeans: compiling kernels for this processor and these types, which takes some seconds")
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self._came.append(number)
        if len(self._came) > 1:  # the second interrupt is not delayed
            self._handlers[number](number, frame)
        else:
            say(f"{STOPPING}; interrupt again to stop at once")

    def _end(self) -> None:
        self.seconds += perf_counter() - self._began
        if self._collects:
            gc.enable()
        while self._handlers:
            signal.signal(*self._handlers.popitem())
        came, self._came = self._came, []
        for number in came[:1]:
            signal.raise_signal(number)


WATCH = CompilerWatch()


def acknowledge(error: BaseException) -> None:
    """Report that an interrupt must wait for a thread that is compiling."""
    if isinstance(error, KeyboardInterrupt) and WATCH.is_compiling:
        say(STOPPING)


def _is_ours(dispatcher: Any) -> bool:
    """Whether a function belongs to this library. Generated functions may have no module."""
    return str(dispatcher.__module__).startswith(f"{PACKAGE}.")


def watch_compiler() -> None:
    """Start listening to Numba."""
    from numba.core import event

    event.Listener.register(CompilerWatch)
    event.register("numba:compile", WATCH)
