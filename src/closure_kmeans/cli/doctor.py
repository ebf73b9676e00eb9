"""``closure-kmeans doctor`` and ``closure-kmeans warmup``."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import click
import llvmlite.binding as llvm
import numpy as np
from threadpoolctl import threadpool_info

import closure_kmeans
from closure_kmeans.cache import ADVICE, distrust, folders, holds_kernels, obstacle
from closure_kmeans.cli import options
from closure_kmeans.cli.common import report
from closure_kmeans.parallel import count_threads
from closure_kmeans.validation import DTYPES, physical_memory
from closure_kmeans.warmup import compile_kernels

# Extras for developers.
DEVELOPMENT = ("bench", "dev", "docs", "release", "test")
# Instruction sets that the kernels benefit from.
SIMD = ("sse4.2", "avx", "avx2", "fma", "avx512f", "avx512vl", "avx512vnni", "neon", "sve")
DTYPE_NAMES = [np.dtype(dtype).name for dtype in DTYPES]


@click.command(epilog=options.example("closure-kmeans doctor"))
@options.json
def doctor(as_json: bool) -> None:
    """Exits with code 1 if compiled kernels cannot be cached."""
    places = folders()
    writable = [folder for folder in places if obstacle(folder) is None]
    compiled = [folder for folder in places if holds_kernels(folder)]
    outdated = [folder for folder in places if holds_kernels(folder, of_another_version=True)]
    requirements = _requirements()
    features = llvm.get_host_cpu_features()
    report(
        {
            "closure-kmeans": closure_kmeans.__version__,
            "Python": platform.python_version(),
            "system": platform.platform(),
            "libraries": {name: _version(name) for name, extra in requirements if extra is None},
            "optional libraries": {name: _version(name) for name, extra in requirements if extra is not None},
            "processor": llvm.get_host_cpu_name(),
            "SIMD": [name for name in SIMD if features.get(name)],
            "threads": count_threads(None),
            "BLAS": [_blas(library) for library in threadpool_info() if library["user_api"] == "blas"],
            "memory": _gigabytes(physical_memory()),
            "free memory": _gigabytes(_free_memory()),
            "kernel cache": str((writable or compiled or places)[0]),
            "kernel cache writable": bool(writable),
            "kernels compiled": bool(compiled),
            "kernels of another version": bool(outdated),
            "kernels not used": [reason for folder in places for reason in distrust(folder)] or None,
        },
        as_json=as_json,
    )
    if not writable and not compiled:
        _fail_without_cache()


def _fail_without_cache() -> NoReturn:
    reasons = " and ".join(filter(None, map(obstacle, folders())))
    click.echo(
        f"Warning: kernels are compiled again in every process because they cannot be cached: {reasons}", err=True
    )
    click.echo(ADVICE, err=True)
    raise SystemExit(1)


def _requirements() -> list[tuple[str, str | None]]:
    """Requirements of the library, and the extra of each, from the metadata of the installation."""
    try:
        requirements = requires("closure-kmeans") or []
    except PackageNotFoundError:  # run from its sources
        return []
    found = []
    for requirement in requirements:
        name = re.split(r"[^\w.-]", requirement)[0]
        extra = re.search(r"extra == .(\w+)", requirement)
        if name != "closure-kmeans" and (extra is None or extra[1] not in DEVELOPMENT):
            found.append((name, extra and extra[1]))
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _blas(library: dict[str, Any]) -> str:
    return f"{library['internal_api']} {library['version']} ({library['num_threads']} threads)"


def _free_memory() -> float:
    """Bytes of available memory; if unknown, of physical memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return physical_memory()


def _gigabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f} GB"


@click.command(epilog=options.example("closure-kmeans warmup --dtype uint8 --dtype float32"))
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(DTYPE_NAMES),
    default=DTYPE_NAMES,
    show_default="all of them",
    help="Data type of the rows; repeat for several.",
)
@options.quiet
def warmup(dtypes: tuple[str, ...], quiet: bool) -> None:
    """Use it when building container images or before tests; otherwise kernels are compiled on first use.

    Exits with code 1 if the kernels cannot be cached.
    """
    for dtype in dtypes:
        began = perf_counter()
        compile_kernels(np.dtype(dtype))
        if not quiet:
            click.echo(f"{dtype:8} {perf_counter() - began:5.1f} s")
    if not any(map(holds_kernels, folders())):
        _fail_without_cache()
