"""Canopy clustering (McCallum, Nigam, Ungar 2000): distances only between points and centres that share a canopy.

A canopy is a ball around a point in a few principal dimensions of the data, where distances are cheap. Canopies are
drawn one after the other around points that no earlier one covers tightly, and overlap. They are drawn once; the
centres move through them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from closure_kmeans import validation as check
from closure_kmeans.baselines import kernels
from closure_kmeans.baselines.flat import Assign, FlatKMeans
from closure_kmeans.clusters import Clusters
from closure_kmeans.parallel import Threads
from closure_kmeans.points import BLOCK_VALUES, Points, as_numbers, rows_per_block, shifted
from closure_kmeans.trees import DATA_SAMPLE, principal_axes

# Points in the sample that estimates distances.
RADIUS_SAMPLE = 1000


class Canopies(NamedTuple):
    """Overlapping sets of points."""

    members: NDArray[np.int32]  # points, canopy after canopy, ascending in each
    starts: NDArray[np.int64]  # (n_canopies + 1,) canopy c holds members[starts[c]:starts[c + 1]]
    middles: NDArray[Any]  # (n_canopies, canopy_dims) where they are
    radius: float  # of all of them


@dataclass(eq=False, repr=False, kw_only=True)
class CanopyKMeans(FlatKMeans):
    """K-means with canopies: a point is compared with its own centre and the centres that share a canopy with it.

    In ``history_``, ``n_candidates`` counts a centre once for each canopy that it shares with a point.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters, k.
    canopy_dims : int, default=8
        Number of principal dimensions in which canopies are drawn.
    loose : float, default=0.03
        Radius of a canopy, as a quantile of the distances between all pairs of points: an average canopy contains this
        fraction of the points.
    tight : float, default=0.02
        Points within this quantile start no canopy of their own. Smaller values make more canopies, which overlap
        more. At most ``loose``.
    init, tree_dims, max_iter, tol, max_time, random_state, n_threads, callback, verbose : see ClosureKMeans
        As in :class:`~closure_kmeans.ClosureKMeans`; ``tree_dims`` as in its :class:`~closure_kmeans.Method`.

    Attributes
    ----------
    cluster_centers_, cluster_sizes_, labels_, inertia_, n_iter_, history_, stopped_by_ : see ClosureKMeans
        As in :class:`~closure_kmeans.ClosureKMeans`.

    See Also
    --------
    closure_kmeans.ClosureKMeans : K-means by cluster closures.
    LloydKMeans : Exact k-means.

    References
    ----------
    A. McCallum, K. Nigam, L. H. Ungar: Efficient clustering of high-dimensional data sets with application to
    reference matching. KDD 2000.

    Examples
    --------
    >>> from closure_kmeans.baselines import CanopyKMeans
    >>> from closure_kmeans.datasets import load_sift
    >>> model = CanopyKMeans(n_clusters=100, random_state=0).fit(load_sift()[:2000])
    >>> model.cluster_centers_.shape
    (100, 128)
    """

    canopy_dims: int = 8
    loose: float = 0.03
    tight: float = 0.02

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check.integer("canopy_dims", self.canopy_dims, 1)
        check.number("loose", self.loose, 0, 1)
        check.number("tight", self.tight, 0, float(self.loose))

    def _assignment(self, points: Points, rng: np.random.Generator, threads: Threads) -> Assign:
        axes = canopy_axes(points, self.canopy_dims, rng)
        canopies = draw_canopies(project(points, axes, threads), self.loose, self.tight, rng, threads)
        n_blocks = -(-len(points.rows) // kernels.CANOPY_ROWS)

        def assign(clusters: Clusters, labels: NDArray[np.int32]) -> tuple[NDArray[np.int32], int]:
            new_labels = np.empty_like(labels)
            inside = centers_inside(canopies, clusters.centers @ axes, threads)
            assign_blocks = partial(kernels.assign_canopies, points, clusters, labels, canopies, *inside, new_labels)
            return new_labels, sum(threads.for_each_block(assign_blocks, n_blocks))

        return assign


def canopy_axes(points: Points, n_axes: int, rng: np.random.Generator) -> NDArray[Any]:
    """The first principal directions of a sample of the points, one a column."""
    n_points, n_features = points.rows.shape
    if n_axes >= n_features:
        return np.eye(n_features, dtype=points.offset.dtype)
    sample = as_numbers(points.rows[np.sort(rng.choice(n_points, min(n_points, DATA_SAMPLE), replace=False))])
    return principal_axes(shifted(sample, points.offset), n_axes, int(rng.integers(2**31)))


def project(points: Points, axes: NDArray[Any], threads: Threads) -> NDArray[Any]:
    """The coordinates of the points along some axes."""
    rows = as_numbers(points.rows)
    coordinates = np.empty((len(rows), axes.shape[1]), axes.dtype)
    threads.for_each_block(
        lambda first, last: np.dot(shifted(rows[first:last], points.offset), axes, out=coordinates[first:last]),
        len(rows),
        rows_per_block(rows),
    )
    return coordinates


def draw_canopies(
    coordinates: NDArray[Any], loose: float, tight: float, rng: np.random.Generator, threads: Threads
) -> Canopies:
    """Draw a canopy around a random point that none covers tightly, until all points are covered."""
    n_points, n_members = len(coordinates), 0
    most_members = check.physical_memory() / (2 * np.dtype(np.int32).itemsize)  # in parts, and put together
    loose_radius, tight_radius = radii(coordinates, loose, tight, rng)
    covered = np.zeros(n_points, bool)
    near = np.empty(n_points, np.int32)
    block = -(-n_points // threads.n_threads)
    middles, canopies = [], []
    for middle in rng.permutation(n_points):
        if covered[middle]:
            continue
        draw = partial(kernels.draw_canopy, coordinates, middle, loose_radius**2, tight_radius**2, near, covered)
        sizes = threads.for_each_block(draw, n_points, block)
        middles.append(middle)
        canopies.append(np.concatenate([near[i * block : i * block + size] for i, size in enumerate(sizes)]))
        n_members += sum(sizes)
        if n_members > most_members:
            raise MemoryError(
                f"tight must be closer to loose={loose} for {n_points:,} rows, got {tight}: {len(canopies):,} canopies "
                f"with {n_members:,} points in total do not cover them, and exceed the memory"
            )
    starts = np.cumsum([0, *map(len, canopies)])
    return Canopies(np.concatenate(canopies), starts, coordinates[middles], loose_radius)


def radii(coordinates: NDArray[Any], loose: float, tight: float, rng: np.random.Generator) -> tuple[float, float]:
    """Quantiles of the distances between points, estimated from a sample."""
    sample = coordinates[rng.choice(len(coordinates), min(len(coordinates), RADIUS_SAMPLE), replace=False)]
    distances = pdist(sample) if len(sample) > 1 else np.zeros(1)
    loose_radius, tight_radius = np.quantile(distances, [loose, tight])
    return float(loose_radius), float(tight_radius)


def centers_inside(
    canopies: Canopies, coordinates: NDArray[Any], threads: Threads
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The centres in each canopy, given their coordinates, canopy after canopy; and where each canopy's begin."""
    norms = np.einsum("ij,ij->i", coordinates, coordinates)

    def find(first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        middles = canopies.middles[first:last]
        squares = norms - 2 * middles @ coordinates.T + np.einsum("ij,ij->i", middles, middles)[:, np.newaxis]
        canopy, center = np.nonzero(squares <= canopies.radius**2)
        return np.bincount(canopy, minlength=last - first), center.astype(np.int32)

    found = threads.for_each_block(find, len(canopies.middles), -(-BLOCK_VALUES // len(coordinates)))
    sizes, centers = zip(*found, strict=True)
    return np.concatenate(centers), np.append(0, np.cumsum(np.concatenate(sizes)))
