"""HDF5 files, for example from ann-benchmarks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from closure_kmeans.files import FileFormatError, file_size, library, reading
from closure_kmeans.vectors.rows import Rows, by_chunks, check_kind, default_name, listed
from closure_kmeans.vectors.signatures import check_no_other_kind

# Training set of ann-benchmarks.
DEFAULT_NAME = "train"
# Largest plausible compression ratio; a file that declares more is damaged.
LARGEST_COMPRESSION = 1100


def open_hdf5(path: Path, name: str | None = None) -> Rows:
    """Open a data set: memory-mapped if it is contiguous, else read in chunks."""
    h5py = library("h5py", "io", "an HDF5 file")
    size = file_size(path, minimum=8)
    check_no_other_kind(path, ".hdf5")
    with reading(path, "HDF5"), h5py.File(path, "r") as file:
        data = _choose(path, file, h5py.Dataset, name)
        label = f"{path}:{data.name}"
        dtype, shape, offset = np.dtype(data.dtype), data.shape, data.id.get_offset()
        check_kind(label, shape, dtype)
        stored = _DataSet(path, data.name, shape, dtype, data.chunks)
        n_bytes, storage = math.prod(shape) * dtype.itemsize, data.id.get_storage_size()
        fits = n_bytes == storage if stored.chunks is None else n_bytes <= LARGEST_COMPRESSION * storage
        if storage > size or not fits:
            raise FileFormatError(
                f"'{label}' should have {n_bytes} bytes of values, "
                f"but {storage} bytes are stored in a file of {size} bytes"
            )
    if stored.chunks is not None or offset is None or offset % dtype.itemsize:
        return by_chunks(stored, label)
    if offset + storage > size:
        raise FileFormatError(f"'{label}' lies at bytes {offset} to {offset + storage}, but the file has {size} bytes")
    return np.memmap(path, dtype, "r", offset, shape)


class _DataSet(NamedTuple):
    """Data set that cannot be mapped. The file is open only while a slice is read."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...] | None

    def __getitem__(self, rows: Any) -> Any:
        with library("h5py", "io", "an HDF5 file").File(self.path, "r") as file:
            return file[self.name][rows]


def _choose(path: Path, file: Any, kind: Any, name: str | None) -> Any:
    """Data set by name, or the default one."""
    found: list[str] = []  # two-dimensional data sets, in any group
    file.visititems(lambda path, item: found.append(path) if _is_matrix(item, kind) else None)
    if name is None:
        usual = [DEFAULT_NAME] if _is_matrix(file.get(DEFAULT_NAME), kind) else []
        name = default_name(path, "data sets of two dimensions", found, usual)
    if name is None:
        raise FileFormatError(f"'{path}' must have a data set of two dimensions, but has none")
    data = file.get(name)
    if not isinstance(data, kind):
        raise FileFormatError(f"'{path}' must have a data set '{name}'; those of two dimensions are: {listed(found)}")
    if data.file.filename != file.filename:  # the offset would refer to the other file
        raise FileFormatError(f"'{path}:{name}' must be in the file itself, but is a link to '{data.file.filename}'")
    return data


def _is_matrix(item: Any, kind: Any) -> bool:
    return isinstance(item, kind) and item.ndim == 2
