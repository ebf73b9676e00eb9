import os
import sqlite3
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from closure_kmeans import ClosureKMeans
from closure_kmeans.datasets import load_sift
from closure_kmeans.retrieval import root_bytes
from closure_kmeans.retrieval.exchange import (
    BOWKMeansTrainer,
    read_colmap_descriptors,
    read_vise_descriptors,
    read_vise_words,
    save_colmap_tree,
    save_vise_words,
)
from closure_kmeans.vectors import FileFormatError


@pytest.fixture(scope="module")
def rows():
    return root_bytes(load_sift()[:6000])


@pytest.fixture(scope="module", params=[200, 1500])
def model(request, rows):
    return ClosureKMeans(request.param, random_state=0).fit(rows)


def test_colmap_reads_the_tree(model, rows, tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    save_colmap_tree(tmp_path / "tree.bin", model, rows)
    index = pycolmap.VisualIndex.read(tmp_path / "tree.bin")
    assert index.num_visual_words() == len(model.cluster_centers_)
    assert (index.desc_dim(), index.embedding_dim(), index.num_images()) == (128, 64, 0)
    points = pycolmap.FeatureKeypoints([pycolmap.FeatureKeypoint(x=x, y=x) for x in range(100)])
    described = pycolmap.FeatureDescriptorsFloat(
        type=pycolmap.FeatureExtractorType.SIFT, data=rows[:100].astype(np.float32)
    )
    index.write(tmp_path / "again.bin")
    index.add(pycolmap.VisualIndex.IndexOptions(), 1, points, described)
    assert index.is_image_indexed(1)
    assert (tmp_path / "again.bin").stat().st_size == (tmp_path / "tree.bin").stat().st_size


def test_the_words_of_a_colmap_tree_are_found(model, rows, tmp_path):
    faiss = pytest.importorskip("faiss")
    save_colmap_tree(tmp_path / "tree.bin", model, rows)
    content = (tmp_path / "tree.bin").read_bytes()
    k = len(model.cluster_centers_)
    behind = 8 + 4 * 64 * 128 + k * (1 + 4 + 4 * 64 + 4) + 4
    index = faiss.deserialize_index(np.frombuffer(content[16:-behind], np.uint8))
    _, found = index.search(rows[:500].astype(np.float32), 1)
    assert np.mean(found[:, 0] == model.predict(rows[:500])) > 0.97
    words = np.frombuffer(
        content[-behind + 8 + 4 * 64 * 128 : -4],
        [("status", "u1"), ("idf", "<f4"), ("thresholds", "<f4", 64), ("entries", "<u4")],
    )
    members = np.bincount(model.predict(rows), minlength=k)
    np.testing.assert_array_equal(words["status"], members >= 5)
    projection = np.frombuffer(content[-behind + 8 :][: 4 * 64 * 128], "<f4").reshape(64, 128)
    np.testing.assert_allclose(projection @ projection.T, np.eye(64), atol=1e-5)
    word = int(members.argmax())
    own = rows[model.predict(rows) == word] @ projection.T
    np.testing.assert_allclose(words["thresholds"][word], np.median(own, axis=0), rtol=1e-4, atol=1e-2)


def test_colmap_needs_sift(tmp_path):
    pytest.importorskip("faiss")
    narrow = np.random.default_rng(0).normal(size=(50, 4))
    with pytest.raises(ValueError, match="must have 128 dimensions, got 4"):
        save_colmap_tree(tmp_path / "tree.bin", ClosureKMeans(3, random_state=0).fit(narrow), narrow)
    assert not any(tmp_path.iterdir())


def write_database(path, rows, *, typed, columns=128, cut=0):
    database = sqlite3.connect(path)
    kind = "type INTEGER," if typed else ""
    database.execute(f"CREATE TABLE descriptors (image_id INTEGER, {kind} rows INTEGER, cols INTEGER, data BLOB)")
    for image, block in ((7, rows[:10]), (3, rows[10:14]), (5, rows[:0])):
        values = [image, *([0] if typed else []), len(block), columns, block.tobytes()[cut:]]
        database.execute(f"INSERT INTO descriptors VALUES ({','.join('?' * len(values))})", values)
    if typed:
        database.execute("INSERT INTO descriptors VALUES (9, 1, 2, 256, ?)", [bytes(512)])  # another kind of feature
    database.commit()
    database.close()


@pytest.mark.parametrize("typed", [False, True])
def test_colmap_databases(rows, tmp_path, typed):
    write_database(tmp_path / "database.db", rows, typed=typed)
    descriptors, offsets = read_colmap_descriptors(tmp_path / "database.db")
    np.testing.assert_array_equal(descriptors, np.concatenate([rows[10:14], rows[:10]]))
    assert offsets.tolist() == [0, 4, 4, 14]


def test_a_database_that_colmap_has_made(rows, tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    with pycolmap.Database.open(tmp_path / "database.db") as database:
        camera = database.write_camera(pycolmap.Camera.create_from_model_name(1, "SIMPLE_PINHOLE", 100, 640, 480))
        image = database.write_image(pycolmap.Image(name="a.jpg", camera_id=camera))
        database.write_descriptors(
            image, pycolmap.FeatureDescriptors(type=pycolmap.FeatureExtractorType.SIFT, data=rows[:30])
        )
    descriptors, offsets = read_colmap_descriptors(tmp_path / "database.db")
    np.testing.assert_array_equal(descriptors, rows[:30])
    assert offsets.tolist() == [0, 30]


def test_damaged_databases(rows, tmp_path):
    write_database(tmp_path / "cut.db", rows, typed=True, cut=1)
    with pytest.raises(FileFormatError, match=r"(10|4) x 128 in (1279|511) bytes"):
        read_colmap_descriptors(tmp_path / "cut.db")
    (tmp_path / "other.db").write_bytes(b"something else entirely" * 50)
    with pytest.raises(FileFormatError, match="cannot be read as a database"):
        read_colmap_descriptors(tmp_path / "other.db")
    with pytest.raises(FileNotFoundError):
        read_colmap_descriptors(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(("kind", "dtype"), [(0, np.uint8), (4, np.float32)])
def test_vise_descriptors(rows, tmp_path, kind, dtype):
    path = tmp_path / "traindesc.bin"
    path.write_bytes(struct.pack("<IB", 128, kind) + rows[:20].astype(dtype).tobytes())
    found = read_vise_descriptors(path)
    np.testing.assert_array_equal(found, rows[:20])
    assert found.dtype == dtype
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:5], whole[:3], b"", struct.pack("<IB", 128, 9) + whole[5:], bytes(10)):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="traindesc"):
            read_vise_descriptors(path)


