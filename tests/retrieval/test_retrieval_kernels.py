"""Kernels of the retrieval compared with slow definitions, on inputs small enough for no JIT and for bounds checks."""

import numpy as np
import pytest
import reference_retrieval as reference

from closure_kmeans.retrieval import invert, kernels
from closure_kmeans.retrieval.verification import place

pytestmark = pytest.mark.kernels

every_dof = pytest.mark.parametrize("dof", [3, 4, 5])


def circles(rng, n):
    return np.column_stack([rng.uniform(0, 300, (n, 2)), rng.uniform(2, 30, n), rng.uniform(0, 360, n)]).astype("f4")


def ellipses(rng, n):
    shapes = rng.normal(size=(n, 2, 2))
    shapes = shapes @ shapes.transpose(0, 2, 1) / 100 + 0.003 * np.eye(2)
    return np.column_stack([rng.uniform(0, 300, (n, 2)), *shapes.reshape(n, 4).T[[0, 1, 3]]]).astype("f4")


def regions(rng, n, dof):
    return ellipses(rng, n) if dof == 5 else circles(rng, n)


def moved(keypoints, rng, noise=1.0):
    """The same circles in another picture: turned, scaled, shifted, a little off."""
    turn, scale = 0.5, 1.4
    matrix = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    where = keypoints[:, :2] @ matrix.T + (40, -20) + rng.normal(0, noise, (len(keypoints), 2))
    return np.column_stack([where, keypoints[:, 2] * scale, keypoints[:, 3] + np.degrees(turn)]).astype("f4")


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_add_scores(norm):
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.6, (12, 9))
    counts[:, 4] = 2  # in every image: weighs nothing
    counts[3] = 0  # an image without words
    words = np.concatenate([np.repeat(np.arange(9), row) for row in counts])
    file = invert(words, np.append(0, np.cumsum(counts.sum(axis=1))), 9)
    asked = np.array([0, 2, 4, 8])
    query = np.zeros(9)
    query[asked] = 3.0, 1.0, 2.0, 1.0
    shares = reference.normalized(query * file.idf, norm)[asked]
    norms = file.norms[("l1", "l2").index(norm)]
    inverse = np.divide(1, norms, out=np.zeros(12), where=norms > 0)
    found = np.zeros(12)
    assert kernels.add_scores(file, asked, shares, inverse, norm == "l1", found)
    np.testing.assert_allclose(found, reference.scores(counts, query, norm), atol=1e-6)


@pytest.mark.parametrize("image", [-1, 2])
def test_add_scores_notices_images_that_are_not_there(image):
    file = invert([0, 1, 1], [0, 2, 3], 2)
    file = file._replace(images=np.array([0, image, 1], np.int32))
    assert not kernels.add_scores(file, np.array([0, 1]), np.ones(2), np.ones(2), True, np.zeros(2))


def test_end_of_run():
    words = np.array([2, 2, 5, 7, 7, 7])
    for begin in range(6):
        assert kernels.end_of_run(words, begin) == reference.end_of_run(words, begin)


@pytest.mark.parametrize(("n_words", "sizes"), [(20, (30, 40)), (3, (9, 10)), (1, (4, 5)), (1, (30, 40)), (50, (0, 5))])
def test_match_words(n_words, sizes):
    rng = np.random.default_rng(0)
    words, others = (np.sort(rng.integers(n_words, size=size)).astype(np.int32) for size in sizes)
    expected = reference.match_words(words, others, kernels.MOST_PAIRS_OF_A_WORD, kernels.MOST_PAIRS)
    np.testing.assert_array_equal(kernels.match_words(words, others), expected)


def test_match_words_has_a_limit():
    words = np.repeat(np.arange(50, dtype=np.int32), 8)
    expected = reference.match_words(words, words, 64, 2000)
    assert len(expected) == 31 * 64
    np.testing.assert_array_equal(kernels.match_words(words, words), expected)


@every_dof
def test_frame_and_transform_between(dof):
    rng = np.random.default_rng(dof)
    one, other = regions(rng, 2, dof)
    np.testing.assert_allclose(np.reshape(kernels.frame(one, dof), (2, 2)), reference.frame(one, dof), atol=1e-4)
    found = np.empty((2, 3))
    kernels.transform_between(one, other, dof, found)
    np.testing.assert_allclose(found, reference.transform_between(one, other, dof), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found[:, :2] @ one[:2] + found[:, 2], other[:2], rtol=1e-3)


def test_what_is_vertical_stays_vertical():
    one, other = ellipses(np.random.default_rng(0), 2)
    found = np.empty((2, 3))
    kernels.transform_between(one, other, 5, found)
    assert found[0, 1] == 0


