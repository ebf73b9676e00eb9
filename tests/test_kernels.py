"""Kernels compared with slow definitions, on inputs small enough for no JIT and for bounds checks."""

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from numba import config, njit

from closure_kmeans import kernels
from closure_kmeans.cells import Cells, sketch
from closure_kmeans.clusters import Clusters
from closure_kmeans.datasets import load_sift
from closure_kmeans.instructions import (
    GROUP,
    TILE_ROWS,
    VECTOR_BYTES,
    less,
    more,
    near_tile,
    numbers_per_vector,
    score_tile,
    take_group,
    take_lowest,
    turn_rows,
)
from closure_kmeans.points import Points, precision
from closure_kmeans.trees import RandomPartition

pytestmark = pytest.mark.kernels

every_dtype = pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.uint8, np.int8])
both_precisions = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def make_points(rng, dtype, n=60, d=5, weighted=False):
    X = rng.normal(0, 40, (n, d)).clip(-128, 127) + 128 * (dtype == np.uint8)
    X = X.astype(dtype)
    mean = X.mean(axis=0, dtype=precision(dtype))
    weights = rng.choice([0.3, 1.0, 2.5], n) if weighted else np.array([1.5])
    rows = X.view(np.uint16) if dtype == np.float16 else X
    return Points(rows, mean, weights, rows, mean)


def numbers(points):
    """Shifted rows and the weight of each, in double precision."""
    return reference.widen(points.rows) - points.offset, np.broadcast_to(points.weights, len(points.rows))


def make_labels(rng, n, k):
    """Random labels; every cluster has points and the last one only one."""
    return rng.permutation(np.concatenate([np.arange(k), rng.integers(max(1, k - 1), size=n - k)])).astype(np.int32)


def make_clusters(points, labels, k):
    X, weights = numbers(points)
    centers, sizes, errors = reference.update_clusters(X, weights, labels, np.zeros((k, X.shape[1])))
    centers = centers.astype(points.offset.dtype)
    return Clusters(centers, (centers**2).sum(axis=1), sizes, errors, np.zeros(k))


def make_partition(rng, n, n_leaves):
    """Leaves of any size, the first of one point."""
    cuts = np.sort(rng.choice(np.arange(2, n), n_leaves - 2, replace=False))
    return RandomPartition(rng.permutation(n).astype(np.int32), np.concatenate([[0, 1], cuts, [n]]).astype(np.int64))


def largest_norm(points):
    return ((reference.widen(points.rows) - points.offset) ** 2).sum(axis=1).max()


def assert_close(actual, expected, dtype, scale=1.0):
    """Equal but for some units in the last place of the largest value."""
    eps = np.finfo(precision(dtype)).eps
    np.testing.assert_allclose(actual, expected, rtol=100 * eps, atol=100 * eps * scale)


# -- rows ------------------------------------------------------------------------------------------------------------


def test_widen_every_finite_float16():
    bits = np.arange(2**16).astype(np.uint16)
    bits = bits[np.isfinite(bits.view(np.float16))].reshape(1, -1)
    out = np.empty(bits.shape, np.float32)
    kernels.load_row(bits, 0, np.zeros_like(out[0]), out, 0)
    np.testing.assert_array_equal(out, reference.widen(bits))
    assert kernels.widen(np.uint16(0x8001)) == -(2.0**-24)


@every_dtype
def test_load_row(dtype):
    points = make_points(np.random.default_rng(0), dtype)
    out = np.zeros((3, 5), points.offset.dtype)
    norm = kernels.load_row(points.rows, 7, points.offset, out, 1)
    expected = reference.load_row(points.rows, 7, points.offset)
    assert_close(out[1], expected, dtype, 100)
    assert_close(norm, expected @ expected, dtype, 100)
    assert not out[[0, 2]].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int8])
