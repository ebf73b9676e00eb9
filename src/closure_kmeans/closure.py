"""K-means with cluster closures: the algorithm of section 3 and three steps beyond it, wherever the rows are.

An iteration assigns every point to the best of the clusters of its neighbours and moves the centres to the means:

    leaves → assign and update → accept, or redo → record → …

Three named steps go beyond the paper, and each can be switched off (``Method``): a fresh neighbourhood in every
iteration (``neighborhoods``), Hartigan's rule (``rule``) and extrapolated centres (``extrapolate``).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from closure_kmeans.balance import adapt_penalties
from closure_kmeans.iteration import Clustering, Labels, OnIteration, Step, alternate
from closure_kmeans.stores import Rule, Store
from closure_kmeans.trees import LeavesOf, Neighborhoods

# The first iteration that may extrapolate: the displacement of the first one, from the start, is not predictive.
FIRST_EXTRAPOLATED = 3
# If a step is rejected, a random 1/2, 1/4, 1/8 or 1/16 of the movers moves.
PARTS_OF_MOVERS = (2, 4, 8, 16)
# With at most SMALL_CLUSTERS points per cluster, a step that moves more than this share of the points must lower the
# distortion by ``tol``.
SMALL_CLUSTERS, MANY_MOVERS = 10, 0.05


def cluster_by_closures(
    store: Store[Labels, LeavesOf],
    state: Clustering[Labels],
    neighborhoods: Neighborhoods[LeavesOf],
    rule: Rule,
    *,
    extrapolate_from: float = np.inf,
    n_done: int = 0,
    max_iter: int,
    tol: float,
    on_iteration: OnIteration,
) -> tuple[Clustering[Labels], str]:
    """Alternate closure assignment and update until the neighbourhoods are used up (section 3).

    ``state`` is the start, as ``store.begin`` makes it, or the state after ``n_done`` iterations. ``extrapolate_from``
    is the first iteration that assigns points to the extrapolated centres. The other parameters and the results are
    those of ``alternate``.
    """
    too_large = False  # some clusters exceed ``max_size``: do not converge yet

    def take_step(state: Clustering[Labels], number: int) -> Step[Labels]:
        nonlocal too_large
        now = rule._replace(ahead=number >= extrapolate_from, seed=number)
        step = lower(store, state, neighborhoods.leaves(), now, tol)
        clusters = step.state.clusters
        too_large = bool((clusters.sizes > rule.max_size).any())
        if rule.max_size < np.inf:
            step = step._replace(state=step.state._replace(clusters=adapt_penalties(clusters, rule.max_size)))
        return step

    def expand(fall: float, settled: bool, accuracy: float | None) -> bool:
        return neighborhoods.expand(fall, settled, accuracy) or too_large

    return alternate(
        state,
        take_step,
        n_done=n_done,
        max_iter=max_iter,
        tol=tol,
        # With an upper bound on the size some points must not be at their nearest centre.
        measure_accuracy=store.accuracy if rule.max_size == np.inf else None,
        on_iteration=on_iteration,
        expand=expand,
    )


def lower(
    store: Store[Labels, LeavesOf], state: Clustering[Labels], leaves: list[LeavesOf], rule: Rule, tol: float
) -> Step[Labels]:
    """One assignment and one update that do not raise the distortion (theorem 1), or with penalties the sum of both.

    Points that move together by Hartigan's rule, or towards extrapolated centres, can undo each other. If the
    distortion rises, or if clusters are small, many points move and it falls by less than ``tol``, the step is redone
    by the next of ``rules_after``. If rounding makes even the last one rise, nothing moves, and the next step does not
    extrapolate.
    """
    n_clusters = len(state.clusters.sizes)
    many = MANY_MOVERS * store.n_points if store.n_points <= SMALL_CLUSTERS * n_clusters else np.inf
    n_pairs, n_trees = 0, sum(not each.open_to_all for each in leaves)
    for now in rules_after(rule):
        new = store.assign(state, leaves, now)
        n_pairs += new.n_pairs
        clusters = new.clusters._replace(penalties=state.clusters.penalties)
        highest = state.clusters.penalized_inertia
        if new.n_active > many and now.hartigan and now.part < PARTS_OF_MOVERS[-1]:
            highest *= 1 - tol
        if clusters.penalized_inertia <= highest:
            accepted = store.buffers.rotate(state, new.labels, clusters)
            return Step(accepted, new.n_active, n_pairs, n_trees, damped=now.part > 1)
        del new, clusters  # before the next assignment allocates its own
    return Step(state._replace(previous=None), 0, n_pairs, n_trees)


def rules_after(rule: Rule) -> Iterator[Rule]:
    """The rule itself, then parts of the movers, and last the paper's rule, which cannot raise the distortion."""
    if rule.hartigan:
        yield from (rule._replace(part=part) for part in (1, *PARTS_OF_MOVERS))
    elif rule.ahead:
        yield rule
    yield Rule(max_size=rule.max_size)
