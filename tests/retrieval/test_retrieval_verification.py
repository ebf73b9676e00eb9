"""Spatial verification: transforms, inliers, and the number that chance explains."""

import math
import signal
import sys

import cv2
import numpy as np
import pytest
from retrieval_data import SIDE

from closure_kmeans.retrieval import (
    PAPER_STEPS,
    Collection,
    Extraction,
    ImageIndex,
    Matches,
    Verification,
    Words,
    align,
    beyond_chance,
    match_images,
    place,
    rerank,
)
from closure_kmeans.retrieval.inverted import Ranking


@pytest.mark.parametrize("verifier", ["matches", "opencv"])
def test_a_moved_picture_is_recognised(index, verifier):
    """Three photos of an object are its first one, turned by 13 degrees more each and a little larger."""
    settings = Verification(verifier=verifier)
    for turn in (1, 2):
        found = align(index.places_of(0), index.places_of(turn), settings)
        expected = cv2.getRotationMatrix2D((SIDE / 2, SIDE / 2), 13 * turn, 1 + 0.08 * turn)
        assert len(found.pairs) >= 10
        np.testing.assert_allclose(found.transform[:, :2], expected[:, :2], atol=0.1)
        assert len(np.unique(found.pairs[:, 0])) == len(np.unique(found.pairs[:, 1])) == len(found.pairs)
    same = len(align(index.places_of(0), index.places_of(1), settings).pairs)
    assert len(align(index.places_of(0), index.places_of(9), settings).pairs) < same / 2


def test_three_degrees_of_freedom_do_not_turn(index):
    upright = len(align(index.places_of(0), index.places_of(3), Verification(3)).pairs)
    turned = len(align(index.places_of(0), index.places_of(3), Verification(4)).pairs)
    assert upright < turned


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_during_an_alignment_is_an_interrupt():
    """Not a SystemError, which kernels that return arrays can make of it."""
    rng = np.random.default_rng(0)
    one, other = picture(rng, 100), picture(rng, 100)
    align(one, other)  # compiled

    def align_forever():
        while True:
            align(one, other)

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(5):
            signal.setitimer(signal.ITIMER_REAL, 0.002)
            with pytest.raises(KeyboardInterrupt):
                align_forever()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_pictures_without_common_words():
    one, other = place([1, 2], np.ones((2, 4))), place([3], np.ones((1, 4)))
    for verifier in ("matches", "opencv"):
        assert len(align(one, other, Verification(verifier=verifier)).pairs) == 0


def test_rerank_puts_verified_images_first():
    ranking = Ranking(np.array([7, 3, 9, 1, 4, 2]), np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4]))
    inliers, verified = np.array([3, 9, 20, 9, 15]), np.array([False, True, True, True, False])
    assert ranking.images[rerank(ranking, inliers, verified)].tolist() == [9, 3, 1, 7, 4, 2]
    without_weight = rerank(ranking, np.zeros(5), verified)
    assert ranking.images[without_weight].tolist() == [3, 9, 1, 7, 4, 2]


@pytest.mark.parametrize("verifier", ["matches", "opencv"])
def test_inliers_of_rare_words_weigh_more(verifier):
    x, y = np.meshgrid(np.arange(4) * 100.0, np.arange(4) * 100.0)
    where = np.column_stack([x.ravel(), y.ravel(), np.full(16, 9.0), np.zeros(16)])
    query, others = (
        place(np.arange(16), where),
        place([*range(12), *range(4, 16)], where[[*range(12), *range(4, 16)]], [0, 12, 24]),
    )
    idf = np.repeat([1.0, 3.0], 8).astype(np.float32)
    found = match_images(query, others, np.array([0, 1]), Verification(verifier=verifier), idf=idf)
    assert found.inliers.tolist() == [12, 12]
    np.testing.assert_allclose(found.weights, [20, 28], rtol=0.01)
    assert found.strengths(Verification()) is found.weights
    assert found.strengths(Verification(weighted=False)) is found.inliers


def picture(rng, n_words):
    """Regions with words and places of their own."""
    places = np.column_stack([rng.uniform(0, 400, (500, 2)), np.full(500, 9.0), np.zeros(500)])
    return place(rng.integers(0, n_words, 500), places)


