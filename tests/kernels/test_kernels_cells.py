"""The search among cells of centres, compared with slow definitions."""

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from small import both_precisions, make_labels

from closure_kmeans.cells import Cells
from closure_kmeans.cells import search_cells as search_some_cells
from closure_kmeans.clusters import group_by_label
from closure_kmeans.kernels import cells as cell_kernels
from closure_kmeans.kernels import nearest as nearest_kernels
from closure_kmeans.kernels.rows import SLACK
from closure_kmeans.nearest import round_centers
from closure_kmeans.parallel import Threads

pytestmark = pytest.mark.kernels


def take(row, middles, scores, slack, n_probes):
    chosen = np.full(n_probes, -1, np.int32)
    cell_kernels.take_nearest(row, middles, scores, slack, chosen, cell_kernels.choice_memory(middles))
    return sorted(chosen)


@given(st.integers(0, 9999), st.integers(1, 30), st.sampled_from([1, 100, 2000]), st.data())
def test_take_nearest_where_rounding_could_decide(seed, n_cells, offset, data):
    """Whole numbers have many equals; far from the origin, scores are rounded to multiples of the slack's size."""
    n_probes = data.draw(st.integers(1, n_cells), "n_probes")
    rng = np.random.default_rng(seed)
    row, middles = (offset + rng.integers(0, 3, shape).astype(np.float32) for shape in (2, (n_cells, 2)))
    norms = (middles**2).sum(axis=1)
    slack = np.float32(SLACK * np.finfo(np.float32).eps) * (norms.max() + (row**2).sum())
    scores = norms - 2 * middles @ row + rng.uniform(-0.4, 0.4, n_cells).astype(np.float32) * slack
    assert take(row, middles, scores, slack, n_probes) == sorted(reference.choose_cells(row, middles, n_probes))


def test_take_nearest_at_the_edge_of_the_slack():
    """The threshold less the slack, rounded, is the score of the first twenty."""
    scores, slack = np.repeat(np.float32([1e6 - 0.125, 1e6, 2e6]), [20, 1, 9]), np.float32(0.1)
    assert scores[0] == scores[20] - slack
    assert take(np.zeros(1, np.float32), np.sqrt(scores)[:, np.newaxis], scores, slack, 21) == list(range(21))


def make_cells(rng, dtype, k=40, n_cells=7, d=3, whole=False, scale=1):
    centers = (rng.integers(0, 4, (k, d)) if whole else rng.normal(0, scale, (k, d))).astype(dtype)
    labels = make_labels(rng, k, n_cells)
    members, starts = group_by_label(labels, n_cells)
    middles = np.array([centers[labels == cell].mean(axis=0) for cell in range(n_cells)], dtype)
    rounded = round_centers(centers[members], members)
    return Cells(np.zeros(d, dtype), rounded, starts, middles, (middles**2).sum(axis=1))


def search_cells(rows, cells, n_probes, n_threads=1):
    """Labels and distances by the kernels of the search, in blocks of unequal length."""
    n = len(rows)
    labels, distances = np.empty(n, np.int32), np.empty(n)
    with Threads(n_threads) as threads:
        for some in (slice(n - 1, n), slice(2, n - 1), slice(0, 2)):
            search_some_cells(rows[some], cells, n_probes, labels[some], distances[some], threads)
    return labels, distances


@both_precisions
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("n_probes", [1, 3, 7])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_search_cells(dtype, whole, n_probes, n_threads):
    rng = np.random.default_rng(0)
    cells = make_cells(rng, dtype, whole=whole)
    rows = (rng.integers(0, 4, (270, 3)) if whole else rng.normal(size=(270, 3))).astype(dtype)
    labels, distances = search_cells(rows, cells, n_probes, n_threads)
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
        memory = np.empty_like(cells.middle_norms), np.empty(n_probes, np.int32)
        out = labels[first:last], distances[first:last], cell_kernels.choice_memory(cells.middles)
        cell_kernels.search_several(rows[first:last], cells, *memory, *out)
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
    assert nearest_kernels.is_nearer(4.0, 1, best, choice, ids) == ((best, ids[choice]) > (4.0, 5))


@pytest.mark.parametrize("d", [64, 384])
def test_search_cells_where_all_is_rounded_the_same_way(d):
    """Rows that are centres, of one number and its negative: the errors of a product do not cancel out."""
    rng = np.random.default_rng(0)
    for value in rng.uniform(0.5, 1, 5):
        cells = make_cells(rng, np.float32, k=120, d=d)
        centers = (value * rng.choice([-1, 1], (120, d))).astype(np.float32)
        cells = cells._replace(centers=round_centers(centers, cells.centers.ids))
        labels, distances = search_cells(centers.copy(), cells, 7)
        np.testing.assert_array_equal(labels, cells.centers.ids)
        assert (distances == 0).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), min_size=1, unique_by=lambda pair: pair[1]))
def test_insert_nearest(pairs):
    labels, distances = np.full(4, -1, np.int32), np.full(4, np.inf)
    for distance, label in pairs:
        nearest_kernels.insert_nearest(float(distance), label, labels, distances)
    expected = sorted(pairs)[:4]
    assert list(zip(distances, labels, strict=True))[: len(expected)] == expected
    assert (labels[len(expected) :] == -1).all()


@pytest.mark.parametrize("scale", [1e-22, 1e-30, 1e-37, 1e-42])
def test_search_cells_where_products_are_zero(scale):
    rng = np.random.default_rng(0)
    cells = make_cells(rng, np.float32, scale=scale)
    rows = (scale * rng.normal(size=(50, 3))).astype(np.float32)
    np.testing.assert_array_equal(search_cells(rows, cells, 3)[0], reference.search_cells(rows, cells, 3)[0])


@pytest.mark.parametrize("value", [3e38, -3e38])
def test_search_cells_where_products_overflow(value):
    cells = make_cells(np.random.default_rng(0), np.float32, scale=1000)
    rows = np.full((5, 3), value, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # they are raised with the JIT off only
        labels, _ = search_cells(rows, cells, 2)
    np.testing.assert_array_equal(labels, reference.search_cells(rows, cells, 2)[0])
