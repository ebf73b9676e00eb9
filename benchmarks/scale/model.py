"""The cost of an iteration on a cluster: bytes, flops, memory and time, from constants that were measured.

An iteration is: every partition assigned by a task; the sums merged and sent to the driver; the driver's own work, all
of it serial; the centres near partitions found by tasks; the next file of centres read by workers. The time is the sum
of these, each as long as its slowest part. Sums are taken to be merged on other machines than those they were made on:
where there are few machines, fewer bytes go over the wire.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from closure_kmeans.distributed.cluster import MERGED_FETCHED_TOGETHER, plan_merges
from closure_kmeans.distributed.layout import PIECES_PER_PARTITION
from closure_kmeans.distributed.passes import CENTERS_READ, sums_bytes
from closure_kmeans.distributed.store import count_merged
from closure_kmeans.nearest import SAMPLE_ROWS
from closure_kmeans.stores.layout import BLOCK_CENTERS, BLOCK_PAIRS, BYTES_PER_SLAB_POINT


@dataclass(frozen=True)
class Machine:
    """What a machine of the cluster can do. The defaults are those of an ordinary server in a cloud."""

    cores: int = 16
    memory: float = 64e9
    network: float = 1.25e9  # bytes a second, 10 Gbit/s
    storage: float = 1.0e9  # bytes a second that it reads from, or writes to, the storage that all share
    holds_rows: bool = True  # whether its share of the rows stays in its memory, if that is large enough


@dataclass(frozen=True)
class Constants:
    """Measured by ``python -m benchmarks.scale costs`` and ``replicas``: seconds, of one core where one computes."""

    assign: float  # a point and iteration, on average: coordinates, tree, assignment, sums
    slowest: float  # how many times as long the slowest partition takes
    add: float  # a value of the sums, to add it
    near: float  # a pair of centre and piece, for the workers to find which are near each other
    group: float  # a pair of centre and partition that it is near, for the driver to list it
    finish: float  # a value of the centres: sums set to zero, means, coordinates
    task: float  # a task sent, and told of as done
    move: float  # a byte of a result, from one process to another: packed, sent and unpacked
    start: float  # what a task takes however little it has to do: files that are opened
    write: float  # a file written for good, however small
    remove: float  # a file removed
    candidates: float  # clusters that a point is tested with, on average
    replicas: float  # partitions that a cluster has points in, on average
    merged: float  # sums of a cluster that reach the driver, on average, where tasks have merged them
    entered: float  # partitions that a centre is entered into, on average


class Iteration(NamedTuple):
    """What an iteration takes: seconds, bytes in all, bytes of memory."""

    assign: float
    rows: float
    labels: float
    merge: float
    sums: float
    add: float
    near: float
    list: float
    centers: float
    read: float
    files: float
    tasks: float
    sums_bytes: float
    wire_bytes: float
    task_memory: float
    worker_memory: float
    driver_memory: float
    flops: float

    @property
    def seconds(self) -> float:
        return sum(self[: len(PARTS)])

    @property
    def bottleneck(self) -> str:
        """The longest part."""
        return PARTS[max(PARTS, key=lambda name: getattr(self, name))]


# What takes time, and who is meant.
PARTS = {
    "assign": "the workers' cores",
    "rows": "reading the rows from the storage",
    "labels": "reading and writing the labels",
    "merge": "merging the sums",
    "sums": "the driver, receiving the sums",
    "add": "the driver, adding the sums",
    "near": "the workers, finding the centres near each partition",
    "list": "the driver, listing the centres near each partition",
    "centers": "the driver, computing and writing the centres",
    "read": "reading the centres",
    "files": "opening, writing and removing files",
    "tasks": "the scheduler",
}
TREE_DIMS = 16
FILES_OF_THE_DRIVER = 2  # the coordinates of the centres, and the centres
# Bytes in memory: what a task keeps of a value of a cluster that it touches (the centre, the sums, and those that are
# sent), of each cluster (whether it is touched, and its place), and of pairs of centre and piece (scores and places).
TOUCHED_VALUE_BYTES, CLUSTER_BYTES, PAIR_BYTES = 4 + 8 + 8, 1 + 4, 4 + 4 + 8


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
    # A cluster lies in several partitions, and in fewer groups of them.
    entries = n_clusters * constants.replicas
    levels = [len(groups) for groups in plan_merges(n_partitions, count_merged(int(n_clusters), width))]
    to_driver = sums_bytes(n_clusters * (constants.merged if levels else constants.replicas), width)
    merged_task = max((sums_bytes(entries, width) / n_groups for n_groups in levels), default=0.0)
    # On each level a task fetches the sums of several others and adds them: no more than there were at first.
    merge = sum(
        sums_bytes(entries, width)
        / n_groups
        * (
            math.ceil(n_groups / n_machines) / machine.network
            + math.ceil(n_groups / n_cores) * (constants.move + constants.add / 8)
        )
        for n_groups in levels
    )
    values = n_clusters * width
    pairs = constants.entered * n_clusters
    rows_of_machine = n_points * row_bytes / n_machines
    in_memory = machine.holds_rows and rows_of_machine < machine.memory / 2
    # A centre is entered where its cluster has points, and farther.
    touched = max(entries, pairs) / n_partitions
    centers_of_machine = min(4 * values, touched * 4 * width * n_partitions / n_machines) * 2
    slowest = constants.slowest if n_partitions > 1 else 1.0
    n_pieces = PIECES_PER_PARTITION * n_partitions
    layout = SAMPLE_ROWS * row_bytes + n_pieces * 4 * (TREE_DIMS + 1)
    task_memory = (
        layout
        + (per_partition + pairs / n_partitions) * (row_bytes + 4 * TREE_DIMS + BYTES_PER_SLAB_POINT)
        + touched * TOUCHED_VALUE_BYTES * width
        + CLUSTER_BYTES * n_clusters
    )
    return Iteration(
        assign=constants.assign * per_partition * max(slowest, n_rounds),
        rows=0.0 if in_memory else rows_of_machine / machine.storage,
        labels=2 * 4 * n_points / n_machines / machine.storage,
        merge=merge,
        sums=(constants.move + 1 / machine.network) * (to_driver + 8 * pairs),
        add=constants.add * to_driver / 8,
        near=constants.near * n_clusters * PIECES_PER_PARTITION * n_rounds,
        list=constants.group * pairs,
        centers=constants.finish * values + 4 * (values + TREE_DIMS * n_clusters + pairs) / machine.storage,
        read=centers_of_machine / machine.storage,
        files=n_rounds * (2 * constants.start + constants.write)
        + FILES_OF_THE_DRIVER * constants.write
        + n_partitions * constants.remove,
        tasks=constants.task * (2 * n_partitions + sum(levels)),
        sums_bytes=sums_bytes(entries, width),
        wire_bytes=(len(levels) * sums_bytes(entries, width)) + to_driver + 8 * pairs,
        task_memory=task_memory,
        worker_memory=machine.cores
        * max(
            task_memory,
            2 * merged_task,
            layout + 4 * TREE_DIMS * CENTERS_READ + PAIR_BYTES * min(BLOCK_CENTERS * n_pieces, BLOCK_PAIRS),
        ),
        driver_memory=values * (8 + 2 * 4) + MERGED_FETCHED_TOGETHER * to_driver / (levels or [n_partitions])[-1],
        flops=2 * n_points * width * constants.candidates,
    )
