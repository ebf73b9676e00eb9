"""Scores of the protocols: average precision by hand and by its closed form, UKBench, ground truth of Oxford."""

import pytest
import reference_retrieval as reference
from hypothesis import given
from hypothesis import strategies as st
from retrieval_data import write_ground_truth

from closure_kmeans.retrieval import average_precision, read_oxford, ukbench_score
from closure_kmeans.vectors import FileFormatError


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
