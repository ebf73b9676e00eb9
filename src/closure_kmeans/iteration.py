"""K-means as "assign by anything": the loop that all methods share, its state and its records.

What differs between the methods is only how they assign the points: to the best of the clusters of their neighbours
(``closure.py``), of all clusters, or of some that an index finds (``baselines``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.clusters import Clusters

# Iterations between two measurements of the accuracy: each costs a small part of an iteration.
ACCURACY_EVERY = 5


class Iteration(NamedTuple):
    """How things stood after an iteration."""

    iteration: int  # from 1
    seconds: float  # since the fit began, set-up included
    inertia: float  # the objective: sum of the squared distances to the centres
    n_active: int  # points that changed their cluster
    n_trees: int  # trees that were looked at
    n_candidates: float  # clusters tested for a point, on average; one met in two trees counts twice
    accuracy: float | None  # share of a sample of points assigned to their nearest centre, where it was measured


class Clustering(NamedTuple):
    """The state that an iteration improves."""

    labels: NDArray[np.int32]  # (n,)
    clusters: Clusters


class Step(NamedTuple):
    """An iteration's outcome."""

    state: Clustering
    n_active: int
    n_pairs: int
    n_trees: int


# Told of each iteration: its outcome, and the accuracy if it was measured. May name a reason to stop.
OnIteration = Callable[[Step, float | None], str | None]
# Told how an iteration went (see ``Neighborhoods``): whether there is now more to look at.
Expand = Callable[[float, bool, float | None], bool]


def alternate(
    state: Clustering,
    take_step: Callable[[Clustering], Step],
    *,
    max_iter: int,
    tol: float,
    measure_accuracy: Callable[[Clustering], float] | None,
    on_iteration: OnIteration,
    expand: Expand = lambda fall, settled, accuracy: False,
) -> tuple[Clustering, str]:
    """Take steps, each an assignment and an update, until the distortion falls no more.

    ``measure_accuracy`` tells how good an assignment is, from time to time and whenever the fit has settled.
    ``on_iteration`` is told of every iteration and may name a reason to stop. Returns the last state and the reason
    why it is the last. An interrupt is such a reason too: the iteration under way is dropped.
    """
    try:
        for number in range(1, max_iter + 1):
            before = state.clusters.inertia
            step = take_step(state)
            fall = 1 - step.state.clusters.inertia / before if before > 0 else 0.0
            settled = step.n_active == 0 or fall < tol
            accuracy = None
            if measure_accuracy is not None and (settled or number % ACCURACY_EVERY == 0 or number == max_iter):
                accuracy = measure_accuracy(step.state)
            state = step.state
            reason = on_iteration(step, accuracy)
            if reason is not None:
                return state, reason
            if not expand(fall, settled, accuracy) and settled:
                return state, "converged"
    except KeyboardInterrupt:
        return state, "interrupted"
    return state, "max_iter"
