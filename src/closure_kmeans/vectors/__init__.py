"""Vectors in files and arrays, behind one function: ``open_vectors``.

Rows need only ``shape``, ``dtype`` and slices. Files with contiguous rows are memory-mapped and returned as NumPy
arrays; others are returned as ``Vectors``, which read rows on demand in whole chunks or row groups. Headers are checked
against the file size before anything is allocated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans.files import FileFormatError
from closure_kmeans.points import unmasked
from closure_kmeans.vectors.binary import BIN, VECS, map_bin, map_npy, map_vecs, write_bin, write_npy, write_vecs
from closure_kmeans.vectors.hdf5 import open_hdf5
from closure_kmeans.vectors.inputs import as_rows
from closure_kmeans.vectors.parquet import open_parquet
from closure_kmeans.vectors.rows import Rows, Vectors, by_chunks, check_kind

__all__ = ["FileFormatError", "Rows", "Vectors", "open_vectors", "save_vectors"]

Source: TypeAlias = str | os.PathLike[str] | Rows

# Readers by file extension; the second argument names a data set or column.
_READERS: dict[str, Callable[[Path, str | None], Rows]] = {
    ".npy": map_npy,
    **dict.fromkeys(VECS, map_vecs),
    **dict.fromkeys(BIN, map_bin),
    **dict.fromkeys((".hdf5", ".h5"), open_hdf5),
    **dict.fromkeys((".parquet", ".pq"), open_parquet),
}
_WRITERS: dict[str, Callable[[Path, NDArray[Any]], None]] = {
    ".npy": write_npy,
    **dict.fromkeys(VECS, write_vecs),
    **dict.fromkeys(BIN, write_bin),
}


def open_vectors(source: Source, name: str | None = None) -> NDArray[Any] | Vectors:
    """Open vectors, reading only a header.

    Parameters
    ----------
    source : path or array
        A file, by its extension: ``.npy``; ``.fvecs``, ``.bvecs``, ``.ivecs``; ``.fbin``, ``.u8bin``, ``.i8bin``;
        ``.hdf5``, ``.h5``; ``.parquet``, ``.pq``. A folder of such files of one kind, concatenated in the order of
        their names. An array, a PyTorch tensor or another input that ``fit`` accepts, or any object with ``shape``,
        ``dtype`` and slicing, such as a zarr array.
    name : str, default=None
        Dataset of an HDF5 file (by default ``train``, or the only two-dimensional one in any group), or column of a
        Parquet file (by default ``vector`` or ``embedding``, or the only one with lists of numbers).

    Returns
    -------
    (n, d) array or Vectors
        A read-only memory map where the format allows it. ``fit``, ``predict`` and ``np.asarray`` accept both.

    Raises
    ------
    FileFormatError
        A ``ValueError``: the file is empty, truncated or damaged, or its extension does not match its contents.

    See Also
    --------
    save_vectors : Write vectors.

    Examples
    --------
    >>> import numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> from closure_kmeans.vectors import open_vectors, save_vectors
    >>> with TemporaryDirectory() as folder:
    ...     save_vectors(f"{folder}/rows.fbin", np.ones((3, 4), np.float32))
    ...     open_vectors(f"{folder}/rows.fbin").shape
    (3, 4)
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return _open_folder(path, name) if path.is_dir() else _unwrapped(_open_file(path, name), str(path))
    rows: Any = unmasked("vectors", as_rows(source))
    if not all(hasattr(rows, attribute) for attribute in ("shape", "dtype", "__getitem__")):
        raise TypeError(
            f"vectors must be a path, or an array with shape, dtype and slices, got {type(source).__name__}"
        )
    return _unwrapped(rows, type(source).__name__)


def save_vectors(path: str | os.PathLike[str], X: ArrayLike | Vectors) -> None:
    """Write vectors to a file, in the format of its extension; replaces an existing file atomically.

    Parameters
    ----------
    path : str or PathLike
        ``.npy`` takes any numbers; ``.fvecs`` and ``.fbin`` float32, ``.bvecs`` and ``.u8bin`` uint8, ``.i8bin`` int8,
        ``.ivecs`` int32, and any dtype that converts to these without loss.
    X : array-like of shape (n, d), or Vectors
        Rows to write.

    Raises
    ------
    ValueError
        If the extension is unknown, or X does not convert without loss.

    See Also
    --------
    open_vectors : Read vectors.

    Examples
    --------
    >>> import numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> from closure_kmeans.vectors import open_vectors, save_vectors
    >>> with TemporaryDirectory() as folder:
    ...     save_vectors(f"{folder}/rows.bvecs", np.array([[0, 1, 255], [4, 5, 6]], np.uint8))
    ...     np.array(open_vectors(f"{folder}/rows.bvecs")).tolist()
    [[0, 1, 255], [4, 5, 6]]
    """
    path = Path(path)
    write = _WRITERS.get(path.suffix.lower())
    if write is None:
        raise ValueError(f"the name of a file of vectors must end in one of {', '.join(_WRITERS)}, got '{path.name}'")
    write(path, np.asarray(unmasked("X", X)))


def _open_file(path: Path, name: str | None) -> Rows:
    read = _READERS.get(path.suffix.lower())
    if read is None:
        path.stat()  # a missing file is the first error
        raise FileFormatError(f"'{path}' must end in one of {', '.join(_READERS)}, or be a folder of such files")
    return read(path, name)


def _open_folder(path: Path, name: str | None) -> Vectors:
    """Concatenate the shards in a folder, in the order of their names."""
    files = [path / shard for shard in choose_shards(str(path), (file.name for file in path.iterdir()))]
    return Vectors([_open_file(file, name) for file in files], list(map(str, files)))


def choose_shards(folder: str, names: Iterable[str]) -> list[str]:
    """Names of the shards among the files of a folder, sorted; they must be of one kind."""
    shards = sorted(filter(is_shard, names))
    suffixes = sorted({Path(name).suffix.lower() for name in shards})
    if len(suffixes) != 1:
        found = f"there are {', '.join(suffixes)}" if suffixes else "there is none"
        raise FileFormatError(f"the folder '{folder}' must hold files of vectors of one kind, but {found}")
    return shards


def is_shard(name: str) -> bool:
    """Whether a file in a folder of vectors is a shard, by its name."""
    return Path(name).suffix.lower() in _READERS and name[0] != "."


def _unwrapped(rows: Rows, label: str) -> NDArray[Any] | Vectors:
    if isinstance(rows, Vectors):
        return rows
    check_kind(label, rows.shape, np.dtype(rows.dtype))
    if isinstance(rows, np.ndarray):
        return rows
    return by_chunks(rows, label)
