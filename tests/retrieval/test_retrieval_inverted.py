"""The inverted file: tf-idf scores against their definition."""

from itertools import pairwise

import numpy as np
import pytest
import reference_retrieval as reference

from closure_kmeans.retrieval import append, invert, rank, remove


def make_counts(seed, n_images=15, n_words=12):
    counts = np.random.default_rng(seed).poisson(0.5, (n_images, n_words))
    words = np.concatenate([np.repeat(np.arange(n_words), row) for row in counts])
    return counts, words, np.append(0, np.cumsum(counts.sum(axis=1)))


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("seed", range(5))
def test_rank_is_the_definition(norm, seed):
    counts, words, offsets = make_counts(seed)
    file = invert(words, offsets, 12)
    query = words[offsets[0] : offsets[3]]
    scores = reference.scores(counts, np.bincount(query, minlength=12), norm).round(9)
    found = rank(file, query, norm=norm)
    np.testing.assert_allclose(found.scores, scores[found.images], atol=1e-6)
    assert set(found.images) == set(np.flatnonzero(scores > 1e-9))
    assert all(before >= after for before, after in pairwise(found.scores))
    few = rank(file, query, norm=norm, n_results=3)
    np.testing.assert_array_equal(few.images, found.images[:3])


def test_equal_scores_are_in_the_order_of_the_images():
    file = invert([0, 1, 0, 1, 0, 1, 2], [0, 2, 4, 6, 7], 3)
    assert rank(file, [1, 0]).images.tolist() == [0, 1, 2]
    assert rank(file, [1, 0], n_results=2).images.tolist() == [0, 1]


def test_words_unseen_or_everywhere_weigh_nothing():
    file = invert([0, 1, 0, 2], [0, 2, 4], 5)
    assert file.idf.tolist() == pytest.approx([0, np.log(2), np.log(2), 0, 0])
    assert rank(file, [0, 3, 4]).images.tolist() == []
    assert rank(file, [0, 1, 3]).scores.tolist() == pytest.approx([1])


@pytest.mark.parametrize("seed", range(3))
def test_images_added_and_removed_are_as_if_always_so(seed):
    counts, words, offsets = make_counts(seed)
    whole = invert(words, offsets, 12)
    first = invert(words[: offsets[6]], offsets[:7], 12)
    both = append(first, words[offsets[6] :], offsets[6:] - offsets[6])
    for ours, theirs in zip(both, whole, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    kept = [0, 1, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14]
    left = np.concatenate([words[offsets[i] : offsets[i + 1]] for i in kept])
    expected = invert(left, np.append(0, np.cumsum(counts[kept].sum(axis=1))), 12)
    for ours, theirs in zip(remove(whole, [2, 11, 5]), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_several_words_of_a_region_and_weights():
    twice = invert([[0, 1], [1, 2]], [0, 1, 2], 3, weights=[[0.75, 0.25], [0.5, 0.5]])
    assert twice.counts.tolist() == [0.75, 0.25, 0.5, 0.5]
    assert rank(twice, [[0, 1]], weights=[[0.9, 0.1]]).images.tolist() == [0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: invert([0, 5], [0, 2], 5), "words must lie in 0..4"),
        (lambda: invert([0.5], [0, 1], 5), "words must be whole numbers"),
        (lambda: invert([0, 1], [0, 1], 5), "offsets must rise from 0 to the number of regions, 2"),
        (lambda: rank(invert([0], [0, 1], 2), [-1]), "words must lie in 0..1"),
        (lambda: rank(invert([0], [0, 1], 2), [0], norm="l3"), "norm must be one of 'l1', 'l2'"),
        (lambda: rank(invert([0], [0, 1], 2), [0], n_results=0), "n_results must be at least 1"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()
