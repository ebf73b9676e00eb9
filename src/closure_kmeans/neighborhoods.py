"""Which leaves an iteration looks at.

A point's neighbourhood is the union of the leaves that hold it (section 3.1). The paper grows trees and keeps them,
all at once or one by one as they are needed (section 3.4). The default draws one new tree for every iteration, uses
it and forgets it: over the iterations a point meets far more neighbours than kept trees could hold. At the start, whole
cells of the first tree are neighbours, and a tree over cells costs nothing. Where clusters are few there is no need of
trees: to test all of them takes no longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.trees import RandomPartition, check_partition

# A leaf should have this many points, times this power of the points that a cluster has: then it has about as many
# clusters whatever their number is, and that number costs nothing.
LEAF_POINTS, LEAF_POWER = 47, 0.4
# Leaves that are doubled for the sake of accuracy end here: what they miss then is not missed for want of neighbours.
LARGEST_LEAF = 4096

# Up to here a point is tested with all clusters: a leaf has about as many.
FEW_CLUSTERS = 128
# Points in a block that is tested with all clusters.
BLOCK_POINTS = 1024

# Grows one random partition into leaves of at most so many points.
Grow = Callable[[int], RandomPartition]


def suitable_leaf_size(n_points: int, n_clusters: int) -> int:
    """How many points a leaf of a fresh tree should have.

    >>> suitable_leaf_size(1_000_000, 100_000), suitable_leaf_size(1_000_000, 1000)
    (118, 745)
    """
    return round(LEAF_POINTS * math.pow(n_points / n_clusters, LEAF_POWER))


class Neighborhoods(Protocol):
    """The partitions of an iteration, and what to do once they are used up."""

    def partitions(self) -> list[RandomPartition]:
        """The partitions whose leaves, united, are the neighbourhoods in the next iteration."""

    def expand(self, fall: float, settled: bool, accuracy: float | None) -> bool:
        """Told how an iteration went: whether the neighbourhoods were used up, and have now grown.

        ``fall`` is the fall of the distortion as a part of itself; ``settled`` that it changed too little to go on, or
        no point moved; ``accuracy`` the share of points assigned to their nearest centre, where it was measured.
        """

    def state(self) -> dict[str, NDArray[Any]]:
        """All that the partitions to come depend on, but for the random generator."""

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from a state."""


class FreshNeighborhoods:
    """One new partition in every iteration; the ``first`` may be given.

    Once the fit has settled while too many points still miss their nearest centre, the leaves are doubled, up to
    ``LARGEST_LEAF`` points or until one holds them all.
    """

    def __init__(
        self,
        grow: Grow,
        leaf_size: int,
        n_points: int,
        target_accuracy: float,
        first: RandomPartition | None = None,
    ) -> None:
        self._grow = grow
        self._first = first
        self._leaf_size = leaf_size
        self._largest = min(n_points, LARGEST_LEAF)
        self._target_accuracy = target_accuracy

    def partitions(self) -> list[RandomPartition]:
        """A partition that no iteration has seen."""
        return [self._grow(self._leaf_size) if self._first is None else self._first]

    def expand(self, fall: float, settled: bool, accuracy: float | None) -> bool:
        """New trees after a first partition that was given; larger leaves for the accuracy wanted."""
        if self._first is not None:
            self._first = None
            return True
        accurate = accuracy is None or accuracy >= self._target_accuracy
        if not settled or accurate or self._leaf_size >= self._largest:
            return False
        self._leaf_size = min(2 * self._leaf_size, self._largest)
        return True

    def state(self) -> dict[str, NDArray[Any]]:
        """The size of the leaves."""
        return {"leaf_size": np.array([self._leaf_size])}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Leaves of a size; the first iteration is over."""
        self._first = None
        (self._leaf_size,) = state["leaf_size"].tolist()
        if not self._leaf_size > 0:
            raise ValueError(f"leaves must have at least one point, got {self._leaf_size}")


class KeptNeighborhoods:
    """The paper's: up to ``max_trees`` partitions, grown once and united.

    Adaptive ones begin with one tree and add another when the distortion fell by less than ``min_fall`` of itself,
    or no point moved. Static ones have all their trees from the beginning.
    """

    def __init__(self, grow: Grow, leaf_size: int, max_trees: int, *, adaptive: bool, min_fall: float) -> None:
        self._grow = grow
        self._leaf_size = leaf_size
        self._max_trees = max_trees
        self._min_fall = min_fall
        self._n_trees = 1 if adaptive else max_trees
        self._trees: list[RandomPartition] = []

    def partitions(self) -> list[RandomPartition]:
        """All trees, of which the last may have to be grown yet."""
        while len(self._trees) < self._n_trees:
            self._trees.append(self._grow(self._leaf_size))
        return self._trees

    def expand(self, fall: float, settled: bool, accuracy: float | None) -> bool:
        """Add a tree if there is need and room for one."""
        used_up = settled or fall < self._min_fall
        if not used_up or self._n_trees >= self._max_trees:
            return False
        self._n_trees += 1
        return True

    def state(self) -> dict[str, NDArray[Any]]:
        """The trees grown so far, and how many there shall be."""
        return {
            "n_trees": np.array([self._n_trees]),
            "starts": self._trees[0].starts,
            **{f"members.{i}": tree.members for i, tree in enumerate(self._trees)},
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """The trees of another fit."""
        (self._n_trees,) = state["n_trees"].tolist()
        self._trees = [RandomPartition(state[f"members.{i}"], state["starts"]) for i in range(len(state) - 2)]
        for tree in self._trees:
            check_partition(tree)


class AllClusters:
    """Every cluster is a candidate of every point: the assignment is exact."""

    def __init__(self, n_points: int) -> None:
        starts = np.append(np.arange(0, n_points, BLOCK_POINTS), n_points)
        self._blocks = RandomPartition(np.arange(n_points, dtype=np.int32), starts, open_to_all=True)

    def partitions(self) -> list[RandomPartition]:
        """The points as they are, in blocks."""
        return [self._blocks]

    def expand(self, fall: float, settled: bool, accuracy: float | None) -> bool:
        """There is nothing beyond all."""
        return False

    def state(self) -> dict[str, NDArray[Any]]:
        """There is nothing to remember."""
        return {}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Nothing was remembered."""
