"""Kernels of random partition trees, compared with slow definitions."""

from itertools import pairwise

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from small import assert_close, both_precisions, every_dtype, make_points

from closure_kmeans.datasets import load_sift
from closure_kmeans.kernels import trees

pytestmark = pytest.mark.kernels


def test_sample_rows_reads_the_draws_from_a_place_of_its_own():
    rng = np.random.default_rng(0)
    points = make_points(rng, np.float64)
    node, draws = rng.permutation(60)[:20], np.append(rng.random(10), [0.0, np.nextafter(1, 0)])
    for place in (0, 8, 31):
        sample = np.empty((6, 5))
        trees.draw_sample(points.rows, points.offset, node, draws, place, sample)
        expected = reference.sample_rows(points.rows, points.offset, node, draws, place, 6)
        np.testing.assert_array_equal(sample, expected)


@both_precisions
@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (8, 5), (32, 16)])
def test_principal_direction_is_that_of_a_few_lanczos_steps(dtype, shape):
    sample = np.random.default_rng(0).normal(3, 1, shape).astype(dtype)
    expected = reference.lanczos_direction(sample.astype(np.float64), trees.LANCZOS_STEPS)
    direction = principal_direction(sample)
    unit = direction / max(np.linalg.norm(direction), np.finfo(dtype).tiny)
    assert_close(unit, expected, dtype, 100 * np.abs(expected).max())


def test_principal_direction_of_equal_rows_is_zero():
    np.testing.assert_array_equal(principal_direction(np.full((4, 3), 7.0)), 0)


def principal_direction(sample):
    memory = trees.node_memory(1, len(sample), sample[0])
    memory.sample[:] = sample
    trees.principal_direction(memory)
    return memory.direction


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
        few = principal_direction(sample)
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
def test_project(dtype):
    rng = np.random.default_rng(0)
    points = make_points(rng, dtype)
    node, direction = rng.permutation(60)[:20], rng.normal(size=5).astype(points.offset.dtype)
    memory = trees.node_memory(20, 1, points.offset)
    memory.direction[:] = direction
    trees.project(points.rows, points.offset, node, memory)
    assert_close(memory.values, reference.project(points.rows, points.offset, node, direction), dtype, 100)


def check_select_rank(values, rank):
    before = values.copy()
    found = trees.select_rank(values, len(values), rank, trees.rank_memory(len(values), values.dtype))
    assert found == reference.select_rank(values, rank)
    np.testing.assert_array_equal(values, before)


@both_precisions
@given(st.lists(st.integers(-3, 3) | st.floats(-9, 9), min_size=1, max_size=40), st.data())
def test_select_rank(dtype, values, data):
    check_select_rank(np.array(values, dtype), data.draw(st.integers(0, len(values) - 1)))


@pytest.mark.parametrize("size", [200, trees.MANY_VALUES, 2000])
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
    for size in (*range(1, 40), trees.MANY_VALUES + 7):
        values = rng.normal(size=size).astype(dtype)
        values[rng.random(size) < 0.3] = special
        memory = np.full(size + 8, 7, dtype)
        for rank in (0, size // 2, size - 1):
            used = trees.rank_memory(size, dtype)._replace(kept=memory[:size])
            found = trees.select_rank(values, size, rank, used)
            assert (values < found).sum() <= rank
            if not np.isnan(special):
                assert found == np.sort(values)[rank]
            assert (memory[size:] == 7).all()


@pytest.mark.parametrize("size", [trees.MANY_VALUES, 1999])
def test_keep_around(size):
    rng = np.random.default_rng(0)
    for values in (rng.normal(size=size), rng.integers(4, size=size).astype(float), np.zeros(size)):
        for rank in (0, size // 2, size - 1):
            memory = trees.rank_memory(size, values.dtype)
            n_below, n_kept = trees.keep_around(values, size, rank, memory)
            expected_below, expected = reference.keep_around(values, rank, trees.RANK_SAMPLE, trees.RANK_MARGIN)
            assert n_below == expected_below
            np.testing.assert_array_equal(memory.kept[:n_kept], expected)
    _, n_kept = trees.keep_around(np.arange(float(size)), size, size // 2, memory)
    assert n_kept < 0.4 * size  # or there would be no use in it


@given(st.tuples(*[st.integers(-2, 2)] * 3))
def test_median(values):
    assert trees.median(*values) == reference.median(*values)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.data())
def test_split_stably(values, data):
    n_left = data.draw(st.integers(0, len(values) - 1))
    values = np.array(values, np.float64)
    memory = np.arange(100, 100 + len(values) + 8, dtype=np.int32)
    node, behind = memory[: len(values)], memory[len(values) :].copy()
    expected = reference.split_stably(node, values, n_left)
    flags = np.empty(len(node), np.uint8)
    trees.split_stably(node, values, np.sort(values)[n_left], n_left, flags, np.empty_like(node))
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
            points.rows, points.offset, expected, starts, low, high, draws, 9, trees.LANCZOS_STEPS, max_depth
        )
    for first, last in ((2, 3), (0, 2)):
        memory = trees.node_memory(starts[nodes[last]] - starts[nodes[first]], 9, points.offset)
        trees.grow_nodes(points.rows, points.offset, members, starts, nodes, draws, max_depth, memory, first, last)
    np.testing.assert_array_equal(members, expected)