def test_vise_words(model, rows, tmp_path):
    path = tmp_path / "bowcluster.bin"
    save_vise_words(path, model, len(rows), seed=3)
    np.testing.assert_array_equal(read_vise_words(path), model.cluster_centers_)
    whole = path.read_bytes()
    k = len(model.cluster_centers_)
    assert struct.unpack_from("<B7I", whole) == (4, k, 128, model.n_iter_, model.n_iter_, len(rows), 128, 3)
    for damaged in (whole[:-1], whole + b"x", b"\x05" + whole[1:], whole[:9]):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="bowcluster"):
            read_vise_words(path)


# What VISE reads of a file of words, as it is in memory then.
VISE_READER = """
#include "clst_centres.h"
#include <cstdio>

int main(int, char** arguments) {
    clstCentres words(arguments[1], true);
    fwrite(&words.numClst, sizeof(words.numClst), 1, stdout);
    fwrite(&words.numDims, sizeof(words.numDims), 1, stdout);
    fwrite(words.clstC_flat, sizeof(float), size_t(words.numClst) * words.numDims, stdout);
}
"""


@pytest.mark.skipif("VISE_SOURCE" not in os.environ, reason="VISE_SOURCE does not name a checkout of VISE")
def test_vise_reads_the_words(model, rows, tmp_path):
    """VISE has no package to install: its own reader is built from a checkout."""
    reader = Path(os.environ["VISE_SOURCE"], "src/search_engine/relja_retrival/indexing/clst_centres.cpp")
    (tmp_path / "main.cpp").write_text(VISE_READER)
    build = ["g++", "-O1", f"-I{reader.parent}", str(reader), "main.cpp", "-o", "reader"]
    subprocess.run(build, cwd=tmp_path, check=True)
    save_vise_words(tmp_path / "bowcluster.bin", model, len(rows))
    read = subprocess.run(["./reader", "bowcluster.bin"], cwd=tmp_path, check=True, capture_output=True).stdout
    k, d = struct.unpack_from("<2I", read)
    np.testing.assert_array_equal(np.frombuffer(read, "<f4", offset=8).reshape(k, d), model.cluster_centers_)


