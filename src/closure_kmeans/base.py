"""What all estimators of the library have in common: they check, delegate to their method, record and predict."""

from __future__ import annotations

import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from closure_kmeans import validation as check
from closure_kmeans.checkpoint import Checkpoint
from closure_kmeans.files import check_uncut, library
from closure_kmeans.initialize import start_labels
from closure_kmeans.iteration import Clustering, Iteration, Step
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.points import Points, arrange_points, precision, rows_per_block, shifted, unit_rows
from closure_kmeans.quantizer import (
    MANY_CENTERS,
    MANY_ROWS,
    SAMPLE_ROWS,
    SOME_CENTERS,
    Cells,
    Quantizer,
    count_probes,
    find_centers,
    group_centers,
    nearest_centers,
    one_cell,
    quantize,
    quantize_softly,
    squared_distances,
)
from closure_kmeans.recorder import Recorder
from closure_kmeans.storage import save_model

if TYPE_CHECKING:
    from closure_kmeans.explorer.notebook import Grid

# Rows transformed at a time, at least: enough for products that are worth converting the centres to float64.
TRANSFORM_ROWS = 256


class Outcome(NamedTuple):
    """What a method makes of the points."""

    state: Clustering
    stopped_by: str
    attributes: dict[str, Any]  # of the fitted model, beyond those that all have


class BaseKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator, ABC):
    """An estimator but for its method, which is ``_cluster``."""

    n_clusters: int
    init: Literal["tree", "random"] | ArrayLike
    labels_: NDArray[np.int32]
    cluster_sizes_: NDArray[np.float64]
    _n_probes: int | None

    def __init__(
        self,
        *,
        max_iter: int,
        tol: float,
        max_time: float | None,
        tree_dims: int | None,
        random_state: int | np.random.RandomState | None,
        n_jobs: int | None,
        callback: Callable[[Iteration], Any] | None,
        verbose: int,
    ) -> None:
        self.max_iter = max_iter
        self.tol = tol
        self.max_time = max_time
        self.tree_dims = tree_dims
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.callback = callback
        self.verbose = verbose

    # -- what a method is -------------------------------------------------------------------------------------------

    @abstractmethod
    def _cluster(
        self, points: Points, labels: NDArray[np.int32], rng: np.random.Generator, record: Recorder, threads: Threads
    ) -> Outcome:
        """Improve the labels, and tell ``record`` of every iteration."""

    def _check_parameters(self) -> None:
        check.parameters(self)
        check.integer("n_clusters", self.n_clusters, 1)

    def _start(self) -> tuple[int, str | ArrayLike]:
        """The number of clusters to begin with, and their start."""
        return self.n_clusters, self.init

    @property
    def _spherical(self) -> bool:
        """Whether only the directions of rows count, and centres have length one."""
        return False

    @property
    def _most_iterations(self) -> int:
        return self.max_iter

    @property
    def _centers_given(self) -> bool:
        """Whether the start assigns the points to given centres."""
        return isinstance(self.init, BaseEstimator) or np.ndim(self.init) == 2

    def _open_checkpoint(
        self, X: NDArray[Any], weights: NDArray[Any], init: str | NDArray[Any], rng: np.random.Generator
    ) -> Checkpoint | None:
        """Where the fit is saved, by a method that can be resumed."""
        return None

    # -- fit --------------------------------------------------------------------------------------------------------

    def fit(self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None) -> Self:
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
        self._check_parameters()
        X = check.rows(X)
        rows = self._rows(X)
        weights = self._weights(sample_weight, rows)
        n_clusters, start = self._start()
        init = check.init(start, n_clusters, rows)
        if self._spherical:
            init = unit_rows(init, "init") if isinstance(init, np.ndarray) and init.ndim == 2 else init
        validate_data(BaseEstimator(), X, skip_check_array=True)  # the names of the features must be in order
        rows = self._counted(rows)
        if weights.all():
            fitted = self._fit(rows, weights, n_clusters, init, began)
        else:
            some = weights > 0
            check_uncut(X)
            others = rows[~some]
            check_array(others, dtype=None, estimator=self, input_name="X")
            init = init[some] if isinstance(init, np.ndarray) and init.ndim == 1 else init
            fitted = self._fit(rows[some], weights[some], n_clusters, init, began)
            labels = np.empty(len(rows), np.int32)
            labels[some] = fitted["labels_"]
            labels[~some] = self._labels_of(others, fitted)
            fitted["labels_"] = labels
        # Only now that all went well.
        self.__dict__.update(fitted)
        validate_data(self, X, skip_check_array=True)
        self._warn_if_interrupted()
        return self

    def _warn_if_interrupted(self) -> None:
        if self.stopped_by_ == "interrupted":
            message = f"interrupted: the model is as it was after iteration {self.n_iter_}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    def _fit(
        self, X: NDArray[Any], weights: NDArray[np.float64], n_clusters: int, init: str | NDArray[Any], began: float
    ) -> dict[str, Any]:
        """Arrange, start and iterate: the attributes of the fitted model."""
        check.enough_rows(n_clusters, X)
        check.memory(n_clusters, X, self.tree_dims)
        rng = check.generator(self.random_state)
        checkpoint = self._open_checkpoint(X, weights, init, rng)
        with Threads(count_threads(self.n_jobs)) as threads, Recorder(self, began, len(X), checkpoint) as record:
            points, tree = arrange_points(X, weights, n_clusters, self.tree_dims, rng, threads)
            points = points._replace(spherical=self._spherical)
            check_uncut(X)
            sample = X[:: -(-len(X) // SAMPLE_ROWS)].copy()  # X is not read again
            if checkpoint is not None:
                checkpoint.check_points(points, tree.members)
                init = "tree" if checkpoint.saved else init  # what is saved takes its place
            labels = start_labels(init, points, tree, rng, threads)
            outcome = self._cluster(points, labels, rng, record, threads)
        if not record.history:
            raise KeyboardInterrupt
        labels = np.empty(len(X), np.int32)
        labels[tree.members] = outcome.state.labels
        return fitted_attributes(outcome, labels, points.mean, sample, record)

    def _count_start(self, state: Clustering, n_points: int, record: Recorder) -> str | None:
        """Record the start as the first iteration if it assigned the points to given centres; a reason to stop."""
        if record.history or not self._centers_given:
            return None
        return record(Step(state, n_active=n_points, n_pairs=n_points * self.n_clusters, n_trees=0), None)

    def _rows(self, X: ArrayLike) -> Any:
        """The rows as an array, taken as they are where they can be."""
        return _side_by_side(
            check_array(check.native(X), dtype=check.DTYPES, ensure_all_finite=False, estimator=self, input_name="X")
        )

    def _weights(self, sample_weight: ArrayLike | None, rows: Any) -> NDArray[np.float64]:
        """The weights of the rows, or a single one where all weigh the same."""
        return check.sample_weight(sample_weight, rows)

    def _counted(self, rows: Any) -> Any:
        """The rows as they count."""
        return unit_rows(rows) if self._spherical else rows

    def _labels_of(self, rows: NDArray[Any], fitted: dict[str, Any]) -> NDArray[np.int32]:
        """Labels of rows that took no part in a fit."""
        mean, centers = centered(fitted["cluster_centers_"], rows.dtype)
        with Threads(count_threads(self.n_jobs)) as threads:
            return find_centers(rows, centers, mean, fitted["_sample"], threads)

    # -- new rows ------------------------------------------------------------------------------------------------------

    def predict(self, X: ArrayLike, *, exact: bool = False) -> NDArray[np.int32]:
        """The nearest centre of each row.

        Up to 10,000 centres all are compared. Beyond, a row is compared with the centres in the cells nearest to it,
        which finds the nearest centre of more than 99 of 100 rows of the kind that the model was fitted to. The cells
        are built on the first call. ``exact=True`` compares all centres at any number of them. Either way the result
        is a pure function of each row.
        """
        labels, _ = self._nearest(self._check(X), exact)
        return labels

    def relabel(self, X: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Replace ``labels_`` by what ``predict`` gives: the nearest centres of the rows of the fit.

        A fit ends with labels that differ from these for some rows, up to a few in a hundred: a row moves when that
        lowers the distortion with the shift of both centres counted, and the last update moves the centres once more.
        ``cluster_sizes_`` and ``inertia_`` become those of the new labels; the centres stay. The sizes are not
        bound by ``max_size``, and a cluster may be left without rows if the fit was stopped early.

        Parameters
        ----------
        X : (n, d) array
            The rows that the model was fitted to.
        sample_weight : (n,) array, default=None
            Their weights.

        Examples
        --------
        >>> from closure_kmeans import ClosureKMeans
        >>> from closure_kmeans.datasets import load_sift
        >>> X = load_sift()
        >>> model = ClosureKMeans(n_clusters=1000, random_state=0).fit(X).relabel(X)
        >>> bool((model.labels_ == model.predict(X)).all())
        True
        """
        rows = self._check(X)
        if len(rows) != len(getattr(self, "labels_", rows)):
            raise ValueError(f"X must be the {len(self.labels_)} rows of the fit, got {len(rows)}")
        labels, distances = self._nearest(rows)
        weights = np.ones(len(labels)) if sample_weight is None else check.weights_like(sample_weight, distances)
        self.labels_ = labels
        self.cluster_sizes_ = np.bincount(labels, weights, len(self.cluster_centers_)).astype(np.float64, copy=False)
        self.inertia_ = float((distances * weights).sum())
        return self

    def several_nearest(self, X: ArrayLike, n_nearest: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """The nearest centres of each row, as many as asked for or as there are: soft assignment.

        Returns
        -------
        labels : (n, n_nearest) array of int32
            The nearest first. Beyond 10,000 centres they are looked for in the same cells as by ``predict``.
        squared_distances : (n, n_nearest) array of float64

        Examples
        --------
        >>> from closure_kmeans import ClosureKMeans
        >>> model = ClosureKMeans(n_clusters=3).fit([[0.0], [4.0], [10.0]])
        >>> labels, squared_distances = model.several_nearest([[1.0]], 2)
        >>> model.cluster_centers_[labels].ravel().tolist(), squared_distances.tolist()
        ([0.0, 4.0], [[1.0, 9.0]])
        """
        rows = self._check(X)
        check.integer("n_nearest", n_nearest, 1)
        dtype = precision(rows.dtype)
        with Threads(count_threads(self.n_jobs)) as threads:
            if len(self.cluster_centers_) <= MANY_CENTERS:
                mean, centers = centered(self.cluster_centers_, dtype)
                return quantize_softly(rows, one_cell(centers, mean), n_nearest, threads)
            return quantize_softly(rows, self._quantizer(dtype, threads), n_nearest, threads)

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """The distances of each row to all centres, as an (n, k) array."""
        rows = self._check(X)
        mean, centers = centered(self.cluster_centers_, rows.dtype)
        distances = np.empty((len(rows), len(centers)), centers.dtype)

        def measure(first: int, last: int) -> None:
            distances[first:last] = euclidean_distances(shifted(rows[first:last], mean), centers)

        with Threads(count_threads(self.n_jobs)) as threads:
            threads.for_each_block(measure, len(rows), max(TRANSFORM_ROWS, rows_per_block(distances)))
        return distances

    def score(self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None) -> float:
        """The negative of the inertia that the rows of X would have, assigned as by ``predict``."""
        _, distances = self._nearest(self._check(X))
        if sample_weight is not None:
            distances = distances * check.weights_like(sample_weight, distances)
        return -float(distances.sum())

    def medoids(self, X: ArrayLike, labels: ArrayLike | None = None) -> NDArray[np.int64]:
        """The row that stands for each cluster: of its rows in X the one nearest to its centre, the first of several.

        Parameters
        ----------
        X : (n, d) array
            The rows to choose from: those that the model was fitted to, or any others.
        labels : (n,) array, default=None
            The cluster of each row, such as ``labels_``; by default what ``predict`` gives.

        Returns
        -------
        rows : (k,) array of int64
            Places in X; -1 for a cluster that has no row there.

        Examples
        --------
        >>> from closure_kmeans import ClosureKMeans
        >>> model = ClosureKMeans(n_clusters=2).fit([[0.0], [1.0], [3.0], [10.0]])
        >>> sorted(model.medoids([[0.0], [1.0], [3.0], [10.0]]).tolist())
        [1, 3]
        """
        rows = self._check(X)
        if labels is None:
            clusters, distances = self._nearest(rows)
        else:
            clusters = check.labels("labels", labels, len(rows), len(self.cluster_centers_))
            mean, centers = centered(self.cluster_centers_, rows.dtype)
            distances = squared_distances(rows, centers, mean, clusters)
        nearest_first = np.lexsort((distances, clusters))
        found, first = np.unique(clusters[nearest_first], return_index=True)
        medoids = np.full(len(self.cluster_centers_), -1)
        medoids[found] = nearest_first[first]
        return medoids

    def _nearest(self, rows: NDArray[Any], exact: bool = False) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        with Threads(count_threads(self.n_jobs)) as threads:
            if len(self.cluster_centers_) > MANY_CENTERS and not exact:
                return quantize(rows, self._quantizer(precision(rows.dtype), threads), threads)
            return self._nearest_of_all(rows, threads)

    def _nearest_of_all(self, rows: NDArray[Any], threads: Threads) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        dtype = precision(rows.dtype)
        if dtype in self._cells or (len(rows) >= MANY_ROWS and len(self.cluster_centers_) >= SOME_CENTERS):
            cells = self._grouped(dtype, threads)
            if cells.axes.shape[1] > 0:  # without sketches, cells are no help
                return quantize(rows, Quantizer(cells, len(cells.middles)), threads)
        mean, centers = centered(self.cluster_centers_, rows.dtype)
        return nearest_centers(rows, centers, mean, threads)

    def _quantizer(self, dtype: type[np.floating[Any]], threads: Threads) -> Quantizer:
        """Cells for rows of a precision. How many of them to look into is measured once, in that of the centres."""
        if self._n_probes is None:
            own = precision(self.cluster_centers_.dtype)
            _, centers = centered(self.cluster_centers_, own)
            self._n_probes = count_probes(self._grouped(own, threads), centers, self._sample, threads)
        return Quantizer(self._grouped(dtype, threads), self._n_probes)

    def _grouped(self, dtype: type[np.floating[Any]], threads: Threads) -> Cells:
        """The centres in cells, in a precision."""
        if dtype not in self._cells:
            mean, centers = centered(self.cluster_centers_, dtype)
            self._cells[dtype] = group_centers(centers, mean, threads)
        cells: Cells = self._cells[dtype]
        return cells

    def _own_quantizer(self) -> Quantizer | None:
        """Cells in the precision of the centres; none where all are compared."""
        if len(self.cluster_centers_) <= MANY_CENTERS:
            return None
        with Threads(count_threads(self.n_jobs)) as threads:
            return self._quantizer(precision(self.cluster_centers_.dtype), threads)

    # -- notebooks -----------------------------------------------------------------------------------------------------

    def show_cluster(self, cluster: int, X: ArrayLike | None = None, *, images: Any = None, n_items: int = 24) -> Grid:
        """The rows of a cluster as a grid, for a notebook; it needs the extra ``explore``.

        Parameters
        ----------
        cluster : int
            The number of the cluster.
        X : (n, d) array, default=None
            The rows that the model was fitted to: those nearest to the centre come first, and are drawn if there are no
            images.
        images : folder, list of paths and arrays, or array of shape (n, height, width[, 3]), default=None
            An image for each row.
        n_items : int, default=24
            How many rows to show.
        """
        check_is_fitted(self, "labels_")
        library("markupsafe", "explore", "a grid")
        from closure_kmeans.explorer.notebook import cluster_grid

        return cluster_grid(self, cluster, X, images, n_items)

    def _summary(self) -> str:
        """What a notebook shows below the parameters; nothing without the extra ``explore``."""
        try:
            from closure_kmeans.explorer.notebook import summary
        except ImportError:
            return ""
        return summary(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        return bundle | {"text/html": bundle["text/html"] + self._summary()} if "text/html" in bundle else bundle

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, training: bool = False) -> None:
        """Write the model into one ``.safetensors`` file, which ``closure_kmeans.load`` reads.

        The loaded model predicts, transforms and scores like this one, bit for bit, and the same model gives the same
        bytes. The file is written beside, and then takes the place of an old one, whole or not at all.

        Parameters
        ----------
        path : str or PathLike
            The name of the file.
        training : bool, default=False
            Whether to keep what only the training data has, too: ``labels_`` and ``history_``.
        """
        check_is_fitted(self, "cluster_centers_")
        if self._n_probes is None:
            self._own_quantizer()  # the sample that shows it is not stored
        save_model(self, path, training=training)

    def _stored_arrays(self) -> dict[str, NDArray[Any]]:
        """What a file holds of attributes that are more than one array."""
        return {}

    def _restored(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """Those attributes again, from the arrays of a file, which are taken out."""
        return {}

    def _check(self, X: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self, "cluster_centers_")
        given = check.native(check.rows(X))
        rows = _side_by_side(validate_data(self, given, dtype=check.DTYPES, reset=False, ensure_all_finite=False))
        rows = unit_rows(rows) if self._spherical else rows
        check.new_rows(rows, self.cluster_centers_[0])
        return rows

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return state | {"_cells": {}} if "_cells" in state else state  # rebuilt faster than stored

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _side_by_side(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows whose values lie side by side; the rows themselves may be apart, as they are in some files."""
    return rows if rows.strides[1] == rows.itemsize else np.ascontiguousarray(rows)


def centered(centers: NDArray[Any], dtype: DTypeLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """A point in the midst of the centres, and the centres relative to it, in the precision of a dtype."""
    centers = centers.astype(precision(dtype))
    mean = centers.mean(axis=0)
    return mean, centers - mean


def fitted_attributes(
    outcome: Outcome, labels: NDArray[np.int32], mean: NDArray[Any], sample: NDArray[Any], record: Recorder
) -> dict[str, Any]:
    """The attributes of a model; labels are in the order of the user's rows, the sample shows what rows are like."""
    return outcome.attributes | {
        "cluster_centers_": outcome.state.clusters.centers + mean,
        "cluster_sizes_": outcome.state.clusters.sizes,
        "labels_": labels,
        "inertia_": outcome.state.clusters.inertia,
        "n_iter_": len(record.history),
        "history_": record.history,
        "stopped_by_": outcome.stopped_by,
        "_sample": sample,
        "_n_probes": None,
        "_cells": {},
    }
