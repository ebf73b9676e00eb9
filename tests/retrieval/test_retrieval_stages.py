"""Stages that are kept in a folder and resumed."""

import errno
from functools import partial

import numpy as np
import pytest

from closure_kmeans import ClosureKMeans
from closure_kmeans.points import map_of
from closure_kmeans.retrieval import Extraction, collect, learn_vocabulary, stages
from closure_kmeans.retrieval.stages import FEATURES, WORDS, resume, resume_features, resume_learning
from closure_kmeans.vectors import FileFormatError


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


def test_kept_words_know_those_of_the_fit(collection, tmp_path):
    learned = [resume_learning(tmp_path, "photos", collection.descriptors, 300) for _ in range(2)]
    labels = [one.vocabulary.model.labels_ for one in learned]
    np.testing.assert_array_equal(*labels)
    assert isinstance(labels[1], np.memmap)


def test_kept_features_stay_on_disk(collection, photos, tmp_path, monkeypatch):
    """They and their RootSIFT are memory-mapped; the words are the same as those of features in memory."""
    monkeypatch.setattr(stages, "IMAGES_PER_PART", 4)
    resume_features(tmp_path, photos, collection.names, Extraction())
    mapped, _ = resume_features(tmp_path, photos, collection.names, Extraction())
    assert map_of(mapped.descriptors) is not None
    assert map_of(mapped.keypoints) is not None
    np.testing.assert_array_equal(mapped.descriptors, collection.descriptors)
    rows = []
    fit = ClosureKMeans.fit
    monkeypatch.setattr(ClosureKMeans, "fit", lambda model, X, **settings: rows.append(X) or fit(model, X, **settings))
    here, there = (learn_vocabulary(one.descriptors, 300, random_state=0) for one in (collection, mapped))
    assert [map_of(X) is not None for X in rows] == [False, True]
    np.testing.assert_array_equal(here.model.cluster_centers_, there.model.cluster_centers_)
    np.testing.assert_array_equal(here.model.labels_, there.model.labels_)
