"""The cost model of fits on a cluster, its simulator and its report."""

import dataclasses
import re
import sys
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("distributed")

from benchmarks import ROOT
from benchmarks.results import append_row, read_rows
from benchmarks.scale import __main__ as commands
from benchmarks.scale import report, runs
from benchmarks.scale.model import Constants, Machine, iteration
from benchmarks.scale.simulate import Machines, Troubles, run_tasks, simulate
from closure_kmeans.datasets import load_sift
from closure_kmeans.distributed import DistributedClosureKMeans
from closure_kmeans.distributed.passes import Sums, sums_bytes
from closure_kmeans.stores.totals import Totals

CONSTANTS = Constants(
    assign=1e-6,
    slowest=1.2,
    add=1e-9,
    near=1e-9,
    group=1e-9,
    finish=1e-9,
    task=1e-3,
    move=1e-9,
    start=1e-3,
    write=1e-2,
    remove=1e-4,
    candidates=80,
    replicas=4.0,
    merged=2.0,
    entered=4.0,
)


def test_the_model_counts_the_bytes_of_sums():
    sums = Sums(np.zeros(7, np.int32), Totals(np.zeros((7, 30)), np.zeros(7), np.zeros(7)), np.zeros(0), 0, 0)
    assert sums_bytes(7, 30) == sums.ids.nbytes + sum(total.nbytes for total in sums.totals)


def test_twice_the_machines_halve_what_they_share():
    few, many = (iteration(1e9, 128, 1e6, n, CONSTANTS, Machine(holds_rows=False)) for n in (10, 20))
    assert many.assign == pytest.approx(few.assign / 2)
    assert many.rows == pytest.approx(few.rows / 2)
    assert many.labels == pytest.approx(few.labels / 2)
    assert many.centers == few.centers
    assert few.bottleneck == "reading the rows from the storage"


def test_a_simulation_without_troubles_is_the_model():
    assert simulate(4, 2, 8, 3.0, 1.0, Troubles()).seconds == pytest.approx(4)
    assert simulate(4, 2, 9, 3.0, 1.0, Troubles()).seconds == pytest.approx(7)  # one task more, one round more


def test_stragglers_and_failures():
    slow = simulate(4, 1, 4, 3.0, 1.0, Troubles(slow_share=1, slowness=2))
    assert slow.seconds == pytest.approx(7)
    failing = simulate(4, 1, 40, 10.0, 0.0, Troubles(hours_between_failures=0.05, restart=20))
    assert failing.n_failures > 0
    assert failing.n_repeated >= failing.n_failures
    assert failing.seconds > 100  # ten rounds


def run_with_failures(*changes, n_tasks=4):
    """Two machines of one slot, tasks of ten seconds; the machines fail or come back at given times."""
    machines = Machines(2, Troubles(restart=1000), np.random.default_rng(0))
    machines._changes = list(changes)
    return run_tasks(machines, 1, n_tasks, [10.0, 10.0], 0.0)


def test_what_a_failure_loses():
    assert run_with_failures() == (20, 0)
    assert run_with_failures((25.0, 0)) == (20, 0)  # after the end
    assert run_with_failures((5.0, 0)) == (40, 1)  # the task under way: the other machine does all four
    assert run_with_failures((15.0, 0)) == (40, 2)  # and the result of the one before
    assert run_with_failures((5.0, 0), n_tasks=1) == (15, 1)  # again from when the failure is seen
    assert run_with_failures((5.0, 0), (7.0, 1), n_tasks=1) == (1015, 2)  # none is up until one is back


def test_troubles_add_up():
    slow, failing = {"slow_share": 0.05}, {"hours_between_failures": 24}
    alone = [simulate(10, 16, 160, 5.0, 8.0, Troubles(**trouble)).seconds for trouble in ({}, slow, failing)]
    both = simulate(10, 16, 160, 5.0, 8.0, Troubles(**slow, **failing)).seconds
    assert both >= max(alone)
    assert min(alone) == alone[0]


def test_the_slowest_partition_counts_where_there_are_several():
    one, two = (iteration(1e6, 128, 1e4, 1, CONSTANTS, Machine(cores=2), n_partitions=n) for n in (1, 2))
    assert one.assign == pytest.approx(CONSTANTS.assign * 1e6)
    assert two.assign == pytest.approx(CONSTANTS.slowest * CONSTANTS.assign * 1e6 / 2)


def test_the_model_knows_the_memory_of_a_task(tmp_path):
    """What a task allocates, traced, is about what the model says."""
    np.save(tmp_path / "rows.npy", load_sift()[:8000])
    model = DistributedClosureKMeans(200, n_partitions=4, random_state=0, max_iter=2, storage=tmp_path)
    with runs.tasks_here() as cluster:
        model.fit(tmp_path / "rows.npy")
        cluster.costs.clear()
        runs.tracemalloc.start()
        model.set_params(max_iter=3).fit(tmp_path / "rows.npy", resume=True)
        runs.tracemalloc.stop()
    memory = cluster.costs_of("assign_partition", 4)["memory"]
    assert memory.shape[1] == 4
    replicas, _ = runs.count_sums(runs.fit_folder(tmp_path), 4, 200, 128)
    entered = runs.count_entered(tmp_path) / 200
    constants = dataclasses.replace(CONSTANTS, replicas=replicas, entered=entered)
    expected = iteration(8000, 128, 200, 1, constants, Machine(), n_partitions=4).task_memory
    assert 0.5 < memory.max() / expected < 2


