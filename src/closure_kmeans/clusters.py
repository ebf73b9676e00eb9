"""Clusters as arrays, the update step, extrapolation, and the accuracy of an assignment."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import kernels
from closure_kmeans.parallel import Threads
from closure_kmeans.points import (
    EQUALLY_NEAR,
    Points,
    as_numbers,
    empty_rows,
    rows_per_block,
    shifted,
    squared_distances,
)
from closure_kmeans.spherical import move_onto_sphere

# Errors below this fraction of the sum of squares are cancellation and count as zero.
ROUNDING = 1e-12
# Cluster sizes between which the extrapolation factor rises from 0 to 1: extrapolation would empty smaller clusters.
EXTRAPOLATE_FROM, EXTRAPOLATE_FULLY = 10, 50
# Rows of the sample that measures the accuracy, to half a percent or better.
ACCURACY_ROWS = 500
# Centres in one matrix product with these rows; both fit into the second-level cache.
ACCURACY_CENTERS = 512


class Clusters(NamedTuple):
    """Clusters as arrays: the update step writes them, the assignment step reads them."""

    centers: NDArray[Any]  # (k, d) relative to the offset of the points
    norms: NDArray[Any]  # (k,) squared norms of the updated centres, also beside extrapolated ones
    sizes: NDArray[np.float64]  # (k,) total weight of the members
    errors: NDArray[np.float64]  # (k,) sum of the members' weighted squared distances
    penalties: NDArray[np.float64]  # (k,) added to the squared distance of each point: see ``balance.py``

    @property
    def inertia(self) -> float:
        """The objective of equation 1."""
        return float(self.errors.sum())

    @property
    def penalized_inertia(self) -> float:
        """The objective with the penalties, weighted like the squared distances; without them it is equation 1."""
        return self.inertia + float(self.penalties @ self.sizes)


class Members(NamedTuple):
    """Rows of each cluster, as compressed sparse rows.

    See Also
    --------
    closure_kmeans.export.list_members : Makes them from labels.

    Examples
    --------
    >>> from closure_kmeans.export import list_members
    >>> list_members([1, 0, 1], n_clusters=2).of(1).tolist()
    [0, 2]
    """

    rows: NDArray[np.int32]  # (n,) cluster after cluster, ascending
    starts: NDArray[np.int64]  # (k + 1,) cluster c holds rows[starts[c]:starts[c + 1]]

    def of(self, cluster: int) -> NDArray[np.int32]:
        """Rows of one cluster.

        Parameters
        ----------
        cluster : int
            Number of the cluster.

        Returns
        -------
        array of int32
            Row numbers, ascending.

        See Also
        --------
        closure_kmeans.export.list_members : Makes the members from labels.

        Examples
        --------
        >>> from closure_kmeans.export import list_members
        >>> list_members([1, 0, 1], n_clusters=2).of(0).tolist()
        [1]
        """
        return self.rows[self.starts[cluster] : self.starts[cluster + 1]]


def update(
    points: Points,
    labels: NDArray[np.int32],
    n_clusters: int,
    threads: Threads,
    out: NDArray[Any] | None = None,
    before: tuple[NDArray[np.int32], Clusters] | None = None,
) -> Clusters:
    """The update step: the mean of every cluster.

    Clusters that lost all their points, or hold copies of a row that make up another cluster too, are refilled;
    ``labels`` change accordingly. ``out`` is memory for the centres. With the labels and the clusters ``before``,
    clusters that no point has left or joined are copied.
    """
    members = group_by_label(labels, n_clusters)
    clusters = empty_clusters(points, n_clusters, out)
    changed = np.arange(n_clusters)
    if before is not None:
        old_labels, old = before
        same = same_members(old_labels, labels, n_clusters)
        changed, kept = np.flatnonzero(~same), np.flatnonzero(same)
        threads.for_each_block(partial(take_over, old, clusters, kept), len(kept), rows_per_block(clusters.centers))
    threads.for_each_block(partial(find_means, points, members, clusters, changed), len(changed))
    if np.count_nonzero(are_copies(clusters)) > 1 or not clusters.sizes.all():
        from closure_kmeans.refill import refill_empty  # it imports this module

        refill_empty(points, labels, clusters, members)
    return clusters


def group_by_label(labels: NDArray[np.int32], n_clusters: int) -> Members:
    """Group points by cluster (counting sort)."""
    members = Members(np.empty(len(labels), np.int32), np.zeros(n_clusters + 1, np.int64))
    kernels.rows.fill_groups(labels, members.starts, np.empty(n_clusters, np.int64), members.rows)
    return members


def same_members(old_labels: NDArray[np.int32], labels: NDArray[np.int32], n_clusters: int) -> NDArray[np.bool_]:
    """A mask of the clusters that no point has left or joined."""
    moved = np.flatnonzero(labels != old_labels)
    same = np.ones(n_clusters, bool)
    same[old_labels[moved]] = same[labels[moved]] = False
    return same


def take_over(old: Clusters, clusters: Clusters, kept: NDArray[np.int64], first: int, last: int) -> None:
    """Copy the clusters ``kept[first:last]``."""
    some = kept[first:last]
    for theirs, ours in zip(old, clusters, strict=True):
        ours[some] = theirs[some]


def empty_clusters(points: Points, n_clusters: int, out: NDArray[Any] | None) -> Clusters:
    """Allocate clusters; ``out`` is memory for the centres."""
    return Clusters(
        centers=empty_rows((n_clusters, points.rows.shape[1]), points.offset.dtype) if out is None else out,
        norms=np.zeros(n_clusters, points.offset.dtype),
        sizes=np.zeros(n_clusters),
        errors=np.zeros(n_clusters),
        penalties=np.zeros(n_clusters),
    )


def find_means(
    points: Points, members: Members, clusters: Clusters, chosen: NDArray[np.int64], first: int, last: int
) -> None:
    """Update the means of the clusters ``chosen[first:last]``; L2-normalise them if the points are spherical."""
    total = np.empty(points.rows.shape[1])
    kernels.rows.update_clusters(points.weighted_rows, *members, clusters, total, chosen, first, last)
    if points.spherical:
        move_onto_sphere(clusters, points.offset, chosen[first:last])


def extrapolate(
    clusters: Clusters, previous: NDArray[Any], n_points: int, out: NDArray[Any], threads: Threads
) -> Clusters:
    """Extrapolate each centre by up to its last displacement.

    ``out`` is memory for them. ``norms`` stay those of the centres as they were updated.
    """
    sizes = clusters.sizes * (n_points / clusters.sizes.sum())  # in points, whatever their weights
    reach = ((sizes - EXTRAPOLATE_FROM) / (EXTRAPOLATE_FULLY - EXTRAPOLATE_FROM)).clip(0, 1)
    reach = reach.astype(previous.dtype)[:, np.newaxis]
    if reach.max() == 0:
        return clusters

    def move(first: int, last: int) -> None:
        some = slice(first, last)
        np.subtract(clusters.centers[some], previous[some], out=out[some])
        out[some] *= reach[some]
        out[some] += clusters.centers[some]

    threads.for_each_block(move, len(out), rows_per_block(out))
    return clusters._replace(centers=out)


def sample_accuracy(points: Points, centers: NDArray[Any], labels: NDArray[np.int32], threads: Threads) -> float:
    """Fraction of a sample of points, evenly spaced, whose cluster has the nearest of all centres, or one as near."""
    sample = slice(None, None, -(-len(points.rows) // ACCURACY_ROWS))
    given = as_numbers(points.rows[sample])
    rows = shifted(given, points.offset)
    everyone = np.arange(len(rows))

    def search(first: int, last: int) -> tuple[NDArray[Any], NDArray[Any]]:
        some = centers[first:last]
        scores = np.einsum("ij,ij->i", some, some) - 2 * (rows @ some.T)
        found = scores.argmin(axis=1)
        return scores[everyone, found], first + found

    blocks = threads.for_each_block(search, len(centers), ACCURACY_CENTERS)
    best = np.argmin([scores for scores, _ in blocks], axis=0)
    nearest = np.array([found for _, found in blocks])[best, everyone]
    own, smallest = (squared_distances(given, centers, points.offset, each) for each in (labels[sample], nearest))
    return float(np.mean(own <= smallest * EQUALLY_NEAR))


def are_copies(clusters: Clusters) -> NDArray[np.bool_]:
    """A mask of the clusters that hold nothing but copies of one row, or no points."""
    found: NDArray[np.bool_] = clusters.errors <= ROUNDING * clusters.sizes * clusters.norms
    return found
