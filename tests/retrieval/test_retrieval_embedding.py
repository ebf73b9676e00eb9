"""Hamming embedding and burstiness, compared with their definitions."""

import numpy as np
import pytest
import reference_retrieval as reference
from retrieval_data import parts, put, rewritten

from closure_kmeans.retrieval import (
    PAPER_STEPS,
    Collection,
    Extraction,
    ImageIndex,
    Steps,
    Vocabulary,
    Words,
    align,
    place,
    root_bytes,
)
from closure_kmeans.retrieval.embedding import (
    N_BITS,
    THRESHOLD,
    SignedWords,
    learn_embedding,
    list_regions,
    projection,
    score_matches,
    sign,
    similarities,
)
from closure_kmeans.retrieval.expansion import object_regions
from closure_kmeans.vectors import FileFormatError


def features_of(collection, image):
    own = slice(*collection.offsets[image : image + 2])
    return collection.keypoints[own], collection.descriptors[own]


def bits(signatures):
    return np.unpackbits(signatures[:, np.newaxis].view(np.uint8), axis=1, bitorder="little")


@pytest.fixture
def signed(collection, vocabulary):
    """An index with signatures."""
    made = ImageIndex(Vocabulary(vocabulary.model, embedding=True))
    made.add(collection)
    return made


