"""Saved models: one ``.safetensors`` file each. Loading one never executes code."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

import closure_kmeans
from closure_kmeans import validation as check
from closure_kmeans.files import FileFormatError, reading
from closure_kmeans.iteration import Iteration
from closure_kmeans.method import Method
from closure_kmeans.points import precision
from closure_kmeans.search import index_size
from closure_kmeans.tensors import Arrays, read_any_facts, read_tensors

if TYPE_CHECKING:
    from closure_kmeans.estimator import BaseKMeans
    from closure_kmeans.model import FittedModel

# Modules of the classes that can be saved and loaded.
HOMES = ("closure_kmeans", "closure_kmeans.baselines", "closure_kmeans.distributed")
# Attributes of the training data.
TRAINING = ("labels_", "history_")
# Parameters that say how and where a fit runs, but do not change its result: neither written to a file nor taken from
# one. So the same model is the same file on any machine, and no file decides where a later fit writes or connects to.
RUNNING = (
    "callback",
    "checkpoint",
    "checkpoint_every",
    "client",
    "max_time",
    "n_threads",
    "storage",
    "storage_options",
    "verbose",
)
# Types of parameters and attributes that are stored; others (arrays given as a start, generators) are not.
PLAIN = (str, int, float, bool, type(None), np.generic)
# Parameters in files of version 0.1 that have another name now.
OLD_NAMES = {"column": "name"}
# Rows checked at a time.
BLOCK_ROWS = 1 << 16


def model_size(n_clusters: int, n_features: int, dtype: DTypeLike, *, n_labels: int) -> int:
    """Size in bytes of the arrays in a model file, for rows of a dtype; the metadata adds some kilobytes."""
    width = np.dtype(precision(dtype)).itemsize
    center = n_features * width + np.dtype(np.float64).itemsize
    return n_clusters * center + index_size(n_clusters, n_features, width) + n_labels * np.dtype(np.int32).itemsize


def pack_model(model: FittedModel, *, training: bool = False) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and metadata of a fitted model."""
    attributes = {
        name: value
        for name, value in vars(model).items()
        if name.endswith("_") and not name.startswith("_") and (training or name not in TRAINING)
    }
    if _find_class(type(model).__name__) is not type(model):
        raise TypeError(f"only estimators of this library can be saved, got {type(model).__name__}")
    names = attributes.pop("feature_names_in_", None)
    facts = {
        "class": type(model).__name__,
        "version": closure_kmeans.__version__,
        "parameters": plain_parameters(model),
        "attributes": {
            name: value for name, value in attributes.items() if isinstance(value, PLAIN) or name == "history_"
        },
        "feature_names": None if names is None else list(names),
    }
    arrays = {name: value for name, value in attributes.items() if isinstance(value, np.ndarray)}
    index_arrays, index_facts = model.center_index_.pack()
    return arrays | index_arrays, facts | index_facts


def plain_parameters(model: FittedModel) -> dict[str, Any]:
    """The parameters that describe a model, those of ``method`` among them."""
    parameters = model.get_params(deep=False)
    if "method" in parameters:
        parameters |= check.method(parameters.pop("method"))._asdict()
    return _describing(parameters)


def _describing(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if isinstance(value, PLAIN) and name not in RUNNING}


def load(path: str | os.PathLike[str]) -> BaseKMeans:
    """Load a model that was written by its method ``save``.

    The loaded model predicts, transforms and scores like the saved one, bit for bit. It is read into memory, except
    ``labels_``, which are memory-mapped.

    Parameters
    ----------
    path : str or PathLike
        A ``.safetensors`` file.

    Returns
    -------
    BaseKMeans
        An estimator of the saved class. Parameters that are no plain values (a start given as an array) or that concern
        the run (such as ``n_threads``, ``verbose``, ``callback``, ``max_time``, ``checkpoint``) have their defaults.

    Raises
    ------
    FileFormatError
        A ``ValueError``: the file is truncated, damaged, or not a model.

    See Also
    --------
    ClosureKMeans.save : Write a model.

    Examples
    --------
    >>> import closure_kmeans
    >>> from closure_kmeans.datasets import load_sift
    >>> from tempfile import TemporaryDirectory
    >>> model = closure_kmeans.ClosureKMeans(n_clusters=100, random_state=0).fit(load_sift()[:2000])
    >>> with TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/words.safetensors")
    ...     loaded = closure_kmeans.load(f"{folder}/words.safetensors")
    >>> bool((loaded.cluster_centers_ == model.cluster_centers_).all())
    True
    """
    path = Path(path)
    path.stat()  # that there is no such file comes first
    with reading(path, "a model"):
        _refuse_checkpoint(path)
        return unpack_model(path, *read_tensors(path, "model"))


