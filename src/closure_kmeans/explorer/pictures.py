"""Pictures of items: thumbnails of image files or arrays, or drawings of vectors."""

from __future__ import annotations

import base64
import cmath
import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.explorer.budget import BUDGET
from closure_kmeans.explorer.rendering import render
from closure_kmeans.files import library

# Longer side in pixels of small and large pictures.
SMALL, LARGE = 160, 1200
# Cached small pictures.
MOST_KEPT = 8192
QUALITY = 85
# A SIFT descriptor has 4 x 4 cells of 8 orientations.
CELLS, DIRECTIONS = 4, 8
# Shortest petal that is drawn, and the corners of a petal of length 1.
SHORTEST, PETAL = 0.7, np.array([0, 0.6 + 0.17j, 1, 0.6 - 0.17j])
# Bars in a drawing of a vector, at most.
MOST_BARS = 64


class Encoded(NamedTuple):
    """Encoded picture."""

    content: bytes
    media_type: str

    @property
    def url(self) -> str:
        """Data URL of the picture."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.content).decode()}"


class Pictures:
    """Pictures of items, made on demand; small ones are cached.

    Parameters
    ----------
    make : callable
        Function of item and longer side that returns a picture.
    n_items : int
        Number of items.
    """

    def __init__(self, make: Callable[[int, int], Encoded], n_items: int) -> None:
        self._make = make
        self._n_items = n_items
        self.small = lru_cache(MOST_KEPT)(lambda item: make(item, SMALL))

    def __len__(self) -> int:
        return self._n_items

    def large(self, item: int) -> Encoded:
        """Large picture of an item."""
        return self._make(item, LARGE)

    def encoded(self, item: int, side: int) -> Encoded:
        """Small or large picture of an item."""
        return self.small(item) if side == SMALL else self.large(item)


def open_pictures(source: str | os.PathLike[str], names: Sequence[str] | None = None) -> Pictures:
    """Pictures of a folder, sorted by path or in the order of ``names``; or of an array in an .npy file."""
    path = Path(source)
    if path.is_dir():
        return folder_pictures(path, names)
    path.stat()
    if path.suffix.lower() != ".npy":
        raise ValueError(f"images must be a folder, or an .npy file of pictures, got '{path}'")
    return array_pictures(np.load(path, mmap_mode="r", allow_pickle=False))


def folder_pictures(folder: Path, names: Sequence[str] | None = None) -> Pictures:
    """Pictures of files. ``names`` are paths below the folder, for example from a metadata column."""
    library("PIL", "explore", "pictures")
    from closure_kmeans.features import list_images
    from closure_kmeans.retrieval.collection import is_inside

    if names is None:
        paths = list_images(folder)
    else:
        for name in names:
            if not is_inside(name):
                raise ValueError(f"names of images must be paths below the folder, got '{name}'")
        paths = [folder / name for name in names]
    return Pictures(lambda item, side: picture_of_file(paths[item], side), len(paths))


def array_pictures(pixels: NDArray[Any]) -> Pictures:
    """Pictures of a uint8 array of shape (n, height, width) or (n, height, width, 3)."""
    fits = pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] == 3)
    if pixels.dtype != np.uint8 or not fits or 0 in pixels.shape:
        raise ValueError(
            f"pictures must be bytes of shape (n, height, width) or (n, height, width, 3), "
            f"got {pixels.dtype} of shape {pixels.shape}"
        )

    def make(item: int, side: int) -> Encoded:
        with BUDGET.hold(pixels.shape[1] * pixels.shape[2]):
            return encode(pixels[item], side)

    return Pictures(make, len(pixels))


def picture_of_file(path: Path, side: int) -> Encoded:
    """Picture of a file in colour and upright; large JPEG files are decoded at a lower resolution."""
    from closure_kmeans.features.images import MAX_PIXELS, at_most, decode, name_of, to_bytes

    name = name_of(path, None)
    with BUDGET.decoding(path, side):
        values, _ = decode(path, name, at_most(side), MAX_PIXELS, mode="RGB")
        return encode(to_bytes(values, name), side)


def encode(pixels: NDArray[np.uint8], side: int) -> Encoded:
    """Encode pixels as JPEG, shrunk to a longer side; transparent pixels are blended with white."""
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    if image.mode == "RGBA":
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, image).convert("RGB")
    target = io.BytesIO()
    image.save(target, "JPEG", quality=QUALITY)
    return Encoded(target.getvalue(), "image/jpeg")


# -- vectors -----------------------------------------------------------------------------------------------------------


def draw_vector(row: NDArray[Any]) -> Encoded:
    """Draw a vector: 128 non-negative values as a SIFT descriptor, others as bars."""
    values = np.asarray(row, np.float64)
    if len(values) == CELLS * CELLS * DIRECTIONS and values.min() >= 0:
        return _svg("descriptor.svg", petals=_petals(values))
    finite = np.nan_to_num(values)
    means = np.array([part.mean() for part in np.array_split(finite, min(len(finite), MOST_BARS))])
    return _svg("bars.svg", heights=28 * means / max(np.abs(means).max(), np.finfo(float).tiny))


def _petals(values: NDArray[np.float64]) -> Iterator[NDArray[np.complex128]]:
    """Corners x + iy of the petals of a SIFT descriptor: in each cell a petal per orientation, as long as its value."""
    width = 64 / CELLS
    lengths = (width / 2) * values.reshape(CELLS, CELLS, DIRECTIONS) / max(values.max(), np.finfo(float).tiny)
    for down, across, direction in np.argwhere(lengths > SHORTEST):
        tip = cmath.rect(lengths[down, across, direction], direction * (2 * math.pi / DIRECTIONS))
        yield complex(across + 0.5, down + 0.5) * width + PETAL * tip


def missing(reason: str) -> Encoded:
    """Placeholder of a missing picture."""
    return _svg("missing.svg", reason=reason)


def _svg(template: str, **context: Any) -> Encoded:
    return Encoded(render(template, **context).encode(), "image/svg+xml")
