import numpy as np
import pytest

from closure_kmeans.points import heights


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_of_a_row_lie_equally_far(dtype):
    """Or else rounding alone would part them where their cluster is split."""
    rng = np.random.default_rng(0)
    for copies in range(2, 40):
        row, direction = rng.normal(size=(2, 20)).astype(dtype)
        far = heights(np.tile(row, (copies, 1)), direction)
        np.testing.assert_allclose(far, row @ direction, atol=1e-5)
        assert len(np.unique(far)) == 1
