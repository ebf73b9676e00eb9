"""Export of models: FAISS index, lists of members, table for embedding viewers.

Centres, labels and distances are plain arrays; write them with ``save_vectors`` or ``numpy.save``.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans.arrays import check_labels
from closure_kmeans.clusters import Members, group_by_label
from closure_kmeans.files import library, replacing
from closure_kmeans.parallel import blas
from closure_kmeans.points import precision, rows_per_block, shifted
from closure_kmeans.trees import DATA_SAMPLE, principal_axes

if TYPE_CHECKING:
    from closure_kmeans.estimator import BaseKMeans
    from closure_kmeans.vectors import Vectors

# Number of centres from which the FAISS index uses an HNSW graph, and its links per centre.
GRAPH_FROM, GRAPH_LINKS = 20_000, 32


def list_members(labels: ArrayLike, n_clusters: int) -> Members:
    """Group the rows by cluster.

    Parameters
    ----------
    labels : array-like of int, shape (n,)
        Cluster of each row.
    n_clusters : int
        Number of clusters.

    Returns
    -------
    members : Members
        Rows of all clusters, one cluster after the other, and where each begins.

    See Also
    --------
    save_members : Write them to a file.

    Examples
    --------
    >>> members = list_members([1, 0, 1], n_clusters=3)
    >>> members.rows.tolist(), members.starts.tolist()
    ([1, 0, 2], [0, 1, 3, 3])
    """
    checked = check_labels("labels", labels, len(np.asarray(labels)), n_clusters)
    return group_by_label(checked.astype(np.int32), n_clusters)


def save_members(path: str | os.PathLike[str], labels: ArrayLike, n_clusters: int) -> None:
    """Write the rows of each cluster to an ``.npz`` file with the arrays ``rows`` and ``starts``.

    Parameters
    ----------
    path : str or PathLike
        File to write; an existing one is replaced atomically.
    labels : array-like of int, shape (n,)
        Cluster of each row.
    n_clusters : int
        Number of clusters.

    See Also
    --------
    list_members : The same in memory.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save_members(f"{folder}/members.npz", [1, 0, 1], n_clusters=2)
    ...     with np.load(f"{folder}/members.npz") as saved:
    ...         saved["rows"].tolist(), saved["starts"].tolist()
    ([1, 0, 2], [0, 1, 3])
    """
    members = list_members(labels, n_clusters)
    with replacing(Path(path)) as beside, beside.open("wb") as file:
        np.savez(file, **members._asdict())


def to_faiss(model: BaseKMeans, *, graph: bool | None = None) -> Any:
    """Build a FAISS index whose inverted lists are the clusters: ``IndexIVFFlat``, trained and empty.

    Parameters
    ----------
    model : fitted estimator
        Its centres become the coarse quantizer, in float32.
    graph : bool, default=None
        Whether the coarse quantizer is an HNSW graph (``IndexHNSWFlat``) instead of exhaustive search; by default from
        20,000 centres.

    Returns
    -------
    index : faiss.IndexIVFFlat
        Add vectors with its method ``add``.

    Raises
    ------
    ImportError
        If FAISS is not installed: ``pip install 'closure-kmeans[faiss]'``.

    See Also
    --------
    save_faiss : Write the index to a file.

    Examples
    --------
    >>> from closure_kmeans import ClosureKMeans
    >>> from closure_kmeans.datasets import load_sift
    >>> model = ClosureKMeans(n_clusters=100, random_state=0).fit(load_sift()[:2000])
    >>> index = to_faiss(model)
    >>> index.add(load_sift()[:2000].astype(np.float32))
    >>> index.nlist, index.ntotal
    (100, 2000)
    """
    faiss = library("faiss", "faiss", "an index of FAISS")
    centers = np.ascontiguousarray(model.cluster_centers_, np.float32)
    n_clusters, n_features = centers.shape
    if graph is None:
        graph = n_clusters >= GRAPH_FROM
    quantizer = faiss.IndexHNSWFlat(n_features, GRAPH_LINKS) if graph else faiss.IndexFlatL2(n_features)
    quantizer.add(centers)
    index = faiss.IndexIVFFlat(quantizer, n_features, n_clusters)
    index.is_trained = True
    # The index has only a pointer to the quantizer: keep it alive.
    index.referenced_objects = [quantizer]
    return index


def save_faiss(path: str | os.PathLike[str], model: BaseKMeans, *, graph: bool | None = None) -> None:
    """Write the index of ``to_faiss`` to a file, for ``faiss.read_index``.

    Parameters
    ----------
    path : str or PathLike
        File to write; an existing one is replaced atomically.
    model : fitted estimator
        Its centres become the coarse quantizer, in float32.
    graph : bool, default=None
        Whether the coarse quantizer is an HNSW graph; by default from 20,000 centres.

    See Also
    --------
    to_faiss : The same index in memory.
    write_faiss : Write any FAISS index.

    Examples
    --------
    >>> import faiss
    >>> from tempfile import TemporaryDirectory
    >>> from closure_kmeans import ClosureKMeans
    >>> model = ClosureKMeans(2, random_state=0).fit([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]])
    >>> with TemporaryDirectory() as folder:
    ...     save_faiss(f"{folder}/words.faiss", model)
    ...     faiss.read_index(f"{folder}/words.faiss").nlist
    2
    """
    write_faiss(path, to_faiss(model, graph=graph))


def write_faiss(path: str | os.PathLike[str], index: Any) -> None:
    """Write a FAISS index to a file, atomically.

    Parameters
    ----------
    path : str or PathLike
        File to write; an existing one is replaced when the new one is complete.
    index : faiss.Index
        Any index that ``faiss.write_index`` accepts.

    Raises
    ------
    OSError
        If the file cannot be written, for example because the disk is full.

    See Also
    --------
    save_faiss : Write the index of a model.

    Examples
    --------
    >>> import faiss
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_faiss(f"{folder}/flat.faiss", faiss.IndexFlatL2(8))
    ...     faiss.read_index(f"{folder}/flat.faiss").d
    8
    """
    with replacing(Path(path)) as beside:
        try:
            library("faiss", "faiss", "an index of FAISS").write_index(index, str(beside))
        except RuntimeError as error:  # FAISS ends the message with the reason in parentheses
            reason = str(error).rpartition("(")[2].rstrip(")")
            raise OSError(errno.ENOSPC if reason == os.strerror(errno.ENOSPC) else errno.EIO, reason) from error


def save_table(
    path: str | os.PathLike[str], X: NDArray[Any] | Vectors, labels: NDArray[np.int32], distances: NDArray[np.float64]
) -> None:
    """Write a Parquet file for embedding viewers.

    Columns: ``id``, ``cluster``, ``distance`` to the centre (not squared), ``x`` and ``y`` in the first two principal
    components, and ``vector``, in the precision of the computation.

    Parameters
    ----------
    path : str or PathLike
        File to write; an existing one is replaced atomically.
    X : (n, d) array or Vectors
        Rows.
    labels : (n,) array of int32
        Cluster of each row.
    distances : (n,) array of float64
        Squared distance of each row to its centre, as returned by ``model.squared_distances``.

    See Also
    --------
    closure_kmeans.vectors.save_vectors : Write plain arrays.

    Examples
    --------
    >>> import pyarrow.parquet
    >>> from tempfile import TemporaryDirectory
    >>> X, labels = np.eye(3, dtype=np.float32), np.array([0, 0, 1], np.int32)
    >>> with TemporaryDirectory() as folder:
    ...     save_table(f"{folder}/rows.parquet", X, labels, distances=np.zeros(3))
    ...     pyarrow.parquet.read_table(f"{folder}/rows.parquet").column_names
    ['id', 'cluster', 'distance', 'x', 'y', 'vector']
    """
    arrow = library("pyarrow", "io", "a Parquet file")
    parquet = library("pyarrow.parquet", "io", "a Parquet file")
    dtype = precision(X.dtype)
    mean, axes = _map_axes(X, dtype)

    @blas.held()
    def table_of(block: slice) -> Any:
        rows = np.ascontiguousarray(X[block], dtype)
        places = shifted(rows, mean) @ axes
        return arrow.table(
            {
                "id": np.arange(*block.indices(len(X))),
                "cluster": labels[block],
                "distance": np.sqrt(distances[block]),
                "x": places[:, 0],
                "y": places[:, 1],
                "vector": arrow.FixedSizeListArray.from_arrays(arrow.array(rows.ravel()), rows.shape[1]),
            }
        )

    n_rows = rows_per_block(X[:1])
    with (
        replacing(Path(path)) as beside,
        beside.open("wb") as file,  # closes the file after an error, too
        parquet.ParquetWriter(file, table_of(slice(0, 1)).schema) as writer,
    ):
        for first in range(0, len(X), n_rows):
            writer.write_table(table_of(slice(first, first + n_rows)))


def _map_axes(X: NDArray[Any] | Vectors, dtype: type[np.floating[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Mean of a sample of rows and its first two principal axes, zero where missing."""
    sample = np.asarray(X[:: -(-len(X) // DATA_SAMPLE)]).astype(dtype)
    mean = sample.mean(axis=0)
    axes = np.zeros((X.shape[1], 2), dtype)
    n_axes = min(2, *sample.shape)
    axes[:, :n_axes] = principal_axes(sample - mean, n_axes, seed=0)
    return mean, axes
