"""Interrupts that come while Numba compiles wait until it has.

LLVM calls Python back, and an interrupt that is raised in there gets lost, leaves Numba without the code that it is
about to store, or crashes the process.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

from numba.core import event

PACKAGE = __name__.partition(".")[0]


class InterruptsWait:
    """Told when Numba begins and ends to compile: holds SIGINT and SIGTERM back in between, but not twice.

    Only where Python would raise something, which it does in the main thread, and only for kernels of this library.
    """

    def __init__(self) -> None:
        self._depth = 0  # kernels are compiled inside others
        self._handlers: dict[int, Any] = {}
        self._came: list[int] = []

    def notify(self, occasion: Any) -> None:
        """Told by Numba."""
        if threading.current_thread() is not threading.main_thread():
            return
        if occasion.is_start:
            if self._depth > 0 or _is_ours(occasion.data["dispatcher"]):
                self._depth += 1
                if self._depth == 1:
                    self._hold()
        elif self._depth > 0:
            self._depth -= 1
            if self._depth == 0:
                self._let_go()

    def _hold(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self._came.append(number)
        if len(self._came) > 1:  # who insists does not wait
            self._handlers[number](number, frame)

    def _let_go(self) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())
        came, self._came = self._came, []
        for number in came[:1]:
            signal.raise_signal(number)


event.Listener.register(InterruptsWait)


def _is_ours(dispatcher: Any) -> bool:
    """Whether a function is of this library; those that others generate may be of no module."""
    return str(dispatcher.__module__).startswith(f"{PACKAGE}.")


def hold_interrupts_while_compiling() -> None:
    """From now on, for all kernels of the library."""
    event.register("numba:compile", InterruptsWait())
