"""Refilling of clusters that lost all their points, and of clusters that hold only copies of another cluster's row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.clusters import Clusters, Members, are_copies, find_means, group_by_label
from closure_kmeans.points import Points, as_numbers, hash_rows, heights, largest, shifted


def refill_empty(points: Points, labels: NDArray[np.int32], clusters: Clusters, members: Members) -> None:
    """Refill empty clusters, and those with copies of a row that others consist of; updates labels and means."""
    changed = join_copies(points, labels, clusters, members)
    while True:
        counts = np.diff(members.starts)
        if len(changed) > 0:
            counts[changed] = find_changed_means(points, labels, clusters, members, changed)
        empty = np.flatnonzero(counts == 0)
        if len(empty) == 0:
            return
        if len(changed) > 0:
            members = group_by_label(labels, len(counts))
        changed = refill(points, labels, clusters, members, empty)


def join_copies(points: Points, labels: NDArray[np.int32], clusters: Clusters, members: Members) -> NDArray[np.int64]:
    """Merge clusters that hold copies of the same row into the first of them; returns the changed clusters.

    A tree spreads a frequent row over several leaves, and copies never leave a centre equal to them.
    """
    pure = np.flatnonzero(are_copies(clusters))
    pure = pure[np.diff(members.starts)[pure] > 0]
    if len(pure) < 2:
        return pure[:0]
    rows = points.rows[members.rows[members.starts[pure]]]
    _, first, group = np.unique(hash_rows(rows), return_index=True, return_inverse=True)
    example = first[group]
    changed = [pure[:0]]
    for i in np.flatnonzero(example != np.arange(len(pure))):
        copies = members.of(pure[i])
        if (points.rows[copies] == rows[example[i]]).all():
            labels[copies] = pure[example[i]]
            changed.append(pure[[i, example[i]]])
    return np.unique(np.concatenate(changed))


def find_changed_means(
    points: Points, labels: NDArray[np.int32], clusters: Clusters, members: Members, changed: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Update the means of clusters that exchanged points; returns the number of points of each.

    Only their own points are grouped again: grouping all points would take longer than the means.
    """
    had = np.sort(np.concatenate([members.of(j) for j in changed]))
    places, starts = group_by_label(labels[had], len(clusters.sizes))
    find_means(points, Members(had[places], starts), clusters, changed, 0, len(changed))
    counts: NDArray[np.int64] = np.diff(starts)[changed]
    return counts


def refill(
    points: Points, labels: NDArray[np.int32], clusters: Clusters, members: Members, empty: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Split the clusters of largest error in two, one for each empty cluster, as far as they are divisible."""
    divisible = np.flatnonzero(np.diff(members.starts) > 1)
    # Clusters of copies are split only if no others are left.
    in_error = divisible[~are_copies(clusters)[divisible]]
    divisible = in_error if len(in_error) > 0 else divisible
    donors = divisible[largest(clusters.errors[divisible], len(empty))]
    filled = empty[: len(donors)]
    for donor, cluster in zip(donors, filled, strict=True):
        group = members.of(donor)
        labels[group[far_side(points, group, clusters.centers[donor])]] = cluster
    return np.concatenate([donors, filled])


def far_side(points: Points, group: NDArray[np.int32], center: NDArray[Any]) -> NDArray[np.bool_]:
    """A mask of a cluster's points on the far side of the centre, towards the point farthest from it.

    Copies of a row stay together. If all rows are the same, it is the last of them.
    """
    rows = shifted(as_numbers(points.rows[group]), points.offset) - center
    distances = np.einsum("ij,ij->i", rows, rows)
    farthest = int(distances.argmax())
    far: NDArray[np.bool_] = heights(rows, rows[farthest]) > 0
    if not far.any() or far.all():
        far = np.arange(len(group)) == len(group) - 1
    return far
