"""The neighbourhoods of an iteration, as leaves.

A point's neighbourhood is the union of the leaves that hold it (section 3.1). The paper grows trees and keeps them, all
at once or one by one as they are needed (section 3.4). The default draws one new tree for every iteration, uses it and
forgets it: over the iterations a point meets far more neighbours than kept trees could hold. In the first iteration
from a tree, whole leaves of that tree are neighbours, and a tree over leaves costs nothing. Where clusters are few, all
of them are tested, which takes no longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.method import Method
from closure_kmeans.trees import RandomPartition

# Leaf size: LEAF_POINTS (n / k) ** LEAF_POWER. A leaf then has about as many clusters whatever their number is.
LEAF_POINTS, LEAF_POWER = 47, 0.4
# Largest leaf when leaves are doubled to reach ``target_accuracy``; larger ones no longer help.
LARGEST_LEAF = 4096

# Points in a block that is tested with all clusters.
BLOCK_POINTS = 1024


class Leaves(Protocol):
    """The leaves of a random partition, or a recipe from which a store grows them."""

    @property
    def open_to_all(self) -> bool:
        """Whether points are tested with every cluster, not only with those in their leaf."""


LeavesOf = TypeVar("LeavesOf", bound=Leaves)
# Grows a random partition into leaves of at most this many points.
Grow = Callable[[int], LeavesOf]


def suitable_leaf_size(n_points: int, n_clusters: int) -> int:
    """How many points a leaf of a fresh tree should have.

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
        """All that later partitions depend on, but for the random generator."""
        return {}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from a state; trees that it lacks are grown again."""
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
        """A partition that no iteration has seen."""
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
