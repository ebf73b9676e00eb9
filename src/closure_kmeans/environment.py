"""What decides the last bits of a result besides the data, the parameters and the seed: processor, BLAS, versions."""

from __future__ import annotations

import zlib
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np

from closure_kmeans.blas import blas_libraries

# The packages that compute.
PACKAGES = ("closure_kmeans", "numpy", "scipy", "sklearn", "numba", "llvmlite")


def environment() -> dict[str, str]:
    """What two processes must have in common for the same fit to end in the same bits."""
    versions = {name: str(import_module(name).__version__) for name in PACKAGES}
    return {"processor": _processor(), "BLAS": _blas()} | versions


def _processor() -> str:
    """The processor that Numba compiles for, with a checksum of the instructions that Numba and NumPy use."""
    registry = import_module("numba.core.registry")  # Numba takes a third of a second to import
    system, name, features = registry.cpu_target.target_context.codegen().magic_tuple()
    instructions = f"{features} {np.show_config(mode='dicts').get('SIMD Extensions')}"
    return f"{name} ({system}), instructions {zlib.crc32(instructions.encode()):08x}"


def _blas() -> str:
    """The BLAS of NumPy and SciPy, not those that other packages may have brought into the process."""
    found = {
        " ".join(str(library[key]) for key in ("internal_api", "version", "architecture") if key in library)
        for library in (controller.info() for controller in blas_libraries())
        if _package(Path(library["filepath"])) in (None, "numpy", "scipy")
    }
    return ", ".join(sorted(found)) or "unknown"


def _package(file: Path) -> str | None:
    """The installed package that a library belongs to (``numpy.libs`` is NumPy's); none for one of the system."""
    folders = (inside for folder, inside in pairwise(file.parts) if folder in ("site-packages", "dist-packages"))
    return next((inside.partition(".")[0] for inside in folders), None)
