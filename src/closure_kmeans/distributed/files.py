"""The files of a fit, in a place that the driver and all workers share: a folder, or any URL that fsspec knows.

A file has its name for good and is written once, whole or not at all: by a task that may be repeated, which then writes
the same bytes. So what is read elsewhere may be kept there, and is mapped into memory and not loaded.
"""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.files import library, reading, unless_held
from closure_kmeans.tensors import Arrays, read_tensors, write_tensors
from closure_kmeans.vectors.binary import check_npy, map_npy, read_npy_header, write_npy

PURPOSE = "a distributed fit"
# The folder of a fit in a place of the user, where nothing else is touched.
FIT = "closure-kmeans-fit"
# Where a file shows only when it is whole; elsewhere it gets its name when it is.
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "adl", "oci", "oss", "memory"}
# One thread of a process fetches files at a time.
FETCHING = [Lock() for _ in range(64)]
# Bytes of an .npy file that its header is in.
LARGEST_HEADER = 1 << 16

Record = TypeVar("Record")


@dataclass(frozen=True)
class SharedFolder:
    """A folder or a URL, and the settings of its file system (``storage_options``)."""

    url: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)  # they may hold secrets
    token: str = ""  # so that copies are not taken for those of another fit in the same place

    def __str__(self) -> str:
        return self.url.removeprefix("file://")

    def place(self) -> tuple[Any, str]:
        """The file system, and the path in it."""
        found: tuple[Any, str] = library("fsspec.core", "dask", PURPOSE).url_to_fs(self.url, **self.options)
        return found

    def check_writable(self) -> None:
        """Raise if the folder cannot be written to, before the fit."""
        with self.a_file():
            pass

    @contextmanager
    def a_file(self) -> Iterator[str]:
        """Yield the name of a temporary file."""
        name = f".begun-{uuid4().hex[:8]}.npy"
        self.save(name, np.zeros((1, 1)))
        try:
            yield name
        finally:
            self.remove(name)

    def has(self, name: str) -> bool:
        """Whether a file exists."""
        files, root = self.place()
        files.invalidate_cache()
        return bool(files.exists(f"{root}/{name}"))

    def write(self, name: str, write: Callable[[Path], None]) -> None:
        """Have a file written by ``write``, which gets a path and must write it whole or not at all."""
        files, root = self.place()
        if _is_local(files):
            path = Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, Path(name).name)
            write(path)
            try:
                self._put(path, name)
            except Exception as error:  # the exceptions depend on the file system
                reason = getattr(error, "strerror", None) or error
                number = getattr(error, "errno", None) or errno.EIO
                raise OSError(number, f"'{self}/{name}' could not be written: {reason}") from error

    def _put(self, path: Path, name: str) -> None:
        files, root = self.place()
        target, _, last = f"{root}/{name}".rpartition("/")
        files.makedirs(target, exist_ok=True)
        if OBJECT_STORES.intersection(_protocols(files)):
            files.put_file(str(path), f"{target}/{last}")
            return
        beside = f"{target}/.{last}.{uuid4().hex[:8]}"
        files.put_file(str(path), beside)
        files.mv(beside, f"{target}/{last}")

    def fetch(self, name: str) -> Path:
        """A file that can be mapped into memory: the file itself, or a copy on this machine."""
        files, root = self.place()
        if _is_local(files):
            return Path(root, name)
        path = self._copies() / name
        with FETCHING[hash(path) % len(FETCHING)]:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                beside = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
                files.get_file(f"{root}/{name}", str(beside))
                beside.replace(path)
        return path

    def drop_copy(self, name: str) -> None:
        """Remove the copy on this machine of a file that is not needed again; what is mapped of it stays mapped."""
        if not _is_local(self.place()[0]):
            with unless_held():
                (self._copies() / name).unlink(missing_ok=True)

    def list(self, folder: str) -> list[str]:
        """The names of the files in a folder, in order."""
        files, root = self.place()
        if not self.has(folder):
            return []
        found = [path.rpartition("/")[2] for path in files.ls(f"{root}/{folder}", detail=False)]
        return sorted(f"{folder}/{name}" for name in found if not name.startswith("."))

    def remove(self, name: str) -> None:
        """Remove a file or a folder, if it is there."""
        files, root = self.place()
        if self.has(name):
            with unless_held():
                files.rm(f"{root}/{name}", recursive=True)

    def _copies(self) -> Path:
        return _scratch() / f"{self.url.replace('/', '_')}-{self.token}"

    # -- arrays --------------------------------------------------------------------------------------------------------

    def save(self, name: str, array: NDArray[Any]) -> None:
        """Write an array."""
        self.write(name, partial(write_npy, X=array))

    def map(self, name: str) -> NDArray[Any]:
        """An array of two dimensions, mapped; a file that is cut or of another kind is an error."""
        return map_npy(self.fetch(name))

    def read(self, name: str, first: int, last: int) -> NDArray[Any]:
        """Some rows of an array; from elsewhere, no more than these are fetched."""
        return np.asarray(self.open(name)[first:last])

    def open(self, name: str) -> NDArray[Any] | StoredRows:
        """An array of which slices can be taken: mapped, or fetched slice by slice from elsewhere."""
        files, root = self.place()
        if _is_local(files):
            return self.map(name)
        path = f"{root}/{name}"
        with reading(f"{self}/{name}", ".npy"):
            size = files.size(path)
            header = read_npy_header(io.BytesIO(files.cat_file(path, 0, LARGEST_HEADER)))
        check_npy(f"{self}/{name}", header, size)
        if header.in_columns:
            return self.map(name)
        return StoredRows(files, path, header.shape, header.dtype, header.offset)

    def save_record(self, name: str, record: Any) -> None:
        """Write a named tuple of arrays and plain values."""
        arrays = {field: value for field, value in record._asdict().items() if isinstance(value, np.ndarray)}
        plain = {field: value for field, value in record._asdict().items() if field not in arrays}
        self.save_tensors(name, type(record).__name__, arrays, {"plain": plain})

    def load_record(self, name: str, kind: type[Record]) -> Record:
        """Load a named tuple."""
        arrays, facts = self.map_tensors(name, kind.__name__)
        return kind(**{field: np.array(array) for field, array in arrays.items()}, **facts["plain"])

    def save_tensors(self, name: str, kind: str, arrays: Arrays, facts: dict[str, Any]) -> None:
        """Write several arrays and some facts."""
        self.write(name, partial(write_tensors, kind=kind, arrays=arrays, facts=facts))

    def map_tensors(self, name: str, kind: str) -> tuple[Arrays, dict[str, Any]]:
        """Several arrays, mapped, and facts."""
        return read_tensors(self.fetch(name), kind)


