"""The search for the nearest of all centres."""

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from small import both_precisions

from closure_kmeans.kernels import nearest as nearest_kernels
from closure_kmeans.kernels.byte_tiles import NEAR_ROWS, near_tile
from closure_kmeans.kernels.emit import VECTOR_BYTES
from closure_kmeans.nearest import byte_levels, nearest_centers, round_centers, round_rows, round_vectors
from closure_kmeans.parallel import Threads

pytestmark = pytest.mark.kernels


vectors = st.tuples(
    st.integers(0, 9999),
    st.sampled_from([1, 2, 3, 4, 5, 31, 130]),
    st.sampled_from([0.0, 1.0, 1e4]),
    st.sampled_from([1.0, 1e-3, 1e-20, 1e-40, 1e15, 3e37]),
    st.sampled_from(["normal", "heavy", "whole", "zero", "one large"]),
)


def draw(rng, dtype, n, d, offset, scale, kind):
    """Finite rows of one kind."""
    rows = {
        "normal": lambda: rng.normal(size=(n, d)),
        "heavy": lambda: rng.standard_t(1.5, size=(n, d)),
        "whole": lambda: rng.integers(-2, 3, (n, d)).astype(float),
        "zero": lambda: np.zeros((n, d)),
        "one large": lambda: rng.normal(size=(n, d)) * np.append(1000, np.ones(d - 1)),
    }[kind]()
    largest = np.finfo(dtype).max
    return ((offset + rows) * scale).clip(-largest, largest).astype(dtype)


@njit
def compiled_near_tile(codes, first, facts, panel, shifts, facts_of_rows, bits):
    near_tile(codes, first, facts, panel, shifts, facts_of_rows, bits)


@both_precisions
@given(vectors, vectors)
def test_no_centre_is_ruled_out_that_is_near(dtype, of_rows, of_centers):
    """With the distance of a row and a centre as the limit, the lower bound never exceeds the limit."""
    rng = np.random.default_rng(of_rows[0])
    lanes, d = VECTOR_BYTES // 4, of_rows[1]
    rows, centers = draw(rng, dtype, lanes, *of_rows[1:]), draw(rng, dtype, 2 * NEAR_ROWS, d, *of_centers[2:])
    n_close = min(lanes, NEAR_ROWS)
    centers[:n_close] = rows[:n_close] * dtype(0.999999)
    with np.errstate(over="ignore"):  # it is raised with the JIT off only
        rounded = round_centers(centers, np.arange(len(centers), dtype=np.int32))
        some = round_rows(rows, rounded)
    squares = reference.squared_distances(rows, centers)
    memory = nearest_kernels.panel_memory(some.codes.shape[1])
    for j, first in enumerate([*range(NEAR_ROWS), *[NEAR_ROWS] * NEAR_ROWS]):
        with np.errstate(over="ignore", invalid="ignore"):
            memory.facts[:3], memory.facts[3] = some.facts.T, squares[:, j] + some.offsets
        compiled_near_tile(
            rounded.codes, first, rounded.facts, some.codes.T.copy(), some.shifts, memory.facts, memory.bits
        )
        assert memory.bits[j - first] == (1 << lanes) - 1


@both_precisions
@given(vectors)
def test_round_to_bytes(dtype, kind):
    """Vectors are multiples of a step, and the error is what they are not."""
    rows = draw(np.random.default_rng(kind[0]), dtype, 9, *kind[1:])
    with np.errstate(over="ignore"):  # it is raised with the JIT off only
        codes, totals, steps, norms, errors = round_vectors(rows, 100, 2)
    assert (codes.shape[0], codes.shape[1] % 4, np.abs(codes[:9]).max() <= 100) == (11, 0, True)
    assert not codes[9:].any()
    assert not codes[:, rows.shape[1] :].any()
    np.testing.assert_array_equal(totals, codes[:9].sum(axis=1))
    precise, eps = rows.astype(np.float64), np.finfo(dtype).eps
    with np.errstate(over="ignore"):
        squares = (precise**2).sum(axis=1)
    fits = squares < np.finfo(dtype).max * 0.9
    tiny = 1e-300 if dtype == np.float64 else 1e-37
    np.testing.assert_allclose(norms[fits], squares[fits], rtol=1e-5, atol=tiny)
    left = ((precise - codes[:9, : rows.shape[1]] * steps[:, np.newaxis]) ** 2).sum(axis=1)
    off_by = np.abs(np.sqrt(errors[fits]) - np.sqrt(left[fits]))
    assert (off_by <= 1e-4 * np.sqrt(left[fits]) + 2 * eps * np.sqrt(squares[fits]) + np.sqrt(tiny)).all()
    assert (np.sqrt(left) <= 0.011 * np.sqrt(rows.shape[1] * squares) + 1e-37 + eps)[
        fits & (squares > 1e-60) & (squares < 1e76)
    ].all()
    assert not codes[:9][np.isinf(norms)].any()


@pytest.mark.parametrize("n_features", [1, 66_000, 200_000])
def test_products_of_bytes_fit_into_32_bits(n_features):
    levels = byte_levels(np.empty((0, n_features)), 127)
    assert 2 * levels * levels * n_features <= 2**31
    assert levels == 127 or 2 * (levels + 1) ** 2 * n_features > 2**31


def search(rows, centers):
    with Threads(2) as threads:
        return nearest_centers(rows, centers, np.zeros_like(centers[0]), threads)


@both_precisions
@pytest.mark.parametrize(("n", "k", "d"), [(1, 1, 1), (300, 3, 4), (30, 600, 2), (270, 520, 1), (600, 300, 40)])
def test_search_nearest(dtype, n, k, d):
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
    assert nearest_kernels.squared_distance(a, b) == 5


@both_precisions
def test_plain_distance(dtype):
    a, b = np.random.default_rng(0).normal(size=(2, 9)).astype(dtype)
    assert nearest_kernels.plain_distance(a, b) == pytest.approx(reference.squared_distances([a], [b])[0, 0], rel=1e-6)


@both_precisions
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("n_nearest", [1, 2, 5, 30])
def test_settle_several(dtype, whole, n_nearest):
    """Also where scores are wrong by as much as they may be by rounding, or not a number."""
    rng = np.random.default_rng(0)
    draw = (lambda *shape: rng.integers(0, 4, shape)) if whole else (lambda *shape: rng.normal(size=shape))
    rows, centers = draw(50, 3).astype(dtype), draw(30, 3).astype(dtype)
    norms = (centers**2).sum(1)
    scores = norms - 2 * rows @ centers.T
    scores += np.finfo(dtype).eps * norms.max() * rng.choice([-1, 1], scores.shape).astype(dtype)
    scores[7] = np.nan
    labels, distances = np.empty((50, n_nearest), np.int32), np.empty((50, n_nearest))
    best = np.empty(n_nearest, dtype)
    nearest_kernels.settle_several(rows, centers, norms.max(), scores, best, labels, distances)
    squares = reference.squared_distances(rows, centers)
    expected = np.argsort(squares, axis=1, kind="stable")[:, :n_nearest]
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_allclose(distances, np.take_along_axis(squares, expected, axis=1), rtol=1e-12)
