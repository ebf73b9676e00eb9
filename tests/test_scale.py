"""The cost model of fits on a cluster, and its simulator."""

import numpy as np
import pytest

pytest.importorskip("distributed")

from benchmarks.scale.model import Constants, Machine, iteration
from benchmarks.scale.simulate import Troubles, simulate
from closure_kmeans.distributed.passes import Sums, sums_bytes
from closure_kmeans.slabs import Totals

CONSTANTS = Constants(
    assign=1e-6,
    slowest=1.2,
    add=1e-9,
    near=1e-9,
    group=1e-9,
    finish=1e-9,
    task=1e-3,
    move=1e-9,
    start=1e-3,
    write=1e-2,
    replicas=4.0,
    merged=2.0,
    entered=4.0,
)
QUIET = Troubles(noise=0)


def test_the_model_counts_the_bytes_of_sums():
    sums = Sums(np.zeros(7, np.int32), Totals(np.zeros((7, 30)), np.zeros(7), np.zeros(7)), np.zeros(0), 0, 0)
    assert sums_bytes(7, 30) == sums.ids.nbytes + sum(total.nbytes for total in sums.totals)


def test_twice_the_machines_halve_what_they_share():
    few, many = (iteration(1e9, 128, 1e6, n, CONSTANTS, Machine(holds_rows=False)) for n in (10, 20))
    assert many.assign == pytest.approx(few.assign / 2)
    assert many.rows == pytest.approx(few.rows / 2)
    assert many.labels == pytest.approx(few.labels / 2)
    assert many.centers == few.centers
    assert few.bottleneck == "reading the rows from the storage"


def test_a_simulation_without_troubles_is_the_model():
    assert simulate(4, 2, 8, 3.0, 1.0, QUIET).seconds == pytest.approx(4)
    assert simulate(4, 2, 9, 3.0, 1.0, QUIET).seconds == pytest.approx(7)  # one task more, one round more


def test_stragglers_and_failures():
    slow = simulate(4, 1, 4, 3.0, 1.0, Troubles(noise=0, slow_share=1, slowness=2))
    assert slow.seconds == pytest.approx(7)
    failing = simulate(4, 1, 40, 10.0, 0.0, Troubles(noise=0, hours_between_failures=0.05, restart=20))
    assert failing.n_failures > 0
    assert failing.n_repeated >= failing.n_failures
    assert failing.seconds > 100  # ten rounds


def test_troubles_add_up():
    slow, failing = {"slow_share": 0.05}, {"hours_between_failures": 24}
    alone = [simulate(10, 16, 160, 5.0, 8.0, Troubles(noise=0, **trouble)).seconds for trouble in ({}, slow, failing)]
    both = simulate(10, 16, 160, 5.0, 8.0, Troubles(noise=0, **slow, **failing)).seconds
    assert both >= max(alone)
    assert min(alone) == alone[0]
