"""Random partition trees (section 3.4): which points are neighbours.

A tree is balanced and binary; each node is split at the median along a principal direction of a random sample of its
points. Only the leaves are kept: a finished tree is a permutation of the points and the offsets of its leaves. Leaves
differ in size by at most one point, whatever the data.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.extmath import randomized_svd

from closure_kmeans import kernels
from closure_kmeans.parallel import Threads, blas

# Rows of a node whose principal direction splits it.
NODE_SAMPLE = 32
# Rows from which the principal directions of all the data are computed.
DATA_SAMPLE = 10_000
# Uniform random numbers from which a tree draws its samples.
N_DRAWS = 4096
# Nodes are split level by level until every thread has this many; then come whole subtrees of equal size.
TOP_NODES_PER_THREAD = 4


class RandomPartition(NamedTuple):
    """A random partition of the points into small leaves: a finished tree, or blocks that are open to all clusters."""

    members: NDArray[np.int32]  # (n,) point ids, leaf after leaf
    starts: NDArray[np.int64]  # (n_leaves + 1,) leaf l holds members[starts[l]:starts[l + 1]]
    open_to_all: bool = False  # whether points are tested with every cluster, not only with those in their leaf


def cut_evenly(n_points: int, n_pieces: int) -> NDArray[np.int64]:
    """Offsets of pieces that differ in size by at most one point; the last offset is the end.

    >>> cut_evenly(10, 4)
    array([ 0,  2,  5,  7, 10])
    """
    return np.arange(n_pieces + 1, dtype=np.int64) * n_points // n_pieces


def unite_leaves(starts: NDArray[np.int64], groups: RandomPartition) -> RandomPartition:
    """The points of whole groups of leaves as a partition; the points lie in the order of the leaves.

    >>> unite_leaves(np.array([0, 2, 3, 5]), RandomPartition(np.array([2, 0, 1]), np.array([0, 2, 3])))
    RandomPartition(members=array([3, 4, 0, 1, 2], dtype=int32), starts=array([0, 4, 5]), open_to_all=False)
    """
    sizes = np.diff(starts)[groups.members]
    ends = np.append(0, np.cumsum(sizes))
    members = np.repeat((starts[groups.members] - ends[:-1]).astype(np.int32), sizes)
    members += np.arange(len(members), dtype=np.int32)
    return RandomPartition(members, ends[groups.starts])


def check_partition(partition: RandomPartition) -> None:
    """Raise unless every point is in exactly one leaf."""
    members, starts = partition.members, partition.starts
    n_points = len(members)
    if members.dtype != np.int32 or not np.array_equal(np.sort(members), np.arange(n_points)):
        raise ValueError(f"the members of a partition must be the points from 0 to {n_points - 1}, each once")
    if starts.dtype != np.int64 or starts[0] != 0 or starts[-1] != n_points or (np.diff(starts) < 0).any():
        raise ValueError(f"the leaves of a partition must begin at 0 and end at {n_points}, one after the other")


def grow_partition(
    rows: NDArray[Any],
    offset: NDArray[Any],
    n_leaves: int,
    rng: np.random.Generator,
    threads: Threads,
) -> RandomPartition:
    """Grow one random partition tree over all rows, down to ``n_leaves`` leaves of equal size.

    Parameters
    ----------
    rows : (n, d) array
        The points.
    offset : (d,) array
        Subtracted from every row as it is read; its dtype is the precision of the computation.
    n_leaves : int
        At most n. Leaf l gets the points of ranks l n / n_leaves to (l + 1) n / n_leaves.
    """
    n_points = len(rows)
    starts = cut_evenly(n_points, n_leaves)
    members = np.arange(n_points, dtype=np.int32)
    draws = rng.random(N_DRAWS)
    nodes = np.array([0, n_leaves], dtype=np.int64)

    def grow(max_depth: int) -> None:
        def split(first: int, last: int) -> None:
            memory = kernels.trees.node_memory(starts[nodes[last]] - starts[nodes[first]], NODE_SAMPLE, offset)
            kernels.trees.grow_nodes(rows, offset, members, starts, nodes, draws, max_depth, memory, first, last)

        threads.for_each_block(split, len(nodes) - 1, 1)

    while len(nodes) <= min(TOP_NODES_PER_THREAD * threads.n_threads, n_leaves):
        grow(max_depth=1)
        nodes = np.unique(np.concatenate([nodes, (nodes[:-1] + nodes[1:]) // 2]))
    grow(max_depth=64)
    return RandomPartition(members, starts)


def grow_leaves(
    coordinates: NDArray[Any], origin: NDArray[Any], leaf_size: int, rng: np.random.Generator, threads: Threads
) -> RandomPartition:
    """A random partition of points into leaves of at most ``leaf_size``; ``origin`` is the mean of the coordinates."""
    return grow_partition(coordinates, origin, -(-len(coordinates) // leaf_size), rng, threads)


@blas.held()
def principal_axes(sample: NDArray[Any], n_axes: int, seed: int) -> NDArray[Any]:
    """The first principal directions of a centred sample, one a column."""
    _, _, directions = randomized_svd(sample, n_axes, random_state=seed)
    return np.ascontiguousarray(directions.T.astype(sample.dtype, copy=False))
