"""Every step of the engine alone, against what the machine can do.

    python -m benchmarks.kernels [--data PATH] [--rows N] [--clusters K] [--leaf-size L]

The limits are measured in the same run: a large matrix product, on one thread and on all, and a large copy. Steps and
limits take turns, several times, and medians are shown. A step's work is counted as the least that its method needs
(the formulas are beside the steps); its share of the limit is the time that this work would take at the machine's
limits, whichever of the two binds, over the time that it took.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks import data
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, append_row, markdown_table
from closure_kmeans import Method
from closure_kmeans.clusters import Clusters, update
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points
from closure_kmeans.stores import Rule
from closure_kmeans.stores.memory import arrange_points, assign_by_closures, measure_points, reorder
from closure_kmeans.trees import DATA_SAMPLE, RandomPartition, grow_partition, principal_axes, suitable_leaf_size

PRODUCT_SIZE = 3072
COPY_BYTES = 1 << 28
WARM_ITERATIONS = 5
RULE = Rule(hartigan=True)


@dataclass
class Step:
    name: str
    run: Callable[[], Any]
    flops: float = 0.0
    bytes: float = 0.0
    part: str = ""  # "tiles" or "rest" of an iteration, or "set-up"
    times: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return median(self.times)


@dataclass
class State:
    """The engine after a few iterations, so that the steps meet realistic labels."""

    X: NDArray[Any]
    points: Points
    labels: NDArray[np.int32]
    clusters: Clusters
    partition: RandomPartition
    n_leaves: int
    n_pairs: int


def prepare(X: NDArray[Any], n_clusters: int, leaf_size: int, tree_dims: int | None, threads: Threads) -> State:
    rng = np.random.default_rng(0)
    points, tree = arrange_points(X, np.ones(1), n_clusters, tree_dims, rng, threads)
    labels = np.repeat(np.arange(n_clusters, dtype=np.int32), np.diff(tree.starts))
    n_leaves = -(-len(X) // leaf_size)
    for _ in range(WARM_ITERATIONS):
        clusters = update(points, labels, n_clusters, threads)
        partition = grow_partition(points.coordinates, points.origin, n_leaves, rng, threads)
        labels, n_pairs = assign_by_closures(points, clusters, labels, [partition], RULE, threads)
    clusters = update(points, labels, n_clusters, threads)
    return State(X, points, labels, clusters, partition, n_leaves, n_pairs)


def limits(threads: Threads) -> list[Step]:
    size = PRODUCT_SIZE
    a, b = np.random.default_rng(0).random((2, size, size), np.float32)
    out = np.empty_like(a)
    source = np.ones(COPY_BYTES // 8)
    target = np.empty_like(source)

    def product(n_threads: int) -> None:
        with threadpool_limits(n_threads, user_api="blas"):
            np.dot(a, b, out=out)

    def copy() -> None:
        threads.for_each_block(lambda first, last: np.copyto(target[first:last], source[first:last]), len(source))

    counts = [1, threads.n_threads] if threads.n_threads > 1 else [1]
    products = [
        Step(f"matrix product, {count} thread{'s' * (count > 1)}", partial(product, count), 2 * size**3)
        for count in counts
    ]
    return [*products, Step(f"copy, {threads.n_threads} threads", copy, bytes=2 * COPY_BYTES)]


def steps(state: State, n_clusters: int, tree_dims: int | None, threads: Threads) -> list[Step]:
    """The steps and their least work."""
    points = state.points
    n, d = points.rows.shape
    item = points.rows.itemsize
    t, t_item = points.coordinates.shape[1], points.coordinates.itemsize
    rng = np.random.default_rng(1)
    order = rng.permutation(n).astype(np.int32)
    sample = state.X[: min(n, DATA_SAMPLE)].astype(points.offset.dtype) - points.offset
    leaf = n / state.n_leaves

    def tree_work(n_leaves: int) -> dict[str, float]:
        """Each level projects all rows (2 t) and reads their coordinates and ids and writes the ids."""
        levels = float(np.log2(n_leaves))
        return {"flops": levels * n * 2 * t, "bytes": levels * n * (t * t_item + 8)}

    found = [
        Step(
            "tiles: assignment in leaves",
            lambda: assign_by_closures(points, state.clusters, state.labels, [state.partition], RULE, threads),
            # 2 d a pair; rows, ids, labels, norms and scores once, and a leaf's candidates once
            flops=2 * d * state.n_pairs,
            bytes=n * (d * item + 20) + state.n_pairs / leaf * d * 4,
            part="tiles",
        ),
        Step(
            f"tree of {state.n_leaves:,} leaves",
            lambda: grow_partition(points.coordinates, points.origin, state.n_leaves, rng, threads),
            **tree_work(state.n_leaves),
            part="rest",
        ),
        Step(
            "update of the centres",
            lambda: update(points, state.labels.copy(), n_clusters, threads),
            # sums and squares of all values; rows, labels and ids once, centres once
            flops=4 * n * d,
            bytes=n * (d * item + 8) + n_clusters * d * 4,
            part="rest",
        ),
        Step(
            "set-up, all of it",
            lambda: arrange_points(state.X, np.ones(1), n_clusters, tree_dims, rng, threads),
            part="set-up",
        ),
        Step(
            f"set-up: first tree, {n_clusters:,} leaves",
            lambda: grow_partition(points.coordinates, points.origin, n_clusters, rng, threads),
            **tree_work(n_clusters),
            part="set-up",
        ),
        Step(
            "set-up: rows into another order",
            lambda: reorder(points.rows, order, threads),
            bytes=n * (2 * d * item + 4),
            part="set-up",
        ),
    ]
    if tree_dims is not None and tree_dims < d:
        axes = Step("set-up: principal axes", lambda: principal_axes(sample, tree_dims, 0), part="set-up")
        directions = np.eye(d, tree_dims, dtype=points.offset.dtype)
        projection = Step(
            "set-up: norms and projection",
            lambda: measure_points(state.X, points.offset, directions, False, threads),
            flops=n * d * (2 * tree_dims + 2),
            bytes=n * (d * item + tree_dims * 4 + 4),
            part="set-up",
        )
        found += [axes, projection]
    return found


def take_turns(measured: list[Step], repeats: int) -> None:
    """One round off the record, then each in turn."""
    for turn in range(repeats + 1):
        for step in measured:
            began = perf_counter()
            step.run()
            if turn > 0:
                step.times.append(perf_counter() - began)


def table_line(step: Step, product: Step, copy: Step) -> list[str]:
    peak_flops, peak_bytes = product.flops / product.seconds, copy.bytes / copy.seconds
    flops, moved = step.flops / step.seconds, step.bytes / step.seconds
    limit = max(step.flops / peak_flops, step.bytes / peak_bytes) / step.seconds
    return [
        step.name,
        f"{step.seconds:.4f}",
        f"{flops / 1e9:.1f}" if flops else "–",
        f"{100 * flops / peak_flops:.0f}" if flops else "–",
        f"{moved / 1e9:.1f}" if moved else "–",
        f"{100 * moved / peak_bytes:.0f}" if moved else "–",
        f"{100 * limit:.0f}" if limit else "–",
    ]


HEADER = ("step", "time, s", "GFLOP/s", "of the product, %", "GB/s", "of the copy, %", "of the limit, %")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--clusters", type=int, default=10_000)
    parser.add_argument("--leaf-size", type=int, help="by default what a fit takes")
    parser.add_argument("--tree-dims", type=int, default=Method().tree_dims, help="0: all")
    parser.add_argument("--dtype", default="uint8", choices=("uint8", "float32", "float16", "float64"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    X = data.load("sift", arguments.rows, arguments.data).astype(arguments.dtype)
    n_clusters = min(arguments.clusters, len(X) // 3)
    tree_dims = arguments.tree_dims or None
    leaf_size = arguments.leaf_size or suitable_leaf_size(len(X), n_clusters)
    with Threads(arguments.threads) as threads:
        state = prepare(X, n_clusters, leaf_size, tree_dims, threads)
        bounds = limits(threads)
        measured = steps(state, n_clusters, tree_dims, threads)
        take_turns([*bounds, *measured], arguments.repeats)
    product, copy = bounds[-2:]
    tiles = sum(step.seconds for step in measured if step.part == "tiles")
    rest = sum(step.seconds for step in measured if step.part == "rest")
    title = data.describe("sift", len(X), arguments.data)
    text = "\n\n".join(
        [
            f"{title}, {arguments.dtype}, into {n_clusters:,} clusters; leaves of {leaf_size}, "
            f"{state.n_pairs / len(X):.0f} candidates a row; {arguments.threads} threads; "
            f"medians of {arguments.repeats}.",
            markdown_table(HEADER, [table_line(step, product, copy) for step in (*bounds, *measured)]),
            f"An iteration: tiles {tiles:.3f} s, trees and update {rest:.3f} s ({rest / tiles:.2f} of the tiles).",
        ]
    )
    print(text)
    path = arguments.output / f"kernels-{arguments.dtype}-{len(X)}-{n_clusters}.md"
    path.write_text(f"# The kernels against the machine\n\n{text}\n")
    row = {
        "data_title": title,
        "dtype": arguments.dtype,
        "n_rows": len(X),
        "n_clusters": n_clusters,
        "leaf_size": leaf_size,
        "tree_dims": tree_dims,
        "threads": arguments.threads,
        "candidates": state.n_pairs / len(X),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "steps": [
            {"name": step.name, "part": step.part, "flops": step.flops, "bytes": step.bytes, "times": step.times}
            for step in (*bounds, *measured)
        ],
    }
    append_row(arguments.output / "kernels.jsonl", row)


if __name__ == "__main__":
    main()
