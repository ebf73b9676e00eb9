"""The files that a default fit passes: those of the package in which a function is called, and their lines.

    python -m benchmarks.path [--rows 4000] [--clusters 200]

The JIT is off, so that kernels are counted, too. Whole files are counted, those of the second fit of a process: the
first also passes what compiles and loads kernels.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ITERATIONS = 4


def count_calls(n_rows: int, n_clusters: int) -> Counter[str]:
    """Calls of Python functions in each file of the package, in a default fit of SIFT descriptors."""
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # before Numba is imported
    import closure_kmeans
    from closure_kmeans import ClosureKMeans
    from closure_kmeans.datasets import load_sift

    package = Path(closure_kmeans.__file__).parent
    X = load_sift()[:n_rows]
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_filename] += 1

    for _ in range(2):
        calls.clear()
        threading.setprofile(count)
        sys.setprofile(count)
        ClosureKMeans(n_clusters, random_state=0, max_iter=ITERATIONS).fit(X)
        sys.setprofile(None)
        threading.setprofile(None)
    return Counter({name: n for name, n in sorted(calls.items()) if Path(name).is_relative_to(package)})


def main(argv: list[str] | None = None) -> None:
    """Print the files, their lines and calls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--clusters", type=int, default=200)
    arguments = parser.parse_args(argv)
    calls = count_calls(arguments.rows, arguments.clusters)
    lines = {name: len(Path(name).read_text().splitlines()) for name in calls}
    print(f"{len(lines)} files, {sum(lines.values()):,} lines")
    for name, n_calls in calls.items():
        print(f"{name.rpartition('closure_kmeans/')[2]:20} {lines[name]:5} lines {n_calls:10,} calls")


if __name__ == "__main__":
    main()
