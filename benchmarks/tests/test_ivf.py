"""IVF indexes by who trained them: recall by hand, and who is given whose time."""

import faiss
import numpy as np
import pytest

from benchmarks import ivf


def test_recall_and_the_rows_compared():
    centers = np.array([[0, 0], [100, 0]], np.float32)
    X = np.concatenate([np.add(centers, [0, step]) for step in range(10)]).astype(np.float32)  # ten rows a list
    index = faiss.index_factory(2, "IVF2,Flat")
    index.quantizer.add(centers)
    index.is_trained = True
    training = ivf.Training("by hand", 1.0, index, len(X))
    nearest = np.tile(np.arange(10), (3, 1))  # five of each list, of which the nearer one is searched well
    row = ivf.measure(training, X, np.zeros((3, 2), np.float32), nearest, 1)
    assert [row["searches"][0][name] for name in ("nprobe", "recall", "compared")] == [1, 0.5, 10]
    assert [row["searches"][1][name] for name in ("nprobe", "recall", "compared")] == [4, 0.5, 20]
    assert row["distortion"] == pytest.approx(np.square(np.arange(10)).mean())
    assert row["imbalance"] == 1


@pytest.mark.parametrize(("ours", "default", "whole"), [(2.0, 1.0, 8.0), (2.0, 3.0, 1.0)])
def test_each_is_trained_in_the_time_of_the_other_as_far_as_it_can_be(monkeypatch, ours, default, whole):
    seconds = {"ours": ours, "faiss, its defaults": default, "faiss, all rows": whole}
    asked = {}

    def timed(name, train):
        asked[name] = train.keywords
        return ivf.Training(name, seconds.get(name, 0.0), None, 0)

    monkeypatch.setattr(ivf, "timed", timed)
    names = [training.name for training in ivf.all_trainings(np.zeros((800, 2), np.float32), 10, 1, 1)]
    if default < ours:
        assert names[:3] == list(seconds)
        assert asked[names[3]] == {"max_time": 1.0}
        assert asked[names[4]] == {"most_rows": 200}  # a quarter of the rows for a quarter of the time
    else:
        assert names == list(seconds)
