"""Measures of the paper: quality of a clustering, and coverage and distance ratio of active points."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import normalized_mutual_info_score
from sklearn.utils import check_array

from closure_kmeans import points
from closure_kmeans import validation as check
from closure_kmeans.arrays import check_labels, check_new_rows
from closure_kmeans.nearest import nearest_centers
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.points import precision, unmasked
from closure_kmeans.trees import RandomPartition


def exact_labels(
    X: ArrayLike, centers: ArrayLike, n_threads: int | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Find the nearest of all centres for each row.

    Parameters
    ----------
    X : array-like of shape (n, d)
        Rows.
    centers : array-like of shape (k, d)
        Cluster centres.
    n_threads : int, default=None
        Number of threads; by default all cores.

    Returns
    -------
    labels : (n,) array of int32
        Index of the nearest centre.
    distances : (n,) array of float64
        Squared distance to it.

    See Also
    --------
    closure_kmeans.CenterIndex : Approximate search, faster for many centres.

    Examples
    --------
    >>> labels, distances = exact_labels([[0.0], [1.0], [9.0]], centers=[[0.0], [10.0]])
    >>> labels.tolist(), distances.tolist()
    ([0, 0, 1], [0.0, 1.0, 1.0])
    """
    rows, middles, mean = _rows_and_centers(X, centers)
    with Threads(count_threads(n_threads)) as threads:
        return nearest_centers(rows, middles, mean, threads)


def distortion(X: ArrayLike, centers: ArrayLike, n_threads: int | None = None) -> float:
    """Compute the mean squared distance of a row to its nearest centre (equation 1, per row).

    Parameters
    ----------
    X : array-like of shape (n, d)
        Rows.
    centers : array-like of shape (k, d)
        Cluster centres.
    n_threads : int, default=None
        Number of threads; by default all cores.

    Returns
    -------
    distortion : float
        Mean squared distance.

    See Also
    --------
    exact_labels : The nearest centres and squared distances themselves.

    Examples
    --------
    >>> distortion([[0.0], [1.0], [9.0], [10.0]], centers=[[0.0], [10.0]])
    0.5
    """
    _, distances = exact_labels(X, centers, n_threads)
    return float(distances.mean())


