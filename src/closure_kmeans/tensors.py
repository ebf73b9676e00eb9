"""``.safetensors`` files of arrays and metadata, for models, checkpoints, vocabularies and indexes.

All metadata is one JSON text under one key, so equal contents give equal bytes. Arrays are memory-mapped when read. An
object that keeps such arrays is given to ``unmap`` before it is saved, since it may replace the file that they are in.
Files are written here and not by the safetensors library, which writes via a temporary file of its own that a killed
process would leave behind.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.files import FileFormatError, file_size, replacing
from closure_kmeans.vectors.signatures import check_no_other_kind

KEY = "closure_kmeans"
# Format by kind of file; incremented when old readers would misread new files, or new readers miss data in old files.
FORMATS = {"checkpoint": 3, "centers": 2}
FIRST_FORMAT = 1  # of other kinds
# The format's names of the dtypes, widest first: arrays in this order are all aligned.
DTYPES = {
    "I64": "<i8",
    "U64": "<u8",
    "F64": "<f8",
    "F32": "<f4",
    "I32": "<i4",
    "F16": "<f2",
    "U16": "<u2",
    "I8": "|i1",
    "U8": "|u1",
}
_KINDS = {np.dtype(code): kind for kind, code in DTYPES.items()}
# Alignment of the first array.
ALIGNMENT = 8

Arrays = dict[str, NDArray[Any]]


def write_tensors(path: Path, kind: str, arrays: Arrays, facts: dict[str, Any]) -> None:
    """Write a file atomically."""
    text = json.dumps(facts | {"kind": kind, "format": FORMATS.get(kind, FIRST_FORMAT)}, sort_keys=True, default=_plain)
    kinds = {name: _KINDS[array.dtype] for name, array in arrays.items()}
    names = sorted(arrays, key=lambda name: (list(DTYPES).index(kinds[name]), name))
    ends = np.cumsum([arrays[name].nbytes for name in names]).tolist()
    header: dict[str, Any] = {"__metadata__": {KEY: text}}
    for name, begin, end in zip(names, [0, *ends], ends, strict=False):
        header[name] = {"dtype": kinds[name], "shape": arrays[name].shape, "data_offsets": (begin, end)}
    start = json.dumps(header, separators=(",", ":")).encode()
    start += b" " * (-len(start) % ALIGNMENT)
    with replacing(path) as beside, beside.open("wb") as file:
        file.write(struct.pack("<Q", len(start)) + start)
        for name in names:
            file.write(np.ascontiguousarray(arrays[name]).data)


def _plain(value: Any) -> Any:
    """Convert NumPy scalars for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be stored")


def read_facts(path: Path, kind: str) -> dict[str, Any]:
    """Read the metadata of a file of the given kind. A damaged file may raise any exception: see ``reading``."""
    facts = read_any_facts(path)
    if facts["kind"] != kind:
        raise FileFormatError(f"'{path}' must be '{kind}', but is '{facts['kind']}'")
    known = FORMATS.get(kind, FIRST_FORMAT)
    if facts["format"] != known:
        raise FileFormatError(
            f"'{path}' must be '{kind}', format {known}, but is format {facts['format']}: "
            "only the version of closure-kmeans that wrote it can read it"
        )
    return facts


def read_any_facts(path: Path) -> dict[str, Any]:
    """Read the metadata of a file of any kind, including its kind."""
    from safetensors import SafetensorError, safe_open

    file_size(path, minimum=8)
    try:
        with safe_open(path, "np") as file:  # checks the header against the file's size
            metadata = file.metadata() or {}
    except SafetensorError:
        check_no_other_kind(path, ".safetensors")
        raise
    if KEY not in metadata:
        raise FileFormatError(f"'{path}' must be a file of closure-kmeans, but lacks the metadata '{KEY}'")
    facts: dict[str, Any] = json.loads(metadata[KEY])
    return facts


def read_tensors(path: Path, kind: str) -> tuple[Arrays, dict[str, Any]]:
    """Memory-map the arrays of a file and read its metadata. A damaged file may raise any exception."""
    facts = read_facts(path, kind)
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    del header["__metadata__"]
    return {name: _map(path, 8 + length, **entry) for name, entry in header.items()}, facts


def _map(path: Path, begin: int, dtype: str, shape: list[int], data_offsets: list[int]) -> NDArray[Any]:
    if 0 in shape:
        return np.empty(shape, DTYPES[dtype])  # empty arrays cannot be mapped
    return np.memmap(path, DTYPES[dtype], "r", begin + data_offsets[0], tuple(shape))


def unmap(owner: Any, path: Path) -> None:
    """Read the arrays of an object that are mapped from ``path`` into memory: Windows replaces no file that is mapped.

    Arrays are attributes of the object, or fields of named tuples that are.
    """

    def in_memory(value: Any) -> Any:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(in_memory, value))
        mapped = isinstance(value, np.memmap) and Path(value.filename or "") == path.resolve()
        return np.array(value) if mapped else value

    for name, value in vars(owner).items():
        setattr(owner, name, in_memory(value))
