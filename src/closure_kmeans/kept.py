"""The paper's neighbourhoods: the leaves of random partition trees that are grown once, and kept (section 3.4)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.trees import Grow, Neighborhoods, RandomPartition


class KeptNeighborhoods(Neighborhoods[RandomPartition]):
    """Up to ``max_trees`` partitions, grown once and united.

    Adaptive ones begin with one tree and add another when the distortion fell by less than ``min_fall`` of itself,
    or no point moved. Static ones have all their trees from the beginning.
    """

    def __init__(
        self, grow: Grow[RandomPartition], leaf_size: int, max_trees: int, *, adaptive: bool, min_fall: float
    ) -> None:
        self._grow = grow
        self._leaf_size = leaf_size
        self._max_trees = max_trees
        self._min_fall = min_fall
        self._n_trees = 1 if adaptive else max_trees
        self._trees: list[RandomPartition] = []

    def leaves(self) -> list[RandomPartition]:
        """All trees; missing ones are grown now."""
        while len(self._trees) < self._n_trees:
            self._trees.append(self._grow(self._leaf_size))
        return self._trees

    def expand(self, fall: float, settled: bool, accuracy: float | None) -> bool:
        """Add a tree if the neighbourhoods are used up, up to ``max_trees``."""
        used_up = settled or fall < self._min_fall
        if not used_up or self._n_trees >= self._max_trees:
            return False
        self._n_trees += 1
        return True

    def state(self) -> dict[str, NDArray[Any]]:
        """The trees grown so far, and their number in the next iteration."""
        starts = {"starts": self._trees[0].starts} if self._trees else {}
        members = {f"members.{i}": tree.members for i, tree in enumerate(self._trees)}
        return {"n_trees": np.array([self._n_trees])} | starts | members

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore kept trees, or if the state has none, their number."""
        (self._n_trees,) = state["n_trees"].tolist()
        n_grown = sum(name.startswith("members.") for name in state)
        self._trees = [RandomPartition(state[f"members.{i}"], state["starts"]) for i in range(n_grown)]
        for tree in self._trees:
            check_partition(tree)


def check_partition(partition: RandomPartition) -> None:
    """Raise unless every point is in exactly one leaf."""
    members, starts = partition.members, partition.starts
    n_points = len(members)
    if members.dtype != np.int32 or not np.array_equal(np.sort(members), np.arange(n_points)):
        raise ValueError(f"the members of a partition must be a permutation of 0..{n_points - 1}")
    if starts.dtype != np.int64 or starts[0] != 0 or starts[-1] != n_points or (np.diff(starts) < 0).any():
        raise ValueError(f"the starts of a partition must rise from 0 to {n_points}")
