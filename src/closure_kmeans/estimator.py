"""ClosureKMeans: the scikit-learn estimator of the algorithm in ``closure.py``; and what all estimators share."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, validate_data

from closure_kmeans import validation as check
from closure_kmeans.balance import check_max_size
from closure_kmeans.checkpoint import Checkpoint, Resume, check_new, fingerprint
from closure_kmeans.closure import FIRST_EXTRAPOLATED, cluster_by_closures
from closure_kmeans.hierarchy import ClustersOfClusters
from closure_kmeans.iteration import Clustering, Iteration, Labels, Recorder
from closure_kmeans.method import PAPER, Method
from closure_kmeans.model import FittedModel
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.points import check_uncut
from closure_kmeans.renamed import check_renamed
from closure_kmeans.spherical import unit_rows
from closure_kmeans.starts import start_labels
from closure_kmeans.stores import Rule, Store
from closure_kmeans.stores.disk import DiskStore
from closure_kmeans.stores.memory import LocalStore, MemoryStore
from closure_kmeans.trees import LeavesOf, Neighborhoods


class Problem(NamedTuple):
    """The input of a fit, checked."""

    rows: Any  # (n, d) L2-normalised for cosine, unless there is a memory limit
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
        """Set parameters by name, as in scikit-learn.

        Parameters
        ----------
        **parameters : dict
            Parameters of the estimator.

        Returns
        -------
        BaseKMeans
            The estimator itself.

        See Also
        --------
        sklearn.base.BaseEstimator.set_params : Says more, for example about pipelines.

        Examples
        --------
        >>> from closure_kmeans import ClosureKMeans
        >>> ClosureKMeans().set_params(n_clusters=3).n_clusters
        3
        """
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
        """Set the fitted attributes; raise ``KeyboardInterrupt`` if the fit was interrupted."""
        self.__dict__.update(fitted)
        if self.stopped_by_ == "interrupted":
            raise KeyboardInterrupt(f"the model is that of iteration {self.n_iter_}")
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
        """Cluster the rows of X.

        Parameters
        ----------
        X : (n, d) array
            Rows, as in :meth:`closure_kmeans.ClosureKMeans.fit`.
        y : None
            Ignored.
        sample_weight : (n,) array, default=None
            Weights of the rows. Rows of weight 0 do not influence the clusters, but are labelled.

        Returns
        -------
        BaseKMeans
            The fitted estimator itself.

        Raises
        ------
        KeyboardInterrupt
            If interrupted; the model is that of the last complete iteration.

        See Also
        --------
        closure_kmeans.ClosureKMeans.fit : Says more about X.

        Examples
        --------
        >>> from closure_kmeans.baselines import LloydKMeans
        >>> model = LloydKMeans(n_clusters=2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> sorted(model.cluster_centers_.ravel().tolist())
        [0.5, 9.5]
        """
        return self._fit(X, sample_weight)

    def _fit(self, X: ArrayLike, sample_weight: ArrayLike | None, resume: Resume = False) -> Self:
        """Check the input, cluster the rows, and label rows of zero weight."""
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
            raise ValueError("sample_weight must be positive with memory_limit: remove rows of weight 0")
        else:
            some = weights > 0
            check_uncut(X)
            others = check_array(rows[~some], dtype=None, estimator=self, input_name="X")
            init = init[some] if isinstance(init, np.ndarray) and init.ndim == 1 else init
            fitted = self._solve(Problem(rows[some], weights[some], init, began, resume))
            labels = np.empty(len(rows), np.int32)
            labels[some] = fitted["labels_"]
            made = fitted["_index"] or [self.index_class.of(fitted["cluster_centers_"], sample=fitted["_sample"])]
            made[0].n_threads = self.n_threads
            labels[~some], _ = made[0].find(others)
            fitted["labels_"] = labels
        validate_data(self, X, skip_check_array=True)
        return self._become(fitted)


@dataclass(eq=False, repr=False)
class ClosureKMeans(ClustersOfClusters, LocalKMeans):
    """K-means for thousands to millions of clusters, by cluster closures.

    Points that change their cluster lie near its boundary, so that only the clusters of neighbouring points are
    candidates. Random partition trees find the neighbours. The cost of an iteration hardly depends on the number of
    clusters.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters, k. There are exactly k of them, none empty.
    init : {"tree", "random"} or array, default="tree"
        Start: the leaves of a random partition tree cut at k leaves; k random rows; given centres, of shape (m, d) with
        m <= k; or given labels, of shape (n,). Clusters keep the order of given centres; if these are fewer than k, the
        clusters with the largest errors are split. The assignment to given centres counts as the first iteration.
    metric : {"euclidean", "cosine"}, default="euclidean"
        "cosine" is spherical k-means: rows and centres are L2-normalised. The rows are then held in float32, or in
        float64 if they are given so.
    max_size : float, default=None
        Upper bound on the cluster size, in rows or their total weight: balanced clusters. Full clusters accept no
        points; a growing penalty pushes boundary points out. The distortion may then rise, and ``predict``, which finds
        the nearest centre, is not balanced.
    max_iter : int, default=100
        Maximum number of iterations.
    tol : float, default=5e-4
        The fit has converged when an iteration changes the distortion by less than this fraction.
    max_time : float, default=None
        Time budget in seconds. No iteration is started that, judging by the previous one, would exceed it; the first is
        always done.
    target_accuracy : float, default=0.95
        Fraction of points at their nearest centre, between 0 and 1, that the fit tries to reach: when a fit with fresh
        neighbourhoods has converged and a sample of points falls short of it, the fit continues with leaves of twice
        the size. 0 disables this.
    method : Method, default=None
        Switches of the algorithm, for experiments; by default ``Method()``.
    memory_limit : int or str, default=None
        Memory for rows and buffers, without the centres, in bytes or as text such as "1GB", for data larger than
        memory: a memory map, or a result of ``open_vectors``. The rows are copied to a temporary file, in the folder
        named by the environment variable TMPDIR, and read in slabs.
    checkpoint : str or PathLike, default=None
        Folder, or file with the extension ``.safetensors``, for checkpoints. The fit is saved regularly and when it
        ends, also by an interrupt. ``fit(X, resume=True)`` resumes it.
    checkpoint_every : float, default=60
        Seconds between checkpoints; 0 saves after every iteration.
    random_state : int, RandomState instance or None, default=None
        Seed. The same seed gives the same result, bit for bit, on any number of threads.
    n_threads : int, default=None
        Number of threads; by default all cores that the process, or its container, may use.
    callback : callable, default=None
        Called with the record of each iteration (see ``history_``); if it returns true, the fit ends.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    cluster_centers_ : (k, d) array
        Means of the clusters; with the cosine metric, their directions.
    cluster_sizes_ : (k,) array of float64
        Number of rows of each cluster, or their total weight.
    labels_ : (n,) array of int32
        Cluster of each row. Up to a few percent of the rows are nearer to another centre: see ``relabel``.
    inertia_ : float
        Sum of the squared distances of the rows to their centres, weighted by ``sample_weight``. With the cosine metric
        these are 2 - 2 cos of the angle between them.
    n_iter_ : int
        Number of iterations.
    history_ : list of Iteration
        One record per iteration.
    stopped_by_ : str
        Reason of the end: "converged", "max_iter", "max_time", "callback" or "interrupted".
    center_index_ : CenterIndex
        Search index of the centres, used by ``predict`` and ``several_nearest``.
    n_features_in_ : int
        Number of features.

    See Also
    --------
    closure_kmeans.distributed.DistributedClosureKMeans : On a Dask cluster.
    closure_kmeans.ResidualKMeans : Several levels, for semantic ids and compression.
    closure_kmeans.baselines.LloydKMeans : Exact k-means.

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

    n_clusters: int = 2
    _: KW_ONLY
    init: Literal["tree", "random"] | ArrayLike = "tree"
    metric: Literal["euclidean", "cosine"] = "euclidean"
    max_size: float | None = None
    target_accuracy: float = 0.95
    method: Method | None = None
    memory_limit: int | str | None = None
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: float = 60.0

    @classmethod
    def paper(cls, n_clusters: int = 2, **parameters: Any) -> Self:
        """Create an estimator with the algorithm of the paper: ``method=PAPER``.

        Adaptive kept trees with leaves of 10 points, grown in all dimensions; a point moves to the nearest centre.

        Parameters
        ----------
        n_clusters : int, default=2
            Number of clusters, k.
        **parameters : dict
            Other parameters of ``ClosureKMeans``.

        Returns
        -------
        ClosureKMeans
            An estimator that is not fitted yet.

        See Also
        --------
        Method : The switches of the algorithm.

        Examples
        --------
        >>> ClosureKMeans.paper(1000, random_state=0).method.neighborhoods
        'kept'
        """
        return cls(n_clusters, **({"method": PAPER} | parameters))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check.integer("n_clusters", self.n_clusters, 1)
        check.number("target_accuracy", self.target_accuracy, 0, 1)
        check.choice("metric", self.metric, ("euclidean", "cosine"))
        check.number("max_size", self.max_size, 0, optional=True)
        if self.checkpoint is not None and not isinstance(self.checkpoint, str | os.PathLike):
            raise TypeError(f"checkpoint must be a path, got {self.checkpoint!r}")
        check.number("checkpoint_every", self.checkpoint_every, 0)
        method = check.method(self.method)
        if self.memory_limit is not None:
            check.n_bytes("memory_limit", self.memory_limit)
            check.choice("neighborhoods with memory_limit", method.neighborhoods, ("auto", "fresh"))
            if isinstance(self.init, str):
                check.choice("init with memory_limit", self.init, ("tree",))

    def fit(
        self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None, *, resume: Resume = False
    ) -> Self:
        """Cluster the rows of X.

        Parameters
        ----------
        X : (n, d) array
            Rows. float64 is computed in float64; float32, float16, uint8 and int8 in float32, without a converted copy
            of all rows. Memory maps and arrays of other libraries are accepted, too.
        y : None
            Ignored.
        sample_weight : (n,) array, default=None
            Weights of the rows. Rows of weight 0 do not influence the clusters, but are labelled.
        resume : bool or "anyway", default=False
            Whether to resume from ``checkpoint``, if there is one, with the same bits as an uninterrupted fit. It is an
            error if data or parameters (other than ``max_iter``), or processor, BLAS or versions differ. With "anyway",
            another processor, BLAS or version is a warning, and results may differ in the last bits.

        Returns
        -------
        ClosureKMeans
            The fitted estimator itself.

        Raises
        ------
        FileExistsError
            If there is a checkpoint, and ``resume`` is false.
        KeyboardInterrupt
            If interrupted. The model is that of the last complete iteration, and ``stopped_by_`` is "interrupted";
            before the first one there is no model.

        See Also
        --------
        closure_kmeans.vectors.open_vectors : Opens files as X.

        Examples
        --------
        >>> model = ClosureKMeans(n_clusters=2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> sorted(model.cluster_centers_.ravel().tolist())
        [0.5, 9.5]
        """
        check.resume(resume, "checkpoint", self.checkpoint)
        if not resume and isinstance(self.checkpoint, str | os.PathLike):
            check_new(self.checkpoint)
        return self._fit(X, sample_weight, resume)

    def _solve(self, problem: Problem) -> dict[str, Any]:
        rows, weights, init, began, resume = problem
        method = self.method or Method()
        check.enough_rows(self.n_clusters, rows)
        if self.max_size is not None:
            check_max_size(self.max_size, weights, len(rows), self.n_clusters)
        rng = check.generator(self.random_state)
        checkpoint = None
        if self.checkpoint is not None:
            identity = fingerprint(self, rows, weights, init)
            checkpoint = Checkpoint(self.checkpoint, self.checkpoint_every, identity, rng, resume)
        with (
            Threads(count_threads(self.n_threads)) as threads,
            Recorder(self, began, len(rows), self.max_iter, checkpoint) as record,
        ):
            store = self._open(problem, method, rng, threads)
            start = init if checkpoint is None else checkpoint.start(store, init)
            state = store.begin(store.tree_labels() if is_tree(start) else start_labels(start, store))
            del start
            neighborhoods = store.neighborhoods(method, self.target_accuracy, from_tree=is_tree(self.init))
            if checkpoint is not None:
                state = checkpoint.restore(state, neighborhoods)
            stopped_by = "converged"
            if checkpoint is None or not checkpoint.converged:
                state, stopped_by = improve(self, method, store, state, neighborhoods, record, self.max_size)
            return fitted_attributes(store, state, stopped_by, record)

    def _open(self, problem: Problem, method: Method, rng: np.random.Generator, threads: Threads) -> LocalStore[Any]:
        """Open the store of the rows: in memory, or on disk if there is a memory limit."""
        settings: dict[str, Any] = {
            "tree_dims": method.tree_dims,
            "spherical": self.metric == "cosine",
            "look_back": method.extrapolate,
            "rng": rng,
            "threads": threads,
        }
        rows, weights, *_ = problem
        if self.memory_limit is not None:
            limit = check.n_bytes("memory_limit", self.memory_limit)
            return DiskStore(rows, weights, self.n_clusters, memory=limit, **settings)
        check.memory(self.n_clusters, rows, method.tree_dims)
        return MemoryStore(rows, weights, self.n_clusters, **settings)


def improve(
    model: BaseKMeans,
    method: Method,
    store: Store[Labels, LeavesOf],
    state: Clustering[Labels],
    neighborhoods: Neighborhoods[LeavesOf],
    record: Recorder,
    max_size: float | None = None,
) -> tuple[Clustering[Labels], str]:
    """Run the algorithm with the settings of an estimator, continuing after the recorded iterations."""
    centers_given = np.ndim(model.init) == 2
    if centers_given and not record.history:
        reason = record.count_start(state, len(state.clusters.sizes))
        if reason is not None:
            return state, reason
    state, stopped_by = cluster_by_closures(
        store,
        state,
        neighborhoods,
        Rule(hartigan=method.rule == "hartigan", max_size=np.inf if max_size is None else max_size),
        extrapolate_from=FIRST_EXTRAPOLATED + centers_given if method.extrapolate else np.inf,
        n_done=len(record.history),
        max_iter=model.max_iter,
        tol=model.tol,
        on_iteration=record,
    )
    if stopped_by == "max_iter" and max_size is None:
        record.complete(lambda: store.accuracy(state))
    return state, stopped_by


def is_tree(start: str | ArrayLike) -> bool:
    """Whether a start is the leaves of the first tree as clusters (section 4.3)."""
    return isinstance(start, str) and start == "tree"


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
        "_index": [],
        "_indexed": centers,
    }