@dataclass(frozen=True)
class StoredRows:
    """The rows of an ``.npy`` file elsewhere, of which those are fetched that are asked for."""

    files: Any
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int  # of the first row, in bytes

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        first, last, stride = rows.indices(self.shape[0])
        row_bytes = self.shape[1] * self.dtype.itemsize
        begin = self.offset + first * row_bytes
        values = self.files.cat_file(self.path, begin, begin + (last - first) * row_bytes)
        return np.frombuffer(values, self.dtype).reshape(last - first, self.shape[1])[::stride]


def shared_folder(url: str, options: dict[str, Any] | None = None) -> SharedFolder:
    """A folder by its full name, since workers may run elsewhere; a URL as it is."""
    files, path = SharedFolder(url, options or {}).place()
    return SharedFolder(files.unstrip_protocol(path) if _is_local(files) else url, options or {}, uuid4().hex[:8])


def fit_folder(storage: str | os.PathLike[str], options: dict[str, Any] | None = None) -> SharedFolder:
    """Where a fit has its files, in a place of the user."""
    return shared_folder(f"{os.fspath(storage).rstrip('/')}/{FIT}", options)


def _is_local(files: Any) -> bool:
    return "file" in _protocols(files)


def _protocols(files: Any) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)


def _scratch() -> Path:
    """Where this process keeps copies: the folder of the worker, which goes with it."""
    distributed = library("distributed", "dask", PURPOSE)
    try:
        return Path(distributed.get_worker().local_directory)
    except ValueError:  # this is no worker
        return Path(_own_scratch().name)


@cache
def _own_scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="closure-kmeans-", ignore_cleanup_errors=True)
