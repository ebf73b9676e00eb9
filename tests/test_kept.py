"""Trees that are grown once, and kept (section 3.4)."""

from itertools import count

import numpy as np
import pytest
import reference
from models import model

from closure_kmeans.datasets import load_sift
from closure_kmeans.kept import KeptNeighborhoods
from closure_kmeans.trees import FreshNeighborhoods


@pytest.mark.parametrize("min_fall", [0.0, 0.01, 0.2])
@pytest.mark.parametrize("max_trees", [1, 3, 10])
def test_adaptive_neighborhoods_grow_when_they_are_used_up(min_fall, max_trees):
    X = load_sift()[:600]
    start = np.arange(600) % 40
    paper = model(40, "paper", init=start, min_fall=min_fall, max_trees=max_trees, tol=0, max_iter=60).fit(X)
    n_trees, inertia = 1, reference.inertia(X, start)
    for record in paper.history_:
        assert record.n_trees == n_trees
        used_up = record.n_active == 0 or 1 - record.inertia / inertia < min_fall
        inertia = record.inertia
        n_trees = min(n_trees + used_up, max_trees)
    assert paper.stopped_by_ == "converged"
    assert paper.history_[-1].n_trees == max_trees
    assert paper.history_[-1].n_active == 0


def test_static_and_fresh_neighborhoods_do_not_grow():
    X = load_sift()[:600]
    assert {record.n_trees for record in model(40, "static").fit(X).history_} == {4}
    assert {record.n_trees for record in model(40).fit(X).history_} == {1}


def test_kept_trees_are_grown_once_and_fresh_ones_every_time():
    trees = count()

    def grow(leaf_size):
        return next(trees), leaf_size

    fresh = FreshNeighborhoods(grow, leaf_size=8, largest=100, target_accuracy=0.9)
    assert [fresh.leaves() for _ in range(3)] == [[(0, 8)], [(1, 8)], [(2, 8)]]

    static = KeptNeighborhoods(grow, 8, 2, adaptive=False, min_fall=0.1)
    assert not static.expand(fall=0.0, settled=True, accuracy=0.5)
    assert static.leaves() == static.leaves() == [(3, 8), (4, 8)]

    adaptive = KeptNeighborhoods(grow, 8, 3, adaptive=True, min_fall=0.1)
    told = [(0.1, False, 0.5), (0.09, False, None), (0.5, True, 1.0), (0.0, True, 0.0)]
    assert [adaptive.expand(*how) for how in told] == [False, True, True, False]
    assert adaptive.leaves() == [(5, 8), (6, 8), (7, 8)]
