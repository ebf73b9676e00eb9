"""Against the time of exact Lloyd: what is run, what is estimated, and what the table says."""

import json
import os

from benchmarks import lloyd


def test_few_iterations_of_lloyd_are_run_where_all_would_take_long():
    iterations = {k: lloyd.jobs_of(k, 1_000_000, None, 2, 1)[0].iterations for k in (1000, 2000, 10_000, 100_000)}
    assert iterations == {1000: 25, 2000: 12, 10_000: 2, 100_000: 1}


def test_ours_takes_turns_with_all_features_and_avx2_only(monkeypatch):
    jobs = lloyd.jobs_of(10, 1000, None, 2, 2)[1:]
    assert [(job.label, job.seed) for job in jobs] == [
        (lloyd.ALL_FEATURES, 1),
        (lloyd.AVX2, 1),
        (lloyd.AVX2, 2),
        (lloyd.ALL_FEATURES, 2),
    ]
    monkeypatch.delenv("NUMBA_CPU_NAME", raising=False)
    monkeypatch.setattr(lloyd, "run_job", lambda job: os.environ.get("NUMBA_CPU_NAME"))
    assert [lloyd.run(job) for job in jobs[:2]] == [None, "haswell"]
    assert "NUMBA_CPU_NAME" not in os.environ


def test_the_table_compares_with_the_estimate_and_the_distortion_that_all_iterations_end_at(tmp_path, monkeypatch):
    monkeypatch.setattr(lloyd, "FOLDER", tmp_path)
    common = {"data_title": "rows", "n_clusters": 2000, "label": "", "method": "faiss"}
    whole = {**common, "iterations": 25, "distortion": 50.0}
    (tmp_path / "sift-2k.jsonl").write_text(json.dumps(whole) + "\n")
    some = {**common, "iterations": 5, "distortion": 60.0, "seconds": 22.0, "estimated_seconds": 100.0}
    ours = {**common, "method": lloyd.OURS, "label": lloyd.ALL_FEATURES, "seconds": 4.0, "distortion": 49.0}
    rows = [some, {**ours, "curve": [(1.0, 55.0), (2.0, 50.0), (4.0, 49.0)]}]
    (line,) = lloyd.table_lines(rows)
    assert len(lloyd.HEADER) == len(set(lloyd.HEADER)) == len(line)
    assert line == ["2,000", "all features", "100 (from 5)", "50", "2.00", "50", "4.00", "25", "49"]
    (line,) = lloyd.table_lines([{**row, "n_clusters": 3000} for row in rows])
    assert line[3:6] == ["–", "–", "–"]  # nobody knows where Lloyd ends
    (line,) = lloyd.table_lines([{**whole, "seconds": 90.0, "estimated_seconds": None}, rows[1]])
    assert line[2:6] == ["90", "50", "2.00", "45"]
