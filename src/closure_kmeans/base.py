"""What the estimators of the library have in common: their parameters, the checks of a fit, the start."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, validate_data

from closure_kmeans import validation as check
from closure_kmeans.iteration import Clustering, Iteration, Labels, Recorder
from closure_kmeans.model import FittedModel
from closure_kmeans.points import as_numbers, check_uncut
from closure_kmeans.renamed import check_renamed
from closure_kmeans.search import CenterIndex
from closure_kmeans.spherical import unit_rows
from closure_kmeans.stores import Store
from closure_kmeans.stores.memory import LocalStore

if TYPE_CHECKING:
    from closure_kmeans.checkpoint import Resume


class Problem(NamedTuple):
    """The input of a fit, checked."""

    rows: Any  # (n, d) as the metric sees them; larger than memory if there is a limit, then as they are
    weights: NDArray[np.float64]  # (n,) all above 0, or (1,) where all weigh the same
    init: str | NDArray[Any]  # "tree", "random", centres or labels
    began: float  # when ``fit`` was called
    resume: Resume = False  # whether to go on from a checkpoint


@dataclass(eq=False, repr=False, kw_only=True)
class BaseKMeans(FittedModel):
    """An estimator of the library: its fitted model, and all but ``fit``.

    Its fields are the parameters that all estimators have. Each estimator adds its own, as a dataclass: scikit-learn
    reads the parameters from the signature of ``__init__``, and expects that it only stores them.
    """

    max_iter: int = 100
    tol: float = 5e-4
    max_time: float | None = None
    random_state: int | np.random.RandomState | None = None
    n_threads: int | None = None
    callback: Callable[[Iteration], Any] | None = None
    verbose: int = 0

    def __new__(cls, *arguments: Any, **parameters: Any) -> Self:
        """Refuse an unknown parameter that was one in version 0.1, and name its successor."""
        if not parameters.keys() <= cls.__dataclass_fields__.keys():
            check_renamed(cls, parameters)
        model: Self = super().__new__(cls)
        return model

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters by their names, as scikit-learn does."""
        check_renamed(type(self), parameters)
        super().set_params(**parameters)
        return self

    def _check_parameters(self) -> None:
        """Raise if a parameter cannot be used."""
        check.integer("max_iter", self.max_iter, 1)
        check.number("tol", self.tol, 0)
        check.number("max_time", self.max_time, 0, optional=True)
        check.integer("n_threads", self.n_threads, 1, optional=True)
        check.verbose(self.verbose)
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback must be callable, got {self.callback!r}")

    def _become(self, fitted: dict[str, Any]) -> Self:
        """Set the fitted attributes after success; raise an interrupt of the fit again."""
        self.__dict__.update(fitted)
        if self.stopped_by_ == "interrupted":
            raise KeyboardInterrupt(f"the model is as it was after iteration {self.n_iter_}")
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class LocalKMeans(BaseKMeans, ABC):
    """An estimator whose rows are on this machine; the method is ``_solve``."""

    memory_limit: int | str | None = None

    @abstractmethod
    def _solve(self, problem: Problem) -> dict[str, Any]:
        """Cluster the rows; the attributes of the fitted model (see ``fitted_attributes``)."""

    def fit(self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Cluster the rows of X: see :meth:`closure_kmeans.ClosureKMeans.fit`."""
        return self._fit(X, sample_weight)

    def _fit(self, X: ArrayLike, sample_weight: ArrayLike | None, resume: Resume = False) -> Self:
        """Check the input, cluster the rows, and label those that weigh nothing."""
        began = time.perf_counter()
        self._check_parameters()
        X = check.rows(X)
        rows = check.stored_rows(X) if self.memory_limit is not None else check.fitted_rows(X, self)
        weights = check.sample_weight(sample_weight, rows)
        init = check.init(self.init, getattr(self, "n_clusters", 1), rows)
        # Checks the names of the features; the model stays untouched.
        validate_data(BaseEstimator(), X, skip_check_array=True)
        if self.metric == "cosine":
            init = unit_rows(init, "init") if isinstance(init, np.ndarray) and init.ndim == 2 else init
            rows = unit_rows(rows) if self.memory_limit is None else rows
        if weights.all():
            fitted = self._solve(Problem(rows, weights, init, began, resume))
        elif self.memory_limit is not None:
            raise ValueError("sample_weight must be above 0 with memory_limit: leave out the rows that weigh nothing")
        else:
            some = weights > 0
            check_uncut(X)
            others = check_array(rows[~some], dtype=None, estimator=self, input_name="X")
            init = init[some] if isinstance(init, np.ndarray) and init.ndim == 1 else init
            fitted = self._solve(Problem(rows[some], weights[some], init, began, resume))
            labels = np.empty(len(rows), np.int32)
            labels[some] = fitted["labels_"]
            index = fitted["_index"] or self.index_class.of(fitted["cluster_centers_"], sample=fitted["_sample"])
            labels[~some], _ = index.find(others)
            fitted["labels_"] = labels
        validate_data(self, X, skip_check_array=True)
        return self._become(fitted)


def fitted_attributes(
    store: Store[Labels, Any],
    state: Clustering[Labels],
    stopped_by: str,
    record: Recorder,
    centers: NDArray[Any] | None = None,
) -> dict[str, Any]:
    """The attributes of a model, by default with the centres of a state. Raises an interrupt without an iteration."""
    if not record.history:
        raise KeyboardInterrupt
    if centers is None:
        store.buffers.release()  # before this allocates as much
        centers = state.clusters.centers + store.offset
    return {
        "cluster_centers_": centers,
        "cluster_sizes_": state.clusters.sizes,
        "labels_": store.user_labels(state.labels),
        "inertia_": state.clusters.inertia,
        "n_iter_": len(record.history),
        "history_": record.history,
        "stopped_by_": stopped_by,
        "_sample": store.sample,
        "_index": None,
        "_indexed": centers,
    }


def start_labels(init: str | NDArray[Any], store: LocalStore[Any]) -> NDArray[np.int32]:
    """Labels of the points by one of the starts.

    ``"tree"`` takes the leaves of the first tree (section 4.3), ``"random"`` the nearest of k random rows, drawn by
    weight. Given centres are an array of two dimensions, given labels one of one dimension. Where there are fewer
    centres than clusters, the other clusters have no points yet.
    """
    if isinstance(init, str) and init == "tree":
        return store.tree_labels()
    if isinstance(init, str):
        centers = as_numbers(store.points.rows[draw_rows(store)])
    elif init.ndim == 1:
        return init[store.order].astype(np.int32)
    else:
        centers = init
    index = CenterIndex.of(centers.astype(store.offset.dtype), sample=store.sample, offset=store.offset)
    index.n_threads = store.threads.n_threads
    labels = np.empty(store.n_points, np.int32)
    for some, rows in store.blocks():
        labels[some], _ = index.find(rows)
    return labels


def draw_rows(store: LocalStore[Any]) -> NDArray[np.int64]:
    """Draw k different points without replacement, in proportion to their weights.

    Weighted sampling by exponential keys (Efraimidis–Spirakis): the k smallest Exp(1) / weight are kept. The keys are
    drawn in the order of the user's rows, so that the choice does not depend on the tree.
    """
    keys = store.rng.exponential(size=store.n_points)[store.order] / store.points.weights
    return np.sort(np.argpartition(keys, store.n_clusters - 1)[: store.n_clusters])
