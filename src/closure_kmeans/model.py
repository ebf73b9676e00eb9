"""Fitted models: prediction and other queries by the index of the centres, saving, notebook output."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from closure_kmeans import validation as check
from closure_kmeans.arrays import check_labels, check_new_rows, check_weights
from closure_kmeans.files import library
from closure_kmeans.iteration import Iteration
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.points import rows_per_block, shifted, squared_distances
from closure_kmeans.search import CenterIndex
from closure_kmeans.spherical import unit_rows
from closure_kmeans.storage import pack_model
from closure_kmeans.tensors import unmap, write_tensors

if TYPE_CHECKING:
    from closure_kmeans.explorer.notebook import Grid

# Fewest rows transformed at a time, since each block converts the centres to float64.
TRANSFORM_ROWS = 256


class FittedModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """A fitted model: cluster centres, and queries for new rows."""

    # The class of ``center_index_``.
    index_class: ClassVar[type[CenterIndex]] = CenterIndex

    # Defaults of parameters that some estimators do not have.
    init: Literal["tree", "random"] | ArrayLike = "tree"
    metric: Literal["euclidean", "cosine"] = "euclidean"

    n_threads: int | None

    cluster_centers_: NDArray[Any]
    cluster_sizes_: NDArray[np.float64]
    labels_: NDArray[np.int32]
    inertia_: float
    n_iter_: int
    history_: list[Iteration]
    stopped_by_: str
    _sample: NDArray[Any] | None  # rows of the fit
    _index: list[CenterIndex]  # one, or none until it is first used; a list, so that ``predict`` sets no attribute
    _indexed: NDArray[Any]  # the centres that ``_index`` and ``_sample`` belong to

    def predict(self, X: ArrayLike, *, exact: bool = False) -> NDArray[np.int32]:
        """Find the nearest centre of each row.

        Up to 10,000 centres, all are compared. Beyond, a row is compared with the centres in the cells nearest to it,
        which finds the nearest centre for more than 99 % of rows like those of the fit. The cells are built on the
        first call. The result for a row does not depend on the other rows.

        Parameters
        ----------
        X : (n, d) array
            Rows.
        exact : bool, default=False
            Whether to compare with all centres, whatever their number.

        Returns
        -------
        (n,) array of int32
            Index of the centre of each row.

        See Also
        --------
        several_nearest : More than one centre per row.
        relabel : Sets ``labels_`` to these values.

        Examples
        --------
        >>> from closure_kmeans import ClosureKMeans
        >>> model = ClosureKMeans(n_clusters=2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> labels = model.predict([[2.0], [8.0]])
        >>> model.cluster_centers_[labels].ravel().tolist()
        [0.5, 9.5]
        """
        labels, _ = self.center_index_.find(self._check(X), exact)
        return labels

    def relabel(self, X: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Replace ``labels_`` by the result of ``predict`` for the rows of the fit.

        After a fit, up to a few percent of the labels differ from the nearest centres: Hartigan's rule counts the shift
        of both centres, and the last update moves the centres again. ``cluster_sizes_`` and ``inertia_`` become those
        of the new labels; the centres stay. The sizes may exceed ``max_size``, and clusters may be empty if the fit was
        stopped early.

        Parameters
        ----------
        X : (n, d) array
            The rows of the fit.
        sample_weight : (n,) array, default=None
            Their weights.

        Returns
        -------
        BaseKMeans
            The estimator itself.

        See Also
        --------
        predict : The nearest centres.

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
        labels, distances = self.center_index_.find(rows)
        weights = np.ones(len(labels)) if sample_weight is None else check_weights(sample_weight, len(distances))
        self.labels_ = labels
        self.cluster_sizes_ = np.bincount(labels, weights, len(self.cluster_centers_)).astype(np.float64, copy=False)
        self.inertia_ = float((distances * weights).sum())
        return self

    def several_nearest(self, X: ArrayLike, n_nearest: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Find several nearest centres of each row, for soft assignment.

        Parameters
        ----------
        X : (n, d) array
            Rows.
        n_nearest : int
            Number of centres per row; all, if there are fewer.

        Returns
        -------
        labels : (n, n_nearest) array of int32
            Indices of the centres, nearest first. Beyond 10,000 centres, the search is approximate, as in ``predict``.
        squared_distances : (n, n_nearest) array of float64
            Squared distances to them.

        See Also
        --------
        predict : The nearest centre only.

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
        return self.center_index_.find_several(rows, n_nearest)

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Compute the distances of each row to all centres.

        Parameters
        ----------
        X : (n, d) array
            Rows.

        Returns
        -------
        (n, k) array
            Distances, not squared.

        See Also
        --------
        several_nearest : The nearest centres only, which takes less memory.

        Examples
        --------
        >>> from closure_kmeans import ClosureKMeans
        >>> model = ClosureKMeans(n_clusters=2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> sorted(model.transform([[2.0]]).ravel().tolist())
        [1.5, 7.5]
        """
        from sklearn.metrics.pairwise import euclidean_distances

        rows = self._check(X)
        offset, centers = self.center_index_.relative(rows.dtype)
        distances = np.empty((len(rows), len(centers)), centers.dtype)

        def measure(first: int, last: int) -> None:
            distances[first:last] = euclidean_distances(shifted(rows[first:last], offset), centers)

        with Threads(count_threads(self.n_threads)) as threads:
            threads.for_each_block(measure, len(rows), max(TRANSFORM_ROWS, rows_per_block(distances)))
        return distances

    def score(self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None) -> float:
        """Compute the negative inertia of X, with every row assigned by ``predict``.

        Parameters
        ----------
        X : (n, d) array
            Rows.
        y : None
            Ignored.
        sample_weight : (n,) array, default=None
            Weights of the rows.

        Returns
        -------
        float
            Minus the weighted sum of squared distances.

        See Also
        --------
        closure_kmeans.metrics.distortion : Mean squared distance to the exact nearest centres.

        Examples
        --------
        >>> from closure_kmeans import ClosureKMeans
        >>> model = ClosureKMeans(n_clusters=2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> model.score([[2.0], [8.0]])
        -4.5
        """
        _, distances = self.center_index_.find(self._check(X))
        if sample_weight is not None:
            distances = distances * check_weights(sample_weight, len(distances))
        return -float(distances.sum())

    def medoids(self, X: ArrayLike, labels: ArrayLike | None = None) -> NDArray[np.int64]:
        """Find the row of each cluster that is nearest to its centre.

        Parameters
        ----------
        X : (n, d) array
            Rows to choose from: those of the fit, or others.
        labels : (n,) array, default=None
            Cluster of each row, such as ``labels_``; by default the result of ``predict``.

        Returns
        -------
        (k,) array of int64
            Row numbers, the first one of equally near rows; -1 for a cluster without rows in X.

        See Also
        --------
        squared_distances : Distances of all rows to their centres.

        Examples
        --------
        >>> from closure_kmeans import ClosureKMeans
        >>> model = ClosureKMeans(n_clusters=2).fit([[0.0], [1.0], [3.0], [10.0]])
        >>> sorted(model.medoids([[0.0], [1.0], [3.0], [10.0]]).tolist())
        [1, 3]
        """
        rows = self._check(X)
        clusters, distances = self.center_index_.find(rows) if labels is None else self._measure(rows, labels)
        nearest_first = np.lexsort((distances, clusters))
        found, first = np.unique(clusters[nearest_first], return_index=True)
        medoids = np.full(len(self.cluster_centers_), -1)
        medoids[found] = nearest_first[first]
        return medoids

    def squared_distances(self, X: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
        """Compute the squared distance of each row to the centre of its label.

        Parameters
        ----------
        X : (n, d) array
            Rows.
        labels : (n,) array
            Cluster of each row, such as ``labels_``.

        Returns
        -------
        (n,) array of float64
            Squared distances.

        See Also
        --------
        transform : Distances to all centres.

        Examples
        --------
        >>> from closure_kmeans import ClosureKMeans
        >>> model = ClosureKMeans(n_clusters=2).fit([[0.0], [2.0], [9.0]])
        >>> model.squared_distances([[0.0], [2.0], [9.0]], model.labels_).tolist()
        [1.0, 1.0, 0.0]
        """
        _, distances = self._measure(self._check(X), labels)
        return distances

    def _measure(self, rows: NDArray[Any], labels: ArrayLike) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Labels as an array, and the squared distance of each row to the centre of its label."""
        checked = check_labels("labels", labels, len(rows), len(self.cluster_centers_))
        offset, centers = self.center_index_.relative(rows.dtype)
        return checked, squared_distances(rows, centers, offset, checked)

    # -- notebooks -----------------------------------------------------------------------------------------------------

    def show_cluster(self, cluster: int, X: ArrayLike | None = None, *, images: Any = None, n_items: int = 24) -> Grid:
        """Show the rows of a cluster as a grid in a notebook; needs the extra ``explore``.

        Parameters
        ----------
        cluster : int
            Number of the cluster.
        X : (n, d) array, default=None
            Rows of the fit. With X, the rows nearest to the centre come first, and are drawn if there are no images.
        images : folder, list of paths and arrays, or array of shape (n, height, width[, 3]), default=None
            One image per row.
        n_items : int, default=24
            Number of rows to show.

        Returns
        -------
        Grid
            Has an HTML representation, and the row numbers as ``items``.

        See Also
        --------
        medoids : One row per cluster.

        Examples
        --------
        >>> from closure_kmeans import ClosureKMeans
        >>> model = ClosureKMeans(n_clusters=2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> len(model.show_cluster(0, [[0.0], [1.0], [9.0], [10.0]]).items)
        2
        """
        check_is_fitted(self, "labels_")
        library("jinja2", "explore", "a grid")
        from closure_kmeans.explorer.notebook import cluster_grid

        return cluster_grid(self, cluster, X, images, n_items)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """Notebook output: the parameters, and with the extra ``explore`` a summary of the model."""
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        with suppress(ImportError):
            from closure_kmeans.explorer.notebook import summary

            if "text/html" in bundle:
                bundle["text/html"] += summary(self)
        return bundle

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, training: bool = False) -> None:
        """Write the model to one ``.safetensors`` file, for ``closure_kmeans.load``.

        The loaded model predicts, transforms and scores like this one, bit for bit. Equal models give equal bytes. An
        existing file is replaced atomically.

        Parameters
        ----------
        path : str or PathLike
            File to write.
        training : bool, default=False
            Whether to include ``labels_`` and ``history_``.

        See Also
        --------
        closure_kmeans.load : Read the model.

        Examples
        --------
        >>> import closure_kmeans
        >>> from tempfile import TemporaryDirectory
        >>> model = closure_kmeans.ClosureKMeans(n_clusters=2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/words.safetensors")
        ...     closure_kmeans.load(f"{folder}/words.safetensors").n_clusters
        2
        """
        check_is_fitted(self, "cluster_centers_")
        unmap(self, Path(path))
        write_tensors(Path(path), "model", *pack_model(self, training=training))

    # -- the index of the centres --------------------------------------------------------------------------------------

    @property
    def center_index_(self) -> CenterIndex:
        """Search index of the centres.

        It is built on first use, and again if ``cluster_centers_`` was replaced.

        See Also
        --------
        closure_kmeans.CenterIndex : Its methods.

        Examples
        --------
        >>> from closure_kmeans import ClosureKMeans
        >>> model = ClosureKMeans(n_clusters=2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> model.center_index_.nearest([[2.0]])[1].tolist()
        [2.25]
        """
        check_is_fitted(self, "cluster_centers_")
        if self._indexed is not self.cluster_centers_:
            self._index, self._indexed = [self.index_class(self.cluster_centers_)], self.cluster_centers_
        if not self._index:
            self._index.append(self.index_class.of(self.cluster_centers_, sample=self._sample))
        (index,) = self._index
        index.n_threads = self.n_threads
        return index

    def __getstate__(self) -> dict[str, Any]:
        """State for pickling: the index as arrays, without the centres and without rows of the fit."""
        state: dict[str, Any] = dict(super().__getstate__())
        if state.pop("_indexed", None) is not None:
            state["_index"] = self.center_index_.pack()
            state.pop("_sample", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_index" in state:
            self._index = [self.index_class.unpack(self.cluster_centers_, *state["_index"])[0]]
            self._indexed = self.cluster_centers_

    def _check(self, X: ArrayLike) -> NDArray[Any]:
        """Check new rows; L2-normalise them for the cosine metric."""
        check_is_fitted(self, "cluster_centers_")
        given = check.rows(X)
        rows = check.fitted_rows(given, self)
        validate_data(self, given, reset=False, skip_check_array=True)
        rows = unit_rows(rows) if self.metric == "cosine" else rows
        check_new_rows(rows, self.cluster_centers_[0])
        return rows

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)
