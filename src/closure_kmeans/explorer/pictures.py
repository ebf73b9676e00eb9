"""Pictures of items: thumbnails of image files or arrays, or drawings of vectors."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.explorer.budget import BUDGET
from closure_kmeans.files import library

if TYPE_CHECKING:
    from PIL.Image import Image

# Longer side in pixels of small and large pictures.
SMALL, LARGE = 160, 1200
# Cached small pictures.
MOST_KEPT = 8192
QUALITY = 85
# A SIFT descriptor has 4 x 4 cells of 8 orientations.
CELLS, DIRECTIONS = 4, 8
# Shortest petal that is drawn, and half the width of a petal relative to its length.
SHORTEST, SLIMNESS = 0.7, 0.17
# Bars in a drawing of a vector, at most.
MOST_BARS = 64


class Encoded(NamedTuple):
    """Encoded picture."""

    content: bytes
    media_type: str


class Pictures:
    """Pictures of items, made on demand; small ones are cached.

    Parameters
    ----------
    read : callable
        Function of item and side that returns pixels, sufficient for a longer side of this length.
    n_items : int
        Number of items.
    """

    def __init__(self, read: Callable[[int, int], NDArray[np.uint8]], n_items: int) -> None:
        self._read = read
        self._n_items = n_items
        self.small = lru_cache(MOST_KEPT)(self._small)

    def __len__(self) -> int:
        return self._n_items

    def _small(self, item: int) -> Encoded:
        return encode(self._read(item, SMALL), SMALL)

    def large(self, item: int) -> Encoded:
        """Large picture of an item."""
        return encode(self._read(item, LARGE), LARGE)


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
    return Pictures(lambda item, side: read_pixels(paths[item], side), len(paths))


def array_pictures(pixels: NDArray[Any]) -> Pictures:
    """Pictures of a uint8 array of shape (n, height, width) or (n, height, width, 3)."""
    fits = pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] == 3)
    if pixels.dtype != np.uint8 or not fits or 0 in pixels.shape:
        raise ValueError(
            f"pictures must be bytes of shape (n, height, width) or (n, height, width, 3), "
            f"got {pixels.dtype} of shape {pixels.shape}"
        )

    def read(item: int, side: int) -> NDArray[np.uint8]:
        with BUDGET.hold(pixels.shape[1] * pixels.shape[2]):
            return np.asarray(shrink(pixels[item], side))

    return Pictures(read, len(pixels))


def read_pixels(path: Path, side: int) -> NDArray[np.uint8]:
    """Read a file in colour, upright and shrunk; large JPEG files are decoded at a lower resolution."""
    from closure_kmeans.features.images import MAX_PIXELS, at_most, decode, name_of, to_bytes

    name = name_of(path, None)
    with BUDGET.decoding(path, side):
        values, _ = decode(path, name, at_most(side), MAX_PIXELS, mode="RGB")
        return np.asarray(shrink(to_bytes(values, name), side))


def picture_of_file(path: Path, side: int) -> Encoded:
    """Encoded picture of a file."""
    return encode(read_pixels(path, side), side)


def shrink(pixels: NDArray[np.uint8], side: int) -> Image:
    """Shrink a picture so that its longer side has at most ``side`` pixels."""
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return image


def encode(pixels: NDArray[np.uint8], side: int) -> Encoded:
    """Encode pixels as JPEG, shrunk to a longer side; transparent pixels are blended with white."""
    from PIL import Image

    image = shrink(pixels, side)
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
    is_sift = len(values) == CELLS * CELLS * DIRECTIONS and values.min() >= 0
    path = _roses(values) if is_sift else _bars(values)
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">'
        '<rect width="64" height="64" fill="#0d1520"/>'
        f"{path}</svg>"
    )
    return Encoded(svg.encode(), "image/svg+xml")


def _roses(values: NDArray[np.float64]) -> str:
    """Draw a SIFT descriptor: one rose per cell, with a petal per orientation of the length of its value."""
    width = 64 / CELLS
    lengths = (width / 2) * values.reshape(CELLS, CELLS, DIRECTIONS) / max(values.max(), np.finfo(float).tiny)
    angles = np.arange(DIRECTIONS) * (2 * math.pi / DIRECTIONS)
    cross = "".join(f"M{i * width:g} 0V64M0 {i * width:g}H64" for i in range(1, CELLS))
    petals = []
    for down, across, direction in np.argwhere(lengths > SHORTEST):
        length, angle = lengths[down, across, direction], angles[direction]
        x, y = (across + 0.5) * width, (down + 0.5) * width
        along = np.array([math.cos(angle), math.sin(angle)]) * length
        beside = np.array([-along[1], along[0]]) * SLIMNESS
        corners = [0 * along, 0.6 * along + beside, along, 0.6 * along - beside]
        petals.append("M" + "L".join(f"{x + dx:.1f} {y + dy:.1f}" for dx, dy in corners) + "Z")
    return f'<path d="{cross}" stroke="#24344a" stroke-width=".5"/><path d="{"".join(petals)}" fill="#f6b26b"/>'


def _bars(values: NDArray[np.float64]) -> str:
    """Draw values as bars around a middle line; means of adjacent values if there are many."""
    finite = np.nan_to_num(values)
    means = np.array([part.mean() for part in np.array_split(finite, min(len(finite), MOST_BARS))])
    heights = 28 * means / max(np.abs(means).max(), np.finfo(float).tiny)
    step = 60 / len(heights)
    up, down = (
        "".join(
            f"M{2 + i * step:.2f} 32V{32 - height:.1f}H{2 + (i + 0.8) * step:.2f}V32Z"
            for i, height in enumerate(heights)
            if sign * height > 0
        )
        for sign in (1, -1)
    )
    return f'<path d="{up}" fill="#f6b26b"/><path d="{down}" fill="#7fb3e6"/>'


def missing(reason: str) -> Encoded:
    """Placeholder of a missing picture."""
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><rect width="64" height="64" fill="#8884"/>'
        '<path d="M20 24h24v18H20zM24 38l6-7 5 5 3-3 4 5" fill="none" stroke="#888" stroke-width="1.5"/>'
        f'<text x="32" y="54" font-size="6" font-family="sans-serif" fill="#888" text-anchor="middle">{reason}</text>'
        "</svg>"
    )
    return Encoded(svg.encode(), "image/svg+xml")
