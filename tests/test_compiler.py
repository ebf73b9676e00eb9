import gc
import signal
import sys
import threading
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest
from numba import njit
from numba.core import event

from closure_kmeans import ClosureKMeans
from closure_kmeans.clusters import group_by_label
from closure_kmeans.compiler import WATCH
from closure_kmeans.iteration import Recorder
from closure_kmeans.parallel import Threads
from closure_kmeans.retrieval import kernels

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
def test_an_interrupt_waits_until_the_kernel_is_compiled(signals, waits, caplog):
    kernel = njit(kernels.end_of_run.py_func)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with event.install_listener("numba:compile", Interrupter(*signals)), pytest.raises(KeyboardInterrupt):
            kernel(WORDS, 0)
        assert bool(kernel.signatures) == waits
        acknowledged = "closure-kmeans: stopping when the compiler is done; interrupt again to stop at once"
        assert caplog.messages.count(acknowledged) == 1
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


class CollectorWatch:
    """A listener that notes whether the garbage collector is on."""

    def __init__(self):
        self.seen = set()

    def notify(self, occasion):
        self.seen.add(gc.isenabled())


event.Listener.register(CollectorWatch)


@pytest.mark.parametrize("collects", [True, False])
def test_the_garbage_collector_waits_for_the_compiler(collects):
    watch = CollectorWatch()
    if not collects:
        gc.disable()
    try:
        with event.install_listener("numba:run_pass", watch):
            njit(kernels.end_of_run.py_func)(WORDS, 0)
        assert gc.isenabled() == collects
    finally:
        gc.enable()
    assert watch.seen == {False}


def test_kernels_compile_in_other_threads():
    kernel = njit(kernels.end_of_run.py_func)
    found = []
    thread = threading.Thread(target=lambda: found.append(kernel(WORDS, 0)))
    thread.start()
    thread.join()
    assert found == [2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("is_compiling", [True, False])
def test_an_interrupt_that_waits_for_a_thread_that_compiles_is_acknowledged(is_compiling, monkeypatch, caplog):
    def interrupt(first, last):
        raise KeyboardInterrupt

    monkeypatch.setattr(WATCH, "_depth", int(is_compiling))
    with Threads(2) as threads, pytest.raises(KeyboardInterrupt):
        threads.for_each_block(interrupt, 2, 1)
    assert ("closure-kmeans: stopping when the compiler is done" in caplog.messages) == is_compiling


@pytest.mark.parametrize("in_main_thread", [True, False])
def test_compiling_is_said_once_and_timed(in_main_thread, monkeypatch, caplog):
    monkeypatch.setattr(WATCH, "_said", False)
    before = WATCH.seconds
    for _ in range(2):
        compiled = njit(kernels.end_of_run.py_func)
        if in_main_thread:
            compiled(WORDS, 0)
        else:
            thread = threading.Thread(target=compiled, args=(WORDS, 0))
            thread.start()
            thread.join()
    assert len([line for line in caplog.messages if "compiling kernels for this processor" in line]) == 1
    assert {record.name for record in caplog.records} == {"closure_kmeans"}
    after = WATCH.seconds
    assert 0 < after - before < 100
    njit(lambda x: 2 * x)(3)  # of somebody else
    assert WATCH.seconds == after


@pytest.mark.parametrize("verbose", [0, 1])
def test_compiling_is_no_part_of_the_estimate(verbose, monkeypatch):
    """Sixteen seconds of compiling made it half an hour for a hundred iterations of milliseconds."""
    model = ClosureKMeans(2, verbose=verbose, max_time=2000)
    clusters = SimpleNamespace(inertia=1.0)
    step = SimpleNamespace(state=SimpleNamespace(clusters=clusters), n_active=0, n_trees=1, n_pairs=1)
    with Recorder(model, perf_counter(), 1, 100) as record:
        record(step, None)
        record._began -= 1600  # as if so much time had passed
        if verbose:
            record._bar.start_t -= 1600
            record._bar.last_print_t -= 1600
        monkeypatch.setattr(WATCH, "seconds", WATCH.seconds + 1600)
        assert record(step, None) is None  # there is time for an iteration such as the last one was without
        assert record.history[-1].seconds > 1600
        if verbose:
            assert record._bar.format_dict["elapsed"] < 100
            assert record._bar.format_dict["rate"] is None or record._bar.format_dict["rate"] > 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_during_a_kernel_is_an_interrupt():
    """A kernel that returned arrays made a SystemError of it."""
    labels = np.random.default_rng(0).integers(0, 1000, 3_000_000).astype(np.int32)
    group_by_label(labels, 1000)  # compiled

    def group_forever():
        while True:
            group_by_label(labels, 1000)

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(5):
            signal.setitimer(signal.ITIMER_REAL, 0.002)
            with pytest.raises(KeyboardInterrupt):
                group_forever()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
