"""One fit of one method, in a process of its own: its memory is its own, and no method disturbs another.

``run_job`` starts the process and returns the row of the result. In the process: load, convert, warm up, touch the
memory to come, fit on the clock, read the memory, and only then score.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import ROOT, data
from benchmarks.machine import PeakMemory, describe_machine, describe_versions, thread_environment, touch_memory
from benchmarks.results import Row
from benchmarks.rivals.methods import METHODS, Method, Metric, Outcome, Shape, Task
from benchmarks.score import labelled_distances, rows_to_score, score_centers, unit
from closure_kmeans.metrics import normalized_mutual_information

WARM_UP_ROWS = 5000
LLOYD_ITERATIONS = 25


@dataclasses.dataclass(frozen=True)
class Job:
    method: str
    data: str
    n_rows: int
    n_clusters: int
    threads: int
    source: str | None = dataclasses.field(default=None, metadata={"private": True})
    repeat: int = 0
    seed: int = 1
    iterations: int = LLOYD_ITERATIONS  # of Lloyd, for methods that do not stop by themselves
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    label: str = ""  # tells jobs of one method apart
    score_rows: int | None = None  # None: all, or as many as can be scored in reasonable time
    memory_mapped: bool = False
    metric: Metric = "euclidean"  # cosine: rows of length 1, judged by the directions of the centres
    nmi: bool = False  # compare the clusters with the classes of the pictures that the rows were made of
    timeout: float | None = dataclasses.field(default=None, metadata={"private": True})

    def as_row(self) -> Row:
        """The job's part of a result. Where the data lies is nobody's business."""
        private = {field.name for field in dataclasses.fields(self) if field.metadata.get("private")}
        row = {name: value for name, value in dataclasses.asdict(self).items() if name not in private}
        metric = ", by cosine" if self.metric == "cosine" else ""
        return row | {"data_title": data.describe(self.data, self.n_rows, self.source) + metric}


def identity(row: Row) -> list[Any]:
    """Runs that differ in this are different runs."""
    names = ("method", "label", "data_title", "n_clusters", "threads", "repeat", "seed", "iterations", "parameters")
    return [row[name] for name in names]


def run_job(job: Job) -> Row:
    """Run in a fresh process. A failure is a result too."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.json"
        command = [sys.executable, "-m", "benchmarks.job", json.dumps(dataclasses.asdict(job)), str(path)]
        try:
            process = subprocess.run(
                command,
                cwd=ROOT,
                env=thread_environment(job.threads),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=job.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return about(job) | {"failed": f"not done after {job.timeout:g} s"}
        if path.exists():
            return json.loads(path.read_text())
        last_line = (process.stderr.strip().splitlines() or [f"ended with {process.returncode}"])[-1]
        return about(job) | {"failed": last_line}


def about(job: Job) -> Row:
    return job.as_row() | {
        "machine": describe_machine(),
        "versions": describe_versions(),
        "measured": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
    }


def perform(job: Job) -> Row:
    """All that happens in the process."""
    method = METHODS[job.method]
    X = data.load(job.data, job.n_rows, job.source, memory_mapped=job.memory_mapped)
    shape = Shape(len(X), X.shape[1], job.n_clusters, str(X.dtype))
    reason = method.not_for(shape)
    if reason is not None:
        return about(job) | {"left_out": reason}
    rows = X if method.own_dtype else np.ascontiguousarray(X, np.float32)
    if job.metric == "cosine":
        rows = unit(rows)
    if not job.memory_mapped or job.metric == "cosine":
        X = rows  # the same values, so one array serves to fit and to score
    warm_up_seconds = warm_up(method, rows, job)
    gc.collect()
    if not job.memory_mapped:  # it would take the place of what is mapped
        touch_memory(4 * np.dtype(np.float32).itemsize * rows.size)
    with PeakMemory() as memory:
        outcome = method.run(as_task(job, rows))
    return about(job) | {
        "shape": list(shape[:3]),
        "dtype": str(rows.dtype),
        "warm_up_seconds": warm_up_seconds,
        "seconds": outcome.seconds,
        "estimated_seconds": estimated_seconds(method, outcome, job.iterations),
        "memory_peak": memory.peak,
        "memory_beyond_input": memory.peak - memory.before,
        **judge(X, outcome, job),
        **outcome.notes,
        **({"nmi_curve": nmi_curve(method, as_task(job, rows), outcome, job)} if job.nmi else {}),
    }


def as_task(job: Job, rows: NDArray[Any]) -> Task:
    return Task(rows, job.n_clusters, job.threads, job.seed, job.iterations, job.parameters, job.metric)


def warm_up(method: Method, rows: NDArray[Any], job: Job) -> float:
    """Two small fits, of few clusters and of many, since a method may take another way for each.

    They load or compile what a method compiles, and start its threads. Their seconds.
    """
    few = np.ascontiguousarray(rows[:WARM_UP_ROWS])
    began = time.perf_counter()
    for n_clusters in (len(few) // 50, len(few) // 4):
        small = dataclasses.replace(job, n_clusters=max(1, min(job.n_clusters, n_clusters)), iterations=2)
        method.run(as_task(small, few))
    return time.perf_counter() - began


def estimated_seconds(method: Method, outcome: Outcome, iterations: int) -> float | None:
    """The seconds of all iterations, where only some were run. What happens once is counted once."""
    if not method.iterates or iterations >= LLOYD_ITERATIONS:
        return None
    repeated = outcome.seconds if outcome.repeated is None else outcome.repeated
    return outcome.seconds + repeated * (LLOYD_ITERATIONS / iterations - 1)


def judge(X: NDArray[Any], outcome: Outcome, job: Job) -> Row:
    """Distortions by the harness, all on the same rows, and the curve that ends with them."""
    if job.metric == "cosine":
        snapshots = [(seconds, unit(centers)) for seconds, centers in outcome.snapshots]
        outcome = dataclasses.replace(outcome, centers=unit(outcome.centers), snapshots=snapshots)
    rows = rows_to_score(len(X), job.n_clusters, job.score_rows)
    score = score_centers(X, outcome.centers, rows, job.threads)
    curve = outcome.curve
    labels_distortion = None
    if outcome.labels is not None:
        distances = labelled_distances(X, outcome.centers, outcome.labels)
        labels_distortion = float(distances.mean())
        if rows is not None:  # the method counted all rows: make its curve one of the scored rows
            curve = [(seconds, value * distances[rows].mean() / labels_distortion) for seconds, value in curve]
            labels_distortion = float(distances[rows].mean())
    curve = curve + [
        (seconds, score_centers(X, centers, rows, job.threads).distortion) for seconds, centers in outcome.snapshots
    ]
    return {
        "distortion": score.distortion,
        "labels_distortion": labels_distortion,
        "scored_rows": score.n_rows,
        "score_error": score.error,
        "clusters_used": score.n_used,
        "centers_not_finite": score.n_not_finite,
        "curve": [*curve, (outcome.seconds, score.distortion)],
    }


def nmi_curve(method: Method, task: Task, outcome: Outcome, job: Job) -> list[tuple[float, float]]:
    """Seconds and normalised mutual information with the classes, after some iterations and at the end.

    The same seed takes the same way, so the labels after so many iterations are those of a fit that ends there: such
    fits are run off the clock. A method without a curve has a last point only.
    """
    classes = data.load_pictures(job.data, job.n_rows, job.source).labels
    curve = []
    if outcome.curve:
        seconds = [step["seconds"] for step in outcome.notes["history"]]
        for number in (2**power for power in range(len(seconds).bit_length()) if 2**power < len(seconds)):
            stop = {"callback": lambda step, number=number: step.iteration >= number, "max_time": None}
            part = method.run(dataclasses.replace(task, parameters=task.parameters | stop))
            curve.append((seconds[number - 1], normalized_mutual_information(classes, part.labels)))
    return [*curve, (outcome.seconds, normalized_mutual_information(classes, outcome.labels))]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(perform(Job(**json.loads(sys.argv[1]))), default=float))
