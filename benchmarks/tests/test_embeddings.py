"""Real embeddings: texts are read from the packages' own files, pieces are resumed, and files are data sets."""

import gzip

import numpy as np
import pytest

from benchmarks import data, images
from benchmarks.embeddings import PIECE, encode_in_pieces, read_dictionary, read_glosses
from benchmarks.images import read_sheets


def test_texts_of_wordnet_have_their_first_word(tmp_path):
    lines = ["  1 This software and database is being provided", "00001740 03 n 02 living_thing 0 x 1 | a being  "]
    (tmp_path / "data.noun").write_text("\n".join(lines))
    assert list(read_glosses(tmp_path)) == ["living thing: a being"]


def test_paragraphs_of_a_dictionary_have_their_headword_and_no_sources(tmp_path):
    path = tmp_path / "gcide.dict.dz"
    text = (
        "00-database-info\n   This file was converted from the original\n\n"
        'Calorie \\Cal"o*rie\\, n. [F., fr. L. calor heat.]\n   The unit of heat.\n   [1913 Webster]\n\n'
        "   Compare the English standard {Foot\n   pound}.\n   [1913 Webster +PJC]\n\n"
        "   [1913 Webster]\n"
    )
    path.write_bytes(gzip.compress(text.encode()))
    assert list(read_dictionary(path)) == [
        "Calorie: n. [F., fr. L. calor heat.] The unit of heat.",
        "Calorie: Compare the English standard Foot pound.",
    ]
    assert list(read_dictionary(tmp_path / "missing")) == []


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    texts = [str(number) for number in range(2 * PIECE + 5)]
    asked = []

    def encode(piece):
        if len(asked) == 1:
            asked.append("interrupted")
            raise KeyboardInterrupt
        asked.append(piece[0])
        return np.array([[int(text), 1] for text in piece])

    path = tmp_path / "rows.npy"
    with pytest.raises(KeyboardInterrupt):
        encode_in_pieces(encode, texts, len(texts), path)
    assert not path.exists()
    encode_in_pieces(encode, texts, len(texts), path)
    assert asked == ["0", "interrupted", str(PIECE), str(2 * PIECE)]
    assert [file.name for file in tmp_path.iterdir()] == ["rows.npy"]
    assert np.array_equal(np.load(path)[:, 0], np.arange(len(texts)))
    encode_in_pieces(encode, texts, PIECE - 1, path)
    assert len(np.load(path)) == PIECE - 1
    assert asked[-1] == "0"  # no more than it takes


def test_embeddings_are_drawn_from_a_file_in_the_folder(tmp_path):
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    np.save(tmp_path / "minilm.npy", rows)
    drawn = data.load("sentences", 6, str(tmp_path))
    assert len(np.unique(drawn[:, 0])) == 6
    assert not np.array_equal(drawn, rows[:6])
    assert data.DATA_SETS["sentences"].largest(str(tmp_path)) == 10
    with pytest.raises(FileNotFoundError, match=r"python -m benchmarks\.embeddings FOLDER --encoder minilm-tokens"):
        data.load("tokens", 6, str(tmp_path))


def test_sheets_are_cut_into_tiles_in_row_order(tmp_path):
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "tiny32"
    folder.mkdir()
    for number in range(2):
        tones = 40 * np.arange(6).reshape(2, 3) + 10 * number
        image.fromarray(np.kron(tones, np.ones((32, 32))).astype(np.uint8)).save(
            folder / f"sheet_{number:02}.jpg", quality=100
        )
    tiles = read_sheets(folder, 32)
    assert tiles.shape == (12, 32, 32)
    assert np.allclose(tiles.mean(axis=(1, 2)), [*range(0, 240, 40), *range(10, 250, 40)], atol=2)
    names = ["ship", "deer", "ship", "cat", "deer", "ship", "cat"]  # the last sheet is not full
    (folder / "labels.csv").write_text("\n".join(["tile,label", *(f"{i},{name}" for i, name in enumerate(names))]))
    pictures, labels, classes = images.tiny(5, str(tmp_path))
    assert np.array_equal(pictures, tiles[:5])
    assert [classes[label] for label in labels] == names[:5]
    assert images.count_tiny(str(tmp_path)) == len(names)
    with pytest.raises(FileNotFoundError, match=r"tiny32/labels\.csv"):
        images.tiny32(None)
