"""Which leaves an iteration looks at.

A point's neighbourhood is the union of the leaves that hold it (section 3.1). The paper grows trees and keeps them,
all at once or one by one as they are needed (section 3.4). The default draws one new tree for every iteration, uses
it and forgets it: over the iterations a point meets far more neighbours than kept trees could hold. Where clusters are
few there is no need of trees: to test all of them takes no longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from closure_kmeans.partition import RandomPartition

# Leaves that are doubled for the sake of accuracy end here: what they miss then is not missed for want of neighbours.
LARGEST_LEAF = 4096

# Up to here a point is tested with all clusters: a leaf has about as many.
FEW_CLUSTERS = 128
# Points in a block that is tested with all clusters.
BLOCK_POINTS = 1024

# Grows one random partition into leaves of at most so many points.
Grow = Callable[[int], RandomPartition]


class Neighborhoods(Protocol):
    """The partitions of an iteration, and what to do once they are used up."""

    def partitions(self) -> list[RandomPartition]:
        """The partitions whose leaves, united, are the neighbourhoods in the next iteration."""

    def expand(self, fall: float, settled: bool, accuracy: float | None) -> bool:
        """Told how an iteration went: whether the neighbourhoods were used up, and have now grown.

        ``fall`` is the fall of the distortion as a part of itself; ``settled`` that it was too small to go on, or no
        point moved; ``accuracy`` the share of points assigned to their nearest centre, where it was measured.
        """


class FreshNeighborhoods:
    """One new partition in every iteration.

    Once the fit has settled while too many points still miss their nearest centre, the leaves are doubled, up to
    ``LARGEST_LEAF`` points or until one holds them all.
    """

    def __init__(self, grow: Grow, leaf_size: int, n_points: int, target_accuracy: float) -> None:
        self._grow = grow
        self._leaf_size = leaf_size
        self._largest = min(n_points, LARGEST_LEAF)
        self._target_accuracy = target_accuracy

    def partitions(self) -> list[RandomPartition]:
        """A partition that no iteration has seen."""
        return [self._grow(self._leaf_size)]

    def expand(self, fall: float, settled: bool, accuracy: float | None) -> bool:
        """Double the leaves if they are too small for the accuracy wanted."""
        accurate = accuracy is None or accuracy >= self._target_accuracy
        if not settled or accurate or self._leaf_size >= self._largest:
            return False
        self._leaf_size = min(2 * self._leaf_size, self._largest)
        return True


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
        self._trees = [grow(leaf_size) for _ in range(1 if adaptive else max_trees)]

    def partitions(self) -> list[RandomPartition]:
        """All trees grown so far."""
        return self._trees

    def expand(self, fall: float, settled: bool, accuracy: float | None) -> bool:
        """Add a tree if there is need and room for one."""
        used_up = settled or fall < self._min_fall
        if not used_up or len(self._trees) >= self._max_trees:
            return False
        self._trees.append(self._grow(self._leaf_size))
        return True


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
