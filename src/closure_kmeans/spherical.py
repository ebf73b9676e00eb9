"""The cosine metric: rows and centres of length one (spherical k-means)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.parallel import Threads
from closure_kmeans.points import check_uncut, empty_rows, precision, rows_per_block

if TYPE_CHECKING:
    from closure_kmeans.clusters import Clusters


def unit_rows(X: NDArray[Any], name: str = "X", numbers: range | None = None) -> NDArray[Any]:
    """L2-normalise rows, in the precision of their dtype; rows that overflow stay as they are.

    Errors name the array ``name``, and a row by its entry in ``numbers`` if the rows are a part of X.
    """
    numbers = range(len(X)) if numbers is None else numbers
    result = np.empty(X.shape, precision(X.dtype))
    for first in range(0, len(X), rows_per_block(X)):
        check_uncut(X)
        block = X[first : first + rows_per_block(X)].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.sqrt(np.einsum("ij,ij->i", block, block))
        if (lengths == 0).any():
            raise ValueError(
                f"the rows of {name} must not be zero for metric='cosine', "
                f"but row {numbers[first + int((lengths == 0).argmax())]} is"
            )
        lengths[~np.isfinite(lengths)] = 1
        result[first : first + len(block)] = block / lengths[:, np.newaxis]
    return result


def move_onto_sphere(clusters: Clusters, offset: NDArray[Any], chosen: NDArray[np.int64]) -> None:
    """L2-normalise the means of some clusters: the best centres on the sphere.

    The sum of squared distances grows by (1 - length of the mean)² for each point. A mean of length zero is equally
    near to all directions; the first axis is taken.
    """
    some = chosen[clusters.sizes[chosen] > 0]
    means = clusters.centers[some].astype(np.float64) + offset
    lengths = np.sqrt(np.einsum("ij,ij->i", means, means))
    clusters.errors[some] += clusters.sizes[some] * (1 - lengths) ** 2
    means[lengths == 0, 0] = lengths[lengths == 0] = 1
    means = means / lengths[:, np.newaxis] - offset
    clusters.centers[some] = means
    clusters.norms[some] = np.einsum("ij,ij->i", means, means)


def with_means(clusters: Clusters, offset: NDArray[Any], threads: Threads) -> Clusters:
    """Replace unit-length centres by the means of their clusters, by which points on the sphere move (Hartigan's rule).

    The mean of a cluster of directions has the length 1 - error / (2 size). By the exact gain of a direction, points
    far from all others prefer the clusters whose sum is shortest; all of them move there at once and undo each other.
    Moves by the means do not, and end at a lower spherical distortion.
    """
    lengths = (1 - clusters.errors / (2 * clusters.sizes)).astype(offset.dtype)[:, np.newaxis]
    centers = empty_rows(clusters.centers.shape, offset.dtype)

    def shorten(first: int, last: int) -> None:
        some = slice(first, last)
        np.add(clusters.centers[some], offset, out=centers[some])
        centers[some] *= lengths[some]
        centers[some] -= offset

    threads.for_each_block(shorten, len(centers), rows_per_block(centers))
    return clusters._replace(centers=centers)
