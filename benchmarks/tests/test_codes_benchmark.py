"""The benchmark of codes, on a few rows: it pauses, goes on, and times encoding by the centres that it kept."""

import json
import sys

import pytest

pytest.importorskip("faiss")

from benchmarks import codes
from benchmarks.codes import METHODS, main


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setattr(codes, "CACHE", tmp_path / "kept")

    def call(*options):
        arguments = ["codes", "--rows", "600", "--levels", "8,4", "--flat-rows", "200", "--beam-rows", "50"]
        monkeypatch.setattr(sys, "argv", [*arguments, "--output", str(tmp_path), *options])
        main()
        return [json.loads(line) for line in (tmp_path / "codes.jsonl").read_text().splitlines()]

    monkeypatch.delenv("CLOSURE_KMEANS_DATA", raising=False)
    return call


@pytest.mark.slow
def test_fits_and_encoding(run, tmp_path):
    assert [row["method"] for row in run("--methods", "ours;faiss.Kmeans, level by level", "--pause-after", "0")] == [
        "ours"
    ]
    fits = run()
    assert sorted(row["method"] for row in fits) == sorted(METHODS)
    for row in fits:
        assert row["distortion"][1] < row["distortion"][0]
        assert 0 < row["unique"] <= 1
        assert all(1 < perplexity <= size for perplexity, size in zip(row["perplexity"], (8, 4), strict=True))
    encodings = [row for row in run("--encode") if row["part"] == "encode"]
    assert [row["method"] for row in encodings] == ["ours", "faiss.ResidualQuantizer"]
    assert encodings[0]["alike"] > 0.99
    assert encodings[0]["beam_distortion"] <= encodings[0]["greedy_distortion"]
    assert "ours, beam of 8, 50 rows" in (tmp_path / "codes.md").read_text()
