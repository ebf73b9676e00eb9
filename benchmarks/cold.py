"""What compiling costs: the first use of each kind in a fresh process with an empty cache, and the kernels behind it.

    python -m benchmarks.cold [--rounds N] [--quick] [--out FOLDER]

Each case runs in a process of its own: what a case builds on is used first, and then the case itself twice. The first
time less the second is what is compiled for it. A second process shows what loading the cache costs. Another table
shows what starting costs: the help of the command, and the import of the estimator beside scikit-learn's base.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.machine import describe_machine, describe_versions, thread_environment
from benchmarks.results import FOLDER, markdown_table

N_ROWS, N_FEATURES, N_CLUSTERS = 5000, 128, 500
STARTS = {
    "`closure-kmeans --help`": ("-m", "closure_kmeans", "--help"),
    "`import sklearn.base`": ("-c", "import sklearn.base"),
    "`from closure_kmeans import ClosureKMeans`": ("-c", "from closure_kmeans import ClosureKMeans"),
}
STARTS_EACH = 5  # a round
# What a case builds on, and the number type of its rows.
CASES = {
    "fit, uint8": ("", "uint8"),
    "fit, float32": ("", "float32"),
    "fit, float64": ("", "float64"),
    "fit with weights": ("fit", "uint8"),
    "fit with memory_limit": ("fit", "uint8"),
    "search among cells": ("fit", "uint8"),
    "several nearest": ("fit", "uint8"),
    "ClosureKMeans.paper": ("fit", "uint8"),
    "LloydKMeans": ("fit", "uint8"),
    "ApproximateKMeans": ("fit", "uint8"),
    "CanopyKMeans": ("fit", "uint8"),
    "HierarchicalKMeans": ("fit", "uint8"),
}


def uses(X: np.ndarray[Any, Any]) -> dict[str, Callable[[], object]]:
    """What each case does, without the number type."""
    from closure_kmeans import CenterIndex, ClosureKMeans, baselines

    def search() -> object:
        from closure_kmeans.search import compile_cells

        return compile_cells(X, X[:N_CLUSTERS].astype(np.float32))

    def fit(kind: Any, **parameters: Any) -> Callable[[], object]:
        return lambda: kind(N_CLUSTERS, max_iter=3, random_state=0, n_threads=2, **parameters).fit(X)

    made = {name: fit(getattr(baselines, name)) for name in CASES if hasattr(baselines, name)}
    return made | {
        "fit": fit(ClosureKMeans),
        "fit with weights": lambda: ClosureKMeans(N_CLUSTERS, max_iter=3, n_threads=2).fit(
            X, sample_weight=np.arange(1, len(X) + 1)
        ),
        "fit with memory_limit": fit(ClosureKMeans, memory_limit="16MB"),
        "search among cells": search,
        "several nearest": lambda: CenterIndex(X[:N_CLUSTERS].astype(np.float32)).search(X, n_nearest=3),
        "ClosureKMeans.paper": fit(ClosureKMeans.paper),
    }


def measure(case: str) -> dict[str, Any]:
    """Seconds and processor seconds of the import, of the first use and of the second; and of each kernel compiled."""
    base, dtype = CASES[case]
    X = np.random.default_rng(0).integers(0, 256, (N_ROWS, N_FEATURES)).astype(dtype)
    X = X if dtype == "uint8" else X / np.asarray(3, dtype)  # whole numbers would be held as bytes
    began = perf_counter()
    from closure_kmeans import ClosureKMeans  # noqa: F401

    seconds = {"import": perf_counter() - began}
    made = uses(X)
    if base:
        made[base]()
    kernels = KernelTimes()
    for name in ("first", "second"):
        began, busy = perf_counter(), process_time()
        made[case.split(",")[0]]()
        seconds |= {name: perf_counter() - began, f"{name}, processor": process_time() - busy}
    return {"case": case, "seconds": seconds, "kernels": kernels.own}


class KernelTimes:
    """Listener to Numba: processor seconds of each function, without those that it calls."""

    def __init__(self) -> None:
        from numba.core import event

        self.own: Counter[str] = Counter()
        self._open: list[float] = []
        event.Listener.register(KernelTimes)
        event.register("numba:compile", self)

    def notify(self, occasion: Any) -> None:
        if occasion.is_start:
            self._open.append(process_time())
            return
        taken = process_time() - self._open.pop()
        self.own[occasion.data["dispatcher"].py_func.__name__] += taken
        self._open = [began + taken for began in self._open]


def measure_in_process(case: str, cache: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.cold", "--measure", case]
    environment = thread_environment(2) | {"NUMBA_CACHE_DIR": cache}
    return json.loads(subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True).stdout)


def measure_start(arguments: tuple[str, ...]) -> float:
    """Processor seconds of a whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def report(found: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]], starts: dict[str, list[float]]) -> str:
    """Tables of the cases, of the starts and of the kernels."""
    lines = []
    for case, rounds in found.items():
        times = [empty["seconds"] for empty, _ in rounds]
        middle = {name: median(seconds[name] for seconds in times) for name in times[0]}
        more = [seconds["first"] - seconds["second"] for seconds in times]
        loaded = median(warm["seconds"]["first"] - warm["seconds"]["second"] for _, warm in rounds)
        busy = middle["first, processor"] - middle["second, processor"]
        lines.append(
            (
                case,
                *(f"{seconds:.2f}" for seconds in (middle["first"], middle["second"], median(more))),
                f"{min(more):.2f}–{max(more):.2f}",
                *(f"{seconds:.2f}" for seconds in (busy, loaded)),
            )
        )
    names = ("use", "first, s", "second, s", "compiling, s", "range, s", "compiling, processor s", "loading, s")
    kernels: Counter[str] = Counter()
    for rounds in found.values():
        for name, seconds in rounds[0][0]["kernels"].items():
            kernels[name] = max(kernels[name], seconds)
    slowest = [(f"`{name}`", f"{seconds:.2f}") for name, seconds in kernels.most_common(20)]
    return "\n".join(
        (
            "# The first use of a process",
            "",
            f"{N_ROWS:,} rows of {N_FEATURES} dimensions, {N_CLUSTERS} clusters, two threads, medians of "
            f"{len(next(iter(found.values())))} processes with an empty cache. Compiling is the first use less the "
            "second; loading is the same with a full cache.",
            "",
            markdown_table(names, lines),
            "",
            f"A whole process, median and range of {len(next(iter(starts.values())))}:",
            "",
            markdown_table(
                ("start", "processor s", "range, s"),
                [
                    (name, f"{median(times):.2f}", f"{min(times):.2f}–{max(times):.2f}")
                    for name, times in starts.items()
                ],
            ),
            "",
            "Functions that take the longest to compile, without those that they call, for one type of rows:",
            "",
            markdown_table(("function", "processor s"), slowest),
            "",
            ", ".join(f"{name}: {value}" for name, value in (describe_machine() | describe_versions()).items()),
            "",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the first case only, once")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--measure", metavar="CASE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    cases, rounds = (list(CASES)[:1], 1) if arguments.quick else (list(CASES), arguments.rounds)
    found: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {case: [] for case in cases}
    starts: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(rounds):
        for _ in range(STARTS_EACH):
            for name, command in STARTS.items():
                starts[name].append(measure_start(command))
        for case in cases:
            with tempfile.TemporaryDirectory() as cache:
                found[case].append((measure_in_process(case, cache), measure_in_process(case, cache)))
    text = report(found, starts)
    print(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "cold.md").write_text(text)


if __name__ == "__main__":
    main()
