"""The rows of a distributed fit: shards that any worker can read.

A shard is some rows of one file. Whatever comes otherwise, a Dask array or rows in memory, is written to the shared
folder first, block by block.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import validation as check
from closure_kmeans.checkpoint import digest, digest_rows
from closure_kmeans.distributed.cluster import Cluster
from closure_kmeans.distributed.files import SharedFolder, shared_folder
from closure_kmeans.files import FileFormatError, library, reading
from closure_kmeans.points import unmasked
from closure_kmeans.stores.layout import blocks_of
from closure_kmeans.vectors import choose_shards, open_vectors
from closure_kmeans.vectors.rows import Rows, check_kind

# Bytes of rows that a task reads, sorts and writes before it takes up the next.
SHARD_BYTES = 1 << 27
INPUT = "input"  # the folder of rows that came otherwise


class VectorFile(NamedTuple):
    """A file of vectors, or a zarr array."""

    folder: SharedFolder
    name: str
    column: str | None = None  # of a Parquet file, or the data set of an HDF5 file

    def __str__(self) -> str:
        return f"{self.folder}/{self.name}"

    def open(self) -> Rows:
        """Open the rows."""
        if self.name.endswith(".npy"):
            return self.folder.open(self.name)
        if not self.name.endswith(".zarr"):
            return open_vectors(self.folder.fetch(self.name), self.column)
        zarr = library("zarr", "dask", "a zarr array")
        with reading(str(self), "a zarr array"):
            options = self.folder.options or None
            array: Rows = zarr.open_array(f"{self.folder.url}/{self.name}", mode="r", storage_options=options)
        check_kind(str(self), array.shape, np.dtype(array.dtype))
        return array


class Shard(NamedTuple):
    """Consecutive rows of a file."""

    file: VectorFile
    first: int
    last: int
    start: int  # how many rows come before, in other shards

    def __str__(self) -> str:
        return f"'{self.file}'" + (f" from row {self.first} on" if self.first else "")

    def read(self, some: slice = slice(None)) -> NDArray[Any]:
        """Read some of its rows."""
        first, last, stride = some.indices(self.last - self.first)
        with reading(str(self.file), "vectors"):
            rows = self.file.open()
            if rows.shape[0] < self.last:
                raise FileFormatError(
                    f"'{self.file}' must stay as it was, but had {self.last} rows or more, and now has {rows.shape[0]}"
                )
            return np.ascontiguousarray(rows[self.first + first : self.first + last : stride])


class Source(NamedTuple):
    """Input rows."""

    width: int
    dtype: np.dtype[Any]
    identity: str  # the same for the same rows
    shards: Callable[[], list[Shard]]  # all rows; those that are in no file yet are written first


class Description(NamedTuple):
    """Shape and dtype of a file of vectors."""

    n_rows: int
    width: int
    dtype: str
    ends: str  # a digest of the first and the last row


def open_source(X: Any, column: str | None, options: dict[str, Any], folder: SharedFolder, cluster: Cluster) -> Source:
    """Rows by a path or URL, in a Dask array, or in an array in memory or mapped into it."""
    if isinstance(X, str | os.PathLike):
        shards, found = describe_files(list_files(os.fspath(X), column, options), cluster)
        names = "".join(f"{shard.file.name} {shard.first} {shard.last} " for shard in shards)
        identity = digest(np.frombuffer((names + "".join(file.ends for file in found)).encode(), np.uint8))
        source = Source(found[0].width, np.dtype(found[0].dtype), identity, lambda: shards)
    else:
        X = check.rows(X)
        rows: Any = open_vectors(X if hasattr(X, "shape") else np.asarray(X))
        identity = identify_dask(X, cluster) if is_dask(X) else f"{rows.shape} {digest_rows(rows)}"
        source = Source(rows.shape[1], np.dtype(rows.dtype), identity, partial(write_input, X, rows, folder, cluster))
    check.dtype(source.dtype, "for a distributed fit")
    return source


def is_dask(X: Any) -> bool:
    """Whether an array is one of Dask."""
    return hasattr(X, "dask") and hasattr(X, "to_delayed")


def identify_dask(X: Any, cluster: Cluster) -> str:
    """Hash of a Dask array: its shape, and the first and last row of its first and last block."""
    blocks = X.rechunk({1: -1}).to_delayed()[:, 0]
    ends = cluster.run_delayed("looking at the rows", digest_ends, [blocks[0], blocks[-1]], [("first",), ("last",)])
    return f"{X.shape} in chunks {X.chunks} {' '.join(ends)}"


def digest_ends(block: Any, _place: str) -> str:
    """Task: hash of the first and the last row of a block."""
    rows = np.asarray(block)
    return digest(np.concatenate([rows[:1], rows[-1:]])) if len(rows) > 0 else ""


def list_files(url: str, column: str | None, options: dict[str, Any]) -> list[VectorFile]:
    """The file at a path or URL, or the files in it, in the order of their names."""
    whole = shared_folder(url.rstrip("/"), options)
    files, path = whole.place()
    if not files.exists(path):
        raise FileNotFoundError(f"X must be an existing path of vectors, but nothing exists at '{url}'")
    if path.endswith(".zarr") or not files.isdir(path):
        parent, _, name = whole.url.rpartition("/")
        return [VectorFile(replace(whole, url=parent), name, column)]
    names = (entry.rstrip("/").rpartition("/")[2] for entry in files.ls(path, detail=False))
    return [VectorFile(whole, name, column) for name in choose_shards(url, names)]


def describe_files(files: list[VectorFile], cluster: Cluster) -> tuple[list[Shard], list[Description]]:
    """Files of one width and dtype as shards."""
    found: list[Description] = list(cluster.run("reading the headers", describe_file, [(file,) for file in files]))
    for file, description in zip(files, found, strict=True):
        for what in ("width", "dtype"):
            own, first = getattr(description, what), getattr(found[0], what)
            if own != first:
                raise FileFormatError(f"'{file}' must have the {what} of '{files[0]}', {first}, but has {own}")
    size = max(1, SHARD_BYTES // (found[0].width * np.dtype(found[0].dtype).itemsize))
    shards: list[Shard] = []
    n_before = 0
    for file, description in zip(files, found, strict=True):
        blocks = blocks_of(description.n_rows, size)
        shards += [Shard(file, block.start, block.stop, n_before + block.start) for block in blocks]
        n_before += description.n_rows
    return shards, found


def describe_file(file: VectorFile) -> Description:
    """Task: read shape and dtype of a file from its header."""
    rows = file.open()
    n_rows, width = map(int, rows.shape)
    with reading(str(file), "vectors"):
        ends = np.concatenate([np.asarray(rows[:1]), np.asarray(rows[n_rows - 1 : n_rows])])
    return Description(n_rows, width, np.dtype(rows.dtype).name, digest(ends))


def write_input(X: Any, rows: Any, folder: SharedFolder, cluster: Cluster) -> list[Shard]:
    """Write rows that are in no file yet into the shared folder: a Dask array by the workers, others by the driver."""
    folder.remove(INPUT)
    if is_dask(X):
        blocks = X.rechunk({1: -1}).to_delayed()[:, 0].tolist()
        arguments = [(*name_block(i), folder) for i in range(len(blocks))]
        written = list(cluster.run_delayed("writing the rows", save_block, blocks, arguments))
    else:
        size = max(1, SHARD_BYTES // (rows.shape[1] * rows.dtype.itemsize))
        blocks = blocks_of(rows.shape[0], size)
        written = [save_block(rows[some], *name_block(i), folder) for i, some in enumerate(blocks)]
    place = replace(folder, url=f"{folder.url}/{INPUT}")
    names = [name for name in written if name is not None]
    if not names:
        raise ValueError("X must have rows, but has none")
    shards, _ = describe_files([VectorFile(place, name) for name in names], cluster)
    return shards


def name_block(number: int) -> tuple[str, str]:
    """Name of a block in messages, and the name of its file."""
    return f"block {number} of X", f"block-{number:06}.npy"


def save_block(rows: Any, block: str, name: str, folder: SharedFolder) -> str | None:
    """Task: write a block of rows, if it has any; returns the name of the file."""
    rows = np.ascontiguousarray(unmasked(block, rows))
    if len(rows) == 0:
        return None
    folder.save(f"{INPUT}/{name}", rows)
    return name
