"""The image index: searches, additions and removals, and its file."""

import os
import subprocess
import sys

import numpy as np
import pytest
from retrieval_data import parts, put, rewritten

from closure_kmeans import ClosureKMeans, files
from closure_kmeans.retrieval import (
    PAPER_STEPS,
    ImageIndex,
    Vocabulary,
    align,
    invert,
    learn_vocabulary,
    rank,
    ukbench_score,
)
from closure_kmeans.vectors import FileFormatError
from closure_kmeans.warmup import compile_retrieval


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


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("n_rerank", [0, 10])
def test_the_photos_of_an_object_find_each_other(index, photos, norm, n_rerank):
    rankings = []
    for image, name in enumerate(index.names):
        found = index.search(
            index.read_query(photos / name), n_results=4, norm=norm, n_rerank=n_rerank, steps=PAPER_STEPS
        )
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


def test_an_index_replaces_the_file_that_it_is_mapped_from(index, collection, tmp_path, refused):
    path = tmp_path / "photos.index"
    index.save(path)
    loaded = ImageIndex.load(path)
    for change in (lambda: None, lambda: loaded.remove([]), lambda: loaded.remove(["image003.png"])):
        change()
        loaded.save(path)
    loaded = ImageIndex.load(path)
    loaded.add(parts(collection, 3, 4))
    loaded.save(path)
    check_same(loaded, ImageIndex.load(path))
    assert len(loaded) == len(index)
    assert refused == []


def test_what_compiles_the_search_closes_the_index_that_it_removes(refused):
    rows = np.random.default_rng(0).integers(0, 100, (400, 32), np.uint8)
    compile_retrieval(ClosureKMeans(4, random_state=0).fit(rows))
    assert refused == []


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


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not let a mapped file be cut")
def test_an_index_whose_file_is_cut_is_an_error(index, tmp_path):
    path = tmp_path / "photos.index"
    index.save(path)
    code = f"""
import os
from closure_kmeans.retrieval import ImageIndex
from closure_kmeans.vectors import FileFormatError
from closure_kmeans.warmup import compile_retrieval
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