def squared_distances(X: ArrayLike, centers: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """Compute the squared distance of each row to the centre of its label.

    Parameters
    ----------
    X : array-like of shape (n, d)
        Rows.
    centers : array-like of shape (k, d)
        Cluster centres.
    labels : array-like of int, shape (n,)
        Index of a centre for each row.

    Returns
    -------
    distances : (n,) array of float64
        Squared distances.

    See Also
    --------
    exact_labels : Squared distances to the nearest centres.

    Examples
    --------
    >>> squared_distances([[0.0], [1.0]], centers=[[0.0], [10.0]], labels=[0, 1]).tolist()
    [0.0, 81.0]
    """
    rows, middles, mean = _rows_and_centers(X, centers)
    return points.squared_distances(rows, middles, mean, check_labels("labels", labels, len(rows), len(middles)))


def assignment_accuracy(X: ArrayLike, centers: ArrayLike, labels: ArrayLike, n_threads: int | None = None) -> float:
    """Compute the fraction of rows whose label is an exact nearest centre (section 4.4).

    With ties, any of the nearest centres counts.

    Parameters
    ----------
    X : array-like of shape (n, d)
        Rows.
    centers : array-like of shape (k, d)
        Cluster centres.
    labels : array-like of int, shape (n,)
        Index of a centre for each row.
    n_threads : int, default=None
        Number of threads; by default all cores.

    Returns
    -------
    accuracy : float
        Between 0 and 1.

    See Also
    --------
    exact_labels : The exact nearest centres.

    Examples
    --------
    >>> assignment_accuracy([[0.0], [1.0]], centers=[[0.0], [10.0]], labels=[0, 1])
    0.5
    """
    _, smallest = exact_labels(X, centers, n_threads)
    own = squared_distances(X, centers, labels)
    return float(np.mean(own <= smallest * points.EQUALLY_NEAR))


def distance_ratio(X: ArrayLike, centers: ArrayLike, labels: ArrayLike, new_labels: ArrayLike) -> NDArray[np.float64]:
    """Compute the relative distance of each active point to the boundary that it crosses (section 3.1).

    For each row whose cluster changes: 1 - d(x, new centre) / d(x, old centre), which is small near the boundary.

    Parameters
    ----------
    X : array-like of shape (n, d)
        Rows.
    centers : array-like of shape (k, d)
        Cluster centres.
    labels : array-like of int, shape (n,)
        Index of the old centre of each row.
    new_labels : array-like of int, shape (n,)
        Index of the new centre of each row.

    Returns
    -------
    ratios : (n_active,) array of float64
        In the order of the active rows, whose label changes.

    See Also
    --------
    coverage : Fraction of active points that cluster closures contain.

    Examples
    --------
    >>> ratio = distance_ratio([[0.0], [6.0]], centers=[[0.0], [10.0]], labels=[0, 0], new_labels=[0, 1])
    >>> ratio.round(3).tolist()  # one active point, 4 from its new centre and 6 from its old one
    [0.333]
    """
    before = squared_distances(X, centers, labels)
    new = check_labels("new_labels", new_labels, len(before), len(np.asarray(centers)))
    after = squared_distances(X, centers, new)
    active = np.asarray(labels) != new
    with np.errstate(divide="ignore", invalid="ignore"):  # the old distance may be 0
        ratio: NDArray[np.float64] = 1 - np.sqrt(after[active] / before[active])
    return ratio


def coverage(labels: ArrayLike, new_labels: ArrayLike, partitions: list[RandomPartition]) -> float:
    """Compute the fraction of active points inside the closure of the cluster that they move to (section 3.1).

    The closure of a cluster is the union of the leaves, over all partitions, that contain a point with its old label.

    Parameters
    ----------
    labels : array-like of int, shape (n,)
        Old label of each row.
    new_labels : array-like of int, shape (n,)
        New label of each row; rows whose label changes are active.
    partitions : list of RandomPartition
        Random partitions of the rows.

    Returns
    -------
    coverage : float
        Between 0 and 1; 1 if no point is active.

    See Also
    --------
    distance_ratio : How far active points are from the boundary.

    Examples
    --------
    >>> halves = RandomPartition(np.arange(4, dtype=np.int32), np.array([0, 2, 4]))
    >>> coverage([0, 1, 1, 2], [1, 1, 2, 0], [halves])  # of three active points the last misses its new cluster
    0.6666666666666666
    """
    n_clusters = 1 + max(np.max(labels), np.max(new_labels))
    old = check_labels("labels", labels, np.size(labels), n_clusters)
    new = check_labels("new_labels", new_labels, len(old), n_clusters)
    active = np.flatnonzero(old != new)
    if len(active) == 0:
        return 1.0
    covered = np.zeros(len(active), bool)
    for members, starts, _ in partitions:
        leaf = np.empty(len(members), np.int64)
        leaf[members] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        clusters_met = np.unique(leaf * n_clusters + old)
        covered |= np.isin(leaf[active] * n_clusters + new[active], clusters_met)
    return float(covered.mean())


def normalized_mutual_information(truth: ArrayLike, labels: ArrayLike) -> float:
    """Compute the mutual information of two labellings, normalised by their entropies (section 4.2).

    The mutual information is divided by the geometric mean of both entropies.

    Parameters
    ----------
    truth : array-like of shape (n,)
        Class of each row.
    labels : array-like of shape (n,)
        Cluster of each row.

    Returns
    -------
    nmi : float
        Between 0 (independent) and 1 (equal up to a permutation of the labels).

    See Also
    --------
    sklearn.metrics.normalized_mutual_info_score : The same with other normalisations.

    Examples
    --------
    >>> round(normalized_mutual_information([0, 0, 1, 1], [5, 5, 7, 7]), 6)
    1.0
    """
    return float(normalized_mutual_info_score(truth, labels, average_method="geometric"))


def _rows_and_centers(X: ArrayLike, centers: ArrayLike) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Rows, centres of the same width less their mean, and this mean, both in the precision of the rows."""
    checked = check_array(unmasked("X", check.rows(X)), dtype=check.DTYPES, order="C", input_name="X")
    middles = check_array(unmasked("centers", centers), dtype=precision(checked.dtype), order="C", input_name="centers")
    if middles.shape[1] != checked.shape[1]:
        raise ValueError(f"centers must have {checked.shape[1]} features like X, got {middles.shape[1]}")
    check_new_rows(checked, middles[0])
    mean = middles.mean(axis=0)
    return checked, middles - mean, mean
