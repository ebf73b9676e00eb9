"""Collections of images with their local features, the input of the retrieval."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.files import FileFormatError, reading
from closure_kmeans.points import check_uncut, forget, map_of
from closure_kmeans.stores.layout import on_disk
from closure_kmeans.tensors import Arrays, read_tensors, write_tensors

# Kind of the file, and the arrays that are stored as they are.
COLLECTION, ARRAYS = "collection", ("keypoints", "descriptors", "offsets")
# Separator of names in a file; names cannot contain it.
SEPARATOR = "\0"


class Extraction(NamedTuple):
    """Settings of the feature extraction."""

    detector: str = "dog"
    max_side: int | None = 1024
    n_regions: int | None = None  # of highest contrast; None for all
    contrast: float = 0.04  # threshold of the detector "dog"
    upright: bool = False  # whether all regions have the angle 0


class Collection(NamedTuple):
    """Images and their local features, image by image."""

    names: list[str]  # (N,) paths below the folder, distinct
    folder: str | None  # where the images are
    keypoints: NDArray[np.float32]  # (m, 4) x, y, diameter, angle; or (m, 5) x, y, a, b, c of ellipses
    descriptors: NDArray[Any]  # (m, d)
    offsets: NDArray[np.int64]  # (N + 1,) image i holds rows offsets[i]:offsets[i + 1]
    skipped: list[str]  # why images were left out
    extraction: Extraction


def collect(
    folder: str | os.PathLike[str],
    extraction: Extraction = Extraction(),  # noqa: B008
    *,
    names: Sequence[str] | None = None,
    on_error: str = "raise",
    n_threads: int | None = None,
    verbose: int = 0,
    callback: Callable[[], Any] | None = None,
) -> Collection:
    """Extract local features of all images in a folder, recursively.

    Parameters
    ----------
    folder : str or PathLike
        Folder of the images.
    extraction : Extraction, optional
        Settings of the feature extraction.
    names : sequence of str, optional
        Paths of images below the folder, possibly none; by default all images, at least one.
    on_error : {"raise", "skip"}, default="raise"
        What to do about an image that cannot be used.
    n_threads : int, optional
        Number of threads; by default the number of CPUs available to the process.
    verbose : int, default=0
        1 shows a progress bar.
    callback : callable, optional
        Called after each image, by one thread at a time.

    Returns
    -------
    collection : Collection
        The images with their features, without those that were skipped.

    Raises
    ------
    ImageError
        If an image cannot be used, and ``on_error`` is "raise".
    ValueError
        If the folder holds no image that can be read, or ``names`` are not distinct paths below it.

    See Also
    --------
    save_collection : Write the features to a file.
    closure_kmeans.features.local_features : Features of images anywhere.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from PIL import Image
    >>> with TemporaryDirectory() as folder:
    ...     Image.new("L", (64, 64)).save(f"{folder}/black.png")
    ...     collection = collect(folder)
    >>> collection.names, collection.offsets.tolist()  # nothing to see in it
    (['black.png'], [0, 0])
    """
    from closure_kmeans.features import local_features

    wanted = image_names(folder) if names is None else [names] if isinstance(names, str) else list(names)
    check_names(wanted)
    paths = [Path(folder) / name for name in wanted]
    features = local_features(
        paths, **extraction._asdict(), on_error=on_error, n_threads=n_threads, verbose=verbose, callback=callback
    )
    left_out = [entry.image for entry in features.skipped]
    if names is None and len(left_out) == len(wanted):
        raise ValueError(f"'{folder}' must hold images that can be read, but none of its {len(wanted)} can be")
    return Collection(
        names=np.delete(np.array(wanted, object), left_out).tolist(),
        folder=str(Path(folder).resolve()),
        keypoints=features.keypoints,
        descriptors=features.descriptors,
        offsets=np.delete(features.offsets, left_out),  # skipped images have no rows
        skipped=[entry.reason for entry in features.skipped],
        extraction=extraction,
    )


def image_names(folder: str | os.PathLike[str]) -> list[str]:
    """Paths of all images below a folder; at least one."""
    from closure_kmeans.features import list_images

    names = [path.relative_to(folder).as_posix() for path in list_images(folder)]
    if not names:
        raise ValueError(f"'{folder}' must hold images, but has none")
    return names


def take(collection: Collection, n_images: int) -> Collection:
    """First images of a collection."""
    n_rows = collection.offsets[n_images]
    return collection._replace(
        names=collection.names[:n_images],
        keypoints=collection.keypoints[:n_rows],
        descriptors=collection.descriptors[:n_rows],
        offsets=collection.offsets[: n_images + 1],
    )


def join(parts: Sequence[Collection]) -> Collection:
    """Concatenate collections of one folder. Where they are memory-mapped, the result is in a temporary file."""
    sizes = [np.diff(part.offsets) for part in parts]
    return parts[0]._replace(
        names=[name for part in parts for name in part.names],
        keypoints=_concatenate([part.keypoints for part in parts]),
        descriptors=_concatenate([part.descriptors for part in parts]),
        offsets=np.append(0, np.cumsum(np.concatenate(sizes))),
        skipped=[reason for part in parts for reason in part.skipped],
    )


def _concatenate(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    n_rows = sum(map(len, parts))
    if len(parts) == 1 or n_rows == 0 or not any(map_of(part) is not None for part in parts):
        return np.concatenate(parts) if len(parts) > 1 else parts[0]
    rows = on_disk((n_rows, parts[0].shape[1]), parts[0].dtype)
    first = 0
    for part in parts:
        check_uncut(part)
        rows[first : first + len(part)] = part
        first += len(part)
        forget(part)
        forget(rows)
    return rows


def save_collection(path: str | os.PathLike[str], collection: Collection) -> None:
    """Write a collection into one ``.safetensors`` file.

    Parameters
    ----------
    path : str or PathLike
        File to write; an existing one is replaced atomically.
    collection : Collection
        Images and their features.

    See Also
    --------
    load_collection : Read the file.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> rows = np.zeros((2, 4), np.float32), np.zeros((2, 128), np.uint8), np.array([0, 2])
    >>> collection = Collection(["a.jpg"], None, *rows, [], Extraction())
    >>> with TemporaryDirectory() as folder:
    ...     save_collection(f"{folder}/features.safetensors", collection)
    ...     load_collection(f"{folder}/features.safetensors").names
    ['a.jpg']
    """
    arrays = {name: getattr(collection, name) for name in ARRAYS}
    facts = {"folder": collection.folder, "skipped": collection.skipped, "extraction": collection.extraction._asdict()}
    write_tensors(Path(path), COLLECTION, arrays | {"names": pack_names(collection.names)}, facts)


def load_collection(path: str | os.PathLike[str]) -> Collection:
    """Read a saved collection, memory-mapped.

    Parameters
    ----------
    path : str or PathLike
        File written by ``save_collection``.

    Returns
    -------
    collection : Collection
        Images and their features.

    Raises
    ------
    FileFormatError
        A ``ValueError``: the file is truncated, damaged, or not a collection.

    See Also
    --------
    save_collection : Write the file.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> rows = np.zeros((2, 4), np.float32), np.zeros((2, 128), np.uint8), np.array([0, 2])
    >>> with TemporaryDirectory() as folder:
    ...     path = f"{folder}/features.safetensors"
    ...     save_collection(path, Collection(["a.jpg"], None, *rows, [], Extraction()))
    ...     load_collection(path).descriptors.shape
    (2, 128)
    """
    path = Path(path)
    path.stat()
    with reading(path, "a collection of features"):
        arrays, facts = read_tensors(path, COLLECTION)
        names = unpack_names(path, arrays["names"])
        check_rows(path, arrays, ("keypoints", "descriptors"), len(names))
        rows: dict[str, Any] = {name: arrays[name] for name in ARRAYS}
        extraction = Extraction(**facts["extraction"])
        return Collection(names, facts["folder"], skipped=facts["skipped"], extraction=extraction, **rows)


def pack_names(names: Sequence[str]) -> NDArray[np.uint8]:
    """Encode names as bytes."""
    return np.frombuffer(SEPARATOR.join(names).encode("utf-8", "surrogateescape"), np.uint8)


def unpack_names(path: Path, packed: NDArray[Any]) -> list[str]:
    """Decode names; they must be distinct and stay inside their folder."""
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise FileFormatError(f"'{path}' must hold names as bytes, but they are {packed.dtype}")
    text = packed.tobytes().decode("utf-8", "surrogateescape")
    names = text.split(SEPARATOR) if text else []
    if len(set(names)) < len(names):
        raise FileFormatError(f"'{path}' must name each image once, but names some twice")
    for name in names:
        if not is_inside(name):
            raise FileFormatError(f"'{path}' must name images inside their folder, but one is '{name}'")
    return names


def check_names(names: Sequence[str], known: Container[str] = ()) -> None:
    """Check that names are distinct paths below a folder, and none is known."""
    new: set[str] = set()
    for name in names:
        if name in known:
            raise ValueError(f"names must differ, but '{name}' is in the index already")
        if name in new:
            raise ValueError(f"names must differ, but '{name}' occurs twice")
        if not is_inside(name):
            raise ValueError(f"names must be paths below a folder, got '{name}'")
        new.add(name)


def is_inside(name: str) -> bool:
    """Whether a relative path stays below its folder."""
    parts = name.replace("\\", "/").split("/")
    return "" not in parts and ".." not in parts and SEPARATOR not in name and not (os.name == "nt" and ":" in name)


def check_rows(path: Path, arrays: Arrays, row_names: tuple[str, ...], n_images: int) -> None:
    """Check that the offsets cover all rows."""
    offsets = arrays["offsets"]
    n_rows = {len(arrays[name]) for name in row_names}
    fits = offsets.shape == (n_images + 1,) and offsets.dtype == np.int64 and len(n_rows) == 1
    if not (fits and offsets[0] == 0 and offsets[-1] == n_rows.pop() and (np.diff(offsets) >= 0).all()):
        raise FileFormatError(f"'{path}' must hold rows for each of {n_images} images, but does not")
