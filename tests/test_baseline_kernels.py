"""Kernels of the baselines compared with slow definitions, on inputs small enough for no JIT and for bounds checks."""

import heapq

import numpy as np
import pytest
import reference
from small import every_dtype, make_clusters, make_labels, make_points, numbers

from closure_kmeans.baselines import kernels
from closure_kmeans.baselines.approximate import grow_forest
from closure_kmeans.baselines.canopy import Canopies
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points

pytestmark = pytest.mark.kernels

both_precisions = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def make_centers(rng, dtype, k=20, d=4):
    return rng.normal(0, 10, (k, d)).astype(dtype)


def make_forest(centers, n_trees=3, seed=0):
    with Threads(1) as threads:
        return grow_forest(centers, n_trees, np.random.default_rng(seed), threads)


# -- randomised k-d trees --------------------------------------------------------------------------------------------


@both_precisions
@pytest.mark.parametrize("d", [1, 3, 9])
def test_choose_cut(dtype, d):
    rng = np.random.default_rng(0)
    centers, node = make_centers(rng, dtype, 150, d), rng.permutation(150)[:120].astype(np.int32)
    for draw in np.linspace(0, 0.999, 7):
        for size in (2, 50, 120):
            buffers = np.empty(d, dtype), np.empty(d, np.float32)
            axis, cut = kernels.choose_cut(centers, node[:size], draw, *buffers)
            expected = reference.choose_cut(
                centers, node[:size], draw, kernels.SPREAD_SAMPLE, min(kernels.WIDEST_AXES, d)
            )
            assert axis == expected[0]
            assert cut == pytest.approx(expected[1], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("cut", [-100.0, -3.0, 0.0, 5.0, 100.0])
def test_split_node(cut):
    """One of the centres is just where the cut is."""
    rng = np.random.default_rng(0)
    centers, node = make_centers(rng, np.float32), rng.permutation(20)[:13].astype(np.int32)
    centers[node[6], 2] = cut
    expected, n_expected = reference.split_node(centers, node, 2, cut)
    n_left = kernels.split_node(centers, node, 2, np.float32(cut), np.empty_like(node))
    assert n_left == n_expected
    np.testing.assert_array_equal(node, expected)


@both_precisions
@pytest.mark.parametrize("k", [1, 2, 3, 20])
@pytest.mark.parametrize("copies", [False, True])
def test_grow_trees(dtype, k, copies):
    """Every centre is a leaf of every tree, on its side of each cut above it."""
    centers = make_centers(np.random.default_rng(0), dtype, k)
    if copies:
        centers[: k // 2] = centers[0]
    forest = make_forest(centers)
    size = 2 * k - 1
    for root in range(0, 3 * size, size):
        assert sorted(reference.leaves_of(forest, root)) == list(range(k))
    for node in np.flatnonzero(forest.axes >= 0):
        axis, cut, other = (array[node] for array in forest)
        assert node // size == other // size  # of the same tree
        left, right = (centers[reference.leaves_of(forest, one), axis] for one in (node + 1, other))
        if not copies:
            assert (left < cut).all()
            assert (right >= cut).all()


def test_trees_differ():
    forest = make_forest(make_centers(np.random.default_rng(0), np.float32, 50, 9), n_trees=6)
    assert len({tree.tobytes() for tree in np.split(forest.axes, 6)}) == 6


@both_precisions
@pytest.mark.parametrize("n_candidates", [1, 4, 12, 59, 60, 100])
@pytest.mark.parametrize("own_centers", ["none", "any", "first met"])
def test_search_forest(dtype, n_candidates, own_centers):
    rng = np.random.default_rng(0)
    centers, rows = make_centers(rng, dtype, 60, 8), make_centers(rng, dtype, 50, 8)
    forest = make_forest(centers)
    own = {
        "none": np.full(50, -1, np.int32),
        "any": rng.integers(60, size=50).astype(np.int32),
        "first met": np.array([reference.forest_candidates(row, forest, 3, 1)[0] for row in rows], np.int32),
    }[own_centers]
    labels = np.full(50, -7, np.int32)
    n_pairs = kernels.search_forest(rows, centers, forest, n_candidates, own, labels, 2, 49)
    met = [reference.forest_candidates(rows[i], forest, 3, min(n_candidates, 60), own[i]) for i in range(2, 49)]
    assert n_pairs == sum(map(len, met)) == 47 * min(n_candidates, 60)
    expected = [
        reference.nearest_candidate(rows[i], centers, some, own[i]) for i, some in zip(range(2, 49), met, strict=True)
    ]
    np.testing.assert_array_equal(labels[2:49], expected)
    assert (labels[[0, 1, 49]] == -7).all()
    if n_candidates >= 60:
        np.testing.assert_array_equal(expected, reference.search_nearest(rows[2:49], centers)[0])


@pytest.mark.parametrize(("k", "n_trees"), [(1, 1), (2, 3), (700, 1), (700, 8)])
def test_search_forests_of_any_size(k, n_trees):
    """Whole numbers have many equals; queues of many groups, or of hardly a branch."""
    rng = np.random.default_rng(0)
    centers, rows = (rng.integers(0, 9, (n, 6)).astype(np.float32) for n in (k, 30))
    forest = make_forest(centers, n_trees)
    labels, nobody = np.empty(30, np.int32), np.full(30, -1, np.int32)
    for n_candidates in (1, 40, k):
        kernels.search_forest(rows, centers, forest, n_candidates, nobody, labels, 0, 30)
        met = [reference.forest_candidates(row, forest, n_trees, min(n_candidates, k)) for row in rows]
        expected = [reference.nearest_candidate(row, centers, some) for row, some in zip(rows, met, strict=True)]
        np.testing.assert_array_equal(labels, expected)


@pytest.mark.parametrize("most", [1, 20, 32, 700])
def test_the_queue(most):
    """The branch of the smallest bound comes first, of several the one that was put first."""
    rng = np.random.default_rng(0)
    queue = kernels.make_queue(most)
    for _ in range(3):  # what was left in it is forgotten
        n_put, twin = 0, []
        while n_put < most or twin:
            if n_put < most and (not twin or rng.random() < 0.6):
                bound = np.float32(rng.choice([0, rng.random(), rng.integers(3), 1e30, np.inf]))
                kernels.put(queue, n_put, bound, 1000 + n_put)
                heapq.heappush(twin, (bound, n_put))
                n_put += 1
            else:
                place = kernels.take_first(queue, n_put)
                assert (queue.bounds[place], place) == heapq.heappop(twin)
                assert queue.nodes[place] == 1000 + place


def test_the_axis_of_copies():
    """Where nothing spreads, or but for rounding, any axis will do, and none is taken twice."""
    centers = np.full((5, 4), 0.1, np.float32)
    node = np.arange(5, dtype=np.int32)
    axes = {
        kernels.choose_cut(centers, node, draw, np.empty(4, np.float32), np.empty(4, np.float32))[0]
        for draw in (0, 0.3, 0.6, 0.9)
    }
    assert axes == {0, 1, 2, 3}


def test_first_largest():
    rng = np.random.default_rng(0)
    for size in (1, 2, 17, 300):
        numbers = rng.integers(-9, 9, size).astype(np.int32)
        assert kernels.first_largest(numbers) == numbers.argmax()
        assert kernels.lowest_key(numbers.astype(np.int64), size // 2, size) == numbers[size // 2 :].min()


def test_nearest_candidate_decides_what_rounding_leaves_open():
    centers = np.array([[1, 0], [-1, 0], [0, 1 + 1e-7], [0, 1], [3, 3]], np.float32)
    row = np.zeros(2, np.float32)
    for candidates in ([4, 3, 1, 0], [2, 1, 3], [0, 1, 2, 3, 4], [4]):
        for own in [-1, *candidates]:
            some = np.array(candidates, np.int32)
            expected = reference.nearest_candidate(row, centers, candidates, own)
            if own >= 0:  # it comes first
                some = np.array([own, *(one for one in candidates if one != own)], np.int32)
            assert kernels.nearest_candidate(row, centers, some, own) == expected


# -- canopies --------------------------------------------------------------------------------------------------------


@both_precisions
def test_draw_canopy(dtype):
    coordinates = make_centers(np.random.default_rng(0), dtype, 40, 2)
    [(_, expected)] = reference.canopies(coordinates, [3], 12.0, 5.0)
    members, covered = np.full(40, -1, np.int32), np.zeros(40, bool)
    sizes = [kernels.draw_canopy(coordinates, 3, 144.0, 25.0, members, covered, first, first + 20) for first in (0, 20)]
    found = np.concatenate([members[: sizes[0]], members[20 : 20 + sizes[1]]])
    np.testing.assert_array_equal(found, expected)
    assert len(expected) > covered.sum() > 1
    np.testing.assert_array_equal(np.flatnonzero(covered), reference.canopies(coordinates, [3], 5.0, 5.0)[0][1])


@every_dtype
@pytest.mark.parametrize("weighted", [False, True])
def test_assign_canopies(dtype, weighted, monkeypatch):
    """Several blocks, tiles of centres, canopies without centres, and centres and points without canopies."""
    if not hasattr(kernels.assign_canopies, "py_func"):
        monkeypatch.setattr(kernels, "CANOPY_ROWS", 16)
        monkeypatch.setattr(kernels, "CANOPY_CENTERS", 3)
    rng = np.random.default_rng(0)
    points = make_points(rng, dtype, weighted=weighted)
    labels = make_labels(rng, 60, 9)
    clusters = make_clusters(points, labels, 9)
    sets = [np.flatnonzero(rng.random(60) < share).astype(np.int32) for share in (0.5, 0.2, 0.0, 0.7)]
    inside = [np.flatnonzero(rng.random(9) < share).astype(np.int32) for share in (0.9, 0.0, 0.5, 0.3)]
    canopies = Canopies(np.concatenate(sets), np.cumsum([0, *map(len, sets)]), np.zeros((4, 1)), 0.0)
    new_labels = np.empty_like(labels)
    n_blocks = -(-60 // kernels.CANOPY_ROWS)
    n_pairs = kernels.assign_canopies(
        points, clusters, labels, canopies, np.concatenate(inside), np.cumsum([0, *map(len, inside)]), new_labels,
        0, n_blocks,
    )  # fmt: skip
    expected, n_expected = reference.assign_canopies(numbers(points)[0], clusters.centers, labels, sets, inside)
    np.testing.assert_array_equal(new_labels, expected)
    assert n_pairs == n_expected


def assign_in_one_canopy(rows, centers, labels):
    """The new labels, where one canopy holds all points and all centres."""
    points = Points(rows, np.zeros_like(rows[0]), np.ones(1), rows, np.zeros_like(rows[0]))
    clusters = make_clusters(points, labels, len(centers))._replace(centers=centers)
    canopies = Canopies(np.arange(len(rows), dtype=np.int32), np.array([0, len(rows)]), np.zeros((1, 1)), 0.0)
    inside, new_labels = np.arange(len(centers), dtype=np.int32), np.empty_like(labels)
    n_blocks = -(-len(rows) // kernels.CANOPY_ROWS)
    kernels.assign_canopies(
        points, clusters, labels, canopies, inside, np.array([0, len(inside)]), new_labels, 0, n_blocks
    )
    return new_labels


@both_precisions
def test_canopies_move_no_point_by_rounding(dtype):
    """Every centre is there twice: a point is as near to one as to the other."""
    rng = np.random.default_rng(0)
    rows, centers = rng.normal(50, 9, (200, 7)).astype(dtype), rng.normal(50, 9, (5, 7)).astype(dtype)
    labels = reference.search_nearest(rows, centers)[0] + 5 * rng.integers(2, size=200)
    labels = labels.astype(np.int32)
    np.testing.assert_array_equal(assign_in_one_canopy(rows, np.concatenate([centers, centers]), labels), labels)


def test_canopies_tell_small_clusters_far_from_the_mean_apart():
    rng = np.random.default_rng(0)
    rows = (1e4 + rng.normal(0, 1, (200, 7))).astype(np.float32)
    centers = rows[:4].copy()
    labels = make_labels(rng, 200, 4)
    expected = reference.search_nearest(rows, centers)[0]
    assert (assign_in_one_canopy(rows, centers, labels) == expected).mean() > 0.99


# -- hierarchical k-means --------------------------------------------------------------------------------------------


@every_dtype
def test_nearest_children(dtype):
    rng = np.random.default_rng(0)
    points = make_points(rng, dtype)
    centers = rng.normal(0, 40, (12, 5)).astype(points.offset.dtype)
    centers[4] = centers[2]
    starts, nodes = np.array([0, 1, 6, 12]), rng.integers(3, size=60).astype(np.int32)
    labels = np.full(60, -7, np.int32)
    kernels.nearest_children(points.rows, points.offset, centers, starts, nodes, labels, 1, 59)
    expected = reference.nearest_children(numbers(points)[0], centers, starts, nodes)
    np.testing.assert_array_equal(labels[1:59], expected[1:59])
    assert (labels[[0, 59]] == -7).all()


def test_nearest_children_of_a_row_whose_distances_overflow():
    centers, row = np.array([[0, 1e12], [0, -1e12]], np.float32), np.array([[0, -1e24]], np.float32)
    mean, starts, nodes, labels = np.zeros_like(row[0]), np.array([0, 2]), np.zeros(1, np.int32), np.zeros(1, np.int32)
    with np.errstate(over="ignore"):
        kernels.nearest_children(row, mean, centers, starts, nodes, labels, 0, 1)
    assert labels[0] == 1
