"""The files that a default fit passes."""

import re
import subprocess
import sys
from pathlib import Path


def test_a_default_fit_passes_the_algorithm_and_its_kernels():
    command = [sys.executable, "-m", "benchmarks.path", "--rows", "600", "--clusters", "150"]
    root = Path(__file__).parents[2]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout
    assert re.match(r"\d+ files, [\d,]+ lines\n", printed)
    names = [line.split()[0] for line in printed.splitlines()[1:]]
    assert {"estimator.py", "closure.py", "stores/memory.py", "kernels/tiles.py"} <= set(names)
    assert "cache.py" not in names
