"""What a result was measured on, and how much memory a piece of work took."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import ROOT

PACKAGES = (
    "closure-kmeans",
    "numpy",
    "numba",
    "scikit-learn",
    "faiss-cpu",
    "superkmeans",
    "pylance",
    "clostera",
    "scikit-learn-intelex",
    "mlpack",
)
STATUS = Path("/proc/self/status")


def describe_machine() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def cpu_model() -> str:
    """The processor's name, its family and model added where the name alone says little."""
    fields = {}
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    return f"{fields['model name']} (family {fields.get('cpu family')}, model {fields.get('model')})"


def describe_versions(checkout: Path = ROOT) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    git = ("git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*")
    described = subprocess.run(git, capture_output=True, text=True, check=False)
    if described.returncode == 0:
        versions["commit"] = described.stdout.strip()
    return versions


def thread_environment(threads: int) -> dict[str, str]:
    """The environment of a process whose libraries use so many threads each."""
    names = (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMBA_NUM_THREADS",
        "RAYON_NUM_THREADS",  # clostera, and lance beside its own
        "LANCE_CPU_THREADS",
    )
    return os.environ | dict.fromkeys(names, str(threads))


def touch_memory(n_bytes: int) -> None:
    """Use some memory and give it back, at most a quarter of what is free.

    A virtual machine gets its memory as it is first used, up to a millisecond for a megabyte, which is no method's
    doing. Hardly a method takes more than four times its rows as float32.
    """
    np.ones(min(n_bytes, psutil.virtual_memory().available // 4), np.uint8)


class PeakMemory:
    """The largest resident memory of this process while the block runs, and that at its beginning, in bytes.

    Linux keeps the peak per process and resets it on request. Elsewhere the peak is that since the process began, so
    it may be too large, never too small.
    """

    before: int
    peak: int

    def __enter__(self) -> PeakMemory:
        self.before = psutil.Process().memory_info().rss
        if STATUS.exists():
            Path("/proc/self/clear_refs").write_text("5")
        return self

    def __exit__(self, *error: object) -> None:
        if STATUS.exists():
            lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
            self.peak = int(lines["VmHWM"].split()[0]) * 1024
        elif sys.platform == "win32":
            self.peak = psutil.Process().memory_info().peak_wset
        else:
            import resource

            unit = 1 if sys.platform == "darwin" else 1024
            self.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
