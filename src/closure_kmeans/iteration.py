"""K-means as "assign by anything": the loop that all methods share, its state and its records.

What differs between the methods is only how they assign the points: to the best of the clusters of their neighbours
(``closure.py``), of all clusters, or of some that an index finds (``baselines``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

from closure_kmeans.clusters import Clusters

# Iterations between two measurements of the accuracy: each costs a small part of an iteration.
ACCURACY_EVERY = 10


class Iteration(NamedTuple):
    """How things stood after an iteration.

    >>> from closure_kmeans import ClosureKMeans
    >>> model = ClosureKMeans(2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
    >>> last = model.history_[-1]
    >>> last.iteration == model.n_iter_, last.inertia == model.inertia_
    (True, True)
    """

    iteration: int  # from 1
    seconds: float  # since the fit began, set-up included
    inertia: float  # the objective: sum of the squared distances to the centres
    n_active: int  # points that changed their cluster
    n_trees: int  # trees that were looked at
    n_candidates: float  # clusters tested for a point, on average; one met in two trees counts twice
    accuracy: float | None  # share of a sample of points assigned to their nearest centre, where it was measured


class Clustering(NamedTuple):
    """The state that an iteration improves: all that it takes over from those before it."""

    labels: Any  # (n,) array of int32, or what stands for it where the points are elsewhere
    clusters: Clusters
    # (k, d) the centres an iteration ago, where the next looks back at them; after the first iteration the present ones
    previous: NDArray[Any] | None = None


class Step(NamedTuple):
    """An iteration's outcome."""

    state: Clustering
    n_active: int
    n_pairs: int
    n_trees: int
    damped: bool = False  # whether only a part of the points moved that wanted to: there is more to gain


# Told of each iteration: its outcome, the accuracy if it was measured, and whether it was the last because the fit has
# converged. May name another reason to stop.
OnIteration = Callable[[Step, float | None, bool], str | None]
# Told how an iteration went (see ``Neighborhoods``): whether there is now more to look at.
Expand = Callable[[float, bool, float | None], bool]


def alternate(
    state: Clustering,
    take_step: Callable[[Clustering], Step],
    *,
    n_done: int = 0,
    max_iter: int,
    tol: float,
    measure_accuracy: Callable[[Clustering], float] | None,
    on_iteration: OnIteration,
    expand: Expand = lambda fall, settled, accuracy: False,
) -> tuple[Clustering, str]:
    """Take steps, each an assignment and an update, until the distortion no longer changes.

    ``n_done`` iterations were taken before. ``measure_accuracy`` tells how good an assignment is, from time to time and
    whenever the fit has settled. ``on_iteration`` is told of every iteration and may name a reason to stop. Returns the
    last state and the reason why it is the last. An interrupt is such a reason too: the iteration under way is dropped.
    """
    try:
        for number in range(n_done + 1, max_iter + 1):
            before = state.clusters.inertia
            step = take_step(state)
            fall = 1 - step.state.clusters.inertia / before if before > 0 else 0.0
            settled = step.n_active == 0 or (abs(fall) < tol and not step.damped)
            accuracy = None
            if measure_accuracy is not None and (settled or number % ACCURACY_EVERY == 0 or number == max_iter):
                accuracy = measure_accuracy(step.state)
            converged = not expand(fall, settled, accuracy) and settled
            state = step.state
            reason = on_iteration(step, accuracy, converged)
            if reason is not None or converged:
                return state, reason or "converged"
    except KeyboardInterrupt:
        return state, "interrupted"
    return state, "max_iter"
