"""Kernels of random partition trees (section 3.4, "Implementation details").

A node is split at its median along the principal direction of a random sample of its rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from closure_kmeans.cache import kernel, part
from closure_kmeans.kernels.emit import Array
from closure_kmeans.kernels.rows import ROWS_AHEAD, SLACK, epsilon, load_row
from closure_kmeans.kernels.simd import prefetch, widen

# Lanczos steps for the principal direction of a node. They capture 99 % of the variance along the converged one.
LANCZOS_STEPS = 5
# Squarings of a small matrix until its largest eigenvalue dominates.
EIGENVECTOR_SQUARINGS = 10
# Norms within this factor count as equal when the farthest row is chosen, so that rounding does not choose it.
NEARLY_EQUAL = 1 + 1e-5

# From MANY_VALUES values on, select_rank first takes a sorted sample of RANK_SAMPLE values and keeps the values between
# its order statistics RANK_MARGIN below and RANK_MARGIN above the rank (Floyd–Rivest).
MANY_VALUES = 512
RANK_SAMPLE = 32
RANK_MARGIN = 5

# Nodes that wait to be split: one for each level of a tree over 2^31 rows, and more than enough.
STACK_SIZE = 64


class RankMemory(NamedTuple):
    """Memory for selecting a rank among at most m values."""

    kept: Array  # (m,)
    chosen: Array  # (m,) flags
    order: Array  # (RANK_SAMPLE,)


class NodeMemory(NamedTuple):
    """Memory for splitting nodes of at most m rows in d dimensions."""

    values: Array  # (m,) rows projected onto the direction
    rank: RankMemory
    moved: Array  # (m,) members
    sample: Array  # (n_samples, d)
    products: Array  # (n_samples,)
    direction: Array  # (d,)
    basis: Array  # (LANCZOS_STEPS, d) of the Krylov space
    scatter: Array  # (LANCZOS_STEPS, LANCZOS_STEPS) projected onto the basis: tridiagonal
    squared: Array  # (LANCZOS_STEPS, LANCZOS_STEPS)
    stack: Array  # (STACK_SIZE, 3) first leaf, end and depth of the nodes that wait to be split


def rank_memory(n_values: int, dtype: DTypeLike) -> RankMemory:
    """Memory for selecting a rank."""
    return RankMemory(
        kept=np.empty(n_values, dtype),
        chosen=np.empty(n_values, np.uint8),
        order=np.empty(RANK_SAMPLE, dtype),
    )


def node_memory(n_rows: int, n_samples: int, like: Array) -> NodeMemory:
    """Memory for splitting nodes of at most ``n_rows`` rows ``like`` a given one, by samples of ``n_samples``."""
    n_features, dtype = len(like), like.dtype
    return NodeMemory(
        values=np.empty(n_rows, dtype),
        rank=rank_memory(n_rows, dtype),
        moved=np.empty(n_rows, np.int32),
        sample=np.empty((n_samples, n_features), dtype),
        products=np.empty(n_samples, dtype),
        direction=np.empty(n_features, dtype),
        basis=np.empty((LANCZOS_STEPS, n_features), dtype),
        scatter=np.empty((LANCZOS_STEPS, LANCZOS_STEPS)),
        squared=np.empty((LANCZOS_STEPS, LANCZOS_STEPS)),
        stack=np.empty((STACK_SIZE, 3), np.int64),
    )


@kernel
def grow_nodes(
    rows: Array,
    offset: Array,
    members: Array,
    starts: Array,
    nodes: Array,
    draws: Array,
    max_depth: int,
    memory: NodeMemory,
    first: int,
    last: int,
) -> None:
    """Split nodes ``first <= node < last`` of a tree, and their children, up to ``max_depth`` levels down.

    Node ``v`` holds the leaves ``nodes[v] <= leaf < nodes[v + 1]``; leaf ``l`` holds ``members[starts[l]:starts[l +
    1]]``. A node is split at its middle leaf, which is the median along the principal direction of a sample of its
    rows. It writes only its own members, and its sample depends only on its leaves.
    """
    stack = memory.stack
    for v in range(first, last):
        stack[0, 0], stack[0, 1], stack[0, 2] = nodes[v], nodes[v + 1], 0
        top = 1
        while top > 0:
            top -= 1
            low, high, depth = stack[top, 0], stack[top, 1], stack[top, 2]
            if high - low < 2 or depth == max_depth:
                continue
            middle = (low + high) // 2
            node = members[starts[low] : starts[high]]
            n_left = starts[middle] - starts[low]
            draw_sample(rows, offset, node, draws, low + high, memory.sample)
            principal_direction(memory)
            project(rows, offset, node, memory)
            threshold = select_rank(memory.values, node.shape[0], n_left, memory.rank)
            split_stably(node, memory.values, threshold, n_left, memory.rank.chosen, memory.moved)
            stack[top, 0], stack[top, 1], stack[top, 2] = low, middle, depth + 1
            stack[top + 1, 0], stack[top + 1, 1], stack[top + 1, 2] = middle, high, depth + 1
            top += 2


@part
def draw_sample(rows: Array, offset: Array, node: Array, draws: Array, place: int, sample: Array) -> None:
    """Draw rows of a node at random, with replacement. Each node reads the random numbers from a place of its own."""
    for r in range(sample.shape[0]):
        draw = draws[(place + r) % draws.shape[0]]
        load_row(rows, node[int(draw * node.shape[0])], offset, sample, r)


# -- the principal direction -----------------------------------------------------------------------------------------


@part
def principal_direction(memory: NodeMemory) -> None:
    """Direction of the largest variance of a sample, by the Lanczos algorithm; zero if all rows are equal.

    The sample is centred in place. The algorithm starts at the row farthest from the mean, builds an orthonormal basis
    of the Krylov space of the scatter matrix, and returns the best direction in its span.
    """
    sample, direction, basis, scatter = memory.sample, memory.direction, memory.basis, memory.scatter
    size, n_features = sample.shape
    farthest, largest = center_sample(sample, direction)
    if largest == 0:
        for t in range(n_features):
            direction[t] = 0
        return
    n_steps = 0
    for i in range(LANCZOS_STEPS):
        for j in range(LANCZOS_STEPS):
            scatter[i, j] = 0
    for t in range(n_features):
        basis[0, t] = sample[farthest, t] / np.sqrt(largest)
    while n_steps < LANCZOS_STEPS:
        step = n_steps
        n_steps += 1
        apply_scatter(sample, basis[step], largest, memory.products, direction)
        for i in range(n_steps):
            overlap = 0.0  # of the direction with an earlier one, from which it is freed
            for t in range(n_features):
                overlap += direction[t] * basis[i, t]
            for t in range(n_features):
                direction[t] -= overlap * basis[i, t]
            if i == step:
                scatter[i, i] = overlap
        length = 0.0
        for t in range(n_features):
            length += direction[t] * direction[t]
        length = np.sqrt(length)
        # The residual is rounding only: the Krylov space is exhausted.
        if n_steps == LANCZOS_STEPS or length <= SLACK * epsilon(sample) * size:
            break
        scatter[step, n_steps] = scatter[n_steps, step] = length
        for t in range(n_features):
            basis[n_steps, t] = direction[t] / length
    for t in range(n_features):
        direction[t] = 0
    best = square_repeatedly(scatter, memory.squared, n_steps)
    for i in range(n_steps):
        for t in range(n_features):
            direction[t] += scatter[best, i] * basis[i, t]


@part
def center_sample(sample: Array, mean: Array) -> tuple[int, float]:
    """Centre a sample in place; return the row farthest from the mean and its squared distance."""
    size, n_features = sample.shape
    for t in range(n_features):
        mean[t] = 0
    for r in range(size):
        for t in range(n_features):
            mean[t] += sample[r, t]
    for t in range(n_features):
        mean[t] /= size
    farthest, largest = 0, 0.0
    for r in range(size):
        norm = 0.0
        for t in range(n_features):
            sample[r, t] -= mean[t]
            norm += sample[r, t] * sample[r, t]
        if norm > largest * NEARLY_EQUAL:
            farthest, largest = r, norm
    return farthest, largest


@part
def apply_scatter(sample: Array, vector: Array, scale: float, products: Array, out: Array) -> None:
    """Multiply the scatter matrix of a centred sample, divided by ``scale``, by a vector."""
    size, n_features = sample.shape
    for t in range(n_features):
        out[t] = 0
    for r in range(size):
        product = 0.0
        for t in range(n_features):
            product += sample[r, t] * vector[t]
        products[r] = product / scale
    for r in range(size):
        for t in range(n_features):
            out[t] += products[r] * sample[r, t]


@kernel
def square_repeatedly(matrix: Array, squared: Array, size: int) -> int:
    """Square the leading part of a small positive matrix in place, until its rows are the first eigenvector.

    Returns the row of the largest diagonal value.
    """
    for _ in range(EIGENVECTOR_SQUARINGS):
        trace = 0.0
        for i in range(size):
            trace += matrix[i, i]
        scale = 1 / (trace * trace)
        for i in range(size):
            for j in range(size):
                product = 0.0
                for between in range(size):
                    product += matrix[i, between] * matrix[between, j]
                squared[i, j] = product * scale
        for i in range(size):
            for j in range(size):
                matrix[i, j] = squared[i, j]
    largest = 0
    for i in range(1, size):
        if matrix[i, i] > matrix[largest, largest]:
            largest = i
    return largest


@part
def project(rows: Array, offset: Array, node: Array, memory: NodeMemory) -> None:
    """Project each row of a node onto the direction."""
    number = memory.values.dtype.type
    for i in range(node.shape[0]):
        prefetch(rows, node[min(i + ROWS_AHEAD, node.shape[0] - 1)], 0)  # the first cache line of the row
        row = node[i]
        value = number(0)
        for t in range(offset.shape[0]):
            value += (number(widen(rows[row, t])) - offset[t]) * memory.direction[t]
        memory.values[i] = value


# -- the median ------------------------------------------------------------------------------------------------------


@kernel
def select_rank(values: Array, n_values: int, rank: int, memory: RankMemory) -> Any:
    """Select the value of a given rank, from 0, among the first ``n_values``.

    Quickselect without branches: a loop that vectorises says which values stay. Values equal to the pivot are dropped
    in every round, so it ends on any input. Of many values, only the values around the rank are kept, in one pass.
    """
    kept, chosen = memory.kept, memory.chosen
    size, n_below = 0, 0
    if n_values >= MANY_VALUES:
        n_below, size = keep_around(values, n_values, rank, memory)
    if not n_below <= rank < n_below + size:
        n_below, size = 0, n_values
        for i in range(size):
            kept[i] = values[i]
    rank -= n_below
    while True:
        step = size // 9
        low = median(kept[0], kept[step], kept[2 * step])
        middle = median(kept[3 * step], kept[4 * step], kept[5 * step])
        high = median(kept[6 * step], kept[7 * step], kept[8 * step])
        pivot = median(low, middle, high)
        n_less, n_more = 0, 0
        for i in range(size):
            n_less += kept[i] < pivot
            n_more += kept[i] > pivot
        if rank < n_less:
            for i in range(size):
                chosen[i] = kept[i] < pivot
        elif rank >= size - n_more:
            rank -= size - n_more
            for i in range(size):
                chosen[i] = kept[i] > pivot
        else:
            return pivot
        size = keep_chosen(kept, size, chosen, kept)


@part
def keep_around(values: Array, n_values: int, rank: int, memory: RankMemory) -> tuple[int, int]:
    """Keep the values between two order statistics of a sample that bracket a rank.

    Returns the number of values below them and the number kept. The value of the rank is nearly always among them.
    """
    order, chosen = memory.order, memory.chosen
    for i in range(RANK_SAMPLE):  # insertion sort
        value = values[i * (n_values // RANK_SAMPLE)]
        place = i
        while place > 0 and order[place - 1] > value:
            order[place] = order[place - 1]
            place -= 1
        order[place] = value
    place = rank * RANK_SAMPLE // n_values
    number = values.dtype.type  # numbers of one type vectorise
    low = order[place - RANK_MARGIN] if place >= RANK_MARGIN else number(-np.inf)
    high = order[place + RANK_MARGIN] if place + RANK_MARGIN < RANK_SAMPLE else number(np.inf)
    n_below = 0
    for i in range(n_values):
        n_below += values[i] < low
        chosen[i] = 1 - ((values[i] < low) | (values[i] > high))
    return n_below, keep_chosen(values, n_values, chosen, memory.kept)


@part
def keep_chosen(values: Array, n_values: int, chosen: Array, kept: Array) -> Any:
    """Put the first values whose flags are 1 side by side, in place or elsewhere; return how many there are."""
    n_kept = np.uintp(0)  # a number without sign needs no check for negative indices
    for i in range(n_values):
        kept[n_kept] = values[i]
        n_kept += np.uintp(chosen[i])
    return np.intp(n_kept)


@part
def median(a: Any, b: Any, c: Any) -> Any:
    """Median of three values."""
    return max(min(a, b), min(max(a, b), c))


@part
def split_stably(node: Array, values: Array, threshold: Any, n_left: int, goes_left: Array, moved: Array) -> None:
    """Move the ``n_left`` smallest members to the front; both sides keep their order.

    Of the members equal to the threshold, the first ones go left, as many as are needed: any input splits evenly.
    """
    n_ties = n_left
    for i in range(node.shape[0]):
        goes_left[i] = values[i] < threshold
        n_ties -= values[i] < threshold
    for i in range(node.shape[0]):
        if n_ties == 0:
            break
        if not (values[i] < threshold or values[i] > threshold):
            goes_left[i] = 1
            n_ties -= 1
    n_here = np.uintp(0)
    for i in range(node.shape[0]):
        member = node[i]
        node[n_here] = member
        moved[np.uintp(i) - n_here] = member
        n_here += np.uintp(goes_left[i])
    for i in range(n_left, node.shape[0]):
        node[i] = moved[i - n_left]
