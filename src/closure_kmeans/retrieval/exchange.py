"""Vocabularies for COLMAP, VISE and OpenCV's trainer, and descriptors from COLMAP and VISE.

``closure_kmeans.export`` writes the centres of a model as a FAISS index, and ``save_vectors`` writes them as ``.npy``.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from closure_kmeans import ClosureKMeans
from closure_kmeans import validation as check
from closure_kmeans.estimator import BaseKMeans
from closure_kmeans.export import list_members, to_faiss
from closure_kmeans.files import FileFormatError, file_size, library, reading, replacing
from closure_kmeans.parallel import blas

# COLMAP's tree: version, dimension of descriptors, bits of the Hamming embedding, feature type SIFT.
COLMAP_VERSION, COLMAP_WIDTH, COLMAP_BITS, COLMAP_SIFT = 2, 128, 64, 0
# Fewest members of a word whose Hamming thresholds are estimated.
COLMAP_MEMBERS = 5
# Number of centres above which the tree has an inverted-file index, and its nprobe.
COLMAP_MANY, COLMAP_PROBES = 1000, 16
# Descriptor types of VISE.
VISE_TYPES: dict[int, np.dtype[Any]] = {0: np.dtype("<u1"), 4: np.dtype("<f4")}
VISE_FLOATS = 4
# Header of VISE's file of words. VISE stores file sizes in 32 bits.
VISE_HEADER = struct.Struct("<B7If")
VISE_TOO_LARGE = 2**32
# ``cv2.TERM_CRITERIA_COUNT``.
OPENCV_COUNT = 1


def save_colmap_tree(
    path: str | os.PathLike[str], model: BaseKMeans, descriptors: ArrayLike, random_state: int | None = 0
) -> None:
    """Write a vocabulary tree without images for COLMAP (3.12 and later).

    Parameters
    ----------
    path : str or PathLike
        File to write; an existing one is replaced atomically.
    model : fitted estimator
        Fitted to descriptors in COLMAP's format, as ``root_bytes`` returns them: RootSIFT times 512.
    descriptors : (m, 128) array
        Descriptors like the training data of the model, for the Hamming embedding.
    random_state : int, default=0
        Seed of the random projection of the Hamming embedding.

    Raises
    ------
    ValueError
        If words or descriptors do not have 128 dimensions.
    ImportError
        If FAISS is not installed: ``pip install 'closure-kmeans[faiss]'``.

    See Also
    --------
    read_colmap_descriptors : Descriptors to fit the model to.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from closure_kmeans.datasets import load_sift
    >>> from closure_kmeans.retrieval import root_bytes
    >>> rows = root_bytes(load_sift()[:1000])
    >>> model = ClosureKMeans(50, random_state=0).fit(rows)
    >>> with TemporaryDirectory() as folder:
    ...     save_colmap_tree(f"{folder}/words.bin", model, rows)
    """
    faiss = library("faiss", "faiss", "a vocabulary tree of COLMAP")
    centers = np.ascontiguousarray(model.cluster_centers_, np.float32)
    rows = np.asarray(descriptors)
    if centers.shape[1] != COLMAP_WIDTH or rows.ndim != 2 or rows.shape[1] != COLMAP_WIDTH:
        raise ValueError(
            f"words and descriptors must have {COLMAP_WIDTH} dimensions, got {centers.shape[1]} and {rows.shape}"
        )
    rng = check.generator(random_state)
    projection = np.linalg.qr(rng.standard_normal((COLMAP_WIDTH, COLMAP_WIDTH)))[0][:COLMAP_BITS].astype("<f4")
    record = np.dtype([("status", "u1"), ("idf", "<f4"), ("thresholds", "<f4", COLMAP_BITS), ("entries", "<u4")])
    words = np.zeros(len(centers), record)  # packed: no padding
    words["status"], words["thresholds"] = _embed(model.predict(rows), rows, projection, len(centers))
    with replacing(Path(path)) as beside, beside.open("wb") as file:
        file.write(struct.pack("<4i", COLMAP_VERSION, COLMAP_WIDTH, COLMAP_BITS, COLMAP_SIFT))
        file.write(faiss.serialize_index(_word_finder(centers)).tobytes())
        file.write(struct.pack("<2i", len(centers), COLMAP_BITS))
        file.write(projection.tobytes())
        file.write(words.tobytes())
        file.write(struct.pack("<i", 0))


def _word_finder(centers: NDArray[np.float32]) -> Any:
    """FAISS index of the words; its coarse cells come from ClosureKMeans."""
    n_cells = int(np.sqrt(len(centers))) if len(centers) > COLMAP_MANY else 1
    index = to_faiss(ClosureKMeans(n_cells, random_state=0).fit(centers), graph=False)
    index.nprobe = min(n_cells, COLMAP_PROBES)
    index.add(centers)
    return index


@blas.held()
def _embed(
    labels: NDArray[np.int32], rows: NDArray[Any], projection: NDArray[np.float32], n_words: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Words with enough members, and the medians of their members' projections: the Hamming thresholds."""
    order, starts = list_members(labels, n_words)
    known = (np.diff(starts) >= COLMAP_MEMBERS).astype(np.uint8)
    medians = np.zeros((n_words, len(projection)), np.float32)
    for word in np.flatnonzero(known):
        members = rows[order[starts[word] : starts[word + 1]]].astype(np.float32)
        medians[word] = np.median(members @ projection.T, axis=0)
    return known, medians


