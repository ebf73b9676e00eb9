"""Formats with contiguous rows, which can be memory-mapped: ``.npy``, TEXMEX and big-ann."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.files import FileFormatError, file_size, reading, replacing
from closure_kmeans.vectors.rows import BLOCK_BYTES, check_kind
from closure_kmeans.vectors.signatures import NPY_MAGIC, describe, kind_of

# TEXMEX: each row is an int32 width, followed by the values.
VECS: dict[str, np.dtype[Any]] = {".fvecs": np.dtype("<f4"), ".bvecs": np.dtype("u1"), ".ivecs": np.dtype("<i4")}
# big-ann: uint32 number of rows, uint32 width, and the values.
BIN: dict[str, np.dtype[Any]] = {".fbin": np.dtype("<f4"), ".u8bin": np.dtype("u1"), ".i8bin": np.dtype("i1")}

# Largest number of rows of a TEXMEX file whose width is checked, evenly spaced.
CHECKED_ROWS = 100_000
# NumPy parses headers with ``ast``, which in some Python versions (3.11.7) is not thread-safe.
_ONE_HEADER = Lock()


class Header(NamedTuple):
    """Layout of the values of an ``.npy`` file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    in_columns: bool  # Fortran order
    offset: int


def map_npy(path: Path, name: str | None = None) -> NDArray[Any]:
    """Memory-map an ``.npy`` file."""
    size = file_size(path, minimum=10)
    with reading(path, ".npy"):
        header = _npy_header(path, size)
    check_npy(path, header, size)
    return np.memmap(path, header.dtype, "r", header.offset, header.shape, "F" if header.in_columns else "C")


def check_npy(path: Path | str, header: Header, size: int) -> None:
    """Check that a file of ``size`` bytes holds the vectors that its header declares."""
    check_kind(str(path), header.shape, header.dtype)
    n_bytes = header.offset + math.prod(header.shape) * header.dtype.itemsize
    _check_size(path, f"{header.shape[0]} x {header.shape[1]} values of {header.dtype}", n_bytes, size)


def _npy_header(path: Path, size: int) -> Header:
    with path.open("rb") as file:
        start = file.read(12)
        if not start.startswith(NPY_MAGIC):
            raise FileFormatError(f"'{path}' must begin like a .npy file, but {describe(start)}")
        length = struct.unpack_from("<H" if start[6] == 1 else "<I", start.ljust(12, b"\0"), 8)[0]
        if length > size:
            raise FileFormatError(f"'{path}' has {size} bytes, but a header of {length} bytes")
        file.seek(0)
        header = read_npy_header(file)
        if not all(type(extent) is int for extent in header.shape):
            raise FileFormatError(f"'{path}' must have a shape of whole numbers, but has {header.shape}")
        return header


def read_npy_header(file: Any) -> Header:
    """Read the header of an ``.npy`` file; leaves the file at its values."""
    read = np.lib.format.read_array_header_1_0
    if np.lib.format.read_magic(file) != (1, 0):
        read = np.lib.format.read_array_header_2_0
    with _ONE_HEADER:
        shape, in_columns, dtype = read(file)
    return Header(dtype, shape, in_columns, file.tell())


def map_vecs(path: Path, name: str | None = None) -> NDArray[Any]:
    """Memory-map a TEXMEX file, as a strided view that skips the widths."""
    dtype = VECS[path.suffix.lower()]
    size = file_size(path, minimum=4 + dtype.itemsize)
    with path.open("rb") as file:
        start = file.read(8)
    (width,) = struct.unpack_from("<i", start)
    if not 0 < width * dtype.itemsize <= size - 4:
        raise FileFormatError(
            f"'{path}' has {size} bytes, but its first row should have {width} values of {dtype}{_hint(start)}"
        )
    row_bytes = 4 + width * dtype.itemsize
    if size % row_bytes:
        raise FileFormatError(
            f"'{path}' must hold whole rows of {row_bytes} bytes (4 for the width, {width} values of {dtype}), "
            f"but has {size} bytes, {size % row_bytes} too many: it was cut, or the file extension does not match its "
            "contents"
        )
    rows = np.memmap(path, np.uint8, "r").reshape(-1, row_bytes)
    checked = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), CHECKED_ROWS)).astype(np.int64))
    widths = np.ascontiguousarray(rows[checked, :4]).view("<i4")[:, 0]
    if (widths != width).any():
        other = (widths != width).argmax()
        raise FileFormatError(
            f"'{path}' must have rows of one width, but row 0 has {width} values "
            f"and row {checked[other]} has {widths[other]}"
        )
    return rows[:, 4:].view(dtype)


