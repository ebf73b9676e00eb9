"""DistributedClosureKMeans: the estimator for rows that do not fit one machine."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from closure_kmeans import validation as check
from closure_kmeans.checkpoint import Resume, identify
from closure_kmeans.distributed.cluster import Cluster, connect
from closure_kmeans.distributed.files import SharedFolder, fit_folder, shared_folder
from closure_kmeans.distributed.sources import Source, open_source
from closure_kmeans.distributed.store import DaskStore
from closure_kmeans.estimator import BaseKMeans, fitted_attributes, improve
from closure_kmeans.hierarchy import ClustersOfClusters
from closure_kmeans.iteration import Recorder
from closure_kmeans.method import Method
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.spherical import unit_rows


@dataclass(eq=False, repr=False)
class DistributedClosureKMeans(ClustersOfClusters, BaseKMeans):
    """K-means by cluster closures on a Dask cluster, for rows that do not fit on one machine.

    The rows are split into partitions, in a place that all workers share. In each iteration, one task per partition
    assigns its points and returns sums for the clusters that they are in; the driver adds the sums and writes the next
    file of centres. The centres near a partition are entered into its trees as points, so that clusters extend across
    the boundaries of partitions. No process holds more rows than a small sample and the partitions in progress.

    The guarantees are those of one machine: the distortion never rises (theorem 1), there are exactly k clusters, none
    empty, or an error, and the result is the same, bit for bit, on any number of workers, even if some are lost. It
    depends on the number of partitions. Hartigan's rule uses the cluster sizes at the beginning of the iteration. An
    empty cluster is refilled by half of the cluster with the largest error; copies of a float64 row that are spread
    over several clusters may stay so.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters, k. There are exactly k of them, none empty.
    client : Client or str, default=None
        A ``dask.distributed.Client`` (with TLS if needed) or the address of a scheduler. By default, the fit starts
        worker processes on this machine, without a dashboard.
    storage : str or PathLike, default=None
        A folder, or any fsspec URL, that the driver and all workers can read and write; by default a temporary folder
        on this machine. It holds a copy of the rows, two during the layout, and is not removed. With ``fit(X,
        resume=True)``, a fit in it that was killed or reached ``max_iter`` continues and ends with the same bits.
    storage_options : dict, default=None
        Options of fsspec for the file systems of ``storage`` and of the rows.
    n_partitions : int, default=None
        Number of partitions. A task holds one in memory, two or three times during the layout; use as many as all
        workers have threads. By default 16, or more so that each has at most 256 MB of rows, but at least 1,024 rows.
    name : str, default=None
        Column of Parquet files or dataset of HDF5 files.
    init : "tree" or array, default="tree"
        As in :class:`~closure_kmeans.ClosureKMeans`, but neither random rows nor labels.
    metric, max_iter, tol, max_time, target_accuracy, random_state, callback, verbose : see ClosureKMeans
        As in :class:`~closure_kmeans.ClosureKMeans`.
    method : Method, default=None
        As in :class:`~closure_kmeans.ClosureKMeans`; ``neighborhoods`` must be "auto" or "fresh".
    n_threads : int, default=None
        Number of threads of the driver, and of workers that the fit starts.

    Attributes
    ----------
    cluster_centers_, cluster_sizes_, inertia_, n_iter_, history_, stopped_by_, n_features_in_ : see ClosureKMeans
        As in :class:`~closure_kmeans.ClosureKMeans`.
    labels_ : (n,) array of int32
        Cluster of each row, memory-mapped from a temporary file.

    See Also
    --------
    closure_kmeans.ClosureKMeans : For one machine, also for files larger than its memory.

    Examples
    --------
    >>> from closure_kmeans.distributed import DistributedClosureKMeans
    >>> model = DistributedClosureKMeans(1_000_000, client="tcp://scheduler:8786", storage="s3://bucket/fit")
    >>> model.fit("s3://bucket/shards")  # doctest: +SKIP
    """

    n_clusters: int = 2
    _: KW_ONLY
    client: Any = None
    storage: str | os.PathLike[str] | None = None
    storage_options: dict[str, Any] | None = None
    n_partitions: int | None = None
    name: str | None = None
    init: Literal["tree"] | ArrayLike = "tree"
    metric: Literal["euclidean", "cosine"] = "euclidean"
    target_accuracy: float = 0.95
    method: Method | None = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check.integer("n_clusters", self.n_clusters, 1)
        check.number("target_accuracy", self.target_accuracy, 0, 1)
        check.choice("metric", self.metric, ("euclidean", "cosine"))
        check.choice("neighborhoods of a distributed fit", check.method(self.method).neighborhoods, ("auto", "fresh"))
        if self.n_partitions is not None:
            check.integer("n_partitions", self.n_partitions, 1)
        if self.storage is not None and not isinstance(self.storage, str | os.PathLike):
            raise TypeError(f"storage must be a path or a URL, got {self.storage!r}")
        if self.storage_options is not None and not isinstance(self.storage_options, dict):
            raise TypeError(f"storage_options must be a dict, got {self.storage_options!r}")
        if isinstance(self.init, str):
            check.choice("init of a distributed fit", self.init, ("tree",))
        elif np.ndim(self.init) == 1:
            raise ValueError(
                f"init of a distributed fit must be 'tree' or an array of centres, got labels, of shape "
                f"{np.shape(self.init)}"
            )

    def fit(self, X: Any, y: None = None, sample_weight: ArrayLike | None = None, *, resume: Resume = False) -> Self:
        """Cluster the rows of X.

        Parameters
        ----------
        X : Dask array, path, URL or array
            Rows: a Dask array; the path or URL of a file of vectors, of a folder of such files (all formats of
            ``open_vectors``) or of a zarr array, whose name ends in ``.zarr``; or an array. All workers must be able to
            read the files. float64, float32, float16, uint8 and int8 are accepted.
        y : None
            Ignored.
        sample_weight : None
            Not supported.
        resume : bool or "anyway", default=False
            Whether to resume the fit in ``storage``, if there is one. It is an error if that is another fit, or if the
            driver or a worker has another processor, BLAS or version; with "anyway" the latter is a warning.

        Returns
        -------
        DistributedClosureKMeans
            The fitted estimator itself.

        Raises
        ------
        FileExistsError
            If ``storage`` holds a fit, and ``resume`` is false.
        KeyboardInterrupt
            If interrupted; the model is that of the last complete iteration.

        See Also
        --------
        closure_kmeans.ClosureKMeans.fit : On one machine.

        Examples
        --------
        >>> from closure_kmeans.distributed import DistributedClosureKMeans
        >>> model = DistributedClosureKMeans(1000, client="tcp://scheduler:8786")
        >>> model.fit("s3://bucket/shards")  # doctest: +SKIP
        """
        began = time.perf_counter()
        if sample_weight is not None:
            raise ValueError("sample_weight must be None: distributed fits do not support weights")
        check.resume(resume, "storage", self.storage)
        self._check_parameters()
        with self._folder(bool(resume)) as folder, connect(self.client, self.n_threads, self.verbose) as cluster:
            cluster.check_shared(folder)
            source = open_source(X, self.name, self.storage_options or {}, folder, cluster)
            fitted = self._fit_in(folder, cluster, source, began, anyway=resume == "anyway")
        self.n_features_in_ = source.width
        return self._become(fitted)

    @contextmanager
    def _folder(self, resume: bool) -> Iterator[SharedFolder]:
        """Where the fit has its files."""
        if self.storage is not None:
            folder = fit_folder(self.storage, self.storage_options)
            folder.check_writable()
            if not resume and folder.list("centers"):
                raise FileExistsError(
                    f"storage '{folder}' holds a fit: resume it with fit(X, resume=True), or remove it"
                )
            yield folder
            return
        # After an error a worker of the user's may still be writing there; that must not hide the error.
        with tempfile.TemporaryDirectory(prefix="closure-kmeans-", ignore_cleanup_errors=True) as temporary:
            yield shared_folder(temporary)

    def _fit_in(
        self, folder: SharedFolder, cluster: Cluster, source: Source, began: float, *, anyway: bool
    ) -> dict[str, Any]:
        """Lay the rows out, or find them laid out, and iterate: the attributes of the fitted model."""
        init = check.init(self.init, self.n_clusters, np.empty((0, source.width), source.dtype))
        if isinstance(init, np.ndarray) and self.metric == "cosine":
            init = unit_rows(init, "init")
        method = check.method(self.method)
        rng = check.generator(self.random_state)
        with Threads(count_threads(self.n_threads)) as threads:
            identity = identify(self, init) | {"X": f"{source.width} {source.dtype} columns, {source.identity}"}
            store = DaskStore(
                source,
                self.n_clusters,
                folder=folder,
                cluster=cluster,
                identity=identity,
                n_partitions=self.n_partitions,
                tree_dims=method.tree_dims,
                spherical=self.metric == "cosine",
                rng=rng,
                threads=threads,
            )
            neighborhoods = store.neighborhoods(method, self.target_accuracy)
            if store.saved is not None:
                state, converged = store.restore(store.saved, anyway=anyway)
            else:
                labels = store.tree_labels() if isinstance(init, str) else store.nearest_labels(init)
                state, converged = store.begin(labels), False
            stopped_by = "converged"
            with Recorder(self, began, store.n_points, self.max_iter, store) as record:
                if not converged:
                    state, stopped_by = improve(self, method, store, state, neighborhoods, record)
            return fitted_attributes(store, state, stopped_by, record)

    def __sklearn_clone__(self) -> DistributedClosureKMeans:
        """A client is a connection, which cannot be copied."""
        parameters = self.get_params(deep=False)
        kept = {name: parameters.pop(name) for name in ("client", "callback")}
        copies = {name: clone(value, safe=False) for name, value in parameters.items()}
        return type(self)(**copies, **kept)
