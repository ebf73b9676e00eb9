"""The first labels of fits on one machine."""

import numpy as np

from closure_kmeans.parallel import Threads
from closure_kmeans.starts import draw_rows
from closure_kmeans.stores.memory import MemoryStore


def test_random_rows_are_drawn_by_weight():
    """Twenty different rows, and the heavy ones first."""
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(200, 2)), np.where(np.arange(200) < 15, 1e9, 1.0)
    with Threads(1) as threads:
        store = MemoryStore(X, weights, 20, tree_dims=None, rng=rng, threads=threads)
    drawn = store.order[draw_rows(store)]
    assert len(set(drawn)) == 20
    assert set(range(15)) < set(drawn)