def make_pairs(rng):
    keypoints = circles(rng, 20)
    return (
        keypoints,
        moved(keypoints, rng, noise=6),
        np.array([(i, j) for i in range(20) for j in (i, (i + 7) % 20, i)]),
    )


def test_find_inliers():
    keypoints, others, pairs = make_pairs(np.random.default_rng(0))
    transform = reference.transform_between(keypoints[3], others[3], 4)
    for tolerances in ((12.0, 12.0), (5.0, 100.0), (100.0, 9.0), (1.0, 1.0)):
        inliers = np.empty(len(pairs), np.int32)
        n_inliers = kernels.find_inliers(keypoints, others, pairs, transform, tolerances, inliers)
        expected = reference.find_inliers(keypoints, others, pairs, transform, tolerances)
        assert inliers[:n_inliers].tolist() == expected
        assert len(set(pairs[expected, 0])) == len(set(pairs[expected, 1])) == len(expected)
    for flat in (np.zeros((2, 3)), np.full((2, 3), np.nan)):
        assert kernels.find_inliers(keypoints, others, pairs, flat, (9.0, 9.0), inliers) == 0


def count_carried(keypoints, others, pairs, transform, tolerances):
    ends = np.vstack([keypoints[pairs[:, 0], :2].T, others[pairs[:, 1], :2].T]).astype(np.float32)
    sizes = float(abs(ends[:2]).max()), float(abs(ends[2:]).max())
    return kernels.count_carried(ends, sizes, transform, tolerances)


@pytest.mark.parametrize("tolerances", [(12.0, 12.0), (5.0, 100.0), (100.0, 9.0), (1.0, 1.0)])
def test_count_carried(tolerances):
    """Exactly those that are carried into each other by a similarity, each by itself; by others at least those."""
    keypoints, others, pairs = make_pairs(np.random.default_rng(0))
    transform = reference.transform_between(keypoints[3], others[3], 4)
    for sheared in (False, True):
        transform[0, 1] += 0.4 * sheared
        alone = [reference.find_inliers(keypoints, others, pair[np.newaxis], transform, tolerances) for pair in pairs]
        n_carried = count_carried(keypoints, others, pairs, transform, tolerances)
        assert n_carried >= sum(map(len, alone)) if sheared else n_carried == sum(map(len, alone))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6, 1e25])
def test_count_carried_never_counts_too_few(scale):
    """Pairs that are as far apart as is allowed, in pictures of any size."""
    rng = np.random.default_rng(0)
    keypoints = (scale * rng.uniform(-300, 300, (50, 4))).astype(np.float32)
    pairs = np.column_stack([np.arange(50), np.arange(50)])
    for _ in range(20):
        transform = np.column_stack([rng.normal(size=(2, 2)), scale * rng.normal(size=2) * 100])
        turn = rng.uniform(0, 2 * np.pi, 50)
        apart = 0.0999 * scale * np.column_stack([np.cos(turn), np.sin(turn)])
        others = (keypoints[:, :2] @ transform[:, :2].T + transform[:, 2] + apart).astype(np.float32)
        tolerances = (0.1 * scale, 0.1 * scale)
        n_inliers = kernels.find_inliers(keypoints, others, pairs, transform, tolerances, np.empty(50, np.int32))
        assert count_carried(keypoints, others, pairs, transform, tolerances) >= n_inliers


def test_nothing_is_carried_by_what_is_no_transformation():
    keypoints, others, pairs = make_pairs(np.random.default_rng(0))
    for flat in (np.zeros((2, 3)), np.full((2, 3), np.nan)):
        assert count_carried(keypoints, others, pairs, flat, (9.0, 9.0)) == 0


def test_fit_affine():
    rng = np.random.default_rng(0)
    keypoints, others = circles(rng, 9), circles(rng, 9)
    pairs = np.column_stack([np.arange(9), rng.permutation(9)])
    found = np.empty((2, 3))
    assert kernels.fit_affine(keypoints, others, pairs, found)
    np.testing.assert_allclose(found, reference.fit_affine(keypoints, others, pairs), rtol=1e-4, atol=1e-3)
    keypoints[:, 1] = 2 * keypoints[:, 0] + 1
    assert not kernels.fit_affine(keypoints, others, pairs, found)