@pytest.mark.kernels
@pytest.mark.parametrize("bursty", [False, True])
def test_score_matches(bursty):
    rng = np.random.default_rng(0)
    offsets = np.array([0, 5, 5, 17, 30])
    words = rng.integers(0, 4, 30).astype(np.int32)
    # A few flipped bits of one signature for each word, so that some are below the threshold.
    near = rng.integers(0, 2**63, 4, np.uint64)
    flips = np.bitwise_or.reduce(np.uint64(1) << rng.integers(0, 64, (14, 46), np.uint64), axis=0)
    flips[::3] ^= rng.integers(0, 2**63, len(flips[::3]), np.uint64)
    signatures = near[words] ^ flips[:30]
    asked = np.array([rng.choice(4, 2, replace=False) for _ in range(8)]).astype(np.int32)
    query = SignedWords(asked, near[asked] ^ flips[30:].reshape(8, 2))
    idf = np.array([0.5, 1.0, 0.0, 2.0], np.float32)
    lists = list_regions(place(words, np.ones((30, 4)), offsets, signatures), idf)
    found = score_matches(lists, query, idf, burstiness=bursty)
    images = [slice(*offsets[i : i + 2]) for i in range(4)]
    query_bits = np.array([bits(row) for row in query.signatures])
    expected = reference.match_scores(
        [(words[own], bits(signatures[own])) for own in images], (asked, query_bits), idf, similarities(), bursty
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (found > 0).sum() == 3
    changed = lists._replace(region_images=lists.region_images + 4)
    with pytest.raises(FileFormatError, match="the index must name images that it has"):
        score_matches(changed, query, idf, burstiness=bursty)


def test_similarities_fall_to_nothing_at_half_of_the_bits():
    found = similarities()
    assert found[0] == 1
    assert (np.diff(found) <= 0).all()
    assert found[THRESHOLD] > 0
    assert found[THRESHOLD + 1] == 0


@pytest.mark.kernels
def test_sign():
    rng = np.random.default_rng(0)
    rows, groups = rng.integers(0, 256, (40, 128)).astype(np.uint8), rng.integers(0, 3, 40)
    normals = projection(128)
    np.testing.assert_array_equal(normals @ normals.T, 128 * np.eye(N_BITS))
    thresholds = (rng.uniform(0, 255, (3, 128)) @ normals.T).astype(np.float32)
    found = sign(rows, groups, thresholds)
    np.testing.assert_array_equal(bits(found), reference.signatures(rows.astype(int), groups, thresholds, normals))
    one_by_one = [sign(rows[i : i + 1], groups[i : i + 1], thresholds)[0] for i in range(40)]
    np.testing.assert_array_equal(found, one_by_one)
    np.testing.assert_array_equal(sign(rows.astype(np.float32), groups, thresholds), found)
    several = np.column_stack([groups, (groups + 1) % 3])
    both = [sign(rows, groups_of, thresholds) for groups_of in several.T]
    np.testing.assert_array_equal(sign(rows, several, thresholds), np.column_stack(both))


def test_hyperplanes_pass_through_the_means_of_groups(collection, vocabulary):
    """Half of the descriptors of a group are on each side."""
    found = learn_embedding(vocabulary.model, as_bytes=True)
    assert len(found.thresholds) == 2
    assert set(found.groups) == {0, 1}
    signed = Vocabulary(vocabulary.model, embedding=True)
    words = signed.assign(collection.descriptors)
    signatures = bits(signed.signatures(collection.descriptors, words))
    for group in range(2):
        assert 0.4 < signatures[found.groups[words.words[:, 0]] == group].mean() < 0.6


def test_a_query_is_matched_in_its_nearest_words(collection, vocabulary):
    signed = Vocabulary(vocabulary.model, embedding=True)
    rows = collection.descriptors[:50]
    words = signed.assign(rows)
    found = signed.sign_query(rows, words, 5)
    np.testing.assert_array_equal(found.words, vocabulary.model.several_nearest(root_bytes(rows), 5)[0])
    for j in range(5):
        own = Words(found.words[:, [j]], None)
        np.testing.assert_array_equal(found.signatures[:, j], signed.signatures(rows, own))
    one = signed.sign_query(rows, words, 1)
    np.testing.assert_array_equal(one.words, words.words)
    np.testing.assert_array_equal(one.signatures[:, 0], found.signatures[:, 0])
    others = Words(found.words[:, [1]], None)  # as if the search had found another word first
    np.testing.assert_array_equal(signed.sign_query(rows, others, 5).words[:, :3], found.words[:, [1, 0, 2]])


def test_photos_of_an_object_find_each_other_by_signatures(signed, photos):
    for image, name in enumerate(signed.names):
        found = signed.search(signed.read_query(photos / name), n_results=3)
        assert found[0].image == image
        assert {result.image // 4 for result in found} == {image // 4}
        one_word = Steps(assignment=1)
        found = signed.search(signed.read_query(photos / name), n_results=3, steps=one_word)
        assert found == signed.search(signed.query_of(image), n_results=3)


def test_steps_can_be_switched_off(signed, index, collection):
    plain = index.search(index.query_of(5), n_results=None)
    assert signed.search(signed.query_of(5), n_results=None, steps=PAPER_STEPS) == plain
    both = [signed.search(signed.query_of(5), n_results=None, steps=Steps(burstiness=on)) for on in (False, True)]
    assert both[0] != both[1]
    query = signed.make_query(*features_of(collection, 5))
    several = [signed.search(query, n_results=None, steps=Steps(assignment=n_words)) for n_words in (1, 2)]
    assert several[0] == signed.search(signed.query_of(5), n_results=None)
    assert len(several[1]) >= len(several[0])
    assert several[1] != several[0]
    with pytest.raises(ValueError, match="assignment must be at least 1"):
        signed.search(query, steps=Steps(assignment=0))
    with pytest.raises(ValueError, match="assignment must be at least 1"):
        signed.make_query(*features_of(collection, 5), assignment=0)
    assert index.search(index.query_of(5), n_results=None, steps=Steps()) == plain  # it has no signatures
    assert signed.search(index.query_of(5), n_results=None) == plain  # nor has the query
    soft = signed.make_query(*features_of(collection, 5), n_nearest=2)
    assert soft.places.signatures is None
    assert signed.search(soft)[0].image == 5


def test_signatures_are_saved_added_and_removed(signed, collection, tmp_path):
    made = ImageIndex(signed.vocabulary)
    made.add(parts(collection, 0, 10))
    made.save(tmp_path / "photos.index")
    made = ImageIndex.load(tmp_path / "photos.index")
    made.add(parts(collection, 10, 24))
    for image in range(0, 24, 5):
        assert made.search(made.query_of(image), n_rerank=5) == signed.search(signed.query_of(image), n_rerank=5)
    made.save(tmp_path / "photos.index")
    signed.save(tmp_path / "signed.index")
    assert (tmp_path / "photos.index").read_bytes() == (tmp_path / "signed.index").read_bytes()
    made.remove(collection.names[10:])
    few = ImageIndex(signed.vocabulary)
    few.add(parts(collection, 0, 10))
    assert made.search(made.query_of(1)) == few.search(few.query_of(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("region_starts", lambda a: a * 1000), "images of words"),
        (put("signatures", lambda a: a[:-1]), "must hold 'signatures' as"),
        (put("region_signatures", lambda a: a.astype(np.int64)), "must hold 'region_signatures' as"),
        (put("region_norms", lambda a: a[:-1]), "must hold 'region_norms' as"),
        (lambda arrays, facts: arrays.pop("region_images"), "cannot be read as an index"),
        (lambda arrays, facts: arrays.pop("embedding.groups"), "of an older version: make it again"),
        (put("embedding.groups", lambda a: a + 2), "must hold the groups of 400 words"),
        (put("embedding.thresholds", lambda a: a[:, 1:]), "must hold the groups of 400 words"),
    ],
)
def test_signatures_that_do_not_add_up(signed, tmp_path, change, message):
    path = tmp_path / "photos.index"
    signed.save(path)
    rewritten(path, change)
    with pytest.raises(FileFormatError, match=message):
        ImageIndex.load(path)


def test_images_that_the_lists_of_regions_do_not_have(signed, tmp_path):
    signed.save(tmp_path / "photos.index")
    rewritten(tmp_path / "photos.index", put("region_images", lambda a: a + 10**6))
    loaded = ImageIndex.load(tmp_path / "photos.index")
    with pytest.raises(FileFormatError, match="changed on disk"):
        loaded.search(signed.query_of(0))


def test_an_older_index_file_has_no_signatures(index, tmp_path):
    path = tmp_path / "photos.index"
    index.save(path)
    rewritten(path, lambda arrays, facts: facts.pop("embedding"))
    assert ImageIndex.load(path).search(index.query_of(0)) == index.search(index.query_of(0))


def test_signatures_need_one_word_of_a_region(vocabulary):
    with pytest.raises(ValueError, match="embedding needs one word of each region"):
        Vocabulary(vocabulary.model, n_nearest=2, embedding=True)


def test_expanded_queries_average_the_scores_of_verified_images(signed):
    """By hand: the query, and its two best verified results with all of their regions that are in its frame."""
    query = signed.query_of(8)
    plain = {r.image: r for r in signed.search(query, n_results=None, n_rerank=24, steps=Steps(expansion=0))}
    best = [image for image, result in plain.items() if result.verified][:2]
    assert len(best) == 2
    found = signed.search(query, n_results=None, n_rerank=24, steps=Steps(expansion=2))
    total = {image: result.score for image, result in plain.items()}
    for image in best:
        view = object_regions(
            query.places, signed.places_of(image), align(query.places, signed.places_of(image)).transform
        )
        asked = SignedWords(view.words[:, np.newaxis], view.signatures[:, np.newaxis])
        scores = score_matches(signed._regions, asked, signed._inverted.idf)
        total = {other: total.get(other, 0.0) + score for other, score in enumerate(scores)}
    assert {r.image: r.score for r in found} == {
        image: pytest.approx(score / 3) for image, score in total.items() if score > 0
    }


def test_expansion_finds_what_only_a_result_shows(vocabulary):
    """Three pictures in a chain: the first and the last have no word in common."""
    rng = np.random.default_rng(0)
    where = np.column_stack([rng.uniform(0, 300, (60, 2)), np.full(60, 9.0), np.zeros(60)])
    words = np.concatenate([np.arange(40), np.arange(20, 60), np.arange(40, 80), np.arange(100, 200)])
    keypoints = np.concatenate([where[:40], where[20:60], where[:40], rng.uniform(1, 300, (100, 4))])
    offsets = np.array([0, 40, 80, 120, 220])
    made = ImageIndex(Vocabulary(vocabulary.model))
    names = [f"{i}.png" for i in range(4)]
    made.add(
        Collection(names, None, keypoints, np.empty((0, 128)), offsets, [], Extraction()), Words(words[:, None], None)
    )
    query = made.query_of(0)
    assert [r.image for r in made.search(query, n_rerank=4, steps=PAPER_STEPS)] == [0, 1]
    assert [r.image for r in made.search(query, n_rerank=4, steps=Steps(expansion=5))] == [0, 1, 2]
