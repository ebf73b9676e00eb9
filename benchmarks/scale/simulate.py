"""Replay stragglers and failures under the model.

Machines have slots; a task goes to a free slot and takes its time, or longer on a machine that is slow in this
iteration. A machine that fails loses the tasks under way and the results that it holds, and comes back after a while;
Dask has others do these tasks again. An iteration ends when the results of all tasks are there; the driver then works
alone, and a machine that fails meanwhile loses nothing.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Troubles:
    """What goes wrong."""

    slow_share: float = 0.0  # machines that are slow in an iteration
    slowness: float = 3.0  # how much longer they take
    hours_between_failures: float = float("inf")  # of one machine
    restart: float = 60.0  # seconds until it is back


class Outcome(NamedTuple):
    seconds: float  # an iteration, on average
    n_failures: int
    n_repeated: int  # tasks that were done again


class Machines:
    """Which machines are up. Each fails and comes back, over and over."""

    def __init__(self, n_machines: int, troubles: Troubles, rng: np.random.Generator) -> None:
        self.up = [True] * n_machines
        self.n_failures = 0
        self._restart = troubles.restart
        self._mean_gap = troubles.hours_between_failures * 3600
        self._rng = rng
        self._changes: list[tuple[float, int]] = []  # when a machine fails if it is up, and is back if it is not
        if np.isfinite(self._mean_gap):
            self._changes = [(rng.exponential(self._mean_gap), machine) for machine in range(n_machines)]
            heapq.heapify(self._changes)

    @property
    def next_change(self) -> float:
        return self._changes[0][0] if self._changes else np.inf

    def change(self) -> int:
        """The machine that changes next fails, or comes back."""
        time, machine = heapq.heappop(self._changes)
        self.n_failures += self.up[machine]
        lasts = self._restart if self.up[machine] else self._rng.exponential(self._mean_gap)
        self.up[machine] = not self.up[machine]
        heapq.heappush(self._changes, (time + lasts, machine))
        return machine


def simulate(
    n_machines: int,
    slots: int,
    n_tasks: int,
    task_seconds: float,
    serial_seconds: float,
    troubles: Troubles,
    n_iterations: int = 50,
    seed: int = 0,
) -> Outcome:
    """Replay a fit. Each trouble has numbers of its own, so that what is slow is the same with failures and without."""
    slow, failing = (np.random.default_rng([seed, stream]) for stream in range(2))
    machines = Machines(n_machines, troubles, failing)
    clock, n_repeated = 0.0, 0
    for _ in range(n_iterations):
        while machines.next_change <= clock:
            machines.change()
        factors = np.where(slow.random(n_machines) < troubles.slow_share, troubles.slowness, 1.0)
        clock, n_lost = run_tasks(machines, slots, n_tasks, (task_seconds * factors).tolist(), clock)
        clock += serial_seconds
        n_repeated += n_lost
    return Outcome(clock / n_iterations, machines.n_failures, n_repeated)


def run_tasks(machines: Machines, slots: int, n_tasks: int, seconds: list[float], clock: float) -> tuple[float, int]:
    """When the results of all tasks are there, given what one takes on each machine; and how many were lost."""
    free = [(slot, machine) for slot in range(slots) for machine, is_up in enumerate(machines.up) if is_up]
    running: list[tuple[float, int, int]] = []  # when it ends, slot, machine
    held = [0] * len(seconds)  # results of each machine
    waiting, n_lost = n_tasks, 0
    while waiting or running:
        while waiting and free:
            slot, machine = heapq.heappop(free)
            heapq.heappush(running, (clock + seconds[machine], slot, machine))
            waiting -= 1
        if not running or machines.next_change < running[0][0]:
            clock = machines.next_change
            machine = machines.change()
            if machines.up[machine]:
                free += [(slot, machine) for slot in range(slots)]
            else:
                kept = [task for task in running if task[2] != machine]
                lost = len(running) - len(kept) + held[machine]
                running, held[machine] = kept, 0
                free = [place for place in free if place[1] != machine]
                heapq.heapify(running)
                waiting += lost
                n_lost += lost
            heapq.heapify(free)
        else:
            clock, slot, machine = heapq.heappop(running)
            held[machine] += 1
            heapq.heappush(free, (slot, machine))
    return clock, n_lost
