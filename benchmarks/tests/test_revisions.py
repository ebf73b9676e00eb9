"""The comparison of two revisions: worktrees, cases, and small runs from end to end. Nothing is timed."""

from argparse import ArgumentTypeError
from contextlib import nullcontext

import numpy as np
import pytest

from benchmarks import ROOT
from benchmarks.results import read_rows
from benchmarks.revisions import __main__ as revisions
from benchmarks.revisions.__main__ import CASES, LEAST_MEMORY, checked_out, commit_of, file_of_rows, git, main, run
from closure_kmeans.datasets import load_sift

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="it takes a clone of the repository")


@pytest.fixture
def no_worktrees(monkeypatch):
    """All revisions are the working tree, whose kernels are compiled."""
    monkeypatch.setattr(revisions, "checked_out", lambda commit, path: nullcontext(ROOT))


def test_a_worktree_is_removed_after_an_interrupt(tmp_path):
    path = tmp_path / "old"

    def interrupted():
        with checked_out(commit_of("HEAD"), path) as checkout:
            assert git("rev-parse", "HEAD", folder=checkout) == git("rev-parse", "HEAD")
            assert (checkout / "src" / "closure_kmeans").is_dir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not path.exists()
    assert str(path) not in git("worktree", "list")
    with checked_out(None, path) as checkout:
        assert checkout == ROOT


def test_a_revision_that_is_none():
    with pytest.raises(ArgumentTypeError, match="must be a revision of this repository, got 'no such branch'"):
        commit_of("no such branch")


def test_smaller_cases_keep_the_rows_of_a_cluster():
    for case in CASES.values():
        smaller = case.reduced_to(20_000)
        assert smaller.n_rows / smaller.n_clusters == case.n_rows / case.n_clusters
        assert smaller.n_queries / 20_000 == case.n_queries / case.n_rows
        assert smaller.memory_limit == (LEAST_MEMORY if case.memory_limit else 0)
        assert case.reduced_to(10**9) == case


def test_rows_that_are_floats_are_no_whole_numbers(tmp_path):
    rows, floats = (file_of_rows(CASES[name].reduced_to(100), None, tmp_path) for name in ("bytes-10k", "float32-10k"))
    np.testing.assert_array_equal(np.load(rows), load_sift()[:100])
    np.testing.assert_array_equal(np.load(floats), load_sift()[:100] / np.float32(3))


@pytest.mark.slow
def test_revisions_of_the_same_code_have_the_same_bits(tmp_path, no_worktrees):
    cases = ["memory-limit-10k", "predict-100k"]
    out = tmp_path / "found" / "revisions.md"
    main(["HEAD", "--cases", *cases, "--rows", "4000", "--rounds", "1", "--out", str(out)])
    rows = read_rows(out.with_suffix(".jsonl"))
    assert [(row["case"], row["side"]) for row in rows] == [(case, side) for case in cases for side in ("old", "new")]
    assert not any("failed" in row for row in rows)
    assert all(row["seconds"] > 0 and row["distortion"] > 0 and row["memory_peak"] > 1e7 for row in rows)
    assert out.read_text().count("| the same |") == 2


def test_a_run_takes_the_package_of_its_revision_or_fails(tmp_path):
    case = CASES["bytes-10k"].reduced_to(100)
    (tmp_path / "src" / "closure_kmeans").mkdir(parents=True)
    (tmp_path / "src" / "closure_kmeans" / "__init__.py").write_text("ClosureKMeans = None\n")
    outcome = run(case, file_of_rows(case, None, tmp_path), tmp_path, seed=1)
    assert "'NoneType'" in outcome["failed"]
    (tmp_path / "src" / "closure_kmeans" / "__init__.py").unlink()
    outcome = run(case, file_of_rows(case, None, tmp_path), tmp_path, seed=1)
    assert outcome["failed"].startswith("ImportError")


def test_the_revisions_take_turns_and_ratios_are_of_a_round(tmp_path, no_worktrees, monkeypatch, capsys):
    seconds = iter([2.0, 1.0, 3.0, 6.0, 4.0, 3.0])

    def run(case, rows, checkout, seed):
        return {
            "seconds": next(seconds),
            "distortion": 1000.5,
            "digest": f"{seed}",
            "memory_peak": 2e9,
            "iterations": 1,
        }

    monkeypatch.setattr(revisions, "run", run)
    out = tmp_path / "revisions.md"
    main(["HEAD", "HEAD", "--cases", "bytes-10k", "--rows", "100", "--out", str(out)])
    assert [row["side"] for row in read_rows(out.with_suffix(".jsonl"))] == ["old", "new", "new", "old", "old", "new"]
    values = "2.00, 6.00, 4.00 | 1.00, 3.00, 3.00 | 0.500, 0.500, 0.750 | 0.500 | 0.500–0.750"
    assert f"| bytes-10k | {values} | 1,000.5 | 1,000.5 | the same | 2,000 | 2,000 |" in out.read_text()
    assert out.read_text() in capsys.readouterr().out


def test_a_failure_is_in_the_table(tmp_path, no_worktrees, monkeypatch):
    monkeypatch.setattr(revisions, "run", lambda *arguments, seed: {"failed": "TypeError: memory_limit"})
    main(["HEAD", "--cases", "memory-limit-10k", "--rows", "100", "--out", str(tmp_path / "revisions.md")])
    assert "| – | old: TypeError: memory_limit |" in (tmp_path / "revisions.md").read_text()
