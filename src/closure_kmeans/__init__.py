"""K-means for very many clusters, by cluster closures."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closure_kmeans.codes import ResidualKMeans
    from closure_kmeans.estimator import ClosureKMeans
    from closure_kmeans.iteration import Iteration
    from closure_kmeans.method import PAPER, Method
    from closure_kmeans.search import CenterIndex
    from closure_kmeans.storage import load

__version__ = "0.2.0"

__all__ = ["PAPER", "CenterIndex", "ClosureKMeans", "Iteration", "Method", "ResidualKMeans", "__version__", "load"]

# scikit-learn takes a second to import: only those who use it wait for it.
_HOMES = {
    "ClosureKMeans": "closure_kmeans.estimator",
    "CenterIndex": "closure_kmeans.search",
    "Iteration": "closure_kmeans.iteration",
    "Method": "closure_kmeans.method",
    "PAPER": "closure_kmeans.method",
    "ResidualKMeans": "closure_kmeans.codes",
    "load": "closure_kmeans.storage",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
