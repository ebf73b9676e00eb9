"""The kernels, imported when the first of them is used: Numba takes a third of a second to import."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("closure_kmeans._kernels"), name)