def _refuse_checkpoint(path: Path) -> None:
    """Raise an error that says how to use a checkpoint or its folder."""
    from closure_kmeans.checkpoint import checkpoint_file  # which imports this module

    file = checkpoint_file(path)
    if file.is_file() and (path.is_dir() or read_any_facts(path)["kind"] == "checkpoint"):
        raise FileFormatError(
            f"'{path}' must be a model, but is a checkpoint: resume it with fit(X, resume=True), or read its centres "
            f"with closure_kmeans.checkpoint.read_centers({os.fspath(path)!r})"
        )


def unpack_model(path: Path, arrays: Arrays, facts: dict[str, Any]) -> BaseKMeans:
    """Build a model from the arrays and metadata of a file."""
    # Copied into memory, so that the model does not depend on the file; labels, which may be larger, stay mapped.
    arrays = {name: array if name == "labels_" else np.array(array) for name, array in arrays.items()}
    model = _new_model(path, facts["class"], facts["parameters"])
    attributes = facts["attributes"]
    centers = arrays["cluster_centers_"]
    _check_arrays(path, centers, arrays["cluster_sizes_"], arrays.get("labels_"))
    if "history_" in attributes:
        attributes["history_"] = [Iteration(*record) for record in attributes["history_"]]
    index, arrays = model.index_class.unpack(centers, arrays, facts)
    if facts["feature_names"] is not None:
        arrays["feature_names_in_"] = np.array(facts["feature_names"], object)
        if arrays["feature_names_in_"].shape != centers.shape[1:]:
            raise FileFormatError(f"'{path}' must have {centers.shape[1]} names of features")
    fitted = {"n_features_in_": centers.shape[1]} | attributes | arrays  # which older files may lack
    for name, value in fitted.items():
        if not name.endswith("_") or name.startswith("_"):
            raise FileFormatError(f"'{path}' must hold fitted attributes, but holds '{name}'")
        setattr(model, name, value)
    _check_plain(path, fitted)
    model._index, model._indexed = [index], model.cluster_centers_
    return model


def _new_model(path: Path, name: str, parameters: dict[str, Any]) -> BaseKMeans:
    """Create an estimator of one of the library's classes."""
    kind = _find_class(name)
    if kind is None:
        raise FileFormatError(f"'{path}' must hold a model of closure_kmeans, but holds a '{name}'")
    described = _describing({OLD_NAMES.get(name, name): value for name, value in parameters.items()})
    if "method" in kind._get_param_names():
        method = Method(**{name: described.pop(name) for name in Method._fields if name in described})
        described["method"] = None if method == Method() else method
    model: BaseKMeans = kind(**described)
    model._check_parameters()
    return model


def _find_class(name: str) -> type[BaseKMeans] | None:
    """Find an estimator class of the library by its name."""
    for module in map(import_module, HOMES):
        found = getattr(module, name) if name in module.__all__ else None
        if isinstance(found, type) and hasattr(found, "save") and hasattr(found, "predict"):
            return found
    return None


def _check_plain(path: Path, fitted: dict[str, Any]) -> None:
    """Check the attributes that are numbers or texts."""
    n_features, width = fitted["n_features_in_"], fitted["cluster_centers_"].shape[1]
    if type(n_features) is not int or n_features != width:
        raise FileFormatError(f"'{path}' must have centres of {n_features} features, but they have {width}")
    check.number("inertia_", fitted["inertia_"], 0, sys.float_info.max)
    check.integer("n_iter_", fitted["n_iter_"], 1)
    if not isinstance(fitted["stopped_by_"], str):
        raise FileFormatError(f"'{path}' must hold stopped_by_ as a text, but it is {fitted['stopped_by_']!r}")


def _check_arrays(path: Path, centers: NDArray[Any], sizes: NDArray[Any], labels: NDArray[Any] | None) -> None:
    """Check the arrays of a model, and the labels of the training data."""
    if centers.ndim != 2 or 0 in centers.shape or centers.dtype not in (np.float32, np.float64):
        raise FileFormatError(f"'{path}' must hold centres as floats, but they are {centers.shape} {centers.dtype}")
    for first in range(0, len(centers), BLOCK_ROWS):
        if not np.isfinite(centers[first : first + BLOCK_ROWS]).all():
            raise FileFormatError(f"'{path}' must hold finite centres, but some from {first} on are not")
    n_clusters = len(centers)
    if sizes.shape != (n_clusters,) or sizes.dtype != np.float64 or not (np.isfinite(sizes) & (sizes > 0)).all():
        raise FileFormatError(f"'{path}' must hold the sizes of {n_clusters} clusters, all above 0")
    if labels is None:
        return
    if labels.ndim != 1 or labels.dtype != np.int32 or labels.min() < 0 or labels.max() >= n_clusters:
        raise FileFormatError(f"'{path}' must hold labels from 0 to {n_clusters - 1}, but some are not")
