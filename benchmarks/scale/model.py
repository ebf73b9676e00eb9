"""The cost of an iteration on a cluster: bytes, flops, memory and time, from constants that were measured.

An iteration is: every partition assigned by a task; the sums merged and sent to the driver; the driver's own work, all
of it serial; the next file of centres read by workers. The time is the sum of these, each as long as its slowest part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from closure_kmeans.distributed.cluster import LEFT_TO_THE_DRIVER, MERGED_TOGETHER
from closure_kmeans.distributed.layout import CELLS_PER_PARTITION


@dataclass(frozen=True)
class Machine:
    """What a machine of the cluster can do. The defaults are those of an ordinary server in a cloud."""

    cores: int = 16
    memory: float = 64e9
    network: float = 1.25e9  # bytes a second, 10 Gbit/s
    storage: float = 1.0e9  # bytes a second that it reads from the storage that all share
    holds_rows: bool = True  # whether its share of the rows stays in its memory, if that is large enough


@dataclass(frozen=True)
class Constants:
    """Measured by ``python -m benchmarks.scale costs``: seconds of one core."""

    assign: float  # a point and iteration: labels read, coordinates, tree, assignment, sums, labels written
    add: float  # a value of the sums, for the driver to add it
    near: float  # a pair of centre and cell, for the workers to find which are near each other
    sort: float  # a pair of centre and partition that it is near, for the driver to list it
    finish: float  # a value of the centres: from the sums to the file
    replicas: float  # partitions that a cluster has points in, on average, where each has about 600 clusters
    entered: float  # partitions that a centre is entered into, on average
    task: float  # of the scheduler, for a task


class Iteration(NamedTuple):
    """What an iteration takes: bytes in all, bytes of memory, seconds."""

    assign: float
    read: float
    merge: float
    add: float
    near: float
    sort: float
    finish: float
    centers: float
    tasks: float
    sums_bytes: float
    wire_bytes: float
    worker_memory: float
    driver_memory: float
    flops: float

    @property
    def seconds(self) -> float:
        return sum(self[:9])

    @property
    def bottleneck(self) -> str:
        """The longest part."""
        names = {
            "assign": "the workers' cores",
            "read": "reading the rows from the storage",
            "merge": "the network that the sums come by",
            "add": "the driver, adding the sums",
            "near": "the workers, finding the centres near each partition",
            "sort": "the driver, listing the centres near each partition",
            "finish": "the driver, computing and writing the centres",
            "centers": "reading the centres",
            "tasks": "the scheduler",
        }
        return names[max(names, key=lambda name: getattr(self, name))]


TREE_DIMS = 16
LEAF_CANDIDATES = 80  # clusters that a point is tested with


def sums_bytes(n_entries: float, width: int) -> float:
    """Bytes of the sums of so many clusters: float64 sums, size and squares, an int32 id."""
    return n_entries * (8 * width + 20)


def iteration(
    n_points: float,
    width: int,
    n_clusters: float,
    n_machines: int,
    constants: Constants,
    machine: Machine,
    *,
    n_partitions: int | None = None,
    row_bytes: int | None = None,
) -> Iteration:
    """What an iteration takes on so many machines; one partition a core, unless said otherwise."""
    n_cores = n_machines * machine.cores
    n_partitions = n_partitions or n_cores
    row_bytes = row_bytes or width
    n_rounds = math.ceil(n_partitions / n_cores)
    per_partition = n_points / n_partitions
    # A cluster lies in several partitions; merged, it comes to the driver nearly once.
    entries = n_clusters * constants.replicas
    n_levels = max(0, math.ceil(math.log(n_partitions / LEFT_TO_THE_DRIVER, MERGED_TOGETHER)))
    to_driver = sums_bytes(n_clusters * (1.2 if n_levels else constants.replicas), width)
    one_partial = sums_bytes(entries / n_partitions, width)
    # On each level a task fetches the sums of eight others; they grow as fewer are left.
    merging = sum(
        min(sums_bytes(n_clusters / LEFT_TO_THE_DRIVER, width), one_partial * MERGED_TOGETHER**level)
        * MERGED_TOGETHER
        / machine.network
        for level in range(n_levels)
    )
    values = n_clusters * width
    rows_of_machine = n_points * row_bytes / n_machines
    in_memory = machine.holds_rows and rows_of_machine < machine.memory / 2
    touched = entries / n_partitions + constants.entered * n_clusters / n_partitions
    centers_of_machine = min(4 * values, touched * 4 * width * n_partitions / n_machines) * 2
    return Iteration(
        assign=constants.assign * per_partition * n_rounds,
        read=0.0 if in_memory else rows_of_machine / machine.storage,
        merge=merging + to_driver / machine.network,
        add=constants.add * to_driver / 8,
        near=constants.near * n_clusters * CELLS_PER_PARTITION * n_rounds,
        sort=constants.sort * n_clusters * constants.entered,
        finish=constants.finish * values / machine.cores + 4 * values / machine.storage,
        centers=centers_of_machine / machine.storage,
        tasks=constants.task * n_partitions * (2 + 1 / MERGED_TOGETHER),
        sums_bytes=sums_bytes(entries, width),
        wire_bytes=(sums_bytes(entries, width) if n_levels else 0) + to_driver + 8 * constants.entered * n_clusters,
        worker_memory=machine.cores
        * max(per_partition * (row_bytes + 4 * TREE_DIMS + 48) + touched * 12 * width, n_clusters * 4 * TREE_DIMS),
        driver_memory=values * (8 + 4 * 4),
        flops=2 * n_points * width * LEAF_CANDIDATES,
    )
