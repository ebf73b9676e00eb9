"""ClosureKMeans: the scikit-learn estimator of the algorithm in ``closure.py``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from closure_kmeans import layout, slabs
from closure_kmeans import validation as check
from closure_kmeans.base import BaseKMeans, Outcome, fitted_attributes
from closure_kmeans.checkpoint import Checkpoint, fingerprint
from closure_kmeans.closure import Reassign, begin, cluster_by_closures
from closure_kmeans.iteration import Clustering, Iteration
from closure_kmeans.neighborhoods import (
    FEW_CLUSTERS,
    AllClusters,
    FreshNeighborhoods,
    Grow,
    KeptNeighborhoods,
    Neighborhoods,
    suitable_leaf_size,
)
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.points import Points, group_cells, grow_leaves, precision
from closure_kmeans.quantizer import SAMPLE_ROWS, sample_accuracy
from closure_kmeans.recorder import Recorder
from closure_kmeans.vectors import Rows, open_vectors


class Level(NamedTuple):
    """Clusters of clusters."""

    parents: NDArray[np.int32]  # (n_below,) which of these clusters each cluster of the level below is in
    centers: NDArray[Any]  # (n_clusters, d)
    sizes: NDArray[np.float64]  # (n_clusters,) number of rows in each, or their weight


class ClosureKMeans(BaseKMeans):
    """K-means for thousands to millions of clusters, by cluster closures.

    A point that changes its cluster lies near a border, so the only clusters worth testing for it are those of its
    neighbours. Random partition trees find the neighbours; an iteration then costs about the same whatever the number
    of clusters is.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters, k. There are exactly k of them, none empty.
    init : {"tree", "random"}, array or model, default="tree"
        The start: the cells of a random partition tree cut at k cells; k random rows; given centres, of shape
        (k, d); given labels, of shape (n,); or a fitted model, whose clusters keep their ids. If it has fewer than k,
        those of largest error are split. The assignment to given centres counts as the first iteration.
    metric : {"euclidean", "cosine"}, default="euclidean"
        "cosine" is spherical k-means: rows are divided by their lengths, and so are the centres. The rows are then held
        in float32, or float64 if they come so.
    max_iter : int, default=100
        Largest number of iterations.
    tol : float, default=5e-4
        The fit has converged when the distortion changes by less than this part of itself in an iteration.
    max_time : float, default=None
        Seconds since the call of ``fit`` after which no iteration is begun that would not end in time, judging by the
        one before. The first is always done.
    target_accuracy : float, default=0.95
        The share of points to be assigned to their nearest centre, between 0 and 1: the one knob between speed and
        quality. When a fit with fresh neighbourhoods has converged and a sample of its points falls short of this,
        it goes on with leaves of twice the size. 0 never does.
    leaf_size : int, default=None
        Points in a leaf of a tree. Larger leaves find better clusters in an iteration, and take longer. By default 47
        times the power 0.4 of the points that a cluster has on average: 118 for ten of them, 745 for a thousand. Beyond
        2,000 clusters, a fit in memory that starts from a tree then groups whole cells of it in the first iteration.
    neighborhoods : {"auto", "fresh", "kept", "all"}, default="auto"
        Which clusters a point is tested with: those of its neighbours in one new tree in every iteration, used and
        forgotten ("fresh"); in the paper's trees, kept and united ("kept"); or all clusters ("all"). "auto" is "all" up
        to 128 clusters, where that is as fast, and "fresh" beyond.
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
    max_size : float, default=None
        Upper bound on the cluster size, in rows or their weight: balanced clusters. Full clusters accept no points; a
        growing penalty pushes border points out. The distortion may then rise, and ``predict``, which looks for the
        nearest centre, is not balanced.
    memory_limit : int or str, default=None
        Bytes, or a text such as "1GB", that the fit may take beyond the centres, for data larger than memory: a memory
        map, or what ``open_vectors`` returns. The rows are laid out in a temporary file and read in slabs.
    scratch : str or PathLike, default=None
        The folder of that file, which is as large as the rows; by default that for temporary files.
    random_state : int, RandomState instance or None, default=None
        Seed. The same seed gives the same result, bit for bit, on any number of threads.
    n_jobs : int, default=None
        Number of threads; ``None`` and -1 mean all CPUs that the process, or its container, may use.
    callback : callable, default=None
        Called with the record of each iteration (see ``history_``); returning true ends the fit.
    checkpoint : str or PathLike, default=None
        A folder, or a file whose name ends in ``.safetensors``, to which the fit is saved from time to time and when
        it ends, be it by an interrupt. A fit that finds itself saved there goes on from where it was, and ends in the
        same bits as if it had never been stopped. If the data or the parameters are not those of the saved fit, or the
        processor, the BLAS or a version is another, an error says what differs; ``max_iter`` may.
    checkpoint_every : float, default=60
        Seconds between two checkpoints; 0 saves after every iteration.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    cluster_centers_ : (k, d) array
        Means of the clusters; with the cosine metric, their directions.
    cluster_sizes_ : (k,) array of float64
        Number of rows of each cluster, or their weight.
    labels_ : (n,) array of int32
        Cluster of each row. Some rows, up to a few in a hundred, are nearer to another centre: see ``relabel``.
    inertia_ : float
        Sum of the squared distances of the rows to their centres, weighted by ``sample_weight``. With the cosine
        metric these are 2 - 2 cos of the angle between them.
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
        init: Literal["tree", "random"] | ArrayLike | BaseEstimator = "tree",
        metric: Literal["euclidean", "cosine"] = "euclidean",
        max_iter: int = 100,
        tol: float = 5e-4,
        max_time: float | None = None,
        target_accuracy: float = 0.95,
        leaf_size: int | None = None,
        neighborhoods: Literal["auto", "fresh", "kept", "all"] = "auto",
        max_trees: int = 10,
        adaptive: bool = True,
        min_fall: float = 0.01,
        rule: Literal["hartigan", "lloyd"] = "hartigan",
        extrapolate: bool = True,
        tree_dims: int | None = 16,
        max_size: float | None = None,
        memory_limit: int | str | None = None,
        scratch: str | os.PathLike[str] | None = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        callback: Callable[[Iteration], Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            max_iter=max_iter,
            tol=tol,
            max_time=max_time,
            tree_dims=tree_dims,
            random_state=random_state,
            n_jobs=n_jobs,
            callback=callback,
            verbose=verbose,
        )
        self.n_clusters = n_clusters
        self.init = init
        self.metric = metric
        self.target_accuracy = target_accuracy
        self.leaf_size = leaf_size
        self.neighborhoods = neighborhoods
        self.max_trees = max_trees
        self.adaptive = adaptive
        self.min_fall = min_fall
        self.rule = rule
        self.extrapolate = extrapolate
        self.max_size = max_size
        self.memory_limit = memory_limit
        self.scratch = scratch
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every

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

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.leaf_size is not None:
            check.integer("leaf_size", self.leaf_size, 1)
        check.integer("max_trees", self.max_trees, 1)
        check.number("min_fall", self.min_fall, 0)
        check.number("target_accuracy", self.target_accuracy, 0, 1)
        for name in ("adaptive", "extrapolate"):
            check.boolean(name, getattr(self, name))
        check.choice("neighborhoods", self.neighborhoods, ("auto", "fresh", "kept", "all"))
        check.choice("metric", self.metric, ("euclidean", "cosine"))
        check.choice("rule", self.rule, ("hartigan", "lloyd"))
        if self.max_size is not None:
            check.number("max_size", self.max_size, 0)
        if self.checkpoint is not None and not isinstance(self.checkpoint, str | os.PathLike):
            raise TypeError(f"checkpoint must be a path, got {self.checkpoint!r}")
        check.number("checkpoint_every", self.checkpoint_every, 0)
        if self.scratch is not None and not isinstance(self.scratch, str | os.PathLike):
            raise TypeError(f"scratch must be a path, got {self.scratch!r}")
        if self.memory_limit is not None:
            check.n_bytes("memory_limit", self.memory_limit)
            if self.scratch is not None and not (os.path.isdir(self.scratch) and os.access(self.scratch, os.W_OK)):
                raise ValueError(f"scratch must be a folder that can be written to, got '{os.fspath(self.scratch)}'")
            check.choice("neighborhoods with memory_limit", self.neighborhoods, ("auto", "fresh"))
            if isinstance(self.init, str):
                check.choice("init with memory_limit", self.init, ("tree",))

    @property
    def _spherical(self) -> bool:
        return self.metric == "cosine"

    def _cluster(
        self, points: Points, labels: NDArray[np.int32], rng: np.random.Generator, record: Recorder, threads: Threads
    ) -> Outcome:
        state = begin(points, labels, self.n_clusters, threads)
        neighborhoods = self._neighborhoods(points, rng, threads)
        accuracy = partial(sample_accuracy, points, threads)
        return self._improve(points, state, neighborhoods, accuracy, rng, record, threads)

    def _improve(
        self,
        points: Any,
        state: Clustering,
        neighborhoods: Neighborhoods,
        measure_accuracy: Callable[[Clustering], float],
        rng: np.random.Generator,
        record: Recorder,
        threads: Threads,
        reassign: Reassign | None = None,
    ) -> Outcome:
        """Run the algorithm with this model's settings, from a checkpoint if there is one.

        ``reassign`` is for points that are not in memory.
        """
        if isinstance(record.checkpoint, Checkpoint):
            state = record.checkpoint.restore(state, neighborhoods, rng)
            if record.checkpoint.converged:
                return Outcome(state, "converged", {})
        stopped_by = self._count_start(state, len(state.labels), record)
        if stopped_by is not None:
            return Outcome(state, stopped_by, {})
        improved, stopped_by = cluster_by_closures(
            points,
            state,
            neighborhoods,
            reassign=reassign,
            hartigan=self.rule == "hartigan",
            extrapolate=self.extrapolate,
            max_size=self.max_size,
            n_done=len(record.history),
            max_iter=self.max_iter,
            tol=self.tol,
            measure_accuracy=measure_accuracy if self.max_size is None else None,  # some rows are not to be there
            on_iteration=record,
            threads=threads,
        )
        return Outcome(improved, stopped_by, {})

    def _rows(self, X: ArrayLike) -> Any:
        if self.memory_limit is None:
            return super()._rows(X)
        rows = open_vectors(cast(Rows, X)) if hasattr(X, "shape") else super()._rows(X)
        check.dtype(rows.dtype, "with memory_limit")
        return rows

    def _weights(self, sample_weight: ArrayLike | None, rows: Any) -> NDArray[np.float64]:
        weights = super()._weights(sample_weight, rows)
        if self.max_size is not None:
            check.max_size(self.max_size, weights, len(rows), self.n_clusters)
        if self.memory_limit is not None and not weights.all():
            raise ValueError("sample_weight must be above 0 with memory_limit: leave out the rows that weigh nothing")
        return weights

    def _counted(self, rows: Any) -> Any:
        return rows if self.memory_limit is not None else super()._counted(rows)

    def _fit(
        self, X: NDArray[Any], weights: NDArray[np.float64], n_clusters: int, init: str | NDArray[Any], began: float
    ) -> dict[str, Any]:
        if self.memory_limit is None:
            return super()._fit(X, weights, n_clusters, init, began)
        check.enough_rows(n_clusters, X)
        memory = check.n_bytes("memory_limit", self.memory_limit)
        dtype = np.dtype(precision(X.dtype) if self._spherical else X.dtype)
        slab_size = layout.count_slab_points(
            memory, len(X), X.shape[1], dtype, self.tree_dims, weighted=len(weights) > 1
        )
        layout.check_groups(X, memory)
        rng = check.generator(self.random_state)
        checkpoint = self._open_checkpoint(X, weights, init, rng)
        with Threads(count_threads(self.n_jobs)) as threads, Recorder(self, began, len(X), checkpoint) as record:
            stored, labels = layout.lay_out(
                X,
                weights,
                n_clusters,
                slab_size,
                n_axes=self.tree_dims,
                spherical=self._spherical,
                folder=self.scratch,
                rng=rng,
                threads=threads,
            )
            if checkpoint is not None:
                checkpoint.check_points(stored.points, stored.order)
                init = "tree" if checkpoint.saved else init  # what is saved takes its place
            if not isinstance(init, str):
                labels = slabs.start_labels(init, stored, X, self._spherical, threads)
            sample = layout.sample_rows(X, SAMPLE_ROWS, self._spherical)  # X is not read again
            grow = cast(Grow, partial(slabs.draw_slabs, stored, rng, threads))
            outcome = self._improve(
                stored,
                slabs.begin(stored, labels, n_clusters, threads),
                FreshNeighborhoods(grow, self._leaf_size(len(X)), slab_size, self.target_accuracy),
                partial(sample_accuracy, stored.points, threads),
                rng,
                record,
                threads,
                reassign=slabs.assign_and_update,
            )
        if not record.history:
            raise KeyboardInterrupt
        labels = np.empty(len(X), np.int32)
        labels[stored.order] = outcome.state.labels
        return fitted_attributes(outcome, labels, stored.points.mean, sample, record)

    def _open_checkpoint(
        self, X: NDArray[Any], weights: NDArray[Any], init: str | NDArray[Any], rng: np.random.Generator
    ) -> Checkpoint | None:
        if self.checkpoint is None:
            return None
        return Checkpoint(self.checkpoint, self.checkpoint_every, fingerprint(self, X, weights, init), rng)

    def _neighborhoods(self, points: Points, rng: np.random.Generator, threads: Threads) -> Neighborhoods:
        kind = self.neighborhoods
        if kind == "auto":
            kind = "all" if self.n_clusters <= FEW_CLUSTERS else "fresh"
        grow, n_points = partial(grow_leaves, points, rng, threads), len(points.rows)
        leaf_size = self._leaf_size(n_points)
        if kind == "all":
            return AllClusters(n_points)
        if kind == "fresh":
            from_cells = self.leaf_size is None and isinstance(self.init, str) and self.init == "tree"
            first = group_cells(points, self.n_clusters, rng, threads) if from_cells else None
            return FreshNeighborhoods(grow, leaf_size, n_points, self.target_accuracy, first)
        return KeptNeighborhoods(grow, leaf_size, self.max_trees, adaptive=self.adaptive, min_fall=self.min_fall)

    def _leaf_size(self, n_points: int) -> int:
        return self.leaf_size or suitable_leaf_size(n_points, self.n_clusters)

    def _for_centers(self, n_clusters: int) -> ClosureKMeans:
        """A model like this one, for its centres."""
        like: ClosureKMeans = clone(self)
        like.set_params(
            n_clusters=n_clusters, init="tree", max_size=None, memory_limit=None, checkpoint=None, callback=None
        )
        return like

    def hierarchy(self, levels: Sequence[int]) -> list[Level]:
        """Cluster the clusters, and those again, by the same method and with the same parameters.

        A centre weighs as much as the rows of its cluster, so that the centres of a level are the means of all rows
        below them.

        Parameters
        ----------
        levels : sequence of int
            The number of clusters in each level, from fine to coarse: each less than that below.

        Returns
        -------
        hierarchy : list of Level
            For each level ``parents``, the cluster of this level that each cluster of the level below is in; the first
            is about the clusters of the model itself. ``centers`` and ``sizes`` are those of the level.

        Examples
        --------
        >>> from closure_kmeans import ClosureKMeans
        >>> from closure_kmeans.datasets import load_sift
        >>> model = ClosureKMeans(n_clusters=1000, random_state=0).fit(load_sift())
        >>> fine, coarse = model.hierarchy([100, 10])
        >>> fine.parents.shape, coarse.parents.shape
        ((1000,), (100,))
        >>> in_coarse = coarse.parents[fine.parents[model.labels_]]  # of each row
        """
        check_is_fitted(self, "cluster_centers_")
        if not np.iterable(levels):
            raise TypeError(f"levels must be a sequence of integers, such as [{levels}], got {levels!r}")
        centers, sizes = np.asarray(self.cluster_centers_), np.asarray(self.cluster_sizes_)
        hierarchy: list[Level] = []
        for n_clusters in levels:
            check.integer("levels", n_clusters, 1)
            if n_clusters >= len(centers):
                raise ValueError(
                    f"levels must have fewer clusters than the level below, which has {len(centers)}, got {n_clusters}"
                )
            above = self._for_centers(n_clusters).fit(centers, sample_weight=sizes)
            if above.stopped_by_ == "interrupted":
                raise KeyboardInterrupt
            centers, sizes = above.cluster_centers_, above.cluster_sizes_
            hierarchy.append(Level(above.labels_, centers, sizes))
        return hierarchy
