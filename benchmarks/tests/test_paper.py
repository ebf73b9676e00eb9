"""The experiments of benchmarks/paper: each runs from end to end, at a tiny size, on stand-ins for the real data."""

import json

import numpy as np
import pytest

from benchmarks import ROOT, data, images
from benchmarks.job import Job, perform
from benchmarks.paper import measure
from benchmarks.paper.__main__ import main, run_experiment
from benchmarks.paper.measure import MEASUREMENTS
from benchmarks.paper.plan import NAMES, PROFILES, Measurement, Panel, read_experiment
from benchmarks.paper.report import write_report
from benchmarks.rivals.experiments import CHOICE_METHODS
from benchmarks.rivals.methods import tree_shape
from closure_kmeans import ClosureKMeans
from closure_kmeans.baselines import LloydKMeans
from closure_kmeans.metrics import normalized_mutual_information

PARAMETERS = ROOT / "benchmarks" / "paper" / "parameters"


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    """Stand-ins are made here, not in the cache of the benchmarks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "CACHE", tmp_path_factory.mktemp("cache"))
        yield


def run_tiny(name, folder):
    """The rows of an experiment, run in this process, and the file that holds them."""
    experiment = read_experiment(name, "tiny", None)
    path = folder / f"{experiment.file_name}.jsonl"
    return experiment, run_experiment(experiment, path, experiment.jobs(2), perform), path


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_runs(name, tmp_path):
    experiment, rows, path = run_tiny(name, tmp_path)
    assert len(rows) == len(experiment.panels) * len(experiment.curves)
    assert not any("failed" in row for row in rows)
    table = write_report(experiment, rows, path)
    assert path.with_suffix(".md").read_text() == table
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    for curve in experiment.curves:
        assert f"| {curve.label} |" in table
    assert path.stem == f"{name}-stand-in"
    assert "stand-in: drawn, not real" in table or "from the 20,000 rows that the package carries" in table


def test_finished_runs_are_not_redone(tmp_path, monkeypatch):
    experiment, rows, path = run_tiny("coverage", tmp_path)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))  # interrupted before the last
    again = []
    once = MEASUREMENTS["coverage"]
    monkeypatch.setitem(MEASUREMENTS, "coverage", lambda job: again.append(job.label) or once(job))
    resumed = run_experiment(experiment, path, experiment.jobs(2))
    assert again == [experiment.curves[-1].label]
    assert [row["curve"] for row in resumed] == [row["curve"] for row in rows]


def test_every_file_of_parameters_is_an_experiment():
    assert {path.stem for path in PARAMETERS.glob("*.toml")} == set(NAMES)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", NAMES)
def test_every_curve_shows_the_default_and_the_mode_of_the_paper(name, profile):
    experiment = read_experiment(name, profile, None)
    assert {"ours", "ours-paper"} <= {curve.method for curve in experiment.curves}
    assert len({curve.label for curve in experiment.curves}) == len(experiment.curves)
    assert all(panel.n_clusters < panel.n_rows for panel in experiment.panels)


def test_a_default_is_compared_with_as_many_threads(tmp_path):
    experiment, rows, path = run_tiny("threads", tmp_path)
    lines = [line.split(" | ") for line in write_report(experiment, rows, path).splitlines() if "thread" in line]
    against = {cells[0].removeprefix("| "): cells[5] for cells in lines if len(cells) == 8}
    assert against.pop("default, 1 thread") == against.pop("default, 2 threads") == "–"
    assert len(against) == 2
    assert all(cell[0] in "+−" for cell in against.values())


def test_distance_ratios(tmp_path):
    _, rows, _ = run_tiny("distance-ratio", tmp_path)
    exact = rows[0]
    assert exact["method"] == "baseline-lloyd"
    assert sum(exact["shares"]) == pytest.approx(1)
    before_zero = np.array(exact["edges"][:-1]) < -1e-9
    assert np.array(exact["shares"])[before_zero].sum() == 0  # an exact step takes no point to a farther centre


def test_distance_ratios_are_those_of_the_iteration_that_follows():
    settings = {"iterations": [1, 3]}
    row = MEASUREMENTS["distance-ratio"](Measurement("baseline-lloyd", "sift", 2000, 20, 2, settings=settings))
    history = LloydKMeans(20, random_state=1, tol=0, max_iter=4).fit(data.load("sift", 2000, None)).history_
    assert row["n_active"] == [history[1].n_active, history[3].n_active]


def test_clusters_are_shown_as_they_are():
    settings = {"n_clusters": 4, "n_pictures": 6}
    row = MEASUREMENTS["clusters"](Measurement("ours", "fashion", 600, 20, 2, settings=settings))
    classes = data.load_pictures("fashion", 600, None).labels
    labels = ClosureKMeans(20, random_state=1).fit(data.load("fashion", 600, None)).labels_
    assert len(row["shown"]) == 4
    for shown in row["shown"]:
        (cluster,) = set(labels[shown["pictures"]])
        members = classes[labels == cluster]
        assert len(set(shown["pictures"])) == 6
        assert shown["size"] == len(members)
        assert shown["purity"] == max(np.mean(members == kind) for kind in members)


def test_fewer_rows_than_planned_keep_the_rows_of_a_cluster():
    assert Panel("sift", 200_000, 2000).on_available_rows(None) == Panel("sift", 20_000, 200)
    assert Panel("sift", 600, 20).on_available_rows(None) == Panel("sift", 600, 20)


def test_larger_neighborhoods_cover_more(tmp_path):
    _, rows, _ = run_tiny("coverage", tmp_path)
    for row in rows:
        sizes, shares, *_ = zip(*row["curve"], strict=True)
        assert sorted(sizes) == list(sizes)
        assert shares[-1] > shares[0]


def test_coverage_counts_the_points_that_leave(tmp_path, monkeypatch):
    """The closures are those of the labels before, in trees of as many dimensions as the curve says."""
    seen = []

    def observe(labels, new_labels, partitions):
        seen.append((labels, new_labels))
        return coverage(labels, new_labels, partitions)

    def grow(coordinates, *arguments):
        widths.add(coordinates.shape[1])
        return grow_leaves(coordinates, *arguments)

    coverage, grow_leaves, widths = measure.metrics.coverage, measure.grow_leaves, set()
    monkeypatch.setattr(measure.metrics, "coverage", observe)
    monkeypatch.setattr(measure, "grow_leaves", grow)
    experiment, *_ = run_tiny("coverage", tmp_path)
    assert widths == {384, 16}
    before, centers = measure.common_start(*measure.start_of(experiment.jobs(2)[0]))
    after, _ = measure.metrics.exact_labels(data.load("gist", 600, None), centers)
    expected = sorted(zip(before, after, strict=True))
    for labels, new_labels in seen:
        assert sorted(zip(labels, new_labels, strict=True)) == expected


def test_all_candidates_are_exact(tmp_path):
    _, rows, _ = run_tiny("candidates", tmp_path)
    for row in rows:
        if row["method"] == "baseline-akm":
            assert [point["candidates"] for point in row["points"]] == [10, 20, 20, 20, 20]
            assert [point["accuracy"] for point in row["points"]][1:] == [1, 1, 1, 1]
            assert row["points"][0]["accuracy"] < 1


def test_nmi_on_the_way_is_that_of_the_fit():
    job = Job("ours-paper", "hog", 600, 20, 2, nmi=True)
    row = perform(job)
    X = data.load("hog", 600, None)
    classes = images.shopping(600, None).labels
    expected = [
        normalized_mutual_information(
            classes, ClosureKMeans.paper(20, max_iter=max_iter, random_state=job.seed).fit(X).labels_
        )
        for max_iter in (1, 2, 4, 100)
    ]
    found = [value for _, value in row["nmi_curve"]]
    assert [*found[:3], found[-1]] == expected
    assert [seconds for seconds, _ in row["nmi_curve"]] == sorted(seconds for seconds, _ in row["nmi_curve"])


@pytest.mark.parametrize(
    ("n_clusters", "shape"), [(20, (5, 2)), (500, (8, 3)), (2000, (45, 2)), (10_000, (10, 4)), (1000, (10, 3))]
)
def test_a_tree_has_hardly_more_clusters_than_asked_for(n_clusters, shape):
    assert tree_shape(n_clusters) == shape


ADAPTERS = {
    "clostera": ("clostera", "clostera-exact"),
    "faiss": ("faiss", "faiss-super", "faiss-subsample", "faiss-projected", "faiss-pq", "faiss-hnsw"),
    "lance": ("lance",),
    "mlpack": ("mlpack-kd",),
    "sklearn": ("sklearn-lloyd", "sklearn-elkan", "sklearn-minibatch", "sklearn-minibatch-default"),
    "sklearnex": ("sklearnex-lloyd",),
    "superkmeans": ("superkmeans", "superkmeans-default", "superkmeans-refine-1", "superkmeans-flat"),
}


def test_every_choice_has_an_adapter_that_is_tested():
    assert {"ours", *(method for methods in ADAPTERS.values() for method in methods)} >= set(CHOICE_METHODS)


@pytest.mark.parametrize(("library", "method"), [(library, name) for library in ADAPTERS for name in ADAPTERS[library]])
def test_adapters_cluster(library, method):
    """Roughly as well as exact Lloyd of as many iterations."""
    pytest.importorskip(library)
    exact, row = (perform(Job(name, "sift", 2000, 20, 2, iterations=4)) for name in ("faiss", method))
    assert row["shape"] == [2000, 128, 20]
    assert exact["distortion"] * 0.95 < row["distortion"] < exact["distortion"] * 1.15


def test_parts_of_libraries_do_the_work_of_ours():
    """Exact k-means from one start ends alike; trees and forests are about as good."""
    pytest.importorskip("faiss")
    from benchmarks import parts

    rows = data.load("sift", 3000, None)
    X = rows.astype(np.float32)
    forest, _ = parts.make_forest_parts(rows, 300)
    for part, tolerance in ((parts.exact_part(X, 30), 1e-4), (parts.hierarchical_part(X, 3), 0.05), (forest, 0.2)):
        ours, *others = (part.judge(run(2)) for run in part.methods.values())
        assert others == pytest.approx([ours] * len(others), rel=tolerance)


def test_without_npm_drawn_clothes_stand_in(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "CACHE", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert data.describe("fashion", 70, str(tmp_path)).endswith("stand-in: drawn, not real")
    assert data.load_pictures("fashion", 70, str(tmp_path)).classes[0] == "drawing 0"


def test_unknown_experiments_are_named(capsys):
    with pytest.raises(SystemExit):
        main(["coverage", "covrage"])
    assert "got covrage" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command(tmp_path, monkeypatch):
    """In processes of their own, as a user runs them."""
    monkeypatch.delenv("CLOSURE_KMEANS_DATA", raising=False)
    arguments = ["threads", "--profile", "tiny", "--output", str(tmp_path)]
    main(arguments)
    path = tmp_path / "tiny" / "threads-stand-in.jsonl"
    first = path.read_bytes()
    assert len(first.splitlines()) == 4
    main(arguments)
    assert path.read_bytes() == first
