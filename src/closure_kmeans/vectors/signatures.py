"""How files begin: what to say of one that is of another kind than its name says."""

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
    """The kind of file that begins like this, where it is known."""
    return next((kind for signature, kind in SIGNATURES.items() if start.startswith(signature)), None)


def describe(start: bytes) -> str:
    """How a file begins."""
    kind = kind_of(start)
    return f"it begins like a {kind} file" if kind else f"it begins with the bytes {start[:4].hex(' ')}"


def check_no_other_kind(path: Path, own: str) -> None:
    """A file must not begin like one of another kind; an unknown beginning is left to the library that reads it."""
    with path.open("rb") as file:
        start = file.read(8)
    if kind_of(start) not in (None, own):
        raise FileFormatError(f"'{path}' must begin like a {own} file, but {describe(start)}")
