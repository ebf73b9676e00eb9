"""The measures of the paper, on cases small enough to work out by hand."""

import numpy as np
import pytest
import reference
from small import make_partition

from closure_kmeans import metrics
from closure_kmeans.trees import RandomPartition

X = np.array([[0.0, 0.0], [1.0, 0.0], [4.0, 0.0], [9.0, 0.0]])
CENTERS = np.array([[0.0, 0.0], [4.0, 3.0], [10.0, 0.0]])


def partition(*leaves):
    return RandomPartition(np.concatenate(leaves).astype(np.int32), np.cumsum([0, *map(len, leaves)]))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.uint8, np.int8])
def test_distances(dtype):
    labels, distances = metrics.exact_labels(X.astype(dtype), CENTERS)
    assert labels.tolist() == [0, 0, 1, 2]
    assert distances == pytest.approx([0, 1, 9, 1], abs=1e-5)
    assert metrics.distortion(X.astype(dtype), CENTERS, n_threads=2) == pytest.approx(11 / 4)
    assert metrics.squared_distances(X.astype(dtype), CENTERS, [1, 1, 0, 2]) == pytest.approx([25, 18, 16, 1], rel=1e-5)


def test_assignment_accuracy():
    assert metrics.assignment_accuracy(X, CENTERS, [0, 0, 1, 2]) == 1
    assert metrics.assignment_accuracy(X, CENTERS, [0, 1, 0, 2]) == 0.5
    assert metrics.assignment_accuracy(X[:1], [[3.0, 0.0], [0.0, 3.0]], [1]) == 1  # as near as the first


def test_the_exact_assignment_is_accurate_whatever_the_rounding():
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        X, centers = (rng.normal(1000, 1, (size, 40)).astype(dtype) for size in (2000, 100))
        labels, _ = metrics.exact_labels(X, centers)
        assert metrics.assignment_accuracy(X, centers, labels) == 1


def test_distance_ratio():
    """Row 1 goes from distance sqrt(18) to 1, row 3 from 9 to 1, and the others stay."""
    ratio = metrics.distance_ratio(X, CENTERS, [0, 1, 1, 0], [0, 0, 1, 2])
    assert ratio == pytest.approx([1 - 1 / np.sqrt(18), 1 - 1 / 9])
    assert len(metrics.distance_ratio(X, CENTERS, [0, 1, 1, 0], [0, 1, 1, 0])) == 0
    assert metrics.distance_ratio(X[:1], CENTERS, [0], [1]).tolist() == [-np.inf]  # it left a centre that it was on


def test_coverage():
    """Points 1 and 2 move to clusters 0 and 2. The first has a neighbour there in one tree, the second in the other."""
    old, new = [0, 1, 1, 2], [0, 0, 2, 2]
    first, second = partition([0, 1], [3], [2]), partition([1, 0], [3, 2])
    assert metrics.coverage(old, new, [partition([0], [1], [2], [3])]) == 0
    assert metrics.coverage(old, new, [first]) == 0.5
    assert metrics.coverage(old, new, [second]) == 1
    assert metrics.coverage(old, new, [first, partition([0], [2, 3, 1])]) == 1
    assert metrics.coverage(old, old, [first]) == 1


@pytest.mark.parametrize("seed", range(20))
def test_coverage_is_that_of_the_closures(seed):
    """Leaves of points in any order; clusters that only the old or only the new labels know."""
    rng = np.random.default_rng(seed)
    old, new = rng.integers(8 + seed % 3, size=60), rng.integers(8 + seed // 3 % 3, size=60)
    partitions = [make_partition(rng, 60, 20) for _ in range(1 + seed % 4)]
    closures = reference.closures(old, 11, partitions)
    covered = [point in closures[new[point]] for point in np.flatnonzero(old != new)]
    assert 0.1 < metrics.coverage(old, new, partitions) == np.mean(covered) < 1


def test_normalized_mutual_information():
    assert metrics.normalized_mutual_information([0, 0, 1, 1], [5, 5, 3, 3]) == pytest.approx(1)
    assert metrics.normalized_mutual_information([0, 0, 1, 1], [0, 1, 0, 1]) == pytest.approx(0, abs=1e-12)
    information = 0.5 * np.log(4 / 3) + 0.25 * np.log(2 / 3) + 0.25 * np.log(2)
    entropies = np.log(2), -0.75 * np.log(0.75) - 0.25 * np.log(0.25)
    expected = information / np.sqrt(np.prod(entropies))
    assert metrics.normalized_mutual_information([0, 0, 1, 1], [0, 0, 0, 1]) == pytest.approx(expected)


def test_bad_input():
    with pytest.raises(ValueError, match="centers must have 2 features like X, got 3"):
        metrics.distortion(X, np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"labels must have shape \(4,\), one per row, got \(3,\)"):
        metrics.squared_distances(X, CENTERS, [0, 1, 2])
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.2, got values in 0\.\.3"):
        metrics.assignment_accuracy(X, CENTERS, [0, 1, 2, 3])
    with pytest.raises(TypeError, match="labels must hold integers, got float64"):
        metrics.squared_distances(X, CENTERS, [0.0, 1, 2, 2])
    with pytest.raises(ValueError, match="Input X contains NaN"):
        metrics.distortion(X * np.nan, CENTERS)
    with pytest.raises(ValueError, match=r"new_labels must have shape \(4,\), one per row, got \(3,\)"):
        metrics.distance_ratio(X, CENTERS, [0, 1, 1, 0], [0, 1, 1])
    with pytest.raises(ValueError, match=r"new_labels must have shape \(4,\), one per row, got \(3,\)"):
        metrics.coverage([0, 1, 1, 0], [0, 1, 1], [partition([0, 1, 2, 3])])
    with pytest.raises(TypeError, match="labels must hold integers, got float64"):
        metrics.coverage([0.5, 1, 1, 0], [0, 1, 1, 0], [partition([0, 1, 2, 3])])
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.1, got values in -1\.\.1"):
        metrics.coverage([-1, 1, 1, 0], [0, 1, 1, 0], [partition([0, 1, 2, 3])])
