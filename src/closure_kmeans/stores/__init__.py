"""Stores of the rows: in memory, on disk or on Dask. ``closure.py`` knows only the protocol ``Store``."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.clusters import Clusters
from closure_kmeans.iteration import CenterBuffers, Clustering, Labels
from closure_kmeans.method import Method
from closure_kmeans.trees import LeavesOf, Neighborhoods


class Rule(NamedTuple):
    """How points move in an assignment."""

    hartigan: bool = False  # Hartigan's rule: a move must lower the distortion, the shift of both centres included
    ahead: bool = False  # points are assigned to the extrapolated centres
    max_size: float = np.inf  # of a cluster, in rows or their weight
    part: int = 1  # each mover moves with probability 1 / part
    seed: int = 0  # of this random choice


class Assigned(NamedTuple, Generic[Labels]):
    """Outcome of an assignment and the update after it."""

    labels: Labels
    n_active: int  # points that changed their cluster
    n_pairs: int  # tested pairs of point and candidate
    clusters: Clusters  # without penalties


class Store(Protocol[Labels, LeavesOf]):
    """Protocol of a store: everything that the algorithm needs from the rows."""

    n_points: int
    offset: NDArray[Any]  # (d,) that centres are relative to, in the precision of the arithmetic
    sample: NDArray[Any]  # some rows, evenly spaced, L2-normalised for cosine
    buffers: CenterBuffers  # of which ``assign`` writes to the next one

    def tree_labels(self) -> Labels:
        """The leaves of the first tree as clusters (section 4.3)."""

    def begin(self, labels: Labels) -> Clustering[Labels]:
        """The state of the first labels; labels change where a cluster would be empty."""

    def neighborhoods(self, method: Method, target_accuracy: float, *, from_tree: bool) -> Neighborhoods[LeavesOf]:
        """The neighbourhoods that a method asks for; ``from_tree``: the start is the leaves of the first tree."""

    def assign(self, state: Clustering[Labels], leaves: list[LeavesOf], rule: Rule) -> Assigned[Labels]:
        """Assign each point to the best of the clusters of its neighbours, and update the clusters, none of them empty.

        The new centres are in the next buffer, which the next call overwrites unless the buffers are rotated.
        """

    def accuracy(self, state: Clustering[Labels]) -> float:
        """The share of a sample of points that are assigned to the nearest of all centres."""

    def user_labels(self, labels: Labels) -> NDArray[np.int32]:
        """The labels in the order of the user's rows."""
