"""The comparison with other libraries: its experiments, its arithmetic by hand, and a small one from end to end."""

import math

import numpy as np
import pytest

from benchmarks.job import Job, estimated_seconds, identity, judge, perform, run_job
from benchmarks.results import run_missing
from benchmarks.rivals.experiments import EXPERIMENTS, GROUPS, Experiment
from benchmarks.rivals.methods import METHODS, Outcome, Task, closures, paper_closures
from benchmarks.rivals.report import behind, compare, format_report, table_line, time_to_reach, value_at, write_report
from benchmarks.rivals.summary import write_summary
from benchmarks.steps import VARIATIONS
from closure_kmeans import PAPER, Method


def row(curve, seconds, repeat=0, estimated=None):
    return {
        "curve": curve,
        "seconds": seconds,
        "estimated_seconds": estimated,
        "distortion": curve[-1][1],
        "repeat": repeat,
    }


OURS = row([(1, 50.0), (2, 30.0), (4, 20.0)], 4)
RIVAL = row([(0.5, 60.0), (1.5, 40.0), (8, 25.0)], 8)


def test_what_stands_at_a_moment_is_the_best_so_far():
    assert value_at(OURS, 0.9) == math.inf
    assert (value_at(OURS, 1), value_at(OURS, 3.9), value_at(OURS, 9)) == (50, 30, 20)
    assert (time_to_reach(OURS, 30), time_to_reach(OURS, 29), time_to_reach(OURS, 19)) == (2, 4, math.inf)


def test_two_runs_are_compared():
    assert behind(OURS, RIVAL) == [(0.5, 1), (1.5, 2)]
    assert behind(RIVAL, OURS) == [(1, 1.5), (2, math.inf)]
    versus = compare([OURS], [RIVAL])
    assert versus == (4 / 8, 4 / 8, 20 / 25, 20 / 25, [(0.5, 1), (1.5, 2)])


def test_only_rivals_are_compared_with_ours():
    runs = {"ours": OURS, "ours-uint8": OURS, "superkmeans": RIVAL}
    groups = {method: [run | {"memory_beyond_input": 0}] for method, run in runs.items()}
    compared = {method: set(table_line(method, group, groups)[4:8]) != {"–"} for method, group in groups.items()}
    assert compared == {"ours": False, "ours-uint8": False, "superkmeans": True}


def test_repeats_are_compared_one_by_one_and_medians_shown():
    slower = row([(2, 50.0), (8, 20.0)], 8, repeat=1)
    again = row([(2, 40.0)], 2, repeat=1)
    assert compare([OURS, slower], [RIVAL, again]).fit == (4 / 8 + 8 / 2) / 2


def test_the_time_of_iterations_not_run_is_estimated():
    outcome = Outcome(seconds=10.0, centers=np.empty((0, 0)), repeated=8.0)
    assert estimated_seconds(METHODS["faiss"], outcome, 5) == 2 + 8 * 5
    assert estimated_seconds(METHODS["faiss"], outcome, 25) is None
    assert estimated_seconds(METHODS["superkmeans"], outcome, 5) is None
    assert estimated_seconds(METHODS["faiss-hnsw"], Outcome(10.0, np.empty((0, 0))), 5) == 50


def test_a_curve_is_made_one_of_the_scored_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30_000, 2)).astype(np.float32)
    labels = rng.integers(3, size=len(X))
    centers = np.array([X[labels == label].mean(axis=0) for label in range(3)])
    distances = np.square(X - centers[labels]).sum(axis=1, dtype=np.float64)
    outcome = Outcome(1.0, centers, [(0.5, float(distances.mean()))], labels=labels)
    judged = judge(X, outcome, Job("ours", "own", len(X), 3, 1, score_rows=10_000))
    assert judged["scored_rows"] == 10_000
    (moment, value), (end, distortion) = judged["curve"]
    assert (moment, end) == (0.5, 1)
    assert value == pytest.approx(judged["labels_distortion"])
    assert value != pytest.approx(distances.mean(), rel=1e-4)
    assert distortion == judged["distortion"] < value


def test_switches_of_runs_change_the_method():
    assert closures(20).method == Method()
    assert paper_closures(20).method == PAPER
    model = closures(20, rule="lloyd", tree_dims=None, tol=0.0)
    assert (model.method, model.tol) == (Method(rule="lloyd", tree_dims=None), 0)
    assert paper_closures(20, adaptive=False, max_trees=3).method == PAPER._replace(adaptive=False, max_trees=3)


@pytest.mark.parametrize("label", VARIATIONS)
def test_variations_are_parameters(label):
    model = closures(20, **VARIATIONS[label])
    model._check_parameters()
    assert (model.method == PAPER) == (label == "the paper's mode")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smaller_experiments_keep_the_rows_of_a_cluster(name):
    experiment = EXPERIMENTS[name]
    for smaller in (experiment.quick(), experiment.on_available_rows(None)):
        assert smaller.n_rows / smaller.n_clusters == pytest.approx(experiment.n_rows / experiment.n_clusters, rel=0.2)
        assert smaller.reduced == (smaller.n_rows < experiment.n_rows)
    assert set(experiment.methods) <= set(METHODS)
    assert len(set(experiment.methods)) == len(experiment.methods)


