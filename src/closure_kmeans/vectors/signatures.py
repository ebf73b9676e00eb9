"""File signatures (magic numbers), to recognise files whose extension does not match their contents."""

from __future__ import annotations

from pathlib import Path

from closure_kmeans.files import FileFormatError

NPY_MAGIC = b"\x93NUMPY"
SIGNATURES = {
    NPY_MAGIC: ".npy",
    b"\x89HDF\r\n": ".hdf5",
    b"PAR1": ".parquet",
    b"PK\x03\x04": ".npz",
    b"\x1f\x8b": ".gz",
}


def kind_of(start: bytes) -> str | None:
    """Kind of file with this signature, or None."""
    return next((kind for signature, kind in SIGNATURES.items() if start.startswith(signature)), None)


def describe(start: bytes) -> str:
    """Describe the first bytes of a file, for an error."""
    kind = kind_of(start)
    return f"it begins like a {kind} file" if kind else f"it begins with the bytes {start[:4].hex(' ')}"


def check_no_other_kind(path: Path, own: str) -> None:
    """Raise if a file has the signature of another kind; unknown ones are left to the reading library."""
    with path.open("rb") as file:
        start = file.read(8)
    if kind_of(start) not in (None, own):
        raise FileFormatError(f"'{path}' must begin like a {own} file, but {describe(start)}")
