"""Vocabularies: learning, hard and soft assignment, levels of a tree, files."""

import numpy as np
import pytest
from retrieval_data import put, rewritten

from closure_kmeans.datasets import load_sift
from closure_kmeans.retrieval import (
    ImageIndex,
    Vocabulary,
    learn_vocabulary,
    load_vocabulary,
    root_bytes,
    save_vocabulary,
    tree_shape,
)
from closure_kmeans.vectors import FileFormatError


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


def test_more_words_than_descriptors(collection):
    with pytest.raises(ValueError, match="must be descriptors to learn words from"):
        learn_vocabulary(np.empty((0, 128), np.uint8), 50)
    message = "the number of words must be at most that of the descriptors to learn them from, 50, got 51"
    with pytest.raises(ValueError, match=message):
        learn_vocabulary(collection.descriptors[:50], 51)


@pytest.fixture
def celled(collection, monkeypatch):
    """A vocabulary with so many words, as far as it knows, that they are in cells."""
    monkeypatch.setattr("closure_kmeans.search.MANY_CENTERS", 100)
    return learn_vocabulary(collection.descriptors, 300, random_state=0)


def test_the_cells_of_many_words_are_kept(celled, collection, tmp_path, monkeypatch):
    save_vocabulary(tmp_path / "words.safetensors", celled)
    monkeypatch.setattr("closure_kmeans.search.group_centers", None)  # not built again
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
        ("middles", lambda a: a.astype(np.float64)),
        ("middles", lambda a: a[:, :-1]),
    ],
)
def test_cells_that_do_not_add_up(celled, tmp_path, name, change):
    path = tmp_path / "photos.index"
    ImageIndex(celled).save(path)
    rewritten(path, put(f"model.cells.{name}", change))
    with pytest.raises(FileFormatError, match="all 300 centres must be grouped into cells"):
        ImageIndex.load(path)


def test_an_unknown_method():
    with pytest.raises(ValueError, match="method must be one of"):
        learn_vocabulary(np.ones((9, 128)), 2, method="magic")


def test_a_saved_vocabulary_is_read_back(collection, vocabulary, tmp_path):
    save_vocabulary(tmp_path / "words.safetensors", vocabulary)
    loaded = load_vocabulary(tmp_path / "words.safetensors")
    assert loaded.root
    rows = collection.descriptors[:99]
    np.testing.assert_array_equal(loaded.assign(rows).words, vocabulary.assign(rows).words)


def test_words_of_the_fit_are_its_labels(collection, vocabulary, monkeypatch):
    monkeypatch.setattr(Vocabulary, "assign", lambda *arguments, **settings: pytest.fail("searched"))
    words = vocabulary.words_of_fit(collection.descriptors)
    np.testing.assert_array_equal(words.words[:, 0], vocabulary.model.labels_)


def test_other_descriptors_than_those_of_the_fit_are_searched(collection, vocabulary):
    some = collection.descriptors[:50]
    np.testing.assert_array_equal(vocabulary.words_of_fit(some).words, vocabulary.assign(some).words)
    soft = Vocabulary(vocabulary.model, n_nearest=2)
    assert soft.words_of_fit(some).words.shape == (50, 2)
    tree = learn_vocabulary(collection.descriptors, 216, method="hkm", levels=2, random_state=0)
    found = tree.words_of_fit(collection.descriptors).words
    np.testing.assert_array_equal(found, tree.assign(collection.descriptors).words)
