"""Compiled kernels of the method, one module for each step: rows, trees, tiles, and the search for nearest centres.

All are serial and release the GIL. A kernel that threads call takes a range of rows, leaves, nodes or clusters as its
last two arguments and writes nothing that another range reads, so ranges may run in any order and on any number of
threads. Kernels allocate nothing: callers pass the memory that they need. The tests compare kernels, alone or through
their callers, with slow definitions, most of them in ``tests/reference.py``.

Modules are imported when they are first asked for, because Numba takes a third of a second to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closure_kmeans.kernels import byte_tiles, cells, emit, nearest, rows, tiles, trees

__all__ = ["byte_tiles", "cells", "emit", "nearest", "rows", "tiles", "trees"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
