"""Charts of cluster sizes and of a fit."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from closure_kmeans import Iteration
from closure_kmeans.explorer import charts
from tests.page import Page


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=50))
def test_every_cluster_is_in_one_bar(sizes):
    bars = charts.count_sizes(np.array(sizes))
    assert sum(bar.n_clusters for bar in bars) == len(sizes)
    for bar in bars:
        assert bar.n_clusters == sum(bar.least <= size <= bar.most for size in sizes)
    assert len(bars) <= charts.MOST_BARS


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
@example(0.0, 5e-324)
def test_ticks_are_few_and_inside(low, span):
    marks = charts.ticks(low, low + span)
    assert 1 <= len(marks) <= 8
    assert all(low - 1e-6 * (abs(low) + span) <= mark <= low + span * (1 + 1e-6) + 1e-6 * abs(low) for mark in marks)


def test_curves_of_any_history():
    one = Iteration(1, 0.5, 100.0, 10, 1, 5.0, None)
    for history in ([one], [one, one._replace(iteration=2, seconds=1.0, n_trees=2, inertia=50.0)]):
        text = charts.draw_curve(history, lambda step: step.inertia, name="distortion", by_time=True)
        notes = Page(text).only("img", "distortion against time").notes
        assert sum(note.startswith("iteration") for note in notes) == len(history)
        assert sum(note.endswith("added") for note in notes) == len(history) - 1
        assert "nan" not in text