def test_inliers_count_as_much_as_chance_does_not_explain():
    """Two pictures that have nothing in common but a few words, each in many places: some are in place by chance."""
    rng = np.random.default_rng(0)
    one, other = picture(rng, 500), picture(rng, 500)
    matches = match_images(one, other, np.array([0]))
    assert matches.places[0] > 4
    assert not beyond_chance(matches, 0.04).any()
    assert beyond_chance(matches._replace(places=3 * matches.places), 0.04).all()
    assert beyond_chance(match_images(one, one, np.array([0])), 0.04).all()
    few = np.array([0, 1, 3, 3])
    assert not beyond_chance(Matches(np.array([0, 1, 3, 10**6]), few, few), 0.04).any()


@pytest.mark.parametrize("verifier", ["matches", "opencv"])
def test_regions_in_one_place_count_once(verifier):
    """Two pictures of other things that have the same letter, with many regions in it."""
    rng = np.random.default_rng(0)

    def spread(reach):
        far = [[0, 0, 9, 0], [400, 400, 9, 0]]  # of words that the other picture lacks
        return np.vstack([np.column_stack([rng.uniform(0, reach, (30, 2)), np.full(30, 9), np.zeros(30)]), far])

    for reach, expected in ((10, False), (400, True)):
        keypoints = spread(reach)
        one = place(np.arange(32), keypoints)
        other = place(np.append(np.arange(30), [40, 41]), keypoints)
        matches = match_images(one, other, np.array([0]), Verification(verifier=verifier))
        assert matches.pairs[0] == matches.inliers[0] == 30
        assert beyond_chance(matches, 0.04).tolist() == [expected]


def test_beyond_chance_by_hand():
    """A hundred pairs, each in place with a chance of one in a hundred: the sums of the binomial law."""
    tolerance = math.sqrt(0.01 / math.pi)
    exactly = [math.comb(99, i) * 0.01**i * 0.99 ** (99 - i) for i in range(100)]
    by_chance = {n: 100 * sum(exactly[n - 1 :]) for n in range(1, 20)}
    for n, expected in by_chance.items():
        for n_images in (1, 10, 1000):
            found = beyond_chance(Matches(*np.array([[100], [50], [n]]).repeat(n_images, axis=1)), tolerance)
            assert found.tolist() == [n >= 4 and n_images * expected < 0.01] * n_images
    assert 0.01 / 1000 < by_chance[9] < 0.01  # nine places verify one image, and none of a thousand


@pytest.mark.parametrize("verifier", ["matches", "opencv"])
def test_chance_does_not_change_the_ranking(vocabulary, verifier):
    """Pictures of something else that have a few inliers by chance stay where their scores put them."""
    rng = np.random.default_rng(0)
    pictures = [picture(rng, 400) for _ in range(12)]
    words, keypoints = (np.concatenate([one[i] for one in pictures]) for i in range(2))
    names = [f"{number}.png" for number in range(12)]
    offsets = 500 * np.arange(13)
    made = ImageIndex(vocabulary)
    made.add(
        Collection(names, None, keypoints, np.empty((0, 128)), offsets, [], Extraction()), Words(words[:, None], None)
    )
    plain = made.search(made.query_of(0), n_results=None)
    settings = {"steps": PAPER_STEPS, "verification": Verification(verifier=verifier)}
    found = made.search(made.query_of(0), n_results=None, n_rerank=8, **settings)
    assert [result.image for result in found] == [result.image for result in plain]
    assert [result.verified for result in found] == [True] + [False] * 11
    assert max(result.inliers for result in found[1:8]) >= 4
    assert [result.inliers for result in found[8:]] == [None] * 4  # not looked at


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: place([0, 1], np.ones((2, 3))), "keypoints must have 4"),
        (lambda: align(*2 * [place([0], np.ones((1, 4)))], Verification(5)), "dof must be 3 or 4 for keypoints of 4"),
        (
            lambda: align(*2 * [place([0], np.ones((1, 5)))], Verification(4)),
            "dof must be 5 for keypoints of 5 columns, got 4",
        ),
        (lambda: align(place([0], np.ones((1, 5))), place([0], np.ones((1, 4))), Verification(5)), "as many columns"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()
