import errno
import json
import math
import os
import signal
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
import reference_retrieval as reference
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from closure_kmeans import cli, files
from closure_kmeans.datasets import load_sift
from closure_kmeans.features import load_image, local_features
from closure_kmeans.retrieval import (
    METHODS,
    Collection,
    Extraction,
    ImageIndex,
    Matches,
    Verification,
    Vocabulary,
    Words,
    align,
    append,
    average_precision,
    beyond_chance,
    collect,
    experiment,
    invert,
    learn_vocabulary,
    load_collection,
    load_vocabulary,
    match_images,
    place,
    rank,
    read_oxford,
    remove,
    rerank,
    root_bytes,
    save_collection,
    save_vocabulary,
    stages,
    tree_shape,
    ukbench_score,
)
from closure_kmeans.retrieval.experiment import Plan, Scoring, compare
from closure_kmeans.retrieval.inverted import Ranking
from closure_kmeans.retrieval.pictures import draw_matches, draw_results, draw_rows
from closure_kmeans.retrieval.stages import FEATURES, WORDS, resume, resume_features, resume_learning
from closure_kmeans.tensors import write_tensors
from closure_kmeans.vectors import FileFormatError

N_OBJECTS, SIDE = 6, 160


def view(texture, number):
    """A photo of a textured object: turned, scaled, brighter."""
    turn = cv2.getRotationMatrix2D((SIDE / 2, SIDE / 2), 13 * number, 1 + 0.08 * number)
    return cv2.warpAffine(texture, turn, (SIDE, SIDE), borderMode=cv2.BORDER_REFLECT)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Four photos each of some objects, named like UKBench."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(N_OBJECTS):
        texture = cv2.GaussianBlur(rng.integers(0, 256, (SIDE, SIDE), np.uint8), (0, 0), 2.5)
        texture = cv2.normalize(texture, None, 0, 255, cv2.NORM_MINMAX)
        for turn in range(4):
            Image.fromarray(view(texture, turn)).save(folder / f"image{4 * number + turn:03}.png")
    return folder


@pytest.fixture(scope="module")
def collection(photos):
    return collect(photos)


@pytest.fixture(scope="module")
def vocabulary(collection):
    return learn_vocabulary(collection.descriptors, 400, random_state=0)


@pytest.fixture
def index(collection, vocabulary):
    made = ImageIndex(vocabulary)
    made.add(collection)
    return made