def test_more_words_than_vise_can_read(tmp_path):
    """VISE holds the size of a file in 32 bits."""
    model = ClosureKMeans(1, random_state=0).fit(np.zeros((1, 128), np.float32))
    model.cluster_centers_ = np.broadcast_to(model.cluster_centers_, (2**23, 128))
    with pytest.raises(ValueError, match="must be less than 4,294,967,296 bytes"):
        save_vise_words(tmp_path / "bowcluster.bin", model, 2**23)
    assert not any(tmp_path.iterdir())


def test_the_trainer_that_opencv_dropped(rows):
    trainer = BOWKMeansTrainer(40, random_state=0)
    with pytest.raises(ValueError, match="must be added"):
        trainer.cluster()
    trainer.add(rows[:1000])
    trainer.add(rows[1000:3000])
    assert trainer.descriptorsCount() == 3000
    assert [len(block) for block in trainer.getDescriptors()] == [1000, 2000]
    words = trainer.cluster()
    assert (words.shape, words.dtype) == ((40, 128), np.float32)
    expected = ClosureKMeans(40, random_state=0).fit(rows[:3000]).cluster_centers_
    np.testing.assert_array_equal(words, expected)
    np.testing.assert_array_equal(trainer.cluster(rows[:3000]), expected)
    for wrong in (rows[:3, :5], rows[0]):
        with pytest.raises(ValueError, match="descriptors must have"):
            trainer.add(wrong)
    trainer.clear()
    assert trainer.descriptorsCount() == 0


def test_opencv_finds_the_words_of_the_trainer(rows):
    cv2 = pytest.importorskip("cv2")
    words = BOWKMeansTrainer(40, random_state=0).cluster(rows[:3000])
    model = ClosureKMeans(40, random_state=0).fit(rows[:3000])
    found = [match.trainIdx for match in cv2.BFMatcher().match(rows[:300].astype(np.float32), words)]
    assert found == model.predict(rows[:300]).tolist()


def test_the_trainer_takes_what_opencv_took(rows):
    cv2 = pytest.importorskip("cv2")
    criteria = (cv2.TERM_CRITERIA_COUNT + cv2.TERM_CRITERIA_EPS, 2, 0.001)
    few = BOWKMeansTrainer(40, criteria, 1, cv2.KMEANS_PP_CENTERS, random_state=0).cluster(rows[:3000])
    expected = ClosureKMeans(40, max_iter=2, random_state=0).fit(rows[:3000]).cluster_centers_
    np.testing.assert_array_equal(few, expected)
    unlimited = BOWKMeansTrainer(40, (cv2.TERM_CRITERIA_EPS, 2, 0.001), random_state=0).cluster(rows[:3000])
    np.testing.assert_array_equal(unlimited, BOWKMeansTrainer(40, random_state=0).cluster(rows[:3000]))


def test_the_best_of_several_attempts(rows, monkeypatch):
    fits = []

    class Watched(ClosureKMeans):
        def fit(self, X):
            fits.append(super().fit(X))
            return self

    monkeypatch.setattr("closure_kmeans.retrieval.exchange.ClosureKMeans", Watched)
    words = BOWKMeansTrainer(40, attempts=3, random_state=0).cluster(rows[:3000])
    assert len({model.inertia_ for model in fits}) == 3
    np.testing.assert_array_equal(words, min(fits, key=lambda model: model.inertia_).cluster_centers_)
    with pytest.raises(ValueError, match="attempts must be at least 1, got 0"):
        BOWKMeansTrainer(40, attempts=0)
