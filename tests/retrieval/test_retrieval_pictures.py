"""Pictures of results and of matches."""

import numpy as np
import pytest
from retrieval_data import SIDE

from closure_kmeans.retrieval.pictures import draw_matches, draw_results, draw_rows


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
