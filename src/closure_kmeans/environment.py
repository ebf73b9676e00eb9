"""Environment that determines the last bits of a result, in addition to data, parameters and seed."""

from __future__ import annotations

import zlib
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np

from closure_kmeans.parallel import blas_libraries

# Packages that affect results.
PACKAGES = ("closure_kmeans", "numpy", "scipy", "sklearn", "numba", "llvmlite")


def environment() -> dict[str, str]:
    """Processor, BLAS and versions; the same fit gives identical bits in processes where these are equal."""
    versions = {name: str(import_module(name).__version__) for name in PACKAGES}
    return {"processor": _processor(), "BLAS": _blas()} | versions


def _processor() -> str:
    """Processor that Numba compiles for, with a checksum of the instruction sets of Numba and NumPy."""
    registry = import_module("numba.core.registry")  # Numba takes 0.3 s to import
    system, name, features = registry.cpu_target.target_context.codegen().magic_tuple()
    instructions = f"{features} {np.show_config(mode='dicts').get('SIMD Extensions')}"
    return f"{name} ({system}), instructions {zlib.crc32(instructions.encode()):08x}"


def _blas() -> str:
    """BLAS libraries of NumPy and SciPy, without BLAS libraries of other packages in the process."""
    found = {
        " ".join(str(library[key]) for key in ("internal_api", "version", "architecture") if key in library)
        for library in (controller.info() for controller in blas_libraries())
        if _package(Path(library["filepath"])) in (None, "numpy", "scipy")
    }
    return ", ".join(sorted(found)) or "unknown"


def _package(file: Path) -> str | None:
    """Installed package of a library file (``numpy.libs`` is NumPy's); None for system libraries."""
    folders = (inside for folder, inside in pairwise(file.parts) if folder in ("site-packages", "dist-packages"))
    return next((inside.partition(".")[0] for inside in folders), None)