def map_bin(path: Path, name: str | None = None) -> NDArray[Any]:
    """Memory-map a big-ann file."""
    dtype = BIN[path.suffix.lower()]
    size = file_size(path, minimum=8 + dtype.itemsize)
    with path.open("rb") as file:
        start = file.read(8)
    shape = struct.unpack("<II", start)
    n_values = math.prod(shape)
    other_bytes = 4 if dtype.itemsize == 1 else 1
    if size == 8 + n_values * other_bytes > 8:
        raise FileFormatError(
            f"'{path}' has {size} bytes, which fit {shape[0]} x {shape[1]} values of {8 * other_bytes} bits, "
            f"but by its name they are {dtype}: the file extension does not match its contents"
        )
    _check_size(path, f"{shape[0]} x {shape[1]} values of {dtype}", 8 + n_values * dtype.itemsize, size, _hint(start))
    check_kind(str(path), shape, dtype)
    return np.memmap(path, dtype, "r", 8, shape)


def _check_size(path: Path | str, contents: str, expected: int, size: int, hint: str = "") -> None:
    if size != expected:
        raise FileFormatError(f"'{path}' should have {contents}, {expected} bytes in all, but has {size} bytes{hint}")


def _hint(start: bytes) -> str:
    return f"; {describe(start)}" if kind_of(start) else ""


def write_npy(path: Path, X: NDArray[Any]) -> None:
    """Write an ``.npy`` file."""
    if X.dtype.hasobject:
        raise ValueError(f"an .npy file holds numbers, which {X.dtype} is not")
    X = np.ascontiguousarray(X)
    with replacing(path) as beside, beside.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(X))
        file.write(X.data)  # NumPy would hide the reason of a failure


def write_vecs(path: Path, X: NDArray[Any]) -> None:
    """Write a TEXMEX file."""
    dtype = VECS[path.suffix.lower()]
    _check_writable(path, X, dtype)
    with replacing(path) as beside, beside.open("wb") as file:
        for block in _blocks(X):
            widths = np.full((len(block), 1), X.shape[1], "<i4").view(np.uint8)
            values = np.ascontiguousarray(block, dtype).view(np.uint8)
            file.write(np.hstack([widths, values]).tobytes())


def write_bin(path: Path, X: NDArray[Any]) -> None:
    """Write a big-ann file."""
    dtype = BIN[path.suffix.lower()]
    _check_writable(path, X, dtype)
    with replacing(path) as beside, beside.open("wb") as file:
        file.write(struct.pack("<II", *X.shape))
        for block in _blocks(X):
            file.write(np.ascontiguousarray(block, dtype).tobytes())


def _blocks(X: NDArray[Any]) -> Iterator[NDArray[Any]]:
    n_rows = max(1, BLOCK_BYTES // (X.shape[1] * X.dtype.itemsize))
    for first in range(0, len(X), n_rows):
        yield X[first : first + n_rows]


def _check_writable(path: Path, X: NDArray[Any], dtype: np.dtype[Any]) -> None:
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(f"vectors must have two dimensions, and rows and columns, got shape {X.shape}")
    if not np.can_cast(X.dtype, dtype, "safe"):
        raise ValueError(f"a {path.suffix} file holds {dtype}, which {X.dtype} does not fit: convert the vectors first")
