"""The cosine metric: rows and centres of unit length."""

from itertools import pairwise

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from models import closures

from closure_kmeans import ClosureKMeans, load
from closure_kmeans.clusters import update
from closure_kmeans.datasets import load_sift
from closure_kmeans.parallel import Threads
from closure_kmeans.spherical import with_means
from closure_kmeans.stores.memory import arrange_points


@pytest.fixture(scope="module", name="X")
def sift():
    return load_sift()[:3000]


def normalized(X):
    X = np.asarray(X, np.float64)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def bits(model):
    return model.labels_.tobytes(), model.cluster_centers_.tobytes(), model.inertia_


def spherical_inertia(X, labels, k, weights):
    """By the definition: the best centre on the sphere is the direction of the sum."""
    units, total = normalized(X), 0.0
    for j in range(k):
        own = labels == j
        length = np.linalg.norm((weights[own, np.newaxis] * units[own]).sum(axis=0))
        total += 2 * (weights[own].sum() - length)
    return total


@settings(max_examples=60)
@given(
    seed=st.integers(0, 999),
    n=st.integers(2, 80),
    d=st.integers(2, 6),
    dtype=st.sampled_from([np.float64, np.float32, np.float16, np.int8]),
    neighborhoods=st.sampled_from(["fresh", "all", "kept"]),
    weighted=st.booleans(),
    data=st.data(),
)
def test_the_spherical_distortion_never_rises(seed, n, d, dtype, neighborhoods, weighted, data):
    rng = np.random.default_rng(seed)
    X = (rng.integers(1, 50, size=(n, 1)) * (rng.normal(size=(n, d)) + 1)).clip(-90, 90).astype(dtype)
    X[:, 0] += (X == 0).all(axis=1)
    k = data.draw(st.integers(1, len(np.unique(np.round(normalized(X), 5), axis=0))), "k")
    weights = rng.choice([0.5, 1.0, 3.0], n) if weighted else np.ones(n)
    start = rng.permutation(np.arange(n) % k)
    model = closures(
        k, metric="cosine", init=start, neighborhoods=neighborhoods, leaf_size=10, tol=0, max_iter=20, random_state=0
    ).fit(X, sample_weight=weights)
    history = [record.inertia for record in model.history_]
    rounding = 1e-5 * weights.sum()
    assert history[0] <= spherical_inertia(X, start, k, weights) + rounding
    assert all(after <= before for before, after in pairwise(history))
    assert model.inertia_ == pytest.approx(spherical_inertia(X, model.labels_, k, weights), abs=rounding)
    assert len(np.unique(model.labels_)) == k
    np.testing.assert_allclose(np.linalg.norm(model.cluster_centers_, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8])
def test_cosine_looks_at_directions_only(X, dtype):
    X = X.astype(dtype)
    model = ClosureKMeans(200, metric="cosine", random_state=0).fit(X)
    cosines = normalized(X) @ normalized(model.cluster_centers_).T
    # Any of several centres that are equally near, but for rounding.
    np.testing.assert_allclose(cosines[np.arange(len(X)), model.predict(X)], cosines.max(axis=1), atol=1e-5)
    np.testing.assert_array_equal(model.predict(X.astype(np.float64) * 7.5), model.predict(X.astype(np.float64)))
    np.testing.assert_allclose(model.transform(X[:20]) ** 2, 2 - 2 * cosines[:20], atol=1e-4)
    own = cosines[np.arange(len(X)), model.labels_]
    assert model.inertia_ == pytest.approx((2 - 2 * own).sum(), rel=1e-4)
    assert model.score(X) == pytest.approx(-(2 - 2 * cosines.max(axis=1)).sum(), rel=1e-4)