def read_colmap_descriptors(path: str | os.PathLike[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the SIFT descriptors of all images in COLMAP's ``database.db``, ordered by image id.

    Parameters
    ----------
    path : str or PathLike
        The database, which is opened for reading only.

    Returns
    -------
    descriptors : (m, 128) array of uint8
        Descriptors of all images.
    offsets : (n + 1,) array of int64
        The i-th image with descriptors holds rows ``offsets[i]:offsets[i + 1]``.

    Raises
    ------
    FileFormatError
        A ``ValueError``: the file is damaged, or not a database of COLMAP.

    See Also
    --------
    save_colmap_tree : Write a vocabulary for COLMAP.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = f"{folder}/database.db"
    ...     with closing(sqlite3.connect(path)) as database:
    ...         _ = database.execute("CREATE TABLE descriptors (image_id, rows, cols, data)")
    ...         _ = database.execute("INSERT INTO descriptors VALUES (1, 2, 128, ?)", [bytes(256)])
    ...         database.commit()
    ...     descriptors, offsets = read_colmap_descriptors(path)
    >>> descriptors.shape, offsets.tolist()
    ((2, 128), [0, 2])
    """
    path = Path(path)
    file_size(path, minimum=1)
    with (
        reading(path, "a database of COLMAP"),
        closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database,
    ):
        columns = {row[1] for row in database.execute("PRAGMA table_info(descriptors)")}
        of_sift = f"WHERE type = {COLMAP_SIFT}" if "type" in columns else ""  # older versions store only SIFT
        found = database.execute(f"SELECT rows, cols, data FROM descriptors {of_sift} ORDER BY image_id")
        blocks = [_read_blob(path, *row) for row in found]
    offsets = np.cumsum([0, *map(len, blocks)])
    return np.concatenate([np.empty((0, COLMAP_WIDTH), np.uint8), *blocks]), offsets


def _read_blob(path: Path, n_rows: int, n_columns: int, data: bytes | None) -> NDArray[np.uint8]:
    values = np.frombuffer(data or b"", np.uint8)
    if n_columns != COLMAP_WIDTH or n_rows < 0 or len(values) != n_rows * n_columns:
        raise FileFormatError(
            f"'{path}' must hold descriptors of {COLMAP_WIDTH} bytes, "
            f"but some are {n_rows} x {n_columns} in {len(values)} bytes"
        )
    return values.reshape(n_rows, n_columns)


def read_vise_descriptors(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Open VISE's ``traindesc.bin``, memory-mapped.

    Parameters
    ----------
    path : str or PathLike
        File of descriptors.

    Returns
    -------
    descriptors : (m, d) array of uint8 or float32
        The descriptors.

    Raises
    ------
    FileFormatError
        A ``ValueError``: the file is truncated, damaged, or not of VISE.

    See Also
    --------
    save_vise_words : Write words for VISE.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "traindesc.bin").write_bytes(struct.pack("<IB", 2, 0) + bytes([1, 2, 3, 4]))
    ...     read_vise_descriptors(f"{folder}/traindesc.bin").tolist()
    [[1, 2], [3, 4]]
    """
    path = Path(path)
    size = file_size(path, minimum=5)
    with path.open("rb") as file:
        n_dimensions, kind = struct.unpack("<IB", file.read(5))
    if kind not in VISE_TYPES or n_dimensions == 0:
        raise FileFormatError(
            f"'{path}' must hold descriptors of type 0 or 4, got type {kind} of {n_dimensions} dimensions"
        )
    row = n_dimensions * VISE_TYPES[kind].itemsize
    if size == 5 or (size - 5) % row:
        raise FileFormatError(f"'{path}' must hold whole descriptors of {row} bytes, but has {size - 5} bytes of them")
    return np.memmap(path, VISE_TYPES[kind], "r", 5, ((size - 5) // row, n_dimensions))


def save_vise_words(path: str | os.PathLike[str], model: BaseKMeans, n_descriptors: int, seed: int = 0) -> None:
    """Write the centres of a model as VISE's ``bowcluster.bin``.

    Parameters
    ----------
    path : str or PathLike
        File to write; an existing one is replaced atomically.
    model : fitted estimator
        Its centres are the words.
    n_descriptors : int
        Number of descriptors that the model was fitted to.
    seed : int, default=0
        Seed that the file names.

    Raises
    ------
    ValueError
        If the file would have 4 GiB or more, which VISE cannot read.

    See Also
    --------
    read_vise_words : Read the file.
    read_vise_descriptors : Descriptors to fit the model to.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> model = ClosureKMeans(2, random_state=0).fit([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]])
    >>> with TemporaryDirectory() as folder:
    ...     save_vise_words(f"{folder}/bowcluster.bin", model, n_descriptors=3)
    ...     read_vise_words(f"{folder}/bowcluster.bin").shape
    (2, 2)
    """
    k, d = model.cluster_centers_.shape
    size = VISE_HEADER.size + 4 * k * d
    if size >= VISE_TOO_LARGE:
        raise ValueError(f"a file of VISE must be less than {VISE_TOO_LARGE:,} bytes, but {k:,} words take {size:,}")
    n_iter, distortion = model.n_iter_, model.inertia_ / n_descriptors
    header = VISE_HEADER.pack(VISE_FLOATS, k, d, n_iter, n_iter, n_descriptors, d, seed, distortion)
    with replacing(Path(path)) as beside, beside.open("wb") as file:
        file.write(header)
        file.write(np.ascontiguousarray(model.cluster_centers_, "<f4").tobytes())


def read_vise_words(path: str | os.PathLike[str]) -> NDArray[np.float32]:
    """Read the centres in VISE's ``bowcluster.bin``, memory-mapped.

    Parameters
    ----------
    path : str or PathLike
        File of words.

    Returns
    -------
    centers : (k, d) array of float32
        The words.

    Raises
    ------
    FileFormatError
        A ``ValueError``: the file is truncated, damaged, or not of VISE.

    See Also
    --------
    save_vise_words : Write the file.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> model = ClosureKMeans(2, random_state=0).fit([[0.0], [1.0], [8.0], [9.0]])
    >>> with TemporaryDirectory() as folder:
    ...     save_vise_words(f"{folder}/bowcluster.bin", model, n_descriptors=4)
    ...     sorted(read_vise_words(f"{folder}/bowcluster.bin").ravel().tolist())
    [0.5, 8.5]
    """
    path = Path(path)
    size = file_size(path, minimum=VISE_HEADER.size)
    with path.open("rb") as file:
        kind, k, d, *_ = VISE_HEADER.unpack(file.read(VISE_HEADER.size))
    if kind != VISE_FLOATS or k * d == 0 or size != VISE_HEADER.size + 4 * k * d:
        raise FileFormatError(
            f"'{path}' must hold {k} x {d} centres of type {VISE_FLOATS}, but has type {kind} and {size} bytes"
        )
    return np.memmap(path, "<f4", "r", VISE_HEADER.size, (k, d))


class BOWKMeansTrainer:
    """Replacement for the class of this name that OpenCV 5 removed, by cluster closures.

    Parameters
    ----------
    clusterCount : int
        Number of words.
    termcrit : (type, count, epsilon), optional
        OpenCV's criteria. A type with ``cv2.TERM_CRITERIA_COUNT`` limits the number of iterations; otherwise a fit ends
        when it converges.
    attempts : int, default=1
        Number of fits with different seeds; the best is kept. OpenCV's default is 3, for its random starts.
    flags : int, optional
        Ignored: OpenCV's kinds of random starts. Fits start from a tree.
    **settings
        Parameters of :class:`~closure_kmeans.ClosureKMeans`.

    See Also
    --------
    closure_kmeans.retrieval.learn_vocabulary : Learn words for this library.

    Examples
    --------
    >>> from closure_kmeans.datasets import load_sift
    >>> trainer = BOWKMeansTrainer(50, random_state=0)
    >>> trainer.add(load_sift()[:1000])
    >>> trainer.cluster().shape
    (50, 128)
    """

    def __init__(
        self,
        clusterCount: int,
        termcrit: tuple[int, int, float] | None = None,
        attempts: int = 1,
        flags: int | None = None,
        **settings: Any,
    ) -> None:
        check.integer("clusterCount", clusterCount, 1)
        check.integer("attempts", attempts, 1)
        if termcrit is not None and termcrit[0] & OPENCV_COUNT:
            settings["max_iter"] = termcrit[1]
        self._model = ClosureKMeans(clusterCount, **settings)
        self._attempts = attempts
        self._descriptors: list[NDArray[Any]] = []

    def add(self, descriptors: ArrayLike) -> None:
        """Add descriptors.

        Parameters
        ----------
        descriptors : (m, d) array
            One descriptor per row, at least one.

        Raises
        ------
        ValueError
            If the shape differs, or the number of columns is not that of earlier descriptors.

        See Also
        --------
        BOWKMeansTrainer.cluster : Cluster the descriptors.

        Examples
        --------
        >>> trainer = BOWKMeansTrainer(2)
        >>> trainer.add(np.zeros((3, 128), np.uint8))
        >>> trainer.descriptorsCount()
        3
        """
        rows = np.asarray(descriptors)
        if rows.ndim != 2 or 0 in rows.shape:
            raise ValueError(f"descriptors must have shape (m, d), got {rows.shape}")
        if self._descriptors and self._descriptors[0].shape[1] != rows.shape[1]:
            raise ValueError(
                f"descriptors must have {self._descriptors[0].shape[1]} columns like those before, got {rows.shape[1]}"
            )
        self._descriptors.append(rows)

    def getDescriptors(self) -> list[NDArray[Any]]:  # noqa: N802
        """All descriptors that were added.

        Returns
        -------
        descriptors : list of (m, d) array
            One array per call of ``add``.

        See Also
        --------
        BOWKMeansTrainer.add : Add descriptors.

        Examples
        --------
        >>> trainer = BOWKMeansTrainer(2)
        >>> trainer.add(np.zeros((3, 128), np.uint8))
        >>> [rows.shape for rows in trainer.getDescriptors()]
        [(3, 128)]
        """
        return self._descriptors

    def descriptorsCount(self) -> int:  # noqa: N802
        """Number of descriptors.

        Returns
        -------
        count : int
            Rows of all arrays that were added.

        See Also
        --------
        BOWKMeansTrainer.add : Add descriptors.

        Examples
        --------
        >>> BOWKMeansTrainer(2).descriptorsCount()
        0
        """
        return sum(map(len, self._descriptors))

    def clear(self) -> None:
        """Remove all descriptors.

        See Also
        --------
        BOWKMeansTrainer.add : Add descriptors.

        Examples
        --------
        >>> trainer = BOWKMeansTrainer(2)
        >>> trainer.add(np.zeros((3, 128), np.uint8))
        >>> trainer.clear()
        >>> trainer.descriptorsCount()
        0
        """
        self._descriptors = []

    def cluster(self, descriptors: ArrayLike | None = None) -> NDArray[np.float32]:
        """Cluster descriptors.

        Parameters
        ----------
        descriptors : (m, d) array, optional
            Descriptors to cluster; by default all that were added.

        Returns
        -------
        words : (clusterCount, d) array of float32
            The centres of the best fit.

        Raises
        ------
        ValueError
            If there are no descriptors.

        See Also
        --------
        BOWKMeansTrainer.add : Add descriptors.

        Examples
        --------
        >>> trainer = BOWKMeansTrainer(2, random_state=0)
        >>> sorted(trainer.cluster([[0.0], [1.0], [8.0], [9.0]]).ravel().tolist())
        [0.5, 8.5]
        """
        if descriptors is None:
            if not self._descriptors:
                raise ValueError("descriptors must be added before they can be clustered")
            descriptors = np.concatenate(self._descriptors)
        seeds = check.generator(self._model.random_state).integers(2**31, size=self._attempts - 1).tolist()
        models = [self._model, *(clone(self._model).set_params(random_state=seed) for seed in seeds)]
        best = min((model.fit(descriptors) for model in models), key=lambda model: model.inertia_)
        words: NDArray[np.float32] = best.cluster_centers_.astype(np.float32)
        return words