@pytest.mark.parametrize("other", [None, 0.5, -1, 256, np.nan, np.inf, -np.inf, 1e30])
def test_measure_rows(dtype, other):
    rows = np.random.default_rng(0).integers(0, 128, (5, 7)).astype(dtype)
    rows[0, :2] = 0, 127 if dtype == np.int8 else 255
    if other is not None and not np.can_cast(np.min_scalar_type(other), dtype):
        pytest.skip("there is no such value")
    rows[3, 6] = rows[3, 6] if other is None else other
    mean = np.arange(7).astype(np.float64 if dtype == np.float64 else np.float32)
    out, norms = np.empty(rows.shape, mean.dtype), np.empty(5, mean.dtype)
    in_bytes = np.empty(rows.shape, np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        fits = kernels.measure_rows(rows, mean, out, norms, in_bytes)
        assert not kernels.measure_rows(rows, mean, out, norms, in_bytes[:0])
    assert fits == reference.are_bytes(rows)
    if fits:
        np.testing.assert_array_equal(in_bytes, rows)
    expected = np.array([reference.load_row(rows, i, mean) for i in range(5)])
    np.testing.assert_array_equal(out, expected.astype(mean.dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_allclose(norms, (expected**2).sum(axis=1).astype(mean.dtype), rtol=1e-6)


# -- random partition trees ------------------------------------------------------------------------------------------


def test_sample_rows_reads_the_draws_from_a_place_of_its_own():
    rng = np.random.default_rng(0)
    points = make_points(rng, np.float64)
    node, draws = rng.permutation(60)[:20], np.append(rng.random(10), [0.0, np.nextafter(1, 0)])
    for place in (0, 8, 31):
        sample = np.empty((6, 5))
        kernels.sample_rows(points.rows, points.offset, node, draws, place, sample)
        expected = reference.sample_rows(points.rows, points.offset, node, draws, place, 6)
        np.testing.assert_array_equal(sample, expected)


@both_precisions
@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (8, 5), (32, 16)])
def test_principal_direction_is_that_of_a_few_lanczos_steps(dtype, shape):
    sample = np.random.default_rng(0).normal(3, 1, shape).astype(dtype)
    expected = reference.lanczos_direction(sample.astype(np.float64), kernels.LANCZOS_STEPS)
    direction, products = np.empty(shape[1], dtype), np.empty(shape[0], dtype)
    kernels.principal_direction(sample, direction, products)
    unit = direction / max(np.linalg.norm(direction), np.finfo(dtype).tiny)
    assert_close(unit, expected, dtype, 100 * np.abs(expected).max())


def test_principal_direction_of_equal_rows_is_zero():
    direction, products = np.ones(3), np.empty(4)
    kernels.principal_direction(np.full((4, 3), 7.0), direction, products)
    np.testing.assert_array_equal(direction, 0)


def nodes_to_split():
    """Nodes of 128 points: without structure, long in some dimensions, and real."""
    rng = np.random.default_rng(0)
    for _ in range(15):
        yield rng.normal(size=(128, 16))
        yield rng.normal(size=(128, 16)) / np.arange(1, 17)
    X = load_sift().astype(np.float64)
    for row in range(15):
        nearest = np.argsort(((X[:4000] - X[row]) ** 2).sum(axis=1))[:128]
        axes = np.linalg.eigh(np.cov(X[nearest].T))[1][:, -16:]
        yield X[nearest] @ axes


def test_few_lanczos_steps_are_as_good_as_many():
    """The kernel's direction holds nearly the variance of the converged one, and halves a node as well."""
    rng = np.random.default_rng(0)
    variances, distortions = [], []
    for node in nodes_to_split():
        sample = node[rng.integers(len(node), size=32)]
        few, products = np.empty(16), np.empty(32)
        kernels.principal_direction(sample.copy(), few, products)
        many, anything = reference.principal_direction(sample), rng.normal(size=16)
        directions = [direction / np.linalg.norm(direction) for direction in (few, many, anything)]
        halves = [np.argsort(np.argsort(node @ direction)) // 64 for direction in directions]
        variances.append([(sample @ direction).var() for direction in directions])
        distortions.append([reference.inertia(node, half) for half in halves])
    variance = np.array(variances) / np.array(variances)[:, [1]]
    assert variance.max() <= 1 + 1e-9
    assert variance[:, 0].mean() > 0.99
    distortion = np.mean(np.array(distortions) / np.array(distortions)[:, [1]], axis=0)
    assert distortion[0] < 1.001 < 1.05 < distortion[2]


@every_dtype
@pytest.mark.parametrize("d", [1, 100, 1000])
def test_asking_for_a_row_changes_nothing(dtype, d):
    rows = make_points(np.random.default_rng(0), dtype, d=d).rows
    before = rows.copy()
    kernels.fetch_row(rows, 59)
    np.testing.assert_array_equal(rows, before)


@every_dtype
def test_project(dtype):
    rng = np.random.default_rng(0)
    points = make_points(rng, dtype)
    node, direction = rng.permutation(60)[:20], rng.normal(size=5).astype(points.offset.dtype)
    values = np.empty(20, points.offset.dtype)
    kernels.project(points.rows, points.offset, node, direction, values)
    assert_close(values, reference.project(points.rows, points.offset, node, direction), dtype, 100)


def check_select_rank(values, rank):
    before = values.copy()
    found = kernels.select_rank(values, rank, np.empty_like(values), np.empty_like(values))
    assert found == reference.select_rank(values, rank)
    np.testing.assert_array_equal(values, before)


@both_precisions
@given(st.lists(st.integers(-3, 3) | st.floats(-9, 9), min_size=1, max_size=40), st.data())
def test_select_rank(dtype, values, data):
    check_select_rank(np.array(values, dtype), data.draw(st.integers(0, len(values) - 1)))


@pytest.mark.parametrize("size", [200, kernels.MANY_VALUES, 2000])
@pytest.mark.parametrize(
    "order",
    [np.sort, lambda x: -np.sort(x), np.zeros_like, lambda x: x % 3, np.random.default_rng(0).permutation],
)
def test_select_rank_of_orderly_values(size, order):
    values = order(np.arange(float(size)))
    for rank in (0, 1, size // 3, size // 2, size - 2, size - 1):
        check_select_rank(values, rank)


@both_precisions
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_select_rank_of_special_values(special, dtype):
    """No more values are below than the rank says, and nothing behind the memory is written, whatever the values."""
    rng = np.random.default_rng(0)
    for size in (*range(1, 40), kernels.MANY_VALUES + 7):
        values = rng.normal(size=size).astype(dtype)
        values[rng.random(size) < 0.3] = special
        memory = np.full((2, size + GROUP), 7, dtype)
        for rank in (0, size // 2, size - 1):
            found = kernels.select_rank(values, rank, memory[0, :size], memory[1, :size])
            assert (values < found).sum() <= rank
            if not np.isnan(special):
                assert found == np.sort(values)[rank]
            assert (memory[:, size:] == 7).all()


@pytest.mark.parametrize("size", [kernels.MANY_VALUES, 1999])
def test_keep_around(size):
    rng = np.random.default_rng(0)
    for values in (rng.normal(size=size), rng.integers(4, size=size).astype(float), np.zeros(size)):
        for rank in (0, size // 2, size - 1):
            kept = np.empty(size)
            n_below, n_kept = kernels.keep_around(values, rank, kept)
            expected_below, expected = reference.keep_around(values, rank, kernels.RANK_SAMPLE, kernels.RANK_MARGIN)
            assert n_below == expected_below
            np.testing.assert_array_equal(kept[:n_kept], expected)
    _, n_kept = kernels.keep_around(np.arange(float(size)), size // 2, np.empty(size))
    assert n_kept < 0.4 * size  # or there would be no use in it


@given(st.tuples(*[st.integers(-2, 2)] * 3))
def test_median(values):
    assert kernels.median(*values) == reference.median(*values)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.data())
def test_split_stably(values, data):
    n_left = data.draw(st.integers(0, len(values) - 1))
    values = np.array(values, np.float64)
    memory = np.arange(100, 100 + len(values) + GROUP, dtype=np.int32)
    node, behind = memory[: len(values)], memory[len(values) :].copy()
    expected = reference.split_stably(node, values, n_left)
    kernels.split_stably(node, values, np.sort(values)[n_left], n_left, np.empty_like(node))
    np.testing.assert_array_equal(memory[len(values) :], behind)
    np.testing.assert_array_equal(node, expected)


@every_dtype
@pytest.mark.parametrize("max_depth", [1, 64])
def test_grow_nodes(dtype, max_depth):
    rng = np.random.default_rng(0)
    points = make_points(rng, dtype)
    starts = np.array([0, 6, 15, 16, 24, 33, 41, 50, 60])
    nodes = np.array([0, 3, 7, 8])
    draws = rng.random(50)
    members = rng.permutation(60).astype(np.int32)
    expected = members.copy()
    for low, high in pairwise(nodes):
        reference.grow_node(
            points.rows, points.offset, expected, starts, low, high, draws, 9, kernels.LANCZOS_STEPS, max_depth
        )
    for first, last in ((2, 3), (0, 2)):
        kernels.grow_nodes(points.rows, points.offset, members, starts, nodes, draws, 9, max_depth, first, last)
    np.testing.assert_array_equal(members, expected)


# -- assignment ------------------------------------------------------------------------------------------------------


def assign(points, clusters, labels, partitions, hartigan, n_blocks=2):
    """The kernel over all leaves of all partitions, some leaves at a time, the last ones first."""
    new_labels = labels.copy()
    scores = np.full(len(labels), np.inf, points.offset.dtype)
    n_pairs = 0
    for partition in partitions:
        cuts = np.linspace(0, len(partition.starts) - 1, n_blocks + 1).astype(int)
        for first, last in reversed(list(pairwise(cuts))):
            n_pairs += kernels.assign_leaves(
                points, clusters, labels, partition, hartigan, new_labels, scores, first, last
            )
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


@both_precisions
@pytest.mark.parametrize("n_lines", [1, TILE_ROWS])
def test_score_tile(dtype, n_lines):
    """What compiled code does is what the function says, wherever a panel is and whatever was found before."""
    rng = np.random.default_rng(0)
    lanes = numbers_per_vector(np.empty(0, dtype))
    for d, first in ((1, 0), (2, lanes), (7, 2 * lanes)):
        rows, panel = rng.normal(size=(TILE_ROWS, d)).astype(dtype), rng.normal(size=(d, lanes)).astype(dtype)
        norms, center_norms = (rows**2).sum(axis=1), rng.random(3 * lanes).astype(dtype) + (panel**2).sum()
        center_norms[first + lanes - 1] = np.inf
        own = rng.integers(3 * lanes, size=TILE_ROWS).astype(np.int32)
        own[:3] = first, first + 1, first + lanes - 2
        factors = rng.random((n_lines, 3 * lanes)).astype(dtype)
        before = np.full((TILE_ROWS, lanes), np.inf, dtype)
        before[::2] = rng.random((len(before[::2]), lanes)) * 4 * d
        ours, theirs = ([before.copy(), np.full(before.shape, -1, np.int32), np.zeros_like(before)] for _ in range(2))
        arguments = (rows, norms, own, panel, center_norms, factors, first)
        compiled_score_tile(*arguments, *ours)
        score_tile(*arguments, *theirs)
        assert_close(ours[0], theirs[0], dtype, 4 * norms.max() + center_norms[:-1].min())
        np.testing.assert_array_equal(ours[1], theirs[1])
        assert_close(ours[2], theirs[2], dtype, 4 * norms.max() + center_norms[:-1].min())
        assert (ours[1] >= 0).any()
        assert (ours[2] != 0).any(axis=1)[:3].all()
        assert not (ours[1] == first + lanes - 1).any()


@njit
def compiled_score_tile(rows, norms, own, panel, center_norms, factors, first, best, choice, stays):
    score_tile(rows, norms, own, panel, center_norms, factors, first, best, choice, stays)


@both_precisions
def test_near_tile(dtype):
    """What compiled code does is what the function says, wherever a tile is, with ties and with what overflows."""
    rng = np.random.default_rng(0)
    lanes = numbers_per_vector(np.empty(0, dtype))
    for d, first in ((1, 0), (2, 5), (7, TILE_ROWS)):
        centers = rng.integers(-3, 4, (2 * TILE_ROWS, d)).astype(dtype)
        panel = rng.integers(-3, 4, (d, lanes)).astype(dtype)
        norms = (centers[first : first + TILE_ROWS] ** 2).sum(axis=1)
        norms[-3:] = np.inf, np.nan, -np.inf
        # What any number has to do with a limit, and what infinity, NaN and minus infinity have.
        for limit, number, special in (
            (-np.inf, [0], [0, 1, 1]),
            (np.inf, [1], [1, 1, 1]),
            (np.nan, [1], [1, 1, 1]),
            (0.0, [0, 1], [0, 1, 1]),
        ):
            limits = np.full(lanes, limit, dtype) + rng.integers(-9, 9, lanes).astype(dtype)
            ours, theirs = np.empty((2, TILE_ROWS), np.int32)
            compiled_near_tile(centers, first, norms, panel, limits, ours)
            near_tile(centers, first, norms, panel, limits, theirs)
            np.testing.assert_array_equal(ours, theirs)
            bits = ours[:, np.newaxis] >> np.arange(lanes) & 1
            assert set(bits[:-3].ravel()) <= set(number)
            np.testing.assert_array_equal(bits[-3:], np.repeat(special, lanes).reshape(3, lanes))
            assert (ours < 1 << lanes).all()


@njit
def compiled_near_tile(centers, first, norms, panel, limits, bits):
    near_tile(centers, first, norms, panel, limits, bits)


@both_precisions
def test_take_lowest(dtype):
    """What compiled code does is what the function says, with ties and with rows that have found nothing."""
    rng = np.random.default_rng(0)
    shape = TILE_ROWS, numbers_per_vector(np.empty(0, dtype))
    for n_scores in (1, 3, 100):
        best = rng.integers(n_scores, size=shape).astype(dtype)
        best[0] = np.inf
        choice = rng.integers(100, size=shape).astype(np.int32)
        ours, theirs = ((np.zeros(TILE_ROWS, dtype), np.zeros(TILE_ROWS, np.int32)) for _ in range(2))
        compiled_take_lowest(best, choice, *ours)
        take_lowest(best, choice, *theirs)
        np.testing.assert_array_equal(ours, theirs)
        pairs = [min(zip(scores, choices, strict=True)) for scores, choices in zip(best, choice, strict=True)]
        np.testing.assert_array_equal(np.transpose(ours), pairs)


@njit
def compiled_take_lowest(best, choice, lowest, chosen):
    take_lowest(best, choice, lowest, chosen)


@both_precisions
@pytest.mark.parametrize("n_features", [1, 15, 16, 17, 50])
def test_turn_rows(n_features, dtype):
    """What compiled code does is what the function says, whether squares fill the rows or not."""
    rows = np.random.default_rng(0).random((numbers_per_vector(np.empty(0, dtype)), n_features)).astype(dtype)
    for turn in (turn_rows, compiled_turn_rows):
        panel = np.zeros(rows.T.shape, dtype)
        turn(rows, panel)
        np.testing.assert_array_equal(panel, rows.T)


@both_precisions
@pytest.mark.parametrize("members", [np.float32, np.float64, np.int32])
def test_take_group(dtype, members):
    """What compiled code does is what the function says, with nothing, all or some taken, also in place."""
    rng = np.random.default_rng(0)
    values = rng.integers(4, size=3 * GROUP).astype(dtype)
    values[GROUP : 2 * GROUP] = 1
    numbers = rng.permutation(3 * GROUP).astype(members)
    for first in (0, GROUP - 1, GROUP, 2 * GROUP):
        for bound in (-1, 1, 2, 9):
            bits = compiled_bits(values, first, dtype(bound))
            assert bits == (less(values, first, bound), more(values, first, bound))
            for place in (0, first):
                ours, theirs = numbers.copy(), numbers.copy()
                n_taken = compiled_take_group(ours, first, bits[0], ours, place)
                assert n_taken == take_group(theirs, first, bits[0], theirs, place) == bits[0].bit_count()
                np.testing.assert_array_equal(ours[: place + n_taken], theirs[: place + n_taken])
                np.testing.assert_array_equal(ours[place + GROUP :], theirs[place + GROUP :])


@njit
def compiled_bits(values, first, bound):
    return less(values, first, bound), more(values, first, bound)


@njit
def compiled_take_group(numbers, first, bits, out, place):
    return take_group(numbers, first, bits, out, place)


@both_precisions
def test_numbers_per_vector(dtype):
    array = np.zeros(1, dtype)
    assert njit(lambda array: numbers_per_vector(array))(array) == numbers_per_vector(array)


@pytest.mark.skipif(config.DISABLE_JIT, reason="is about compiled code")
def test_a_processor_with_nothing_special(tmp_path):
    """The kernels that say more than Numba can are right where the processor has no instructions for it."""
    names = ["select_rank_of_special_values", "keep_around", "split_stably", "take_group"]
    names += ["score_tile", "near_tile", "take_lowest", "turn_rows", "numbers_per_vector"]
    tests = [f"{__file__}::test_{name}" for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    plain = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(command, env=os.environ | plain, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


@njit
def compiled_turn_rows(rows, panel):
    turn_rows(rows, panel)


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


def test_list_candidates():
    labels, leaf = np.array([3, 1, 4, 1, 5, 3], np.int32), np.array([5, 0, 3, 1, 2], np.int32)
    slots, candidates = np.full(6, -1, np.int32), np.empty(5, np.int32)
    n_candidates = kernels.list_candidates(labels, leaf, np.zeros((6, 2)), slots, candidates)
    assert list(candidates[:n_candidates]) == reference.list_candidates(labels, leaf) == [3, 1, 4]
    assert slots.tolist() == [-1, 1, -1, 0, 2, -1]


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


@both_precisions
def test_keep_nearest(dtype):
    rng = np.random.default_rng(0)
    products, norms = rng.normal(size=(7, 5)).astype(dtype), rng.random(20).astype(dtype)
    best, second, choice = np.full(5, -0.5, dtype), np.full(5, 0.5, dtype), np.zeros(5, np.int32)
    expected = reference.keep_nearest(products, norms, 4, best, second, choice)
    kernels.keep_nearest(products, norms, 4, best, second, choice)
    for actual, wanted in zip((best, second, choice), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-6)
    assert 0 < np.count_nonzero(choice) < 5


def search(rows, centers):
    labels, distances = np.empty(len(rows), np.int32), np.empty(len(rows))
    norms = (centers**2).sum(axis=1)
    for first, last in ((len(rows) // 3, len(rows)), (0, len(rows) // 3)):
        kernels.search_nearest(rows, centers, norms, labels, distances, first, last)
    return labels, distances


@both_precisions
@pytest.mark.parametrize(("n", "k", "d"), [(1, 1, 1), (300, 3, 4), (30, 600, 2), (270, 520, 1)])
def test_search_nearest(dtype, n, k, d):
    """In one product and in several."""
    rng = np.random.default_rng(0)
    rows, centers = rng.normal(size=(n, d)).astype(dtype), rng.normal(size=(k, d)).astype(dtype)
    labels, distances = search(rows, centers)
    expected_labels, expected_distances = reference.search_nearest(rows, centers)
    np.testing.assert_array_equal(labels, expected_labels)
    np.testing.assert_allclose(distances, expected_distances, rtol=1e-12)


@both_precisions
def test_search_takes_the_first_of_equally_near_centers(dtype):
    grid = np.stack(np.meshgrid(np.arange(5), np.arange(5)), axis=-1).reshape(-1, 2).astype(dtype)
    centers = np.concatenate([grid[::3], grid[::-4]])
    labels, _ = search(grid, centers)
    np.testing.assert_array_equal(labels, reference.search_nearest(grid, centers)[0])
    assert [kernels.search_row(row, centers) for row in grid] == list(labels)


def test_search_is_exact_where_products_are_not():
    """Centres so close together, and so far away, that products cannot tell them apart."""
    rng = np.random.default_rng(0)
    centers = (1000 + rng.normal(scale=1e-3, size=(20, 30))).astype(np.float32)
    rows = (1000 + rng.normal(size=(40, 30))).astype(np.float32)
    expected, _ = reference.search_nearest(rows, centers)
    products = (centers**2).sum(axis=1) - 2 * rows @ centers.T
    assert (products.argmin(axis=1) != expected).any()
    np.testing.assert_array_equal(search(rows, centers)[0], expected)


def test_squared_distance():
    a, b = np.array([1e4, 3], np.float32), np.array([1e4 + 1, 1], np.float32)
    assert kernels.squared_distance(a, b) == 5


# -- search among cells of centres -----------------------------------------------------------------------------------


def take(row, middles, scores, slack, n_probes):
    chosen = np.full(n_probes, -1, np.int32)
    kernels.take_nearest(row, middles, scores, slack, np.empty_like(scores), np.empty_like(scores), chosen)
    return sorted(chosen)


@given(st.integers(0, 9999), st.integers(1, 30), st.sampled_from([1, 100, 2000]), st.data())
def test_take_nearest_where_rounding_could_decide(seed, n_cells, offset, data):
    """Whole numbers have many equals; far from the origin, scores are rounded to multiples of the slack's size."""
    n_probes = data.draw(st.integers(1, n_cells), "n_probes")
    rng = np.random.default_rng(seed)
    row, middles = (offset + rng.integers(0, 3, shape).astype(np.float32) for shape in (2, (n_cells, 2)))
    norms = (middles**2).sum(axis=1)
    slack = np.float32(kernels.SLACK * np.finfo(np.float32).eps) * (norms.max() + (row**2).sum())
    scores = norms - 2 * middles @ row + rng.uniform(-0.4, 0.4, n_cells).astype(np.float32) * slack
    assert take(row, middles, scores, slack, n_probes) == sorted(reference.choose_cells(row, middles, n_probes))


def test_take_nearest_at_the_edge_of_the_slack():
    """The threshold less the slack, rounded, is the score of the first twenty."""
    scores, slack = np.repeat(np.float32([1e6 - 0.125, 1e6, 2e6]), [20, 1, 9]), np.float32(0.1)
    assert scores[0] == scores[20] - slack
    assert take(np.zeros(1, np.float32), np.sqrt(scores)[:, np.newaxis], scores, slack, 21) == list(range(21))


def make_cells(rng, dtype, k=40, n_cells=7, d=3, whole=False, scale=1, n_axes=0):
    centers = (rng.integers(0, 4, (k, d)) if whole else rng.normal(0, scale, (k, d))).astype(dtype)
    labels = make_labels(rng, k, n_cells)
    members, starts = kernels.group_by_label(labels, n_cells)
    middles = np.array([centers[labels == cell].mean(axis=0) for cell in range(n_cells)], dtype)
    centers, axes = centers[members], np.linalg.qr(rng.normal(size=(d, d)))[0][:, :n_axes]
    sketches = sketch(centers, axes)
    norms = [(array**2).sum(axis=1) for array in (middles, sketches)]
    return Cells(np.zeros(d, dtype), centers, members, starts, middles, norms[0], axes, sketches, norms[1])


def search_cells(rows, cells, n_probes, parts=((0, 7),)):
    """Labels and distances by the kernels of the search, with ranges out of order, and cells in several parts."""
    n = len(rows)
    ranges = ((n - 1, n), (n // 9, n - 1), (0, n // 9))
    chosen = np.full((n, n_probes), -1, np.int32)
    sketches = sketch(rows, cells.axes)
    nearest = np.empty(n, np.int32)
    known, offsets = np.empty((2, n))
    for first, last in ranges:
        kernels.choose_cells(rows, cells, chosen, first, last)
        kernels.bound_rows(rows, sketches, cells, chosen, nearest, known, offsets, first, last)
    for row, own, begin, distance in zip(rows, chosen, nearest, known, strict=True):
        assert sorted(own) == sorted(reference.choose_cells(row, cells.middles, n_probes))
        assert cells.starts[own[0]] <= begin < cells.starts[own[0] + 1]
        assert distance == pytest.approx(reference.squared_distances([row], cells.centers[[begin]])[0, 0])
    visits, starts = kernels.group_by_label(chosen.ravel(), len(cells.middles))
    best, choice = (np.tile(begin, (len(parts), 1)) for begin in (known, nearest))
    for part, (first, last) in enumerate(parts):
        out = best[part], choice[part]
        kernels.visit_cells(rows, sketches, cells, visits // n_probes, starts, offsets, *out, first, last)
    labels, distances = np.empty(n, np.int32), np.empty(n)
    for first, last in ranges:
        kernels.settle_rows(cells, best, choice, labels, distances, first, last)
    return labels, distances


@both_precisions
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("n_probes", [1, 3, 7])
@pytest.mark.parametrize("parts", [((0, 7),), ((0, 2), (2, 6), (6, 7))])
@pytest.mark.parametrize("n_axes", [0, 1, 2])
def test_search_cells(dtype, whole, n_probes, parts, n_axes):
    rng = np.random.default_rng(0)
    cells = make_cells(rng, dtype, whole=whole, n_axes=n_axes)
    rows = (rng.integers(0, 4, (270, 3)) if whole else rng.normal(size=(270, 3))).astype(dtype)
    labels, distances = search_cells(rows, cells, n_probes, parts)
    expected_labels, expected_distances = reference.search_cells(rows, cells, n_probes)
    np.testing.assert_array_equal(labels, expected_labels)
    np.testing.assert_allclose(distances, expected_distances, rtol=1e-12)


@both_precisions
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("n_probes", "n_nearest"), [(1, 1), (3, 2), (7, 5)])
def test_search_several(dtype, whole, n_probes, n_nearest):
    rng = np.random.default_rng(0)
    cells = make_cells(rng, dtype, k=80, whole=whole)
    rows = (rng.integers(0, 4, (50, 3)) if whole else rng.normal(size=(50, 3))).astype(dtype)
    labels, distances = np.empty((50, n_nearest), np.int32), np.empty((50, n_nearest))
    for first, last in ((20, 50), (0, 20)):
        kernels.search_several(rows, cells, n_probes, labels, distances, first, last)
    expected_labels, expected_distances = reference.search_several(rows, cells, n_probes, n_nearest)
    np.testing.assert_array_equal(labels, expected_labels)
    np.testing.assert_allclose(distances, expected_distances, rtol=1e-12)
    one_label, one_distance = search_cells(rows, cells, n_probes)
    np.testing.assert_array_equal(labels[:, 0], one_label)
    np.testing.assert_array_equal(distances[:, 0], one_distance)


@pytest.mark.parametrize(("best", "choice"), [(5.0, 0), (3.0, 0), (4.0, 2), (4.0, 0)])
def test_is_nearer(best, choice):
    """A centre at distance 4, which is of the second lowest id."""
    ids = np.array([3, 5, 9], np.int32)
    assert kernels.is_nearer(4.0, 1, best, choice, ids) == ((best, ids[choice]) > (4.0, 5))


@both_precisions
def test_plain_distance(dtype):
    a, b = np.random.default_rng(0).normal(size=(2, 9)).astype(dtype)
    assert kernels.plain_distance(a, b) == pytest.approx(reference.squared_distances([a], [b])[0, 0], rel=1e-6)


@pytest.mark.parametrize("d", [64, 384])
def test_search_cells_where_all_is_rounded_the_same_way(d):
    """Rows that are centres, of one number and its negative: the errors of a product do not cancel out."""
    rng = np.random.default_rng(0)
    for value in rng.uniform(0.5, 1, 5):
        cells = make_cells(rng, np.float32, k=120, d=d)
        cells.centers[:] = value * rng.choice([-1, 1], (120, d))
        cells.sketch_norms[:] = (cells.sketches**2).sum(axis=1)
        labels, distances = search_cells(cells.centers.copy(), cells, 7)
        np.testing.assert_array_equal(labels, cells.ids)
        assert (distances == 0).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), min_size=1, unique_by=lambda pair: pair[1]))
def test_insert_nearest(pairs):
    labels, distances = np.full(4, -1, np.int32), np.full(4, np.inf)
    for distance, label in pairs:
        kernels.insert_nearest(float(distance), label, labels, distances)
    expected = sorted(pairs)[:4]
    assert list(zip(distances, labels, strict=True))[: len(expected)] == expected
    assert (labels[len(expected) :] == -1).all()


@pytest.mark.parametrize("scale", [1e-22, 1e-30, 1e-37, 1e-42])
@pytest.mark.parametrize("n_axes", [0, 2])
def test_search_cells_where_products_are_zero(scale, n_axes):
    rng = np.random.default_rng(0)
    cells = make_cells(rng, np.float32, scale=scale, n_axes=n_axes)
    rows = (scale * rng.normal(size=(50, 3))).astype(np.float32)
    np.testing.assert_array_equal(search_cells(rows, cells, 3)[0], reference.search_cells(rows, cells, 3)[0])


@pytest.mark.parametrize("value", [3e38, -3e38])
@pytest.mark.parametrize("n_axes", [0, 2])
def test_search_cells_where_products_overflow(value, n_axes):
    cells = make_cells(np.random.default_rng(0), np.float32, scale=1000, n_axes=n_axes)
    rows = np.full((5, 3), value, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # they are raised with the JIT off only
        labels, _ = search_cells(rows, cells, 2)
    np.testing.assert_array_equal(labels, reference.search_cells(rows, cells, 2)[0])


# -- update ----------------------------------------------------------------------------------------------------------


def test_group_by_label():
    for labels in ([2, 0, 2, 5, 0, 2], [0], [5, 5, 5]):
        members, starts = kernels.group_by_label(np.array(labels, np.int32), 6)
        expected_members, expected_starts = reference.group_by_label(labels, 6)
        np.testing.assert_array_equal(members, expected_members)
        np.testing.assert_array_equal(starts, expected_starts)
        assert members.dtype == np.int32
        assert starts.dtype == np.int64


@every_dtype
@pytest.mark.parametrize("weighted", [False, True])
def test_update_clusters(dtype, weighted):
    """Cluster 3 is empty and keeps its centre; cluster 9 has one point and no error."""
    rng = np.random.default_rng(0)
    points = make_points(rng, dtype, weighted=weighted)
    labels = make_labels(rng, 60, 10)
    labels[labels == 3] = 4
    old = np.full((10, 5), 7, points.offset.dtype)
    clusters = Clusters(old.copy(), (old**2).sum(axis=1), *np.zeros((3, 10)))
    chosen = rng.permutation(10)
    for first, last in ((6, 10), (0, 6)):
        kernels.update_clusters(points, *kernels.group_by_label(labels, 10), clusters, chosen, first, last)

    centers, sizes, errors = reference.update_clusters(*numbers(points), labels, old)
    assert_close(clusters.centers, centers, dtype, 100)
    assert_close(clusters.norms, (centers**2).sum(axis=1), dtype, 100)
    assert_close(clusters.sizes, sizes, np.float64)
    assert_close(clusters.errors, errors, dtype, largest_norm(points))
    assert clusters.errors[[3, 9]] == pytest.approx([0, 0], abs=1e-3)
