"""What the first use costs: compiling after an installation, loading the compiled code in every later process.

python -m benchmarks.startup
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from time import perf_counter

from benchmarks import ROOT
from benchmarks.machine import thread_environment
from benchmarks.results import markdown_table

N_ROWS, N_CLUSTERS = 5000, 500


def measure() -> dict[str, float]:
    """Seconds of the import, of the first fit and prediction, and of the second."""
    began = perf_counter()
    from closure_kmeans import ClosureKMeans
    from closure_kmeans.datasets import load_sift

    rows = load_sift()[:N_ROWS]
    seconds = {"import": perf_counter() - began}
    for name in ("first", "second"):
        began = perf_counter()
        model = ClosureKMeans(N_CLUSTERS, random_state=0, n_threads=2).fit(rows)
        seconds[f"{name} fit"] = perf_counter() - began
        began = perf_counter()
        model.predict(rows)
        seconds[f"{name} predict"] = perf_counter() - began
    return seconds


def measure_in_process(cache: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.startup", "--measure"]
    environment = thread_environment(2) | {"NUMBA_CACHE_DIR": cache}
    return json.loads(subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True).stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        cases = {"after an installation": measure_in_process(cache), "in a later process": measure_in_process(cache)}
    names = list(next(iter(cases.values())))
    lines = [[case, *(f"{seconds[name]:.2f}" for name in names)] for case, seconds in cases.items()]
    print(f"Seconds, {N_ROWS:,} SIFT descriptors into {N_CLUSTERS} clusters\n")
    print(markdown_table(("", *names), lines))


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print(json.dumps(measure()))
    else:
        main()
