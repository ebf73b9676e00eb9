import signal
import threading

import numpy as np
import pytest
from numba import njit
from numba.core import event

from closure_kmeans.retrieval import _kernels

WORDS = np.array([2, 2, 5])


class Interrupter:
    """Interrupts whatever Numba has begun to compile."""

    def __init__(self, *signals):
        self._signals = signals

    def notify(self, occasion):
        if occasion.is_start:
            for number in self._signals:
                signal.raise_signal(number)


event.Listener.register(Interrupter)


@pytest.mark.parametrize(
    ("signals", "waits"), [([signal.SIGINT], True), ([signal.SIGTERM], True), ([signal.SIGINT, signal.SIGINT], False)]
)
def test_an_interrupt_waits_until_the_kernel_is_compiled(signals, waits):
    kernel = njit(_kernels.end_of_run.py_func)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with event.install_listener("numba:compile", Interrupter(*signals)), pytest.raises(KeyboardInterrupt):
            kernel(WORDS, 0)
        assert bool(kernel.signatures) == waits
        assert kernel(WORDS, 0) == 2
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("module", [__name__, None, "closure_kmeans_of_others"])
def test_what_others_compile_is_interrupted_at_once(module):
    def double(x):
        return 2 * x

    double.__module__ = module
    kernel = njit(double)
    with event.install_listener("numba:compile", Interrupter(signal.SIGINT)), pytest.raises(KeyboardInterrupt):
        kernel(3)
    assert not kernel.signatures


def test_kernels_compile_in_other_threads():
    kernel = njit(_kernels.end_of_run.py_func)
    found = []
    thread = threading.Thread(target=lambda: found.append(kernel(WORDS, 0)))
    thread.start()
    thread.join()
    assert found == [2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
