"""Random partition trees, and the neighbourhoods of an iteration, which are their leaves (sections 3.1 and 3.4).

A tree is balanced and binary; each node is split at the median along a principal direction of a random sample of its
points. Only the leaves are kept: a finished tree is a permutation of the points and the offsets of its leaves. Leaves
differ in size by at most one point, whatever the data.

A point's neighbourhood is the union of the leaves that hold it. The paper grows trees and keeps them (``kept.py``). The
default draws one new tree for every iteration, uses it and forgets it: over the iterations a point meets far more
neighbours than kept trees could hold. In the first iteration from a tree, whole leaves of that tree are neighbours, and
a tree over leaves costs nothing. Where clusters are few, all of them are tested, which takes no longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.extmath import randomized_svd

from closure_kmeans import kernels
from closure_kmeans.method import Method
from closure_kmeans.parallel import Threads, blas

# Rows of a node whose principal direction splits it.
NODE_SAMPLE = 32
# Rows from which the principal directions of all the data are computed.
DATA_SAMPLE = 10_000
# Uniform random numbers from which a tree draws its samples.
N_DRAWS = 4096
# Nodes are split level by level until every thread has this many; then come whole subtrees of equal size.
TOP_NODES_PER_THREAD = 4
# Leaf size: LEAF_POINTS (n / k) ** LEAF_POWER. A leaf then has about as many clusters whatever their number is.
LEAF_POINTS, LEAF_POWER = 47, 0.4
# Largest leaf when leaves are doubled to reach ``target_accuracy``; larger ones no longer help.
LARGEST_LEAF = 4096
# Points in a block that is tested with all clusters.
BLOCK_POINTS = 1024


class RandomPartition(NamedTuple):
    """Random partition of the points into leaves: a finished tree, or blocks that are open to all clusters.

    See Also
    --------
    closure_kmeans.metrics.coverage : Measures partitions.

    Examples
    --------
    >>> halves = RandomPartition(np.arange(4, dtype=np.int32), np.array([0, 2, 4]))
    >>> halves.members[halves.starts[1] : halves.starts[2]].tolist()
    [2, 3]
    """

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
    """Merge groups of leaves into larger leaves; the points are in the order of the leaves.

    >>> unite_leaves(np.array([0, 2, 3, 5]), RandomPartition(np.array([2, 0, 1]), np.array([0, 2, 3])))
    RandomPartition(members=array([3, 4, 0, 1, 2], dtype=int32), starts=array([0, 4, 5]), open_to_all=False)
    """
    sizes = np.diff(starts)[groups.members]
    ends = np.append(0, np.cumsum(sizes))
    members = np.repeat((starts[groups.members] - ends[:-1]).astype(np.int32), sizes)
    members += np.arange(len(members), dtype=np.int32)
    return RandomPartition(members, ends[groups.starts])


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


# -- neighbourhoods ----------------------------------------------------------------------------------------------------


class Leaves(Protocol):
    """The leaves of a random partition, or a recipe from which a store grows them."""

    @property
    def open_to_all(self) -> bool:
        """Whether points are tested with every cluster, not only with those in their leaf."""


LeavesOf = TypeVar("LeavesOf", bound=Leaves)
# Grows a random partition into leaves of at most this many points.
Grow = Callable[[int], LeavesOf]


def suitable_leaf_size(n_points: int, n_clusters: int) -> int:
    """Default number of points in a leaf of a fresh tree.

    >>> suitable_leaf_size(1_000_000, 100_000), suitable_leaf_size(1_000_000, 1000)
    (118, 745)
    """
    return round(LEAF_POINTS * math.pow(n_points / n_clusters, LEAF_POWER))


class Neighborhoods(Protocol[LeavesOf]):
    """The leaves of each iteration, and how they grow when they are used up; by default they do not."""

    def leaves(self) -> list[LeavesOf]:
        """The partitions whose leaves, united, are the neighbourhoods in the next iteration."""

    def expand(self, fall: float, settled: bool, accuracy: float | None) -> bool:
        """Enlarge the neighbourhoods if an iteration used them up; whether they are larger now.

        ``fall`` is the relative fall of the distortion; ``settled`` says that it is below ``tol``, or that no point
        moved; ``accuracy`` is the share of points assigned to their nearest centre, where it was measured.
        """
        return False

    def state(self) -> dict[str, NDArray[Any]]:
        """State that later partitions depend on, apart from the random generator."""
        return {}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore a state; trees that it lacks are grown again."""
        return


@dataclass
class FreshNeighborhoods(Neighborhoods[LeavesOf]):
    """One new partition in every iteration; the ``first`` may be given.

    Once the fit has settled while too many points still miss their nearest centre, the leaves are doubled, up to
    ``largest`` or ``LARGEST_LEAF`` points.
    """

    grow: Grow[LeavesOf]
    leaf_size: int
    largest: int
    target_accuracy: float
    first: LeavesOf | None = None

    def leaves(self) -> list[LeavesOf]:
        """A new partition."""
        return [self.grow(self.leaf_size) if self.first is None else self.first]

    def expand(self, fall: float, settled: bool, accuracy: float | None) -> bool:
        """Go on to new trees after a given first partition; double the leaves for the accuracy asked for."""
        if self.first is not None:
            self.first = None
            return True
        largest = min(self.largest, LARGEST_LEAF)
        accurate = accuracy is None or accuracy >= self.target_accuracy
        if not settled or accurate or self.leaf_size >= largest:
            return False
        self.leaf_size = min(2 * self.leaf_size, largest)
        return True

    def state(self) -> dict[str, NDArray[Any]]:
        """The size of the leaves."""
        return {"leaf_size": np.array([self.leaf_size])}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore the leaf size; the given first partition is not used again."""
        self.first = None
        (self.leaf_size,) = state["leaf_size"].tolist()
        if not self.leaf_size > 0:
            raise ValueError(f"leaves must have at least one point, got {self.leaf_size}")


class AllClusters(Neighborhoods[RandomPartition]):
    """Every cluster is a candidate of every point: the assignment is exact."""

    def __init__(self, n_points: int) -> None:
        starts = np.append(np.arange(0, n_points, BLOCK_POINTS), n_points)
        self._blocks = RandomPartition(np.arange(n_points, dtype=np.int32), starts, open_to_all=True)

    def leaves(self) -> list[RandomPartition]:
        """The points in blocks."""
        return [self._blocks]


def fresh_neighborhoods(
    grow: Grow[LeavesOf],
    n_points: int,
    n_clusters: int,
    method: Method,
    target_accuracy: float,
    *,
    largest: int | None = None,
    first: LeavesOf | None = None,
) -> FreshNeighborhoods[LeavesOf]:
    """One new partition in every iteration, with leaves of at most ``largest`` points, by default of all points."""
    leaf_size = method.leaf_size or suitable_leaf_size(n_points, n_clusters)
    return FreshNeighborhoods(grow, leaf_size, largest or n_points, target_accuracy, first)
