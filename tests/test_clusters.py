"""The update step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from closure_kmeans.clusters import update
from closure_kmeans.datasets import load_sift
from closure_kmeans.parallel import Threads
from closure_kmeans.stores.memory import arrange_points


@given(st.integers(0, 40), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_clusters_whose_points_are_the_same_are_taken_over(n_moves, spherical, weighted, seed):
    """The update is the same, bit for bit, whether or not it knows the clusters before; some of them are emptied."""
    rng = np.random.default_rng(seed)
    with Threads(1) as threads:
        weights = rng.random(300) + 0.5 if weighted else np.ones(1)
        points, _ = arrange_points(load_sift()[:300].astype(np.float32) / 7, weights, 20, None, rng, threads)
        points = points._replace(spherical=spherical)
        labels = rng.permutation(300).astype(np.int32) % 20
        before = update(points, labels, 20, threads)
        moved = labels.copy()
        moved[rng.integers(300, size=n_moves)] = rng.integers(20, size=n_moves)
        if n_moves > 30:
            moved[moved == 3] = 4
        alone, together = moved.copy(), moved.copy()
        expected = update(points, alone, 20, threads)
        found = update(points, together, 20, threads, before=(labels, before))
    np.testing.assert_array_equal(together, alone)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
