"""K-means with cluster closures: the algorithm of section 3, and what was added to it.

An iteration assigns every point to the best of the clusters of its neighbours, then moves the centres to the means:

    neighbourhoods → assign → update → record → …

Three named steps go beyond the paper, and each can be switched off: a fresh neighbourhood in every iteration
(``neighborhoods``), Hartigan's rule (``rule``) and extrapolated centres (``extrapolate``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import kernels
from closure_kmeans.arrays import empty_rows
from closure_kmeans.balance import adapt_penalties, admit
from closure_kmeans.clusters import Clusters, update
from closure_kmeans.iteration import Clustering, OnIteration, Step, alternate
from closure_kmeans.neighborhoods import Neighborhoods
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points, rows_per_block
from closure_kmeans.trees import RandomPartition

# Points that undo each other's moves are tried again with one in so many of them.
PARTS_OF_MOVERS = (2, 4, 8, 16)
# In clusters of up to so many points on average, more movers than this share of all points should lower the distortion.
SMALL_CLUSTERS, MANY_MOVERS = 10, 0.05
# Cluster sizes between which extrapolation sets in: below the first it would empty clusters, above the second it
# is safe in full.
EXTRAPOLATE_FROM, EXTRAPOLATE_FULLY = 10, 50


class Rule(NamedTuple):
    """How points move."""

    hartigan: bool  # Hartigan's rule: a move must lower the distortion, the shift of both centres included; or Lloyd's
    part: int = 1  # of the points that would move, a random one in so many does
    seed: int = 0  # of that choice


PLAIN = Rule(hartigan=False)


class Reassigned(NamedTuple):
    """The outcome of both steps of an iteration."""

    labels: Any  # as in a Clustering
    n_active: int  # points that changed their cluster
    n_pairs: int  # of point and candidate, that were tested
    clusters: Clusters


# What ``assign_and_update`` does, for points in memory or elsewhere.
Reassign = Callable[..., Reassigned]


def cluster_by_closures(
    points: Any,
    state: Clustering,
    neighborhoods: Neighborhoods,
    *,
    reassign: Reassign | None = None,
    hartigan: bool,
    extrapolate: bool,
    max_size: float | None = None,
    n_done: int = 0,
    max_iter: int,
    tol: float,
    measure_accuracy: Callable[[Clustering], float] | None,
    on_iteration: OnIteration,
    threads: Threads,
) -> tuple[Clustering, str]:
    """Alternate closure assignment and update until the neighbourhoods are used up (section 3).

    ``points`` are Points, or whatever ``reassign`` takes instead of ``assign_and_update``. Clusters admit
    points up to ``max_size``, and are dearer when they are full.
    Returns the last state and the reason why it is the last, as ``alternate`` does.
    """
    advance = partial(
        take_step,
        points,
        reassign=partial(reassign or assign_and_update, max_size=max_size),
        many=count_many(len(state.labels), len(state.clusters.sizes)),
        tol=tol,
    )
    spare: list[NDArray[Any]] = []  # memory of centres, used again: with many clusters new memory costs a lot
    numbers = count(n_done + 1)
    too_large = False

    def step(state: Clustering) -> Step:
        nonlocal too_large

        def look_ahead() -> Clusters:
            if not extrapolate:
                return state.clusters
            return extrapolated(state.clusters, state.previous, len(state.labels), threads, spare)

        rule = Rule(hartigan, seed=next(numbers))
        outcome = advance(state, look_ahead, neighborhoods.partitions(), rule, threads, spare)
        improved = outcome.state
        if extrapolate:
            previous, unused = state.clusters.centers, state.previous
            if unused is None:  # the way that centres come from the start says little about where they are heading
                previous, unused = improved.clusters.centers, state.clusters.centers
            if unused is not previous:
                spare.append(unused)
            improved = improved._replace(previous=previous)
        if max_size is not None:
            too_large = bool((improved.clusters.sizes > max_size).any())
            improved = improved._replace(clusters=adapt_penalties(improved.clusters, max_size))
        return outcome._replace(state=improved)

    def expand(fall: float, settled: bool, accuracy: float | None) -> bool:
        return neighborhoods.expand(fall, settled, accuracy) or too_large  # then the penalties have yet to act

    return alternate(
        state,
        step,
        n_done=n_done,
        max_iter=max_iter,
        tol=tol,
        measure_accuracy=measure_accuracy,
        on_iteration=on_iteration,
        expand=expand,
    )


def begin(points: Points, labels: NDArray[np.int32], n_clusters: int, threads: Threads) -> Clustering:
    """The state of given labels."""
    return Clustering(labels, update(points, labels, n_clusters, threads))


def take_step(
    points: Any,
    state: Clustering,
    look_ahead: Callable[[], Clusters | None],
    partitions: list[RandomPartition],
    rule: Rule,
    threads: Threads,
    spare: list[NDArray[Any]],
    reassign: Reassign,
    many: float = np.inf,
    tol: float = 0.0,
) -> Step:
    """One assignment to the centres ahead, and one update; the distortion does not rise (theorem 1).

    With penalties, that is true of the sum of both.

    Points that move together by Hartigan's rule, or towards centres that are not yet there, can undo each other. So if
    the distortion rises, or if it falls by less than ``tol`` while more than ``many`` points move, the step is redone
    with a part of those points, and at last by the paper's rule, which cannot raise it, but for rounding: then nothing
    moves. ``look_ahead`` returns the centres to assign to; their memory, and other ``spare`` memory, is used again.
    None is for a ``reassign`` that looks ahead by itself.
    """
    n_pairs, n_trees = 0, sum(not partition.open_to_all for partition in partitions)
    parts = (1, *PARTS_OF_MOVERS) if rule.hartigan else (1,)
    tries = [(look_ahead, rule._replace(part=part)) for part in parts]
    for look, how in [*tries, (lambda: state.clusters, PLAIN)]:
        clusters = look()
        last_use = clusters is not state.clusters
        new = reassign(points, state, clusters, partitions, how, threads, spare, last_use)
        n_pairs += new.n_pairs
        updated = new.clusters._replace(penalties=state.clusters.penalties)
        highest = state.clusters.penalized_inertia
        if new.n_active > many and how.hartigan and how.part < parts[-1]:
            highest *= 1 - tol
        if updated.penalized_inertia <= highest:
            return Step(Clustering(new.labels, updated), new.n_active, n_pairs, n_trees, damped=how.part > 1)
        spare.append(updated.centers)
        del new, updated
    return Step(state, 0, n_pairs, n_trees)


def count_many(n_points: int, n_clusters: int) -> float:
    """The number of points above which a joint move must lower the distortion by ``tol``: none for large clusters."""
    return MANY_MOVERS * n_points if n_points <= SMALL_CLUSTERS * n_clusters else np.inf


def assign_and_update(
    points: Points,
    state: Clustering,
    clusters: Clusters,
    partitions: list[RandomPartition],
    rule: Rule,
    threads: Threads,
    spare: list[NDArray[Any]],
    last_use: bool,
    max_size: float | None = None,
) -> Reassigned:
    """Both steps of an iteration: points are assigned to some clusters, those of the state or where they are heading.

    After its ``last_use`` the memory of the centres is spare.
    """
    labels = state.labels
    new_labels, n_pairs = assign_by_closures(points, clusters, labels, partitions, rule, threads)
    if max_size is not None:
        admit(labels, new_labels, points.weights, clusters.sizes.copy(), max_size)
    if last_use:
        spare.append(clusters.centers)
    updated = update(points, new_labels, len(clusters.centers), threads, spare, (labels, state.clusters))
    return Reassigned(new_labels, int(np.count_nonzero(new_labels != labels)), n_pairs, updated)


def assign_by_closures(
    points: Points,
    clusters: Clusters,
    labels: NDArray[np.int32],
    partitions: list[RandomPartition],
    rule: Rule,
    threads: Threads,
) -> tuple[NDArray[np.int32], int]:
    """The assignment step: each point to the best of the clusters whose closures hold it (section 3.1).

    A closure is the union of its points' neighbourhoods, and those are leaves: so the candidates of a point are the
    clusters that share a leaf with it, and the best over all partitions is the best of each partition's best.
    Returns the new labels and the number of pairs of point and candidate that were tested.
    """
    if rule.hartigan and points.spherical:
        clusters = with_means(clusters, points.mean, threads)
    new_labels = labels.copy()
    scores = np.full(len(labels), np.inf, points.mean.dtype)
    n_pairs = 0
    for partition in partitions:
        assign = partial(kernels.assign_leaves, points, clusters, labels, partition, rule.hartigan, new_labels, scores)
        n_pairs += sum(threads.for_each_block(assign, len(partition.starts) - 1))
    if rule.part > 1:
        movers = np.flatnonzero(new_labels != labels)
        stay = movers[np.random.default_rng([rule.seed, rule.part]).integers(rule.part, size=len(movers)) > 0]
        new_labels[stay] = labels[stay]
    return new_labels, n_pairs


def with_means(clusters: Clusters, mean: NDArray[Any], threads: Threads) -> Clusters:
    """Directions replaced by the means of their clusters: what points on the sphere move by under Hartigan's rule.

    The mean of a cluster of directions has the length 1 - error / (2 size). By the exact gain of a direction, points
    that are far from all others prefer the clusters whose sum is shortest. They all move there at once, and undo each
    other; moves by the means do not, and they lower the spherical distortion further.
    """
    lengths = (1 - clusters.errors / (2 * clusters.sizes)).astype(mean.dtype)[:, np.newaxis]
    centers = empty_rows(clusters.centers.shape, mean.dtype)

    def shorten(first: int, last: int) -> None:
        some = slice(first, last)
        np.add(clusters.centers[some], mean, out=centers[some])
        centers[some] *= lengths[some]
        centers[some] -= mean

    threads.for_each_block(shorten, len(centers), rows_per_block(centers))
    return clusters._replace(centers=centers)


def extrapolated(
    clusters: Clusters,
    previous: NDArray[Any] | None,
    n_points: int,
    threads: Threads,
    spare: list[NDArray[Any]],
) -> Clusters:
    """Where the centres are heading: as far ahead again as they came since the iteration before.

    Small clusters would overshoot and lose their points, so they stay where they are. In the first two iterations all
    do.
    """
    if previous is None or previous is clusters.centers:  # of a fit resumed then it is a copy: they go nowhere
        return clusters
    sizes = clusters.sizes * (n_points / clusters.sizes.sum())  # in points, whatever their weights
    reach = reach_of(sizes).astype(previous.dtype)[:, np.newaxis]
    if reach.max() == 0:
        return clusters
    ahead = spare.pop() if spare else empty_rows(previous.shape, previous.dtype)

    def move(first: int, last: int) -> None:
        some = slice(first, last)
        np.subtract(clusters.centers[some], previous[some], out=ahead[some])
        ahead[some] *= reach[some]
        ahead[some] += clusters.centers[some]

    threads.for_each_block(move, len(ahead), rows_per_block(ahead))
    return clusters._replace(centers=ahead)  # the assignment reads nothing else but the sizes


def reach_of(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far ahead of clusters of so many points to look: from 0 to 1 times the way that they came."""
    reach: NDArray[np.float64] = (sizes - EXTRAPOLATE_FROM) / (EXTRAPOLATE_FULLY - EXTRAPOLATE_FROM)
    return reach.clip(0, 1)