@pytest.fixture
def run():
    def invoke(*arguments, code=0):
        result = CliRunner().invoke(cli.main, ["retrieval", *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result.output

    return invoke


# -- protocols -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranking", "expected"),
    [
        ("ab", 1.0),
        ("axb", (1 + (1 / 2 + 2 / 3) / 2) / 2),
        ("xa", (0 + 1 / 2) / 2 / 2),
        ("jajb", 1.0),  # junk is not there
        ("aab", 1.0),  # listed twice counts once
        ("xyz", 0.0),
        ("", 0.0),
    ],
)
def test_average_precision_by_hand(ranking, expected):
    assert average_precision(ranking, {"a", "b"}, {"j"}) == pytest.approx(expected)


@given(
    ranking=st.lists(st.integers(0, 20), max_size=30),
    positives=st.sets(st.integers(0, 20), min_size=1),
    junk=st.sets(st.integers(0, 20)),
)
def test_average_precision_is_the_closed_form(ranking, positives, junk):
    positives -= junk
    if positives:
        expected = reference.average_precision(ranking, positives, junk)
        assert average_precision(ranking, positives, junk) == pytest.approx(expected)
        assert 0 <= expected <= 1
    else:
        with pytest.raises(ValueError, match="positives must not be empty"):
            average_precision(ranking, positives, junk)


def test_ukbench_score_by_hand():
    perfect = [[4 * (i // 4) + j for j in range(4)] for i in range(8)]
    assert ukbench_score(perfect) == 4
    assert ukbench_score([[i] for i in range(8)]) == 1
    assert ukbench_score([[i, 9, 9, 9, *perfect[i]] for i in range(8)]) == 1  # the fifth does not count
    for wrong in ([], perfect[:5]):
        with pytest.raises(ValueError, match="whole groups of 4"):
            ukbench_score(wrong)


def write_ground_truth(folder, query="oxc1_image000 10 20.5 100 110", good="image001\n", ok="image002\n", junk=""):
    folder.mkdir(exist_ok=True)
    for kind, text in (("query", query), ("good", good), ("ok", ok), ("junk", junk)):
        (folder / f"object_1_{kind}.txt").write_text(text)
    return folder


def test_read_oxford(tmp_path):
    (query,) = read_oxford(write_ground_truth(tmp_path, junk="image003\nimage004\n"))
    assert query == (
        *("object_1", "image000", (10, 20.5, 100, 110)),
        *({"image001", "image002"}, {"image003", "image004"}),
    )
    assert read_oxford(write_ground_truth(tmp_path, query="paris_7 0 0 1 1"))[0].image == "paris_7"
    for wrong in ("", "image", "image 1 2 3", "image a b c d"):
        with pytest.raises(FileFormatError, match="a box x1 y1 x2 y2"):
            read_oxford(write_ground_truth(tmp_path, query=wrong))
    with pytest.raises(FileFormatError, match="should find"):
        read_oxford(write_ground_truth(tmp_path, good="", ok=""))
    with pytest.raises(FileNotFoundError, match="must hold ground truth"):
        read_oxford(tmp_path / "nowhere")


# -- inverted file ---------------------------------------------------------------------------------------------------


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
        (lambda: place([0, 1], np.ones((2, 3))), "keypoints must have 4"),
        (lambda: align(*2 * [place([0], np.ones((1, 4)))], Verification(5)), "dof must be 3 or 4 for keypoints of 4"),
        (
            lambda: align(*2 * [place([0], np.ones((1, 5)))], Verification(4)),
            "dof must be 5 for keypoints of 5 columns, got 4",
        ),
        (lambda: align(place([0], np.ones((1, 5))), place([0], np.ones((1, 4))), Verification(5)), "as many columns"),
        (lambda: learn_vocabulary(np.ones((9, 128)), 2, method="magic"), "method must be one of"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# -- vocabulary ------------------------------------------------------------------------------------------------------


def test_root_bytes_are_scaled_root_sift(collection):
    shares = collection.descriptors / collection.descriptors.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(root_bytes(collection.descriptors), np.minimum(512 * np.sqrt(shares), 255), atol=0.51)
    assert root_bytes(collection.descriptors).dtype == np.uint8
    assert not root_bytes(np.zeros((2, 128), np.uint8)).any()


@pytest.mark.parametrize("method", ["closure", "paper", "akm", "rakm", "hkm", "lloyd", "canopy"])
def test_every_method_learns_words(collection, method):
    learned = learn_vocabulary(collection.descriptors, 30, method=method, sample=500, random_state=0)
    words = learned.assign(collection.descriptors[:50]).words
    assert words.shape == (50, 1)
    assert 0 <= words.min() <= words.max() < learned.n_words


@pytest.mark.parametrize(("n_words", "shape"), [(10, (10, 1)), (1000, (10, 3)), (100_000, (10, 5)), (10**6, (10, 6))])
def test_the_shape_of_trees(n_words, shape):
    assert tree_shape(n_words) == shape


def test_scoring_levels(collection):
    learned = learn_vocabulary(collection.descriptors, 216, method="hkm", random_state=0)
    both = Vocabulary(learned.model, levels=2)
    paths = learned.model.paths(root_bytes(collection.descriptors))
    words = both.assign(collection.descriptors).words
    np.testing.assert_array_equal(words[:, 0], paths[:, -1])
    np.testing.assert_array_equal(words[:, 1], len(learned.model.cluster_centers_) + paths[:, -2])
    assert both.n_words == words.max() + 1
    with pytest.raises(ValueError, match="levels must be at most"):
        Vocabulary(learned.model, levels=9)
    made = ImageIndex(both)
    made.add(collection)
    assert made.search(made.query_of(5), n_results=1)[0].image == 5


def test_soft_assignment(collection, vocabulary):
    rows = collection.descriptors[:40]
    words, weights = vocabulary.assign(rows, 3)
    distances = vocabulary.model.transform(root_bytes(rows).astype(np.float32)).astype(np.float64)
    np.testing.assert_array_equal(words, np.argsort(distances, axis=1)[:, :3])
    np.testing.assert_array_equal(words[:, :1], vocabulary.assign(rows).words)
    assert (np.diff(weights, axis=1) <= 0).all()
    squares = np.take_along_axis(distances, words, axis=1) ** 2
    expected = np.exp(-squares / (2 * vocabulary.model.inertia_ / len(collection.descriptors)))
    np.testing.assert_allclose(weights, expected / expected.sum(axis=1, keepdims=True), rtol=1e-3)
    # A pure function of each row.
    np.testing.assert_array_equal(vocabulary.assign(rows[:1], 3).weights, weights[:1])


def test_bad_levels_are_found_before_the_words_are_learned(collection, monkeypatch):
    monkeypatch.setattr("closure_kmeans.retrieval.vocabulary.METHODS", {"hkm": None, "closure": None})
    with pytest.raises(ValueError, match="levels must be at most 3, the depth of the tree of words, got 4"):
        learn_vocabulary(collection.descriptors, 216, method="hkm", levels=4)
    with pytest.raises(ValueError, match="levels must be at most 1"):
        learn_vocabulary(collection.descriptors, 216, levels=2)


def test_soft_assignment_to_levels(collection):
    learned = learn_vocabulary(collection.descriptors, 216, method="hkm", random_state=0)
    both = Vocabulary(learned.model, levels=2, n_nearest=3)
    words, weights = both.assign(collection.descriptors[:40])
    assert words.shape == weights.shape == (40, 6)
    parents = np.repeat(np.arange(36), np.diff(learned.model.levels_[-1].starts))
    np.testing.assert_array_equal(words[:, 3:], len(parents) + parents[words[:, :3]])
    np.testing.assert_array_equal(weights[:, 3:], weights[:, :3])


def test_a_soft_index(collection, vocabulary, photos, tmp_path):
    soft = Vocabulary(vocabulary.model, n_nearest=3)
    made = ImageIndex(soft)
    made.add(parts(collection, 0, 10))
    made.save(tmp_path / "photos.index")
    made = ImageIndex.load(tmp_path / "photos.index")
    made.add(parts(collection, 10, 24))
    words, weights = soft.assign(collection.descriptors)
    ranked = rank(
        invert(words, collection.offsets, 400, weights=weights),
        *(array[: collection.offsets[1]] for array in (words,)),
        weights=weights[: collection.offsets[1]],
    )
    found = made.search(made.read_query(photos / "image000.png"), n_results=None)
    assert [result.image for result in found] == ranked.images.tolist()
    np.testing.assert_allclose([result.score for result in found], ranked.scores, rtol=1e-5)
    assert found[0].score == pytest.approx(1)


@pytest.mark.parametrize("method", ["paper", "akm", "rakm", "lloyd", "canopy"])
def test_methods_by_the_plain_rule_begin_with_random_rows(method):
    """Where words have few descriptors, the cells of a tree are the worse start."""
    scattered, by_tree = (
        learn_vocabulary(load_sift()[:4500], 1500, method=method, random_state=0, **settings).model.inertia_
        for settings in ({}, {"init": "tree"})
    )
    assert scattered < by_tree


def test_an_interrupt_leaves_no_vocabulary(collection):
    def interrupt(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn_vocabulary(collection.descriptors, 100, random_state=0, callback=interrupt)


def test_saved_stages_are_read_back(collection, vocabulary, tmp_path):
    save_vocabulary(tmp_path / "words.safetensors", vocabulary)
    loaded = load_vocabulary(tmp_path / "words.safetensors")
    assert loaded.root
    rows = collection.descriptors[:99]
    np.testing.assert_array_equal(loaded.assign(rows).words, vocabulary.assign(rows).words)
    save_collection(tmp_path / "features.safetensors", collection)
    for ours, theirs in zip(load_collection(tmp_path / "features.safetensors"), collection, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_finished_stages_are_taken_up(collection, tmp_path):
    def fail():
        raise AssertionError("done again")

    other = collection._replace(names=[f"other{name}" for name in collection.names])
    assert resume(FEATURES, None, "key", lambda: collection) is collection
    assert not any(tmp_path.iterdir())
    assert resume(FEATURES, tmp_path, "key", lambda: collection) is collection
    assert resume(FEATURES, tmp_path, "key", fail).names == collection.names
    (tmp_path / ".features-other key.safetensors.0123abcd.safetensors").touch()  # a kill while it was written
    assert resume(FEATURES, tmp_path, "other key", lambda: other) is other
    assert len(list(tmp_path.iterdir())) == 2
    assert resume(FEATURES, tmp_path, "other key", fail).names == other.names
    assert resume(FEATURES, tmp_path, "key", fail).names == collection.names
    FEATURES.path(tmp_path, "key").rename(WORDS.path(tmp_path, "key"))
    with pytest.raises(FileFormatError, match=r"must be 'vocabulary', but is 'collection'; remove it"):
        resume(WORDS, tmp_path, "key", fail)


def test_features_are_kept_while_the_others_are_taken(collection, photos, tmp_path, monkeypatch):
    taken = []

    def take(*folder, names, **settings):
        if names in limit:
            raise KeyboardInterrupt
        taken.append(names)
        return collect(*folder, names=names, **settings)

    monkeypatch.setattr(stages, "IMAGES_PER_PART", 4)
    monkeypatch.setattr(stages, "collect", take)
    parts = [collection.names[part] for part in stages._parts(collection.names)]
    assert [name for part in parts for name in part] == collection.names
    assert len(parts) > 4
    arguments = tmp_path, photos, collection.names, Extraction()
    limit = parts[3:4]
    with pytest.raises(KeyboardInterrupt):
        resume_features(*arguments)
    assert len(list(tmp_path.iterdir())) == 3
    limit = []
    found, key = resume_features(*arguments)
    assert taken == parts  # each once
    again, same_key = resume_features(*arguments)
    assert (taken, same_key) == (parts, key)
    taken.clear()
    without_first = collection.names[1:]
    fewer, other_key = resume_features(*arguments[:2], without_first, Extraction())
    assert taken == [parts[0][1:]]  # all other parts are the same
    assert fewer.names == without_first
    assert other_key != key
    for one in (found, again):
        for name, values in collection._asdict().items():
            np.testing.assert_array_equal(getattr(one, name), values)


def test_what_is_left_out_of_parts_is_said(photos, tmp_path, monkeypatch):
    photo = (photos / "image000.png").read_bytes()
    files = {"a.png": b"no image", "b.png": photo, "c.png": b"no image", "d.png": b"no image", "e.png": photo}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "kept").mkdir()
    monkeypatch.setattr(stages, "IMAGES_PER_PART", 2)
    found, _ = resume_features(tmp_path / "kept", tmp_path, list(files), Extraction(), on_error="skip")
    assert found.names == ["b.png", "e.png"]
    assert len(found.skipped) == 3
    assert found.offsets[-1] == len(found.descriptors) == 2 * found.offsets[1] > 0


def test_what_cannot_be_kept_is_not_lost(collection, tmp_path):
    def fail(path, product):
        raise OSError(errno.ENOSPC, "no space")

    full = FEATURES._replace(save=fail)
    with pytest.warns(RuntimeWarning, match=f"features are not kept in '{tmp_path}': No space left"):
        assert resume(full, tmp_path, "key", lambda: collection) is collection
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        resume(full, tmp_path / "file" / "below", "key", lambda: pytest.fail("made in vain"))


@pytest.mark.parametrize("method", ["closure", "paper"])
def test_learning_that_was_stopped_goes_on(collection, tmp_path, monkeypatch, method):
    def learn(callback):
        monkeypatch.setattr(stages, "learn_vocabulary", partial(learn_vocabulary, callback=callback))
        return resume_learning(tmp_path, "photos", collection.descriptors, 300, method=method)

    def stop_after_two(record):
        if record.iteration == 2:
            raise KeyboardInterrupt

    whole = learn_vocabulary(collection.descriptors, 300, method=method, random_state=0).model
    assert whole.n_iter_ > 3
    with pytest.raises(KeyboardInterrupt):
        learn(stop_after_two)
    (begun,) = tmp_path.iterdir()
    kept = begun.read_bytes()
    begun.write_bytes(kept[:1000])
    with pytest.raises(FileFormatError, match=r"begun-.*cannot be read.*; remove it to have it made again"):
        learn(None)
    begun.write_bytes(kept)
    iterations = []
    learned = learn(lambda record: iterations.append(record.iteration))
    assert iterations == list(range(3, whole.n_iter_ + 1))
    np.testing.assert_array_equal(learned.vocabulary.model.cluster_centers_, whole.cluster_centers_)
    spent = [record.seconds for record in learned.vocabulary.model.history_]
    assert learned.seconds == spent[-1] > spent[1] > 0  # the time before it was stopped counts
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["words"]


# -- verification ----------------------------------------------------------------------------------------------------


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


def test_pictures_without_common_words():
    one, other = place([1, 2], np.ones((2, 4))), place([3], np.ones((1, 4)))
    for verifier in ("matches", "opencv"):
        assert len(align(one, other, Verification(verifier=verifier)).pairs) == 0


def test_rerank_puts_verified_images_first():
    ranking = Ranking(np.array([7, 3, 9, 1, 4, 2]), np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4]))
    inliers, verified = np.array([3, 9, 20, 9, 15]), np.array([False, True, True, True, False])
    assert ranking.images[rerank(ranking, inliers, verified)].tolist() == [9, 3, 1, 7, 4, 2]


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
    found = made.search(made.query_of(0), n_results=None, n_rerank=8, verification=Verification(verifier=verifier))
    assert [result.image for result in found] == [result.image for result in plain]
    assert [result.verified for result in found] == [True] + [False] * 11
    assert max(result.inliers for result in found[1:8]) >= 4
    assert [result.inliers for result in found[8:]] == [None] * 4  # not looked at


def test_more_words_than_descriptors(collection):
    with pytest.raises(ValueError, match="must be descriptors to learn words from"):
        learn_vocabulary(np.empty((0, 128), np.uint8), 50)
    message = "the number of words must be at most that of the descriptors to learn them from, 50, got 51"
    with pytest.raises(ValueError, match=message):
        learn_vocabulary(collection.descriptors[:50], 51)


# -- index -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("n_rerank", [0, 10])
def test_the_photos_of_an_object_find_each_other(index, photos, norm, n_rerank):
    rankings = []
    for image, name in enumerate(index.names):
        found = index.search(index.read_query(photos / name), n_results=4, norm=norm, n_rerank=n_rerank)
        assert found[0].image == image
        assert found[0].score == pytest.approx(1)
        assert found[0].verified == (n_rerank > 0)
        rankings.append([result.image for result in found])
    assert ukbench_score(rankings) > 3.5


def test_threads_do_not_change_the_results(index):
    query = index.query_of(0)
    assert index.search(query, n_rerank=20, n_threads=1) == index.search(query, n_rerank=20, n_threads=2)


def test_a_box_takes_what_is_inside(index, photos, collection):
    box = (20, 30, 90, 100)
    asked = index.read_query(photos / index.names[0], box=box)
    where = asked.places.keypoints[:, :2]
    assert (where >= box[:2]).all()
    assert (where <= box[2:]).all()
    own = collection.keypoints[: collection.offsets[1]]
    inside = ((own[:, :2] >= box[:2]) & (own[:, :2] <= box[2:])).all(axis=1)
    assert len(where) == inside.sum()
    assert index.search(asked, n_results=1)[0].image // 4 == 0  # another of the same object may be larger
    np.testing.assert_array_equal(index.query_of(0, box=box).places.words, asked.places.words)
    for empty in ((-9, -9, -5, -5),):
        with pytest.raises(ValueError, match="must have features"):
            index.read_query(photos / index.names[0], box=empty)
        with pytest.raises(ValueError, match="must have features"):
            index.query_of(0, box=empty)
    with pytest.raises(ValueError, match="x1 < x2"):
        index.read_query(photos / index.names[0], box=(5, 5, 5, 9))


def test_soft_queries_find_the_same(index, photos):
    asked = index.read_query(photos / index.names[4], n_nearest=3)
    assert asked.words.words.shape[1] == 3
    assert {result.image // 4 for result in index.search(asked, n_results=3)} == {1}


def parts(collection, begin, end):
    rows = slice(collection.offsets[begin], collection.offsets[end])
    return collection._replace(
        names=collection.names[begin:end],
        keypoints=collection.keypoints[rows],
        descriptors=collection.descriptors[rows],
        offsets=collection.offsets[begin : end + 1] - collection.offsets[begin],
    )


def check_same(one, other):
    assert one.names == other.names
    for image in range(len(one)):
        ours, theirs = (made.search(made.query_of(image), n_results=None, n_rerank=5) for made in (one, other))
        assert [result.name for result in ours] == [result.name for result in theirs]
        np.testing.assert_allclose([r.score for r in ours], [r.score for r in theirs], rtol=1e-5)


def test_additions_and_removals(index, collection, vocabulary, tmp_path):
    other = ImageIndex(vocabulary)
    other.add(parts(collection, 0, 10))
    other.save(tmp_path / "photos.index")
    other = ImageIndex.load(tmp_path / "photos.index")
    other.add(parts(collection, 10, 24))
    check_same(index, other)
    other.remove(collection.names[10:])
    few = ImageIndex(vocabulary)
    few.add(parts(collection, 0, 10))
    check_same(few, other)
    with pytest.raises(ValueError, match=r"must hold the image 'nothing.png'"):
        other.remove(["nothing.png"])
    with pytest.raises(ValueError, match=r"'image003.png' is in the index already"):
        other.add(parts(collection, 3, 5))
    with pytest.raises(ValueError, match=r"'twin.png' occurs twice"):
        other.add(parts(collection, 20, 22)._replace(names=["twin.png", "twin.png"]))
    with pytest.raises(ValueError, match="paths below a folder"):
        other.add(parts(collection, 20, 21)._replace(names=["../up.png"]))
    check_same(few, other)


def test_images_without_features_are_never_found(index, collection):
    index.add(collection._replace(names=["flat.png"], keypoints=np.empty((0, 4)), descriptors=np.empty((0, 128), "u1"),
                                  offsets=np.array([0, 0])))  # fmt: skip
    found = index.search(index.query_of(0), n_results=None, n_rerank=99)
    assert "flat.png" not in [result.name for result in found]
    with pytest.raises(ValueError, match=r"'flat.png' has none"):
        index.query_of(len(index) - 1)


def test_an_empty_index(vocabulary, collection, tmp_path):
    made = ImageIndex(vocabulary)
    made.save(tmp_path / "photos.index")
    for empty in (made, ImageIndex.load(tmp_path / "photos.index")):
        with pytest.raises(ValueError, match="must hold images, but is empty"):
            empty.search(empty.make_query(collection.keypoints, collection.descriptors))
        with pytest.raises(ValueError, match="must hold images, but is empty"):
            empty.query_of(0)


def test_ellipses(vocabulary, collection):
    """Regions of other detectors: x, y, a, b, c."""
    circles = collection.keypoints
    bent = np.column_stack([circles[:, :2], 4 / circles[:, 2] ** 2, 0 * circles[:, 2], 4 / circles[:, 2] ** 2])
    made = ImageIndex(vocabulary)
    made.add(collection._replace(keypoints=bent))
    found = made.search(made.query_of(0), n_rerank=5)
    assert found[0].verified
    assert len(align(made.query_of(0).places, made.places_of(0)).pairs) == found[0].inliers
    with pytest.raises(ValueError, match="keypoints must have 5 columns like those in the index, got 4"):
        made.add(collection._replace(names=[f"other{i}" for i in range(24)]))
    assert made.search(made.query_of(0), n_rerank=5) == found  # what could not be added has left no trace


# -- the file --------------------------------------------------------------------------------------------------------


def test_an_index_without_images(index, tmp_path):
    query = index.query_of(0)
    with pytest.raises(ValueError, match="n_results must be at least 1, got -1"):
        index.search(query, n_results=-1, n_rerank=5)
    index.remove(index.names)
    index.save(tmp_path / "photos.index")
    for empty in (index, ImageIndex.load(tmp_path / "photos.index")):
        with pytest.raises(ValueError, match="the index must hold images, but is empty"):
            empty.search(query)


def test_a_loaded_index_is_the_saved_one(index, photos, tmp_path):
    index.save(tmp_path / "photos.index")
    loaded = ImageIndex.load(tmp_path / "photos.index")
    check_same(index, loaded)
    assert loaded.path_of(3) == photos / "image003.png"
    assert loaded.extraction == index.extraction
    assert isinstance(loaded._inverted.images, np.memmap)
    loaded.save(tmp_path / "again.index")
    assert (tmp_path / "again.index").read_bytes() == (tmp_path / "photos.index").read_bytes()


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_hierarchical_words_are_kept(collection, photos, tmp_path, levels):
    learned = learn_vocabulary(collection.descriptors, 216, method="hkm", levels=levels, random_state=0)
    index = ImageIndex(learned)
    index.add(collection)
    index.save(tmp_path / "photos.index")
    loaded = ImageIndex.load(tmp_path / "photos.index")
    assert loaded.vocabulary.levels == levels
    check_same(index, loaded)
    asked = loaded.read_query(photos / "image005.png")
    np.testing.assert_array_equal(asked.words.words[:, 0], asked.words.words.min(axis=1))
    # The words of all levels count, whether the query is read or taken from the index.
    assert loaded.search(asked)[0].score == pytest.approx(1)
    assert loaded.search(loaded.query_of(5)) == loaded.search(asked)


def test_an_index_cut_short(index, tmp_path):
    path = tmp_path / "photos.index"
    index.save(path)
    whole = path.read_bytes()
    for size in [*range(0, 64, 7), *range(64, len(whole), len(whole) // 40), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(FileFormatError, match=r"photos.index"):
            ImageIndex.load(path)


def test_an_index_changed_on_disk(index, tmp_path):
    """Any byte: an error, or an index that answers without a crash."""
    path = tmp_path / "photos.index"
    index.save(path)
    whole = np.fromfile(path, np.uint8)
    rng = np.random.default_rng(0)
    for place_of_byte in [*range(0, 3000, 97), *rng.integers(len(whole), size=60)]:
        changed = whole.copy()
        changed[place_of_byte] ^= rng.integers(1, 256)
        changed.tofile(path)
        try:
            loaded = ImageIndex.load(path)
            loaded.search(index.query_of(0), n_rerank=10, n_threads=1)
            loaded.remove(loaded.names[:1])
        except ValueError:
            continue
        assert len(loaded) == len(index) - 1


def rewritten(path, change):
    """An index with some of its arrays or facts changed."""
    from closure_kmeans.tensors import read_tensors, write_tensors

    arrays, facts = read_tensors(path, "image index")
    arrays = {name: np.array(array) for name, array in arrays.items()}
    facts = {name: value for name, value in facts.items() if name not in ("kind", "format")}
    change(arrays, facts)
    write_tensors(path, "image index", arrays, facts)


def put(name, value):
    return lambda arrays, facts: arrays.update({name: value(arrays[name])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("starts", lambda a: a[::-1].copy()), "images of words"),
        (put("starts", lambda a: a * 1000), "images of words"),
        (put("images", lambda a: a.astype(np.int64)), "must hold 'images' as"),
        (put("counts", lambda a: a[:-1]), "must hold 'counts' as"),
        (put("norms", lambda a: a[:, :-1]), "must hold 'norms' as"),
        (put("idf", lambda a: a[:-1]), "must hold 'idf' as"),
        (put("folder_of", lambda a: a + 1), "one of 1 folders"),
        (put("offsets", lambda a: a + 1), "rows for each of 24 images"),
        (put("offsets", lambda a: np.where(np.arange(25) == 3, 10**9, a)), "rows for each of 24 images"),
        (put("keypoints", lambda a: a[:, :3].copy()), "must hold 'keypoints' as"),
        (put("names", lambda a: a[:-20]), "must hold"),
        (put("names", lambda a: np.frombuffer(a.tobytes().replace(b"image003", b"../../ab"), np.uint8)), "inside"),
        (put("names", lambda a: np.frombuffer(a.tobytes().replace(b"image003", b"/etc/xyz"), np.uint8)), "inside"),
        (put("names", lambda a: np.frombuffer(a.tobytes().replace(b"image003", b"image004"), np.uint8)), "twice"),
        (lambda arrays, facts: facts.pop("extraction"), "cannot be read as an index"),
        (lambda arrays, facts: arrays.pop("images"), "cannot be read as an index"),
    ],
)
def test_an_index_that_does_not_add_up(index, tmp_path, change, message):
    path = tmp_path / "photos.index"
    index.save(path)
    rewritten(path, change)
    with pytest.raises(FileFormatError, match=message):
        ImageIndex.load(path)


def test_images_that_the_index_does_not_have(index, collection, tmp_path):
    path = tmp_path / "photos.index"
    index.save(path)
    rewritten(path, put("images", lambda a: a + 10**6))
    loaded = ImageIndex.load(path)
    other = collection._replace(names=[f"other{i}" for i in range(24)])
    for use in (
        lambda: loaded.search(index.query_of(0)),
        lambda: loaded.add(other),
        lambda: loaded.remove(index.names[:2]),
    ):
        with pytest.raises(FileFormatError, match="changed on disk"):
            use()
    assert loaded.names == index.names


def test_a_full_disk_leaves_the_old_index(index, collection, tmp_path, monkeypatch):
    path = tmp_path / "photos.index"
    index.save(path)
    before = path.read_bytes()
    index.remove(index.names[:3])

    def fail(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left on device"):
        index.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["photos.index"]


# -- images ----------------------------------------------------------------------------------------------------------


def test_a_collection_of_a_folder(photos, tmp_path):
    with pytest.raises(ValueError, match="must hold images, but has none"):
        collect(tmp_path)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.png").write_bytes((photos / "image000.png").read_bytes())
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="broken"):
        collect(tmp_path)
    found = collect(tmp_path, Extraction(max_side=100), on_error="skip")
    assert found.names == ["below/a.png"]
    assert len(found.skipped) == 1
    assert found.offsets[-1] == len(found.descriptors) > 0


def test_pictures(index, photos, tmp_path):
    asked = index.read_query(photos / index.names[0])
    found = index.search(asked, n_results=5, n_rerank=10)
    row = draw_results(index, photos / index.names[0], found, box=(20, 30, 90, 100))
    assert row.width == 6 * 200 + 5 * 8
    assert draw_rows([row, row]).height == 2 * row.height
    two_rows = draw_results(index, photos / index.names[0], index.search(asked, n_results=7))
    assert two_rows.size == (row.width, 2 * row.height)
    lines = draw_matches(index, photos / index.names[0], asked, found[1])
    assert np.asarray(lines).std(axis=2).max() > 20  # lines are coloured, pictures are not
    itself = draw_matches(index, photos / index.names[0], asked, found[0])
    assert np.mean(np.asarray(itself).std(axis=2) > 20) < 0.2  # lines do not hide the pictures
    boxed = draw_matches(index, photos / index.names[0], asked, found[1], box=(20, 30, 90, 500))
    changed = np.argwhere((np.asarray(boxed) != np.asarray(lines)).any(axis=2))
    ratio = 600 / SIDE
    assert changed.min(axis=0) == pytest.approx([30 * ratio, 20 * ratio], abs=2)
    assert changed.max(axis=0) == pytest.approx([599, 90 * ratio], abs=2)  # as much of it as is in the picture
    index.folders[0] = str(tmp_path)  # the images have vanished
    assert draw_results(index, photos / index.names[0], found).size == row.size


# -- the experiment --------------------------------------------------------------------------------------------------


def test_compare(collection):
    plan = Plan([50, 200], ["closure", "hkm"], ["l1", "l2"], levels=[1, 2], images=[12, None], rerank=True)
    rows = list(compare(collection, plan))
    assert len(rows) == 2 * (1 + 2) * 2 * 2 * 2
    assert {(row.method, row.levels) for row in rows} == {("closure", 1), ("hkm", 1), ("hkm", 2)}
    assert {row.images for row in rows} == {12, 24}
    assert all(1 <= row.score <= 4 for row in rows)
    assert max(row.score for row in rows) > 3.5


# -- command line ----------------------------------------------------------------------------------------------------


@pytest.fixture
def made(run, photos, tmp_path):
    run("index", photos, "--words", "300", "-o", tmp_path / "photos.index", "-q")
    return tmp_path / "photos.index"


def test_index_and_query(run, made, photos, tmp_path):
    output = run("query", made, photos / "image005.png", "--results", "3")
    assert "image005.png" in output.splitlines()[0]
    results = json.loads(run("query", made, photos / "image005.png", "--rerank", "--json", "--results", "4"))
    assert results[0]["name"] == "image005.png"
    assert results[0]["verified"]
    assert {result["image"] // 4 for result in results} == {1}
    options = ("--montage", tmp_path / "row.png", "--matches", tmp_path / "lines.jpg", "--box", "10,10,140,140")
    run("query", made, photos / "image005.png", "--rerank", *options, "--verifier", "opencv", "--nearest", "2")
    assert load_image(tmp_path / "row.png").shape[1] > 1000
    assert load_image(tmp_path / "lines.jpg").shape[1] > 1000


def test_index_speaks_json_and_takes_up_what_is_done(run, photos, tmp_path, monkeypatch):
    arguments = ("index", photos, "--words", "200", "-o", tmp_path / "photos.index", "--work", tmp_path, "--json")
    facts = json.loads(run(*arguments))
    assert (facts["images"], facts["words"], facts["without_features"]) == (24, 200, 0)
    before = (tmp_path / "photos.index").read_bytes()

    def fail(*_, **__):
        raise AssertionError("done again")

    monkeypatch.setattr(stages, "collect", fail)
    monkeypatch.setattr(stages, "learn_vocabulary", fail)
    run(*arguments)
    assert (tmp_path / "photos.index").read_bytes() == before
    output = run(*arguments[:-1])
    assert f"features of 24 images from '{tmp_path}'" in output
    assert f"200 words from '{tmp_path}'" in output
    assert run(*arguments[:-1], "--quiet") == ""


def test_photos_of_the_same_name_are_told_apart(run, photos, tmp_path):
    """Moved from one folder to another, a photo has another name: nothing of the last time is taken up."""
    folder = tmp_path / "folder"
    for name in ("here", "there"):
        (folder / name).mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.png").write_bytes((photos / f"image{number:03}.png").read_bytes())
    (folder / "here" / "0.png").write_bytes((photos / "image003.png").read_bytes())
    arguments = ("index", folder, "--words", "50", "-o", tmp_path / "photos.index", "--work", tmp_path, "-q")
    run(*arguments)
    assert "here/0.png" in ImageIndex.load(tmp_path / "photos.index").names
    (folder / "here" / "0.png").rename(folder / "there" / "0.png")
    run(*arguments)
    assert ImageIndex.load(tmp_path / "photos.index").names == ["0.png", "1.png", "2.png", "there/0.png"]


def test_hierarchical_and_soft_indexes(run, photos, tmp_path):
    arguments = ("index", photos, "--words", "216", "-o", tmp_path / "photos.index", "--work", tmp_path, "-q")
    for options in (("--levels", "3"), ("--levels", "1", "--nearest", "3")):
        run(*arguments, "--method", "hkm", *options)
        results = json.loads(run("query", tmp_path / "photos.index", photos / "image005.png", "--json", "--rerank"))
        assert results[0]["name"] == "image005.png"
        assert results[0]["score"] == pytest.approx(1)
        assert {result["image"] // 4 for result in results[:3]} == {1}
    hard = json.loads(run("query", tmp_path / "photos.index", photos / "image005.png", "--json", "--nearest", "1"))
    assert hard[0]["score"] < 0.99


def test_the_methods_are_those_of_the_library():
    assert set(cli.photos.METHODS) == set(METHODS)


def test_add_and_remove(run, made, photos, tmp_path):
    more = tmp_path / "more"
    more.mkdir()
    (more / "new.png").write_bytes((photos / "image002.png").read_bytes())
    facts = json.loads(run("add", made, more, "--json"))
    assert (facts["images"], facts["added"]) == (25, 1)
    results = json.loads(run("query", made, photos / "image002.png", "--json", "--results", "2"))
    assert {result["name"] for result in results} == {"image002.png", "new.png"}
    before = made.read_bytes()
    assert "in the index already, such as 'new.png'" in run("add", made, more, code=1)
    assert made.read_bytes() == before
    assert json.loads(run("add", made, more, "--new", "--json"))["added"] == 0
    (more / "newer.png").write_bytes((photos / "image007.png").read_bytes())
    assert "1 of the 2 images" in run("add", made, more, code=1)
    assert made.read_bytes() == before
    facts = json.loads(run("add", made, more, "--new", "--json"))
    assert (facts["images"], facts["added"], facts["already_there"]) == (26, 1, 1)
    assert json.loads(run("query", made, photos / "image007.png", "--json"))[1]["name"] == "newer.png"
    run("remove", made, "newer.png")
    (more / "newer.png").write_bytes(b"no picture")
    assert "newer.png" in run("add", made, more, "--new", code=1)
    warning, facts = run("add", made, more, "--new", "--skip", "--json").splitlines()
    assert "left out" in warning
    facts = json.loads(facts)
    assert (facts["images"], facts["added"], facts["left_out"], facts["already_there"]) == (25, 0, 1, 1)
    (more / "new.png").unlink()
    assert "must hold images that can be read, but of 1 none can be" in run("add", made, more, "--skip", code=1)
    assert len(ImageIndex.load(made)) == 25
    (more / "newest.png").write_bytes((photos / "image008.png").read_bytes())
    facts = json.loads(run("add", made, more, "--skip", "--work", tmp_path / "kept", "--json").splitlines()[1])
    assert (facts["images"], facts["added"]) == (26, 1)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    run("remove", made, "newest.png")
    facts = json.loads(run("remove", made, "new.png", "--json"))
    assert (facts["images"], facts["removed"]) == (24, 1)
    assert len(ImageIndex.load(made)) == 24


@pytest.fixture
def work_done(monkeypatch):
    """The codebooks that are learned, and the ways in which they are scored."""
    learned, scored = [], []

    def learn(*data, method, **settings):
        learned.append(method)
        return learn_vocabulary(*data, method=method, **settings)

    def score(indexed, scoring, *others):
        scored.append(scoring)
        return score_once(indexed, scoring, *others)

    score_once = experiment._score
    monkeypatch.setattr(stages, "learn_vocabulary", learn)
    monkeypatch.setattr(experiment, "_score", score)
    return learned, scored


def test_an_evaluation_does_nothing_twice(run, photos, tmp_path, work_done):
    learned, scored = work_done
    arguments = ("evaluate", "ukbench", photos, "--words", "50", "--json", "--work", tmp_path / "kept")
    first = run(*arguments, "--methods", "closure")
    assert run(*arguments, "--methods", "closure,hkm").startswith(first)
    assert (learned, len(scored)) == (["closure", "hkm"], 2)
    scored.clear()
    options = ("--norms", "l1,l2", "--subsets", "12,24", "--rerank", "--levels", "1,2")
    rows = [json.loads(line) for line in run(*arguments, "--methods", "closure,hkm", *options).splitlines()]
    assert len(rows) == 8 + 16
    assert len(scored) == len(rows) - 2
    assert len({(row["method"], row["seconds"]) for row in rows}) == 2
    assert json.loads(first) in rows
    scored.clear()
    run(*arguments, "--methods", "hkm", "--nearest", "2")
    assert scored == [Scoring(24)]
    index = ("index", photos, "--words", "50", "-o", tmp_path / "photos.index", "--work", tmp_path / "kept")
    run(*index)
    assert learned == ["closure", "hkm"]
    run(*index, "--sample", "500")
    assert learned == ["closure", "hkm", "closure"]
    run(*index, "--sample", "1000000")  # is no sample of the few that there are
    assert learned == ["closure", "hkm", "closure"]
    learned.clear()
    run(*arguments, "--methods", "closure", "--sift")
    run(*arguments, "--methods", "closure", "--seeds", "1")
    run(*arguments, "--methods", "closure", "--max-side", "100")
    assert learned == ["closure", "closure", "closure"]
    assert run(*arguments, "--methods", "closure") == first


def test_an_evaluation_that_was_stopped_goes_on(run, photos, tmp_path, work_done, monkeypatch):
    learned, scored = work_done
    arguments = ("evaluate", "ukbench", photos, "--words", "50", "--rerank", "--json")
    whole = [json.loads(line)["score"] for line in run(*arguments).splitlines()]
    score = experiment._score

    def interrupted(indexed, scoring, *others):
        if scoring.reranked:
            raise KeyboardInterrupt
        return score(indexed, scoring, *others)

    with monkeypatch.context() as patch:
        patch.setattr(experiment, "_score", interrupted)
        output = run(*arguments, code=130)
        assert json.loads(output.splitlines()[0])["score"] == whole[0]
        assert "interrupted; --work FOLDER would have kept what was finished" in output
        output = run(*arguments, "--work", tmp_path / "kept", code=130)
        assert f"interrupted; what is finished is in '{tmp_path / 'kept'}': the same command goes on" in output
    learned.clear()
    scored.clear()
    rows = [json.loads(line) for line in run(*arguments, "--work", tmp_path / "kept").splitlines()]
    assert [row["score"] for row in rows] == whole
    assert learned == []
    assert scored == [Scoring(24, reranked=True)]


def test_images_of_the_ground_truth_that_are_missing_are_named(collection, tmp_path):
    write_ground_truth(tmp_path, good="image000 image001 nowhere", ok="image002")
    with pytest.warns(
        RuntimeWarning, match="1 of the 4 images that queries should find are not there, such as 'nowhere'"
    ):
        next(compare(collection, Plan([50], ["closure"]), read_oxford(tmp_path)))


def test_another_ground_truth_is_scored_again(run, photos, tmp_path, work_done):
    learned, scored = work_done
    truth = tmp_path / "truth"
    for good in ("image000 image001", "image000 image004"):
        write_ground_truth(truth, good=good, ok="image002", junk="image003")
        run("evaluate", "oxford", photos, truth, "--words", "50", "--work", tmp_path / "kept")
    assert (len(learned), len(scored)) == (1, 2)


def test_evaluations_share_a_folder(collection, tmp_path):
    rows = {}
    first = compare(collection, Plan([50], ["closure"], rerank=True), folder=tmp_path, key="photos")
    rows["first"] = next(first)
    rows["second"] = next(compare(collection, Plan([50], ["hkm"]), folder=tmp_path, key="photos"))
    rows["third"] = next(first)
    kept = {experiment.SCORES.load(path) for path in tmp_path.glob("scores-*")}
    assert kept == set(rows.values())
    with pytest.raises(ValueError, match="with a folder there must be a key"):
        next(compare(collection, Plan([50], ["closure"]), folder=tmp_path))


def test_photos_without_features_come_first(run, photos, tmp_path):
    for number in range(4):
        Image.new("L", (80, 80), 128).save(tmp_path / f"a{number}.png")
        (tmp_path / f"image{number}.png").write_bytes((photos / f"image00{number}.png").read_bytes())
    (row,) = run("evaluate", "ukbench", tmp_path, "--words", "20", "--json").splitlines()
    assert json.loads(row)["score"] == 2


def test_what_is_named_twice_counts_once():
    plan = Plan([50, 50], ["hkm", "hkm"], ["l1", "l1"], seeds=[0, 0], levels=[1, 2, 1], images=[24, None, 12, 24])
    assert plan.codebooks == [(0, 50, "hkm")]
    assert plan.scorings("hkm", 24) == [Scoring(24), Scoring(12), Scoring(24, 2), Scoring(12, 2)]


def test_kept_work_that_cannot_be_read_is_named(run, photos, tmp_path):
    arguments = ("evaluate", "ukbench", photos, "--words", "50", "--work", tmp_path)
    run(*arguments)
    for kind, name in (("a score", "scores-*"), ("a vocabulary", "words-*"), ("a collection", "features-*")):
        path = min(tmp_path.glob(name))
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        output = " ".join(run(*arguments, "--norms", "l1,l2", code=1).split())
        assert f"{path.name}' cannot be read as {kind}" in output
        assert "remove it to have it made again" in output
        path.write_bytes(whole)
    (path,) = tmp_path.glob("scores-*")
    write_tensors(path, "score", {}, experiment.SCORES.load(path)._asdict() | {"score": None})
    assert f"{path.name}' cannot be read as a score" in " ".join(run(*arguments, code=1).split())


def test_evaluate(run, photos, tmp_path):
    arguments = ("--words", "50,200", "--methods", "closure,akm", "--json")
    rows = [json.loads(line) for line in run("evaluate", "ukbench", photos, *arguments).splitlines()]
    assert [(row["method"], row["words"], row["norm"]) for row in rows] == [
        *(("closure", 50, "l1"), ("akm", 50, "l1"), ("closure", 200, "l1"), ("akm", 200, "l1"))
    ]
    assert all(row["score"] > 1 and row["seconds"] > 0 for row in rows)
    assert "score" in run("evaluate", "ukbench", photos, "--words", "100", "-q")
    truth = write_ground_truth(tmp_path / "truth", good="image000 image001", ok="image002", junk="image003")
    (row,) = [
        json.loads(line)
        for line in run("evaluate", "oxford", photos, truth, "--words", "200", "--json").split("\n")
        if line
    ]
    assert 0.6 < row["score"] <= 1
    (tmp_path / "twice" / "below").mkdir(parents=True)
    for name in ("image000.png", "image001.png", "below/image000.png"):
        (tmp_path / "twice" / name).write_bytes((photos / Path(name).name).read_bytes())
    output = run("evaluate", "oxford", tmp_path / "twice", truth, "--words", "50", code=1)
    assert "names of their own, whatever their folders, but 'image000' occurs twice" in " ".join(output.split())


HKM_OF_100 = ("evaluate", "ukbench", "{photos}", "--methods", "hkm", "--words", "100")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("query", "{made}", "{folder}/flat.png"), 1, "flat.png' must have features, but has none"),
        (
            ("query", "{made}", "{photos}/image000.png", "--nearest", "301"),
            1,
            "at most the number of words, 300, got 301",
        ),
        (("index", "{photos}", "-o", "{folder}/new.index", "--words", "9", "--nearest", "10"), 2, "at most --words, 9"),
        (("query", "{made}", "{photos}/image000.png", "--box", "300,300,400,400"), 1, "none inside the box"),
        (("query", "{made}", "{photos}/image000.png", "--box", "9,9,1,1"), 2, "x1 < x2"),
        (("query", "{made}", "{photos}/image000.png", "--box", "9,9"), 2, "four numbers"),
        (("query", "{made}", "{folder}/broken.png"), 1, "must be an image in one of"),
        (("query", "{folder}/broken.png", "{photos}/image000.png"), 1, "cannot be read as an index"),
        (("query", "{made}", "{photos}/image000.png", "--rerank", "--dof", "5"), 2, "3<=x<=4"),
        (("query", "{made}", "{photos}/image000.png", "--verify", "5"), 2, "--verify needs --rerank"),
        (("query", "{made}", "{photos}/image000.png", "--dof", "3"), 2, "--dof needs --rerank"),
        (("query", "{made}", "{photos}/image000.png", "--verifier", "opencv"), 2, "--verifier needs --rerank"),
        (
            ("query", "{made}", "{photos}/image000.png", "--rerank", "--verifier", "opencv", "--dof", "3"),
            2,
            "--dof is of --verifier matches",
        ),
        ((*HKM_OF_100, "--subsets", "6"), 1, "the images of subsets must be whole groups of 4, got 6"),
        ((*HKM_OF_100, "--subsets", "28"), 1, "subsets must have 1 to 24 images, got 28"),
        (("index", "{folder}", "-o", "{folder}/new.index", "--words", "10"), 1, "broken.png' must be an image"),
        (
            ("index", "{photos}", "-o", "{folder}/new.index", "--levels", "2"),
            2,
            "--levels is of --method hkm, got 2 with 'closure'",
        ),
        ((*HKM_OF_100, "--levels", "9"), 1, "levels must be at most 2, the depth of the tree of words, got 9"),
        ((*HKM_OF_100, "--levels", "0"), 1, "levels must be at least 1"),
        (("evaluate", "ukbench", "{photos}", "--words", "0"), 1, "words must be at least 2"),
        (("evaluate", "ukbench", "{folder}/empty", "--words", "50"), 1, "must hold images, but has none"),
        (("evaluate", "ukbench", "{photos}", "--words", "50,99999999"), 1, "at most that of the descriptors"),
        (("query", "{made}", "{folder}/flat.png", "--montage", "{folder}/flat.png"), 2, "would be overwritten"),
        (
            ("query", "{made}", "{photos}/image000.png", "--montage", "{folder}/a.png", "--matches", "{folder}/a.png"),
            2,
            "would be overwritten",
        ),
        (("query", "{made}", "{photos}/image000.png", "--montage", "{photos}/image005.png"), 2, "photo of the index"),
        (("add", "{made}", "{photos}"), 1, "24 of the 24 images of"),
        (("index", "{folder}/bad", "-o", "{folder}/new.index", "--skip"), 1, "must hold images that can be read"),
        (("index", "{folder}/empty", "-o", "{folder}/new.index"), 1, "must hold images, but has none"),
        (
            ("index", "{photos}", "-o", "{folder}/new.index", "--words", "1000000"),
            1,
            "words must be at most that of the descriptors",
        ),
        (("index", "{photos}", "-o", "{folder}/nowhere/new.index"), 2, "does not exist"),
        (("add", "{made}", "{folder}"), 1, "broken.png' must be an image"),
        (("remove", "{made}", "nothing"), 1, "must hold the image 'nothing'"),
        (("evaluate", "ukbench", "{photos}", "--methods", "magic"), 2, "'magic' must be one of"),
        (("evaluate", "ukbench", "{photos}", "--words", "many"), 2, "whole numbers"),
        (("evaluate", "oxford", "{photos}"), 2, "oxford needs the folder"),
        (("evaluate", "ukbench", "{photos}", "--levels", "1,2"), 2, "--levels is of hkm"),
        (("evaluate", "ukbench", "{photos}", "--skip"), 2, "--skip would break"),
    ],
)
def test_bad_calls(run, made, photos, tmp_path, arguments, code, message):
    Image.new("L", (50, 50), 128).save(tmp_path / "flat.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "broken.png").write_bytes(b"no image")
    before = made.read_bytes()
    names = {"made": made, "photos": photos, "folder": tmp_path}
    output = run(*(part.format(**names) for part in arguments), code=code)
    assert message in " ".join(output.split())
    assert made.read_bytes() == before
    assert not (tmp_path / "new.index").exists()


def test_threads_find_words(run, made, photos, monkeypatch):
    seen = []

    def search(index, *_, **settings):
        seen.append((index.vocabulary.model.n_threads, settings["n_threads"]))
        return []

    monkeypatch.setattr(ImageIndex, "search", search)
    run("query", made, photos / "image000.png", "--threads", "3")
    assert seen == [(3, 3)]


def test_photos_that_are_gone(run, made, photos, tmp_path):
    arguments = ("query", made, photos / "image000.png", "--montage", tmp_path / "row.png")
    assert "gone" not in run(*arguments)
    rewritten(made, lambda arrays, facts: facts.update(folders=[str(tmp_path)]))
    assert "Warning: 10 of the photos found are gone, the first is 'image000.png'" in run(*arguments)
    lines = tmp_path / "lines.png"
    assert "there is no other photo" in run("query", made, photos / "image000.png", "--matches", lines, code=1)
    assert not lines.exists()


def test_lines_do_not_depend_on_how_many_results_are_listed(run, made, photos, tmp_path):
    query = ("query", made, photos / "image000.png", "--rerank", "--matches")
    assert len(run(*query, tmp_path / "one.png", "--results", 1).splitlines()) == 1
    run(*query, tmp_path / "ten.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "ten.png").read_bytes()
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "image023.png").write_bytes((photos / "image023.png").read_bytes())
    rewritten(made, lambda arrays, facts: facts.update(folders=[str(tmp_path / "left")]))  # all others are gone
    run(*query, tmp_path / "far.png", "--results", 1)
    assert load_image(tmp_path / "far.png").shape == load_image(tmp_path / "one.png").shape


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--words", "0"), "words must be at least 2, got 0"),
        (("--words", "20", "--subsets", "6"), "must be whole groups of 4, got 6"),
        (("--words", "20", "--subsets", "4000"), "subsets must have 1 to"),
        (("--words", "20", "--seeds", "0,-1"), "seeds must be at least 0, got -1"),
        (("--words", "100", "--methods", "hkm", "--levels", "3"), "levels must be at most 2"),
        (("--words", "100,20", "--nearest", "21"), "n_nearest must be at most the number of words, 20, got 21"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused_before_features_are_taken(run, photos, tmp_path, arguments, message):
    assert message in run("evaluate", "ukbench", photos, *arguments, "--work", tmp_path / "work", code=1)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("oxc1_elsewhere 10 20 100 110", (), "those of all queries, but 'elsewhere' is not there"),
        ("oxc1_image020 10 20 100 110", ("--subsets", "24,8"), "those of all queries, but 'image020' is not there"),
        ("oxc1_image000 10 20 5 110", (), "with x1 < x2 and y1 < y2"),
        ("oxc1_image000 10 nan 50 110", (), "with x1 < x2 and y1 < y2"),
    ],
)
def test_a_ground_truth_that_cannot_be_is_refused_before(run, photos, tmp_path, query, options, message):
    truth = write_ground_truth(tmp_path / "truth", query=query)
    arguments = ("evaluate", "oxford", photos, truth, "--words", "50", "--work", tmp_path / "work", *options)
    assert message in " ".join(run(*arguments, code=1).split())
    assert not (tmp_path / "work").exists()


def test_what_changes_an_index_while_photos_are_added_stays(run, made, photos, tmp_path, monkeypatch):
    def collect_slowly(*arguments, **settings):
        run("remove", made, "image000.png")
        return cli.photos.collect_photos(*arguments, **settings)

    monkeypatch.setattr(cli.retrieval, "collect_photos", collect_slowly)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "new.png").write_bytes((photos / "image002.png").read_bytes())
    run("add", made, tmp_path / "more")
    names = ImageIndex.load(made).names
    assert "image000.png" not in names
    assert "new.png" in names


def test_a_polite_end_is_an_interrupt(run, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "learn_vocabulary", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    arguments = ("index", photos, "--words", "50", "-o", tmp_path / "photos.index", "--work", tmp_path / "kept")
    assert "interrupted; what is finished is in" in run(*arguments, code=130)
    assert signal.getsignal(signal.SIGTERM) is before
    assert {path.name.partition("-")[0] for path in (tmp_path / "kept").iterdir()} == {"features"}


def test_what_is_skipped_is_said(run, photos, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes((photos / f"image00{number}.png").read_bytes())
    (folder / "broken.png").write_bytes(b"no image")
    output = run("index", folder, "-o", tmp_path / "new.index", "--words", "50", "--skip")
    assert "left out: '" in output
    assert ImageIndex.load(tmp_path / "new.index").names == ["0.png", "1.png", "2.png"]
    for _ in range(2):  # also when the features are those of the last time
        arguments = ("--words", "50", "--skip", "--work", tmp_path / "work")
        assert "left out: '" in run("index", folder, "-o", tmp_path / "new.index", *arguments)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not let a mapped file be cut")
def test_an_index_whose_file_is_cut_is_an_error(index, tmp_path):
    path = tmp_path / "photos.index"
    index.save(path)
    code = f"""
import os
from closure_kmeans.retrieval import ImageIndex
from closure_kmeans.vectors import FileFormatError
index = ImageIndex.load({str(path)!r})
query = index.query_of(0)
os.truncate({str(path)!r}, 0)
uses = (index.search, query), (index.query_of, 0), (index.remove, [index.names[0]]), (index.save, {str(path)!r})
for method, argument in uses:
    try:
        method(argument)
    except FileFormatError as error:
        assert "while it is memory-mapped, but has 0" in str(error), error
    else:
        raise AssertionError(method)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_loading_an_index_imports_no_image_library(index, tmp_path):
    index.save(tmp_path / "photos.index")
    code = (
        "import sys; from closure_kmeans.retrieval import ImageIndex; "
        f"index = ImageIndex.load({str(tmp_path / 'photos.index')!r}); index.search(index.query_of(0), n_rerank=3); "
        "assert 'cv2' not in sys.modules and 'PIL' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


@pytest.mark.slow
def test_warmup_leaves_nothing_to_compile(photos, tmp_path):
    def call(*arguments):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        subprocess.run([sys.executable, "-m", "closure_kmeans", *map(str, arguments)], check=True, env=environment)
        return sorted(path.name for path in (tmp_path / "cache").rglob("*.kernel"))

    compiled = call("warmup", "--dtype", "uint8")
    index, query = tmp_path / "photos.index", ("retrieval", "query", tmp_path / "photos.index", photos / "image005.png")
    call("retrieval", "index", photos, "--words", "300", "-o", index)
    call(*query, "--rerank", "--montage", tmp_path / "row.png", "--matches", tmp_path / "lines.png")
    assert call(*query, "--rerank", "--norm", "l2", "--nearest", "2", "--dof", "3") == compiled


TIMED = """
import sys
from closure_kmeans import kernels, base, quantizer, storage
from closure_kmeans.baselines import kernels as of_baselines
from closure_kmeans.retrieval import kernels as of_retrieval
from closure_kmeans.retrieval import collect, experiment, stages, vocabulary

def compiled():
    found = [vars(module) for module in (kernels, of_baselines, of_retrieval)]
    kernels = {kernel for names in found for kernel in names.values() if hasattr(kernel, "signatures")}
    return {(kernel.__name__, str(signature)) for kernel in kernels for signature in kernel.signatures}

def watched(timed):
    def call(*arguments, **settings):
        before = compiled()
        result = timed(*arguments, **settings)
        late.update(compiled() - before)
        return result
    return call

late = set()
for module in (base, quantizer, storage, vocabulary):
    module.MANY_CENTERS = 100  # words are in cells
stages.learn_vocabulary = watched(stages.learn_vocabulary)
experiment._score = watched(experiment._score)
plan = experiment.Plan([300], sys.argv[2:], rerank=True)
assert len(list(experiment.compare(collect(sys.argv[1]), plan))) == 2 * len(plan.methods)
print(len(compiled()) > 10, sorted(late))
"""


@pytest.mark.slow
def test_nothing_is_compiled_while_the_clock_runs(photos):
    """Nor loaded from the cache, which a new process does with each kernel once."""
    call = [sys.executable, "-c", TIMED, str(photos), "akm", "closure"]
    assert subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip() == "True []"


DATA = os.environ.get("CLOSURE_KMEANS_DATA")


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="needs CLOSURE_KMEANS_DATA, a folder that holds ukbench1000")
def test_two_hundred_photos_of_ukbench():
    paths = [f"{DATA}/ukbench1000/ukbench{number:05}.jpg" for number in range(200)]
    features = local_features(paths)
    names = [str(number) for number in range(200)]
    collection = Collection(names, None, features.keypoints, features.descriptors, features.offsets, [], Extraction())
    (row, reranked) = compare(collection, Plan([20_000], ["closure"], rerank=True))
    assert row.score > 3.7
    assert reranked.score >= row.score


@pytest.fixture
def celled(collection, monkeypatch):
    """A vocabulary with so many words, as far as it knows, that they are in cells."""
    for module in ("base", "quantizer", "storage", "retrieval.vocabulary"):
        monkeypatch.setattr(f"closure_kmeans.{module}.MANY_CENTERS", 100)
    return learn_vocabulary(collection.descriptors, 300, random_state=0)


def test_the_cells_of_many_words_are_kept(celled, collection, tmp_path, monkeypatch):
    save_vocabulary(tmp_path / "words.safetensors", celled)
    monkeypatch.setattr("closure_kmeans.base.group_centers", None)  # not built again
    loaded = load_vocabulary(tmp_path / "words.safetensors")
    np.testing.assert_array_equal(
        loaded.assign(collection.descriptors).words, celled.assign(collection.descriptors).words
    )
    save_vocabulary(tmp_path / "again.safetensors", loaded)
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "words.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ids", lambda a: a // 2),
        ("ids", lambda a: a[:-1]),
        ("starts", lambda a: a[::-1].copy()),
        ("starts", lambda a: a * 2),
        ("starts", lambda a: np.append(a[:-2], [a[-1], a[-1]])),
        ("middles", lambda a: a * np.nan),
        ("middles", lambda a: a[:1]),
        ("axes", lambda a: 1.01 * np.eye(len(a), 31)),
        ("axes", lambda a: np.full((len(a), 3), np.nan)),
        ("axes", lambda a: a.astype(np.float32)),
        ("axes", lambda a: a[:-1]),
    ],
)
def test_cells_that_do_not_add_up(celled, tmp_path, name, change):
    path = tmp_path / "photos.index"
    ImageIndex(celled).save(path)
    rewritten(path, put(f"cells.{name}", change))
    with pytest.raises(FileFormatError, match="must group all 300 words into cells"):
        ImageIndex.load(path)