# -- the report --------------------------------------------------------------------------------------------------------


@pytest.fixture(name="results")
def made_up_results(tmp_path):
    """Results of all commands, as if they had been measured."""
    constants = dataclasses.asdict(CONSTANTS)
    spread = {"replicas": 4.0, "merged": 2.0, "entered": 4.0}
    fit = {"iterations": 9, "distortion": 5.0, "exact_distortion": 5.0, "accuracy": 0.97, "digest": "abc", "workers": 2}
    moved = {"wire_bytes_in_the_end": 4e7, "centers_bytes": 5e6, "iteration_seconds": 0.6}
    sizes = {"n_rows": 1_000_000, "n_clusters": 10_000}
    rows = {
        "quality": [{"partitions": 0, **sizes, **fit}]
        + [{"partitions": n, **sizes, **fit, **moved, **spread} for n in (2, 16)],
        "replicas": [
            {"partitions": 64, **fit, "n_rows": 1_000_000, "n_clusters": 40_000, **spread},
            {"partitions": 160, **fit, **sizes, **spread, "replicas": 9.0},
        ],
        "entered": [{"partitions": 16, **sizes, "n_cells": n, "distortion": 5.0} for n in (0, 64)],
        "costs": [
            {"what": "driver", **constants},
            {"what": "cluster", **constants, "storage": 1e9},
            *(
                {"what": "tasks", "partitions": n, **sizes, **costs}
                for n in (2, 16)
                for costs in [{"assign": 1e-6, "assign_slowest": 1.2e-6, "candidates": 80, "task_memory": 3e7}]
            ),
        ],
        "rival": [{"method": "ours", **sizes, **fit, "seconds": 7.0}],
        "kills": [{"killed": "worker", "n_kills": 20, "n_same": 19}],
    }
    rows["costs"].append(rows["costs"][-1] | {"n_clusters": 1_000, "assign": 2e-6, "assign_slowest": 2e-6})
    machine = {"machine": {"cpu": "made up", "cores": 2, "memory_gb": 8}}
    for command, found in rows.items():
        for row in found:
            append_row(tmp_path / f"{command}.jsonl", row | machine)
    return tmp_path


def section(text, title):
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_report(results, monkeypatch):
    monkeypatch.setattr(report, "REPLAYED_TASKS", 16_000)
    text = report.write(results, commands.COMMANDS, "")
    assert (results / "README.md").read_text() == text
    assert "| worker | 20 | 19 |" in section(text, "Kills at random moments")
    # A point takes 2 microseconds where a cluster has 1,000 of them: 6.25 million points a core of ten machines.
    answer = section(text, "A billion rows into a million clusters")
    assert "| assign | 12.50 | 1.25 | 0.12 |" in answer
    assert "| longest part | the workers' cores | the driver, receiving the sums | the scheduler |" in answer
    assert "| undisturbed |" in section(text, "Stragglers and failures")
    (results / "kills.jsonl").unlink()
    with pytest.raises(SystemExit, match="must have results of all commands, but has none of kills"):
        report.write(results, commands.COMMANDS, "")


def test_the_model_takes_what_was_measured_at_the_nearest_size(results):
    rows = {name: read_rows(results / f"{name}.jsonl") for name in commands.COMMANDS}
    hundred, thousand = (report.constants_of(rows, 10**9, 10**6, 16 * n) for n in (100, 1000))
    assert (hundred.replicas, thousand.replicas) == (4, 9)
    assert hundred.assign == 2e-6
    assert report.constants_of(rows, 10**6, 10**4, 16).assign == 1e-6


def test_the_page_shows_the_report():
    """Each table from its title to the next one."""
    page = (ROOT / "docs" / "scale.md").read_text("utf-8")
    shown = re.findall(r':start-after: "## (.*)"\n:end-before: "## (.*)"', page)
    assert sorted(shown) == sorted(pairwise([*report.SECTIONS, "Machine"]))


def test_finished_runs_are_not_repeated(tmp_path, monkeypatch):
    done = []

    def jobs(arguments, share):
        return [({"n": n}, lambda n=n: done.append(n) or {"seconds": 1.0}) for n in (1, 2)]

    monkeypatch.setitem(commands.COMMANDS, "costs", jobs)
    for options, expected in (([], [1, 2]), ([], []), (["--fresh"], [1, 2])):
        done.clear()
        monkeypatch.setattr(sys, "argv", ["scale", "costs", "--output", str(tmp_path), *options])
        commands.main()
        assert done == expected
    assert [row["n"] for row in read_rows(tmp_path / "costs.jsonl")] == [1, 2]


def test_too_few_rows_are_not_taken_for_more(tmp_path, monkeypatch):
    monkeypatch.setattr(runs.data, "CACHE", tmp_path)
    with pytest.raises(SystemExit, match="--data must have 30,000 rows, got 20,000"):
        runs.source_file(30_000, None)
    assert len(np.load(runs.source_file(300, None))) == 300