@pytest.mark.parametrize("method", ["ours", "faiss", "superkmeans", "lance", "clostera-exact"])
def test_clusters_by_cosine_are_those_of_directions(method):
    package = method.split("-")[0]
    pytest.importorskip("closure_kmeans" if package == "ours" else package)
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 2 * np.pi, 32)[rng.integers(32, size=2000)] + 0.1 * rng.normal(size=2000)
    X = np.zeros((2000, 32), np.float32)
    X[:, 0], X[:, 1] = np.cos(angles), np.sin(angles)
    outcome = METHODS[method].run(Task(X, 64, 2, 1, 10, metric="cosine"))
    judged = judge(X, outcome, Job(method, "own", len(X), 64, 1, metric="cosine"))
    directions = outcome.centers / np.linalg.norm(outcome.centers, axis=1, keepdims=True)
    assert judged["distortion"] == pytest.approx((2 - 2 * (X @ directions.T).max(axis=1)).mean(), abs=1e-6)
    assert judged["distortion"] < 0.05
    values = [value for _, value in judged["curve"]]
    assert all(judged["distortion"] - 1e-4 < value < 0.2 for value in values)  # faiss sums in float32
    assert (len(values) > 1) == (method in ("ours", "faiss"))


def test_experiments_by_cosine_say_so():
    euclidean, cosine = (EXPERIMENTS[name].job("ours", 0, 2, None, None) for name in ("tiny", "tiny-cosine"))
    assert (euclidean.metric, cosine.metric) == ("euclidean", "cosine")
    assert cosine.as_row()["data_title"] == euclidean.as_row()["data_title"] + ", by cosine"
    assert identity(euclidean.as_row()) != identity(cosine.as_row())


ABOUT = {
    "memory_beyond_input": 0,
    "data_title": "rows",
    "n_clusters": 3,
    "threads": 1,
    "clusters_used": 3,
    "score_error": 0,
    "machine": {"cpu": "a", "cores": 1, "memory_gb": 1},
    "versions": {"commit": "abc"},
    "history": [{}],
    "labels_distortion": 1.0,
    "warm_up_seconds": 0.0,
    "shape": [9, 2, 3],
    "measured": "2026-01-02 03:04:05",
}


def test_a_method_that_is_too_slow_is_stopped_and_named():
    experiment = Experiment("small", "gaussian", 1000, 10, ("ours", "faiss"), limits={"faiss": 0.01})
    assert experiment.job("ours", 0, 1, None, None).timeout is None
    slow = run_job(experiment.job("faiss", 0, 1, None, None))
    assert slow["failed"] == "not done after 0.01 s"
    report = format_report("small", [ABOUT | OURS | {"method": "ours"}, slow])
    assert "- faiss.Kmeans, all rows (exact Lloyd): failed: not done after 0.01 s." in report


def test_methods_of_another_session_are_compared_with_ours_of_that_session():
    slower = row([(2, 50.0), (8, 20.0)], 8, repeat=1)
    runs = [OURS | {"method": "ours"}, RIVAL | {"method": "faiss"}]
    runs += [
        slower | {"method": "ours", "versions": {"commit": "abc", "pylance": "1"}},
        row([(4, 40.0)], 4, repeat=1) | {"method": "lance"},
    ]
    text = format_report("small", [ABOUT | run for run in runs])
    (session,) = [line for line in text.splitlines() if "another session" in line]
    assert session.startswith("- Measured in another session, 2026-01-02 (pylance 1), and compared with closure-")
    assert session.endswith("(8 s, 20): lance.util.KMeans, its defaults.")
    lines = {line.split(" | ")[0]: line for line in text.splitlines()}
    assert "| 8.00 | 0.5 |" in lines["| lance.util.KMeans, its defaults"]  # not the 2 s of the first session
    assert lines["| closure-kmeans"].startswith("| closure-kmeans | 4 | 20 |")  # of the first session only


def test_an_experiment_from_end_to_end(tmp_path, monkeypatch):
    """Methods with a curve, without one, left out, and one whose time is estimated."""
    methods = ("ours", "faiss", "faiss-subsample", "faiss-default", "sklearn-minibatch")
    experiment = Experiment("small", "sift", 2000, 20, methods, iterations={"faiss-subsample": 5})
    jobs = [experiment.job(method, 0, 2, None, None) for method in methods]
    path = tmp_path / "small.jsonl"
    rows = run_missing(path, jobs, identity, perform, fresh=False)
    assert [row.get("left_out") for row in rows] == [None, None, None, "it samples nothing at this n/k", None]
    table = write_report(path)
    assert path.with_suffix(".md").read_text() == table
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    for method in methods:
        assert METHODS[method].title in table
    assert "time estimated from 5 of 25 iterations" in table
    first = path.read_bytes()
    run_missing(path, jobs, identity, perform, fresh=False)
    assert path.read_bytes() == first
    monkeypatch.setitem(GROUPS, "few", ["small", "missing"])
    header, _, *lines = [line for line in write_summary("few", tmp_path).splitlines() if line.startswith("|")]
    assert "into 20 clusters" in header
    assert len(lines) == 4  # more methods than experiments: they are the rows
    ours, exact, estimated = (next(line for line in lines if METHODS[name].title in line) for name in methods[:3])
    assert " %" in ours
    assert exact.count(" s ") == 1
    assert " %" not in exact
    assert "≈" in estimated