@every_dof
@pytest.mark.parametrize("locally", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_verify_pairs(dof, locally, seed):
    rng = np.random.default_rng(seed)
    keypoints = regions(rng, 25, dof)
    others = regions(rng, 25, dof) if dof == 5 else moved(keypoints, rng, noise=3)
    if dof == 5:
        others[:15, :2] = keypoints[:15, :2] * (1.2, 0.9) + 5
    pairs = np.array([(i, i if i % 3 else (i + 5) % 25) for i in range(25)])
    found = np.empty((2, 3))
    inliers = kernels.verify_pairs(keypoints, others, pairs, dof, (20.0, 20.0), locally, found)
    transform, expected = reference.verify_pairs(keypoints, others, pairs, dof, (20.0, 20.0), locally)
    np.testing.assert_array_equal(inliers, expected)
    np.testing.assert_allclose(found, transform, rtol=1e-3, atol=1e-2)


def test_verify_pairs_that_all_agree():
    keypoints = circles(np.random.default_rng(0), 6)
    pairs = np.column_stack([np.arange(6), np.arange(6)])
    assert len(kernels.verify_pairs(keypoints, keypoints, pairs, 4, (1.0, 1.0), True, np.empty((2, 3)))) == 6


def test_count_places():
    rng = np.random.default_rng(0)
    keypoints = circles(rng, 60)
    others = circles(rng, 60)
    pairs = np.column_stack([np.arange(60), np.arange(60)])
    sizes = set()
    for tolerances in ((5.0, 5.0), (60.0, 1.0), (1.0, 60.0), (40.0, 40.0), (1e4, 0.0), (0.0, 0.0)):
        expected = reference.count_places(keypoints, others, pairs, tolerances)
        assert kernels.count_places(keypoints, others, pairs, tolerances) == expected
        sizes.add(expected)
    assert {1, 60} < sizes
    assert kernels.count_places(keypoints, others, pairs[:0], (1.0, 1.0)) == 0


def test_reach():
    assert kernels.reach(np.array([[3, 10, 0, 0], [9, 2, 0, 0], [4, 4, 0, 0]], np.float32)) == 8


@every_dof
def test_weigh_inliers(dof):
    rng = np.random.default_rng(0)
    keypoints, others = regions(rng, 9, dof), regions(rng, 9, dof)
    pairs = np.column_stack([np.arange(9), rng.permutation(9)])
    words, idf = np.arange(9, dtype=np.int32), rng.uniform(0, 5, 12).astype(np.float32)
    transform = reference.transform_between(keypoints[1], others[pairs[1, 1]], dof)
    found = kernels.weigh_inliers(keypoints, others, pairs, words, idf, transform, dof)
    assert found == pytest.approx(reference.weigh_inliers(keypoints, others, pairs, words, idf, transform, dof), 1e-5)
    alone = kernels.weigh_inliers(keypoints, others, pairs[1:2], words, idf, transform, dof)
    assert alone == pytest.approx(idf[1], 1e-5)  # its own scale is consistent


def test_verify_images():
    rng = np.random.default_rng(0)
    query = place(np.arange(20), circles(rng, 20))
    same = moved(query.keypoints, rng)
    others = place(
        np.concatenate([np.arange(20), np.arange(50, 60), rng.permutation(20)]),
        np.concatenate([same, circles(rng, 10), circles(rng, 20)]),
        [0, 20, 30, 50],
    )
    images = np.array([2, 0, 1])
    counts, weights, transforms = np.full((3, 3), -1), np.full(3, np.nan), np.full((3, 2, 3), np.nan)
    idf = rng.uniform(0, 5, 60).astype(np.float32)
    arrays = query.words, query.keypoints, others.offsets, others.words, others.keypoints, idf
    kernels.verify_images(*arrays, images, 4, 0.04, True, *counts, weights, transforms, 0, 3)
    for image, found, weight, transform in zip(images, counts.T, weights, transforms, strict=True):
        own = others.of(image)
        pairs = reference.match_words(query.words, own.words, 64, 2000)
        tolerances = [0.04 * np.ptp(one.keypoints[:, :2], axis=0).max() for one in (query, own)]
        best, inliers = None, ()
        if len(pairs):
            best, inliers = reference.verify_pairs(query.keypoints, own.keypoints, pairs, 4, tolerances, True)
            np.testing.assert_allclose(transform, best, rtol=1e-3, atol=1e-2)
        n_places = reference.count_places(query.keypoints, own.keypoints, inliers, tolerances)
        assert found.tolist() == [len(pairs), len(inliers), n_places]
        expected = reference.weigh_inliers(query.keypoints, own.keypoints, inliers, query.words, idf, best, 4)
        assert weight == pytest.approx(expected, rel=1e-3)
    assert counts[1].tolist()[1:] == [20, 0]
    assert counts[2, 1] > 10
