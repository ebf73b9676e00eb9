"""The assignment in tiles, compared with slow definitions."""

from itertools import pairwise

import numpy as np
import pytest
import reference
from small import (
    assert_close,
    both_precisions,
    every_dtype,
    largest_norm,
    make_clusters,
    make_labels,
    make_partition,
    make_points,
    numbers,
)

from closure_kmeans.clusters import Clusters
from closure_kmeans.kernels.emit import TILE_ROWS, VECTOR_BYTES
from closure_kmeans.points import Points
from closure_kmeans.stores.memory import assign_leaves
from closure_kmeans.trees import RandomPartition

pytestmark = pytest.mark.kernels


def assign(points, clusters, labels, partitions, hartigan, n_blocks=2):
    """The kernel over all leaves of all partitions, some leaves at a time, the last ones first."""
    new_labels = labels.copy()
    scores = np.full(len(labels), np.inf, points.offset.dtype)
    n_pairs = 0
    for partition in partitions:
        cuts = np.linspace(0, len(partition.starts) - 1, n_blocks + 1).astype(int)
        for first, last in reversed(list(pairwise(cuts))):
            n_pairs += assign_leaves(points, clusters, labels, partition, hartigan, new_labels, scores, first, last)
    return new_labels, scores, n_pairs


@every_dtype
@pytest.mark.parametrize("hartigan", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_trees", [1, 3])
def test_leaf_by_leaf_is_closure_by_closure(dtype, hartigan, weighted, n_trees):
    """The "equivalent way" of section 3.4, for one and for several partitions united."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        points = make_points(rng, dtype, weighted=weighted)
        labels = make_labels(rng, 60, 9)
        clusters = make_clusters(points, labels, 9)
        partitions = [make_partition(rng, 60, 8) for _ in range(n_trees)]
        new_labels, scores, n_pairs = assign(points, clusters, labels, partitions, hartigan)

        X, weights = numbers(points)
        costs = reference.move_costs(X, weights, clusters.centers, clusters.sizes, labels, hartigan)
        expected_labels, expected_scores = reference.assign_by_closures(costs, labels, partitions)
        np.testing.assert_array_equal(new_labels, expected_labels)
        assert 0 < np.count_nonzero(new_labels != labels) < 60
        assert_close(scores, expected_scores, dtype, largest_norm(points))
        leaves = [leaf for members, starts, _ in partitions for leaf in np.split(members, starts[1:-1])]
        assert n_pairs == sum(len(leaf) * len(np.unique(labels[leaf])) for leaf in leaves)


@both_precisions
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [1, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 100])
@pytest.mark.parametrize("k", [1, VECTOR_BYTES // 8, VECTOR_BYTES // 8 + 1, VECTOR_BYTES // 4, VECTOR_BYTES // 4 + 1])
def test_leaves_of_any_size_with_any_number_of_candidates(n, k, weighted, dtype):
    """Rows that fill a tile, or not, and candidates that fill a panel, or not."""
    rng = np.random.default_rng(0)
    points = make_points(rng, dtype, n=max(n, k), weighted=weighted)
    labels = make_labels(rng, len(points.rows), k)
    clusters = make_clusters(points, labels, k)
    leaf = np.arange(n, dtype=np.int32)
    partition = RandomPartition(leaf, np.array([0, n]))
    new_labels, _, n_pairs = assign(points, clusters, labels, [partition], True, n_blocks=1)
    costs = reference.move_costs(*numbers(points), clusters.centers, clusters.sizes, labels, True)
    candidates = np.unique(labels[leaf])
    np.testing.assert_array_equal(new_labels[leaf], candidates[costs[leaf][:, candidates].argmin(axis=1)])
    assert n_pairs == n * len(candidates)


@pytest.mark.parametrize("hartigan", [False, True])
@both_precisions
def test_penalties_are_a_part_of_the_squared_distance(dtype, hartigan):
    rng = np.random.default_rng(0)
    points = make_points(rng, dtype, weighted=True)
    labels = make_labels(rng, 60, 9)
    clusters = make_clusters(points, labels, 9)
    clusters = clusters._replace(penalties=rng.random(9) * 2 * clusters.errors.sum() / clusters.sizes.sum())
    partitions = [make_partition(rng, 60, 8)]
    new_labels, scores, _ = assign(points, clusters, labels, partitions, hartigan)
    costs = reference.move_costs(
        *numbers(points), clusters.centers, clusters.sizes, labels, hartigan, clusters.penalties
    )
    expected_labels, expected_scores = reference.assign_by_closures(costs, labels, partitions)
    np.testing.assert_array_equal(new_labels, expected_labels)
    assert_close(scores, expected_scores, dtype, largest_norm(points))
    free, _, _ = assign(points, clusters._replace(penalties=np.zeros(9)), labels, partitions, hartigan)
    assert (new_labels != free).any()


@pytest.mark.parametrize("hartigan", [False, True])
def test_a_partition_that_is_open_to_all_clusters(hartigan):
    rng = np.random.default_rng(0)
    points = make_points(rng, np.float64, weighted=True)
    labels = make_labels(rng, 60, 9)
    clusters = make_clusters(points, labels, 9)
    partition = make_partition(rng, 60, 8)._replace(open_to_all=True)
    new_labels, scores, n_pairs = assign(points, clusters, labels, [partition], hartigan)
    costs = reference.move_costs(*numbers(points), clusters.centers, clusters.sizes, labels, hartigan)
    np.testing.assert_array_equal(new_labels, costs.argmin(axis=1))
    assert_close(scores, costs.min(axis=1), np.float64, largest_norm(points))
    assert n_pairs == 60 * 9


@pytest.mark.parametrize("hartigan", [False, True])
def test_rows_that_rounding_hides_are_compared_one_by_one(hartigan):
    """Two groups of clusters so far apart that single precision sees no distance in one from the centre of another."""
    rng = np.random.default_rng(0)
    points = make_points(rng, np.float32, weighted=True)
    points.rows[:30] /= 1000
    points.rows[30:] = points.rows[30:] / 1000 + 1000
    points.offset[:] = 0
    labels = np.concatenate([make_labels(rng, 30, 4), 4 + make_labels(rng, 30, 5)])
    clusters = make_clusters(points, labels, 9)
    clusters = clusters._replace(penalties=1e-6 * rng.random(9))
    partition = RandomPartition(np.arange(60, dtype=np.int32), np.array([0, 60]))
    new_labels, scores, _ = assign(points, clusters, labels, [partition], hartigan, n_blocks=1)
    costs = reference.move_costs(
        *numbers(points), clusters.centers, clusters.sizes, labels, hartigan, clusters.penalties
    )
    np.testing.assert_array_equal(new_labels, costs.argmin(axis=1))
    assert_close(scores[30:], costs.min(axis=1)[30:], np.float32, 1e-3)
    assert (new_labels != labels)[30:].any()


@pytest.mark.parametrize("hartigan", [False, True])
def test_assignment_does_not_depend_on_the_blocks(hartigan):
    rng = np.random.default_rng(0)
    points = make_points(rng, np.float32, weighted=True)
    labels = make_labels(rng, 60, 9)
    clusters = make_clusters(points, labels, 9)
    partitions = [make_partition(rng, 60, 8), make_partition(rng, 60, 15)]
    once = assign(points, clusters, labels, partitions, hartigan, n_blocks=1)
    for n_blocks in (2, 3, 8):
        for ours, theirs in zip(assign(points, clusters, labels, partitions, hartigan, n_blocks), once, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_hartigan_costs_are_changes_of_the_distortion():
    rng = np.random.default_rng(0)
    points = make_points(rng, np.float64, n=20, weighted=True)
    X, weights = numbers(points)
    labels = make_labels(rng, 20, 4)
    clusters = make_clusters(points, labels, 4)
    costs = reference.move_costs(X, weights, clusters.centers, clusters.sizes, labels, hartigan=True)
    before = reference.inertia(X, labels, weights)
    for i, own in enumerate(labels):
        for j in set(range(4)) - {own}:
            moved = labels.copy()
            moved[i] = j
            if (labels == own).sum() > 1:
                change = reference.inertia(X, moved, weights) - before
                assert weights[i] * (costs[i, j] - costs[i, own]) == pytest.approx(change)


def leaf_on_a_line(positions, labels, centers, sizes, dtype, weights=(1.0,)):
    """The new labels of points on a line that share a leaf."""
    rows = np.array(positions, dtype)[:, np.newaxis]
    centers = np.array(centers, dtype)[:, np.newaxis]
    points = Points(rows, np.zeros(1, dtype), np.array(weights), rows, np.zeros(1, dtype))
    clusters = Clusters(centers, centers[:, 0] ** 2, np.array(sizes, np.float64), *np.zeros((2, len(sizes))))
    partition = RandomPartition(np.arange(len(rows), dtype=np.int32), np.array([0, len(rows)]))
    hartigan = [assign(points, clusters, np.array(labels, np.int32), [partition], rule, 1)[0] for rule in (False, True)]
    return [list(map(int, new_labels)) for new_labels in hartigan]


@both_precisions
def test_a_point_half_way_stays_where_it_is(dtype):
    lloyd, _ = leaf_on_a_line([0, 1, 1, 2], [0, 0, 1, 1], [0, 2], [2, 2], dtype)
    assert lloyd == [0, 0, 1, 1]


@both_precisions
def test_hartigan_moves_a_point_that_lloyd_leaves(dtype):
    """4 is nearer to the centre 2 of {0, 4} than to 7, but {0}, {4, 6, 8} is better than {0, 4}, {6, 8}."""
    lloyd, hartigan = leaf_on_a_line([0, 4, 6, 8], [0, 0, 1, 1], [2, 7], [2, 2], dtype)
    assert lloyd == [0, 0, 1, 1]
    assert hartigan == [0, 1, 1, 1]


@both_precisions
def test_the_last_point_of_a_cluster_never_leaves_it(dtype):
    """By Hartigan's rule, though its centre is far away, whatever rounding does to its weight."""
    for weight in (0.1, 0.2, 0.3, 0.7, 1.0, 1e-30, 1e30):
        for weights in ([weight], [weight] * 3):
            _, hartigan = leaf_on_a_line([0, 1, 2], [0, 1, 1], [9, 0], [weight, 2 * weight], dtype, weights)
            assert hartigan[0] == 0


@both_precisions
def test_hartigan_does_not_depend_on_the_unit_of_the_weights(dtype):
    positions, labels, centers = [0, 4, 6, 8], [0, 0, 1, 1], [2, 7]
    for unit in (2.0**-200, 1.0, 2.0**200):
        for weights in ([unit], [unit] * 4, [unit, unit, unit, 2 * unit]):
            sizes = np.bincount(labels, np.broadcast_to(weights, 4))
            _, hartigan = leaf_on_a_line(positions, labels, centers, sizes, dtype, weights)
            assert hartigan == [0, 1, 1, 1]
