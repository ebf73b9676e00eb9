import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closure_kmeans.arrays import ALIGNMENT, empty_rows, largest


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
