"""Vectors at rest: one way to open them, whatever file or array they are in.

Rows have a ``shape``, a ``dtype`` and slices, and that is all that is asked of them. Files whose rows lie side by side
are memory-mapped and come as NumPy arrays; all others come as ``Vectors``, which read the rows that are asked for, by
whole chunks or row groups.
What a header says is held against the size of the file before anything is allocated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans.arrays import unmasked
from closure_kmeans.files import FileFormatError
from closure_kmeans.vectors.binary import BIN, VECS, map_bin, map_npy, map_vecs, write_bin, write_npy, write_vecs
from closure_kmeans.vectors.hdf5 import open_hdf5
from closure_kmeans.vectors.parquet import open_parquet
from closure_kmeans.vectors.rows import Rows, Vectors, by_chunks, check_kind

__all__ = ["FileFormatError", "Rows", "Vectors", "open_vectors", "save_vectors"]

Source: TypeAlias = str | os.PathLike[str] | Rows

# How to open a file, given the name of what is in it, by the end of its name.
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
    """Open vectors, without reading more than a header.

    Parameters
    ----------
    source : path or array
        A file, by the end of its name: ``.npy``; ``.fvecs``, ``.bvecs``, ``.ivecs``; ``.fbin``, ``.u8bin``, ``.i8bin``;
        ``.hdf5``, ``.h5``; ``.parquet``, ``.pq``. A folder of such files, of one kind, whose rows follow each other
        in the order of the names. An array, a PyTorch tensor, or anything else that has ``shape``, ``dtype`` and
        slices, such as a zarr array.
    name : str, default=None
        The data set of an HDF5 file (by default ``train``, or the only one of two dimensions in whatever group), or the
        column of a Parquet file (by default ``vector`` or ``embedding``, or the only one that holds lists of numbers).

    Returns
    -------
    vectors : (n, d) array or Vectors
        A read-only memory map where the format allows it. Either is good for ``fit``, ``predict`` and ``np.asarray``.

    Raises
    ------
    FileFormatError
        A ``ValueError``: the file is empty, cut, damaged or of another kind than its name says.

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
    if hasattr(source, "detach"):  # a PyTorch tensor shares its memory
        source = source.detach().cpu().numpy()
    rows: Any = unmasked("vectors", source)
    if not all(hasattr(source, attribute) for attribute in ("shape", "dtype", "__getitem__")):
        raise TypeError(
            f"vectors must be a path, or an array with shape, dtype and slices, got {type(source).__name__}"
        )
    return _unwrapped(rows, type(source).__name__)


def save_vectors(path: str | os.PathLike[str], X: ArrayLike | Vectors) -> None:
    """Write vectors into a file, in the format that the end of its name says.

    The file is written beside, and then takes the place of an old one, whole or not at all.

    Parameters
    ----------
    path : str or PathLike
        ``.npy`` takes any numbers; ``.fvecs`` and ``.fbin`` float32, ``.bvecs`` and ``.u8bin`` uint8, ``.i8bin`` int8,
        ``.ivecs`` int32, and what can become that without a loss.
    X : (n, d) array or Vectors
        The rows.

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
        path.stat()  # that there is no such file comes first
        raise FileFormatError(f"'{path}' must end in one of {', '.join(_READERS)}, or be a folder of such files")
    return read(path, name)


def _open_folder(path: Path, name: str | None) -> Vectors:
    """Shards: the files of vectors in a folder, in the order of their names."""
    files = [path / shard for shard in choose_shards(str(path), (file.name for file in path.iterdir()))]
    return Vectors([_open_file(file, name) for file in files], list(map(str, files)))


def choose_shards(folder: str, names: Iterable[str]) -> list[str]:
    """Of the names of the files in a folder those of vectors, in order; they must be of one kind."""
    shards = sorted(filter(is_shard, names))
    suffixes = sorted({Path(name).suffix.lower() for name in shards})
    if len(suffixes) != 1:
        found = f"there are {', '.join(suffixes)}" if suffixes else "there is none"
        raise FileFormatError(f"the folder '{folder}' must hold files of vectors of one kind, but {found}")
    return shards


def is_shard(name: str) -> bool:
    """Whether a file of this name, in a folder of vectors, is taken for some of them."""
    return Path(name).suffix.lower() in _READERS and name[0] != "."


def _unwrapped(rows: Rows, label: str) -> NDArray[Any] | Vectors:
    if isinstance(rows, Vectors):
        return rows
    check_kind(label, rows.shape, np.dtype(rows.dtype))
    if isinstance(rows, np.ndarray):
        return rows
    parts = by_chunks(rows)
    return Vectors(parts, [label] * len(parts))
