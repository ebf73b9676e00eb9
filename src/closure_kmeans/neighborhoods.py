"""Which leaves an iteration looks at.

A point's neighbourhood is the union of the leaves that hold it (section 3.1). The paper grows trees and keeps them,
all at once or one by one as they are needed (section 3.4). The default draws one new tree for every iteration, uses
it and forgets it: over the iterations a point meets far more neighbours than kept trees could hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from closure_kmeans.partition import RandomPartition

Grow = Callable[[], RandomPartition]


class Neighborhoods(Protocol):
    """The partitions of an iteration, and what to do once they are used up."""

    def partitions(self) -> list[RandomPartition]:
        """The partitions whose leaves, united, are the neighbourhoods in the next iteration."""

    def expand(self, fall: float, n_active: int) -> bool:
        """Told how an iteration went: whether the neighbourhoods were used up, and have now grown."""


class FreshNeighborhoods:
    """One new partition in every iteration."""

    def __init__(self, grow: Grow) -> None:
        self._grow = grow

    def partitions(self) -> list[RandomPartition]:
        """A partition that no iteration has seen."""
        return [self._grow()]

    def expand(self, fall: float, n_active: int) -> bool:
        """They are new in every iteration anyway."""
        return False


class KeptNeighborhoods:
    """The paper's: up to ``max_trees`` partitions, grown once and united.

    Adaptive ones begin with one tree and add another when the distortion fell by less than ``min_fall`` of itself,
    or no point moved. Static ones have all their trees from the beginning.
    """

    def __init__(self, grow: Grow, max_trees: int, *, adaptive: bool, min_fall: float) -> None:
        self._grow = grow
        self._max_trees = max_trees
        self._min_fall = min_fall
        self._trees = [grow() for _ in range(1 if adaptive else max_trees)]

    def partitions(self) -> list[RandomPartition]:
        """All trees grown so far."""
        return self._trees

    def expand(self, fall: float, n_active: int) -> bool:
        """Add a tree if there is need and room for one."""
        used_up = n_active == 0 or fall < self._min_fall
        if not used_up or len(self._trees) >= self._max_trees:
            return False
        self._trees.append(self._grow())
        return True
