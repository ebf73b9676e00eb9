"""ClosureKMeans: the scikit-learn estimator. It checks, delegates and records."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from tqdm.auto import tqdm

from closure_kmeans import _validation as check
from closure_kmeans._parallel import Threads, count_threads
from closure_kmeans.closure import Iteration, Step, cluster_by_closures
from closure_kmeans.initialize import start_labels
from closure_kmeans.neighborhoods import FreshNeighborhoods, KeptNeighborhoods, Neighborhoods
from closure_kmeans.points import Points, arrange_points, grow_leaves, precision, shifted
from closure_kmeans.quantizer import (
    MANY_CENTERS,
    SAMPLE_ROWS,
    build_quantizer,
    find_centers,
    nearest_centers,
    quantize,
    sample_accuracy,
)


class ClosureKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """K-means for thousands to millions of clusters, by cluster closures.

    A point that changes its cluster lies near a border, so the only clusters worth testing for it are those of its
    neighbours. Random partition trees find the neighbours; an iteration then costs the same whatever the number of
    clusters is.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters, k. There are exactly k of them, none empty.
    init : {"tree", "random"} or array, default="tree"
        The start: the cells of a random partition tree cut at k cells; k random rows; given centres, of shape
        (k, d); or given labels, of shape (n,).
    max_iter : int, default=100
        Largest number of iterations.
    tol : float, default=5e-4
        The fit has converged when the distortion falls by less than this part of itself in an iteration.
    max_time : float, default=None
        Seconds since the call of ``fit`` after which no iteration is begun that would not end in time, judging by the
        one before. The first is always done.
    target_accuracy : float, default=0.95
        The share of points to be assigned to their nearest centre, between 0 and 1: the one knob between speed and
        quality. When a fit with fresh neighbourhoods has converged and a sample of its points falls short of this,
        it goes on with leaves of twice the size. 0 never does.
    leaf_size : int, default=256
        Points in a leaf of a tree. Larger leaves find better clusters in an iteration, and take longer.
    neighborhoods : {"fresh", "kept"}, default="fresh"
        One new tree in every iteration, used and forgotten; or the paper's trees, kept and united.
    max_trees : int, default=10
        Largest number of kept trees.
    adaptive : bool, default=True
        Grow kept trees one by one, as they are needed; or all at the start.
    min_fall : float, default=0.01
        Another kept tree is grown when the distortion fell by less than this part of itself.
    rule : {"hartigan", "lloyd"}, default="hartigan"
        A point moves to another cluster when that lowers the distortion, the shift of both centres included; or when
        the other centre is nearer.
    extrapolate : bool, default=True
        Assign points to where the centres of large clusters are heading. It halves the number of iterations.
    tree_dims : int, default=16
        Principal dimensions in which trees are grown; ``None`` for all dimensions.
    random_state : int, RandomState instance or None, default=None
        Seed. The same seed gives the same result, bit for bit, on any number of threads.
    n_jobs : int, default=None
        Number of threads; ``None`` and -1 mean all that the process may run on.
    callback : callable, default=None
        Called with the record of each iteration (see ``history_``); returning true ends the fit.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    cluster_centers_ : (k, d) array
        Means of the clusters.
    labels_ : (n,) array of int32
        Cluster of each row.
    inertia_ : float
        Sum of the squared distances of the rows to their centres, weighted by ``sample_weight``.
    n_iter_ : int
        Number of iterations.
    history_ : list of Iteration
        A record of each iteration: ``iteration``, ``seconds``, ``inertia``, ``n_active``, ``n_trees``,
        ``n_candidates``, ``accuracy``.
    stopped_by_ : str
        Why the fit ended: "converged", "max_iter", "max_time", "callback" or "interrupted".
    n_features_in_ : int
        Number of features.

    References
    ----------
    Jingdong Wang, Jing Wang, Qifa Ke, Gang Zeng, Shipeng Li: Fast Approximate K-Means via Cluster Closures.

    Examples
    --------
    >>> from closure_kmeans import ClosureKMeans
    >>> from closure_kmeans.datasets import load_sift
    >>> X = load_sift()
    >>> model = ClosureKMeans(n_clusters=1000, random_state=0).fit(X)
    >>> model.cluster_centers_.shape
    (1000, 128)
    >>> int(model.predict(X[:1])[0]) == int(model.labels_[0])
    True
    """

    def __init__(
        self,
        n_clusters: int = 2,
        *,
        init: Literal["tree", "random"] | ArrayLike = "tree",
        max_iter: int = 100,
        tol: float = 5e-4,
        max_time: float | None = None,
        target_accuracy: float = 0.95,
        leaf_size: int = 256,
        neighborhoods: Literal["fresh", "kept"] = "fresh",
        max_trees: int = 10,
        adaptive: bool = True,
        min_fall: float = 0.01,
        rule: Literal["hartigan", "lloyd"] = "hartigan",
        extrapolate: bool = True,
        tree_dims: int | None = 16,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        callback: Callable[[Iteration], Any] | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.max_time = max_time
        self.target_accuracy = target_accuracy
        self.leaf_size = leaf_size
        self.neighborhoods = neighborhoods
        self.max_trees = max_trees
        self.adaptive = adaptive
        self.min_fall = min_fall
        self.rule = rule
        self.extrapolate = extrapolate
        self.tree_dims = tree_dims
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.callback = callback
        self.verbose = verbose

    @classmethod
    def paper(cls, n_clusters: int = 2, **parameters: Any) -> ClosureKMeans:
        """The algorithm exactly as the paper has it.

        Adaptive kept trees with leaves of 10 points, grown in all dimensions; a point moves to the nearest centre.

        >>> ClosureKMeans.paper(1000, random_state=0)
        ClosureKMeans(extrapolate=False, leaf_size=10, n_clusters=1000,
                      neighborhoods='kept', random_state=0, rule='lloyd',
                      tree_dims=None)
        """
        settings: dict[str, Any] = {
            "leaf_size": 10,
            "neighborhoods": "kept",
            "rule": "lloyd",
            "extrapolate": False,
            "tree_dims": None,
        }
        return cls(n_clusters, **(settings | parameters))

    def fit(self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None) -> ClosureKMeans:
        """Cluster the rows of X.

        An interrupt (Ctrl-C) ends the fit after the last whole iteration, with a warning and ``stopped_by_`` set to
        "interrupted"; before the end of the first there is nothing to keep, and it is raised.

        Parameters
        ----------
        X : (n, d) array
            float32, float64, float16, uint8 and int8 arrays and memory maps are taken as they are; all else becomes
            float64. float64 is computed in float64, the others in float32.
        y : ignored
        sample_weight : (n,) array, default=None
            Weights of the rows. A row of weight 0 takes no part, but gets a label.
        """
        began = time.perf_counter()
        check.parameters(self)
        rows = check_array(X, dtype=check.DTYPES, order="C", ensure_all_finite=False, estimator=self, input_name="X")
        weights = check.sample_weight(sample_weight, rows)
        init = check.init(self.init, self.n_clusters, rows)
        validate_data(type(self)(), X, skip_check_array=True)  # the names of the features must be in order
        if weights.all():
            fitted = self._fit(rows, weights, init, began)
        else:
            some = weights > 0
            check_array(rows[~some], dtype=None, estimator=self, input_name="X")
            init = init[some] if isinstance(init, np.ndarray) and init.ndim == 1 else init
            fitted = self._fit(rows[some], weights[some], init, began)
            labels = np.empty(len(rows), np.int32)
            labels[some] = fitted["labels_"]
            labels[~some] = self._labels_of(rows[~some], fitted)
            fitted["labels_"] = labels
        # Only now that all went well.
        self.__dict__.update(fitted)
        validate_data(self, X, skip_check_array=True)
        if self.stopped_by_ == "interrupted":
            warnings.warn(
                f"interrupted: the model is as it was after iteration {self.n_iter_}",
                RuntimeWarning,
                stacklevel=2,
            )
        return self

    def _fit(
        self, X: NDArray[Any], weights: NDArray[np.float64], init: str | NDArray[Any], began: float
    ) -> dict[str, Any]:
        """Arrange, start and iterate: the attributes of the fitted model."""
        check.enough_rows(self.n_clusters, X)
        check.memory(self.n_clusters, X, self.tree_dims)
        rng = check.generator(self.random_state)
        with Threads(count_threads(self.n_jobs)) as threads, _Recorder(self, began, len(X)) as record:
            points, tree = arrange_points(X, weights, self.n_clusters, self.tree_dims, rng, threads)
            state, stopped_by = cluster_by_closures(
                points,
                start_labels(init, points, tree, rng, threads),
                self.n_clusters,
                self._neighborhoods(points, rng, threads),
                hartigan=self.rule == "hartigan",
                extrapolate=self.extrapolate,
                max_iter=self.max_iter,
                tol=self.tol,
                measure_accuracy=partial(sample_accuracy, points, threads),
                on_iteration=record,
                threads=threads,
            )
        labels = np.empty(len(X), np.int32)
        labels[tree.members] = state.labels
        return {
            "cluster_centers_": state.clusters.centers + points.mean,
            "labels_": labels,
            "inertia_": state.clusters.inertia,
            "n_iter_": len(record.history),
            "history_": record.history,
            "stopped_by_": stopped_by,
            "_sample": X[:: -(-len(X) // SAMPLE_ROWS)].copy(),
            "_quantizers": {},
        }

    def _labels_of(self, rows: NDArray[Any], fitted: dict[str, Any]) -> NDArray[np.int32]:
        """Labels of rows that took no part in a fit."""
        mean, centers = _shifted(fitted["cluster_centers_"], rows)
        with Threads(count_threads(self.n_jobs)) as threads:
            return find_centers(rows, centers, mean, fitted["_sample"], threads)

    def _neighborhoods(self, points: Points, rng: np.random.Generator, threads: Threads) -> Neighborhoods:
        grow = partial(grow_leaves, points, rng, threads)
        if self.neighborhoods == "fresh":
            return FreshNeighborhoods(grow, self.leaf_size, len(points.rows), self.target_accuracy)
        return KeptNeighborhoods(grow, self.leaf_size, self.max_trees, adaptive=self.adaptive, min_fall=self.min_fall)

    def predict(self, X: ArrayLike, *, exact: bool | None = None) -> NDArray[np.int32]:
        """The nearest centre of each row.

        Up to 10,000 centres all are compared. Beyond, a row is compared with the centres in the cells nearest to it,
        which finds the nearest centre of more than 99 of 100 rows of the kind that the model was fitted to. The cells
        are built on the first call. ``exact=True`` compares all centres at any number of them. Either way the result
        is a pure function of each row.
        """
        labels, _ = self._nearest(self._check(X), exact)
        return labels

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """The distances of each row to all centres, as an (n, k) array."""
        rows = self._check(X)
        mean, centers = _shifted(self.cluster_centers_, rows)
        distances: NDArray[Any] = euclidean_distances(shifted(rows, mean), centers)
        return distances

    def score(self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None) -> float:
        """The negative of the inertia that the rows of X would have, assigned as by ``predict``."""
        _, distances = self._nearest(self._check(X))
        if sample_weight is not None:
            distances = distances * check.weights_like(sample_weight, distances)
        return -float(distances.sum())

    def _nearest(self, rows: NDArray[Any], exact: bool | None = None) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        if exact is None:
            exact = len(self.cluster_centers_) <= MANY_CENTERS
        with Threads(count_threads(self.n_jobs)) as threads:
            if exact:
                mean, centers = _shifted(self.cluster_centers_, rows)
                return nearest_centers(rows, centers, mean, threads)
            dtype = precision(rows.dtype)
            if dtype not in self._quantizers:
                mean, centers = _shifted(self.cluster_centers_, rows)
                self._quantizers[dtype] = build_quantizer(centers, mean, self._sample, threads)
            return quantize(rows, self._quantizers[dtype], threads)

    def _check(self, X: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self, "cluster_centers_")
        rows: NDArray[Any] = validate_data(self, X, dtype=check.DTYPES, order="C", reset=False)
        return rows

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return state | {"_quantizers": {}} if "_quantizers" in state else state  # rebuilt faster than stored

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _shifted(centers: NDArray[Any], X: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """A point in the midst of the centres, and the centres relative to it, in the precision of X."""
    centers = centers.astype(precision(X.dtype))
    mean = centers.mean(axis=0)
    return mean, centers - mean


class _Recorder:
    """Keeps the history, shows the progress, and says when to stop."""

    def __init__(self, model: ClosureKMeans, began: float, n_points: int) -> None:
        self.history: list[Iteration] = []
        self._began = began
        self._n_points = n_points
        self._max_time = model.max_time
        self._callback = model.callback
        self._bar = tqdm(total=model.max_iter, disable=not model.verbose, unit="it", desc=f"k = {model.n_clusters:,}")

    def __enter__(self) -> _Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.total = self._bar.n  # done, be it before the last iteration allowed
        self._bar.close()

    def __call__(self, number: int, step: Step, n_trees: int, accuracy: float | None) -> str | None:
        record = Iteration(
            iteration=number,
            seconds=time.perf_counter() - self._began,
            inertia=step.state.clusters.inertia,
            n_active=step.n_active,
            n_trees=n_trees,
            n_candidates=step.n_pairs / self._n_points,
            accuracy=accuracy,
        )
        before = self.history[-1].seconds if self.history else record.seconds
        self.history.append(record)
        self._bar.set_postfix_str(
            f"distortion {record.inertia / self._n_points:.6g}, moved {record.n_active / self._n_points:.2%}"
        )
        self._bar.update()
        if self._callback is not None and self._callback(record):
            return "callback"
        if self._max_time is not None and 2 * record.seconds - before > self._max_time:
            return "max_time"
        return None
