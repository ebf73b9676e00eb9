"""Replay stragglers and failures under the model.

Machines have slots; a task goes to the first free slot and takes its time times a factor of the machine, which is slow
now and then, and a little noise. A machine that fails loses the tasks under way and the results that no merge has
fetched yet, and comes back after a while; Dask has others do these tasks again. An iteration ends when the results of
all tasks are there; the driver then works alone.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Troubles:
    """What goes wrong."""

    noise: float = 0.05  # standard deviation of the logarithm of a task's time
    slow_share: float = 0.0  # machines that are slow in an iteration
    slowness: float = 3.0  # how much longer they take
    hours_between_failures: float = float("inf")  # of one machine
    restart: float = 60.0  # seconds until it is back


class Outcome(NamedTuple):
    seconds: float  # an iteration, on average
    n_failures: int
    n_repeated: int  # tasks that were done again


def simulate(
    n_machines: int,
    slots: int,
    n_tasks: int,
    task_seconds: float,
    serial_seconds: float,
    troubles: Troubles,
    *,
    n_iterations: int = 50,
    seed: int = 0,
) -> Outcome:
    """Replay a fit. Each trouble has numbers of its own, so that what is slow is the same with failures and without."""
    slow, failing, noise = (np.random.default_rng([seed, stream]) for stream in range(3))
    mean_gap = troubles.hours_between_failures * 3600
    next_failure = failing.exponential(mean_gap, n_machines) if np.isfinite(mean_gap) else np.full(n_machines, np.inf)
    clock, n_failures, n_repeated = 0.0, 0, 0
    for _ in range(n_iterations):
        factors = np.where(slow.random(n_machines) < troubles.slow_share, troubles.slowness, 1.0)
        free = [(clock, machine, slot) for machine in range(n_machines) for slot in range(slots)]
        heapq.heapify(free)
        queue, end = n_tasks, clock
        done: list[list[float]] = [[] for _ in range(n_machines)]  # when the results that each machine holds were ready
        while queue:
            now, machine, slot = heapq.heappop(free)
            seconds = task_seconds * factors[machine] * noise.lognormal(0, troubles.noise)
            if now + seconds > next_failure[machine]:
                failed_at = next_failure[machine]
                n_failures += 1
                lost = len(done[machine])
                done[machine].clear()
                queue += lost
                n_repeated += lost + 1
                back = max(now, failed_at) + troubles.restart
                next_failure[machine] = back + failing.exponential(mean_gap)
                free = [(max(t, back) if m == machine else t, m, s) for t, m, s in free]
                free.append((back, machine, slot))
                heapq.heapify(free)
                continue
            queue -= 1
            done[machine].append(now + seconds)
            end = max(end, now + seconds)
            heapq.heappush(free, (now + seconds, machine, slot))
        clock = end + serial_seconds
    return Outcome(clock / n_iterations, n_failures, n_repeated)
