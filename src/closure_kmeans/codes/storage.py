"""Models of codes in one ``.safetensors`` file: the models of all levels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

import closure_kmeans
from closure_kmeans import ClosureKMeans
from closure_kmeans.files import FileFormatError
from closure_kmeans.storage import RUNNING, pack_model, plain_parameters, unpack_model
from closure_kmeans.tensors import Arrays

if TYPE_CHECKING:
    from closure_kmeans.codes.estimator import ResidualKMeans

# Kind of the file.
CODES = "codes"

Model = TypeVar("Model", bound="ResidualKMeans")


def pack_codes(model: ResidualKMeans) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and metadata of a fitted model."""
    arrays: Arrays = {"gains": model.gains_}
    levels = []
    for number, level in enumerate(model.levels_):
        own, facts = pack_model(level)
        arrays |= {f"{number}.{name}": array for name, array in own.items()}
        levels.append(facts)
    names = getattr(model, "feature_names_in_", None)
    facts = {
        "version": closure_kmeans.__version__,
        "parameters": plain_parameters(model),
        "levels": levels,
        "feature_names": None if names is None else list(names),
    }
    return arrays, facts


def unpack_codes(kind: type[Model], path: Path, arrays: Arrays, facts: dict[str, Any]) -> Model:
    """Restore a model from the arrays and metadata of a file."""
    fitted = []
    for number, level_facts in enumerate(facts["levels"]):
        prefix = f"{number}."
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        level = unpack_model(path, own, level_facts)
        if not isinstance(level, ClosureKMeans) or level.metric != "euclidean":
            raise FileFormatError(f"'{path}' must hold levels of euclidean ClosureKMeans, but holds {level!r}")
        fitted.append(level)
    kept = {name: value for name, value in facts["parameters"].items() if name not in RUNNING}
    model = kind([len(level.cluster_centers_) for level in fitted], **kept)
    gains, centers = np.array(arrays["gains"]), [level.cluster_centers_ for level in fitted]
    if gains.shape != (len(fitted),) or gains.dtype != np.float64 or not np.isfinite(gains).all():
        raise FileFormatError(f"'{path}' must hold a finite gain for each of {len(fitted)} levels")
    if len({(each.shape[1], each.dtype) for each in centers}) != 1:
        raise FileFormatError(f"'{path}' must hold levels of one width and dtype")
    model.levels_, model.gains_, model.n_features_in_ = fitted, gains, centers[0].shape[1]
    if facts["feature_names"] is not None:
        model.feature_names_in_ = np.array(facts["feature_names"], object)
        if model.feature_names_in_.shape != centers[0].shape[1:]:
            raise FileFormatError(f"'{path}' must have {centers[0].shape[1]} names of features")
    return model