def test_the_mean_cosine(X):
    """By Hartigan's rule more than by the plain one; as much as of unit rows clustered by Euclid."""

    def mean_cosine(model):
        return (normalized(X) @ normalized(model.cluster_centers_).T).max(axis=1).mean()

    hartigan, plain = (closures(300, metric="cosine", rule=rule, random_state=0) for rule in ("hartigan", "lloyd"))
    euclidean = ClosureKMeans(300, random_state=0).fit(normalized(X))
    assert mean_cosine(hartigan.fit(X)) > mean_cosine(plain.fit(X)) + 0.003
    assert mean_cosine(hartigan) == pytest.approx(mean_cosine(euclidean), rel=0.002)


@pytest.mark.parametrize("memory_limit", [None, "16MB"])
def test_small_clusters_of_directions(memory_limit):
    """They are no worse than those of Euclid, whose centres are then moved to the sphere."""
    rng = np.random.default_rng(0)
    middles = normalized(rng.normal(size=(400, 64)))
    X = normalized(middles[rng.integers(400, size=4000)] + 0.15 * rng.normal(size=(4000, 64)))
    model = ClosureKMeans(1200, metric="cosine", memory_limit=memory_limit, random_state=0).fit(X)
    euclidean = ClosureKMeans(1200, random_state=0).fit(X)
    assert model.inertia_ < 1.002 * spherical_inertia(X, euclidean.labels_, 1200, np.ones(len(X)))


def test_cosine_is_the_same_on_any_number_of_threads(X):
    one, two = (ClosureKMeans(200, metric="cosine", random_state=0, n_threads=n_threads).fit(X) for n_threads in (1, 2))
    assert bits(one) == bits(two)


def test_a_saved_spherical_model(X, tmp_path):
    model = ClosureKMeans(50, metric="cosine", random_state=0).fit(X)
    model.save(tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    assert loaded.metric == "cosine"
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_rows_without_a_direction(X):
    zero = X.copy()
    zero[17] = 0
    model = ClosureKMeans(10, metric="cosine", random_state=0)
    with pytest.raises(ValueError, match=r"rows of X must not be zero for metric='cosine', but row 17 is"):
        model.fit(zero)
    with pytest.raises(ValueError, match="but row 17 is"):
        model.fit(X).predict(zero)
    late = np.concatenate([X, zero])  # read some rows at a time
    with pytest.raises(ValueError, match=f"but row {len(X) + 17} is"):
        ClosureKMeans(10, metric="cosine", memory_limit="16MB", random_state=0).fit(late)
    with pytest.raises(ValueError, match=r"rows of init must not be zero .* but row 3 is"):
        model.set_params(init=zero[14:24]).fit(X)
    with pytest.raises(ValueError, match="metric must be one of 'euclidean', 'cosine', got 'l1'"):
        ClosureKMeans(2, metric="l1").fit(X)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_cosine_of_bad_values(X, bad):
    X = X.astype(np.float64)
    X[5, 3] = bad
    message = "must not overflow float64, but row 5" if bad == 1e200 else "NaN or infinity, but row 5"
    with pytest.raises(ValueError, match=message):
        ClosureKMeans(10, metric="cosine").fit(X)


def test_opposite_rows_have_a_center_all_the_same():
    model = ClosureKMeans(1, metric="cosine").fit([[1.0, 0.0], [-1.0, 0.0]])
    assert np.linalg.norm(model.cluster_centers_) == 1
    assert model.inertia_ == 4


def test_the_means_of_directions():
    """A mean lies on the way from the origin to its direction."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 8)) + 1
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    with Threads(1) as threads:
        points, _ = arrange_points(X, rng.random(300) + 0.5, 20, None, rng, threads)
        labels = rng.permutation(300).astype(np.int32) % 20
        clusters = update(points._replace(spherical=True), labels, 20, threads)
        means = with_means(clusters, points.offset, threads)
    expected, _, _ = reference.update_clusters(points.rows, points.weights, labels, np.zeros((20, 8)))
    np.testing.assert_allclose(means.centers + points.offset, expected, atol=1e-12)
