import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closure_kmeans.points import ALIGNMENT, empty_rows, heights, largest


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_of_a_row_lie_equally_far(dtype):
    """Or else rounding alone would part them where their cluster is split."""
    rng = np.random.default_rng(0)
    for copies in range(2, 40):
        row, direction = rng.normal(size=(2, 20)).astype(dtype)
        far = heights(np.tile(row, (copies, 1)), direction)
        np.testing.assert_allclose(far, row @ direction, atol=1e-5)
        assert len(np.unique(far)) == 1


@given(st.lists(st.integers(-3, 5) | st.sampled_from([np.inf, -np.inf, np.nan]), max_size=20), st.integers(0, 25))
def test_largest(values, n):
    expected = np.argsort(-np.array(values, float), kind="stable")[:n]
    np.testing.assert_array_equal(largest(np.array(values, float), n), expected)


@pytest.mark.parametrize("shape", [(0, 16), (3, 2), (5, 128)])
def test_rows_begin_with_a_cache_line(shape):
    for dtype in (np.uint8, np.float32, np.float64):
        rows = empty_rows(shape, dtype)
        assert (rows.shape, rows.dtype) == (shape, dtype)
        assert rows.size == 0 or rows.ctypes.data % ALIGNMENT == 0
        assert rows.flags.c_contiguous
        rows[:] = 3
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(rows)), rows)
