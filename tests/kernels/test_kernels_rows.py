"""Kernels over rows, compared with slow definitions."""

from inspect import unwrap

import numpy as np
import pytest
import reference
from small import assert_close, every_dtype, largest_norm, make_labels, make_points, numbers

from closure_kmeans import kernels
from closure_kmeans.clusters import Clusters, group_by_label
from closure_kmeans.kernels import rows as row_kernels
from closure_kmeans.kernels.simd import widen

pytestmark = pytest.mark.kernels


def test_widen_every_finite_float16():
    bits = np.arange(2**16).astype(np.uint16)
    bits = bits[np.isfinite(bits.view(np.float16))].reshape(1, -1)
    out = np.empty(bits.shape, np.float32)
    row_kernels.load_row(bits, 0, np.zeros_like(out[0]), out, 0)
    np.testing.assert_array_equal(out, reference.widen(bits))
    assert unwrap(widen)(np.uint16(0x8001)) == -(2.0**-24)


@every_dtype
def test_load_row(dtype):
    points = make_points(np.random.default_rng(0), dtype)
    out = np.zeros((3, 5), points.offset.dtype)
    norm = row_kernels.load_row(points.rows, 7, points.offset, out, 1)
    expected = reference.load_row(points.rows, 7, points.offset)
    assert_close(out[1], expected, dtype, 100)
    assert_close(norm, expected @ expected, dtype, 100)
    assert not out[[0, 2]].any()


@every_dtype
@pytest.mark.parametrize("d", [1, 100, 1000])
def test_asking_for_a_row_changes_nothing(dtype, d):
    rows = make_points(np.random.default_rng(0), dtype, d=d).rows
    before = rows.copy()
    row_kernels.fetch_row(rows, 59)
    np.testing.assert_array_equal(rows, before)


def test_group_by_label():
    for labels in ([2, 0, 2, 5, 0, 2], [0], [5, 5, 5]):
        members, starts = group_by_label(np.array(labels, np.int32), 6)
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
        row_kernels.update_clusters(points, *group_by_label(labels, 10), clusters, np.empty(5), chosen, first, last)

    centers, sizes, errors = reference.update_clusters(*numbers(points), labels, old)
    assert_close(clusters.centers, centers, dtype, 100)
    assert_close(clusters.norms, (centers**2).sum(axis=1), dtype, 100)
    assert_close(clusters.sizes, sizes, np.float64)
    assert_close(clusters.errors, errors, dtype, largest_norm(points))
    assert clusters.errors[[3, 9]] == pytest.approx([0, 0], abs=1e-3)


def test_the_package_has_the_modules_of_the_kernels():
    assert kernels.__getattr__("rows") is row_kernels
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kernels.nothing
