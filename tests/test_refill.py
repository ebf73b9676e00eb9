"""Exactly k clusters, whatever the rows."""

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import AWKWARD, draw_k, rows
from models import every_mode, model
from sklearn.cluster import KMeans

from closure_kmeans.datasets import load_sift


@pytest.mark.parametrize("mode", ["default", "paper"])
@pytest.mark.parametrize("kind", AWKWARD)
def test_exactly_k_clusters_for_seeds_0_to_99(mode, kind):
    for seed in range(100):
        X, k = AWKWARD[kind](np.random.default_rng(seed))
        fitted = model(k, mode, init=["tree", "random"][seed % 2], leaf_size=8, random_state=seed).fit(X)
        np.testing.assert_array_equal(np.unique(fitted.labels_), np.arange(k))
        assert fitted.inertia_ == pytest.approx(reference.inertia(X, fitted.labels_), abs=1e-9 * np.square(X).sum())


@every_mode
@settings(max_examples=40)
@given(X=rows(), data=st.data())
def test_labels_that_leave_clusters_empty_are_refilled(mode, X, data):
    k = draw_k(data, X)
    fitted = model(k, mode, init=np.zeros(len(X), int)).fit(X)
    np.testing.assert_array_equal(np.unique(fitted.labels_), np.arange(k))


@pytest.mark.parametrize("mode", ["default", "paper"])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("init", ["tree", "random"])
def test_copies_of_a_row_do_not_use_up_clusters(mode, dtype, init):
    """A few rows make up most of the data: no two centres are the same, and Lloyd from random rows is worse."""
    rng = np.random.default_rng(0)
    frequencies = 1 / np.arange(1, 401)
    copies = rng.choice(400, 4000, p=frequencies / frequencies.sum())
    X = load_sift()[np.append(np.arange(400), copies)].astype(dtype)
    fitted = model(300, mode, init=init).fit(X)
    assert len(np.unique(fitted.cluster_centers_, axis=0)) == 300
    exact = KMeans(300, init="random", n_init=1, random_state=0).fit(X.astype(np.float32))
    assert fitted.inertia_ < exact.inertia_


def test_as_many_clusters_as_distinct_rows_have_no_error():
    X = np.repeat(load_sift()[:40], 5, axis=0)
    fitted = model(40, leaf_size=16).fit(X)
    assert fitted.inertia_ == pytest.approx(0, abs=1e-6)
    np.testing.assert_array_equal(fitted.cluster_centers_[fitted.labels_], X)
