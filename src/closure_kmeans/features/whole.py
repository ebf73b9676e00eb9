"""Descriptors of whole pictures: GIST (Oliva and Torralba 2001) and HOG (Dalal and Triggs 2005).

Both use the central square of a picture, scaled to a fixed size, and process blocks of squares.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from closure_kmeans import validation
from closure_kmeans.features.extract import Images, Options, Skipped, extract
from closure_kmeans.features.images import MAX_PIXELS, Picture, resize

# GIST: mean responses in 4 x 4 cells to Gabor filters of 3 scales, finest first, and 8 orientations.
GIST_CELLS, GIST_SCALES, GIST_ORIENTATIONS = 4, 3, 8
GIST_DIMENSIONS = GIST_CELLS**2 * GIST_SCALES * GIST_ORIENTATIONS
# Centre frequency of the finest scale in cycles per pixel, and the ratio between scales.
FINEST, COARSER = 0.3, 1.85
# Inverse bandwidths of the filters: radial, relative to the centre frequency, and angular.
RADIAL_WIDTH, ANGULAR_WIDTH = 3.5, 2 * np.pi * (GIST_ORIENTATIONS / 8) ** 2
# Smaller filter values become zero: subnormal products would be very slow.
NO_RESPONSE = 1e-9
# Mirrored border in pixels: more than three standard deviations of the coarsest filter.
BORDER = 16
# Local contrast normalisation: a high-pass filter with this cutoff in cycles per picture, and division by the local
# standard deviation plus a constant for flat parts.
CONTRAST_CYCLES, CONTRAST_FLOOR = 4, 0.2

# HOG: 8 x 8 cells of 8 x 8 pixels, 9 orientations without sign, blocks of 2 x 2 cells that do not overlap.
HOG_SIZE, HOG_CELLS, HOG_ORIENTATIONS, HOG_BLOCK = 64, 8, 9, 2
HOG_DIMENSIONS = HOG_CELLS**2 * HOG_ORIENTATIONS
# L2-Hys: clipping threshold of normalised blocks, and a constant for empty blocks.
HOG_CLIP, HOG_EPSILON = 0.2, 1e-5


class ImageVectors(NamedTuple):
    """One vector for each usable image."""

    vectors: NDArray[np.float32]  # (m, d)
    images: NDArray[np.int64]  # (m,) index of each vector's image
    skipped: list[Skipped]  # unusable images, and why


def gist(
    images: Images,
    *,
    size: int = 64,
    max_pixels: int = MAX_PIXELS,
    on_error: str = "raise",
    n_threads: int | None = None,
    verbose: int = 0,
) -> ImageVectors:
    """Compute GIST descriptors, 384 dimensions: energy by scale, orientation and position in the picture.

    The central square of each picture is scaled to a fixed size. A vector is ordered by scale (finest first), then
    orientation, then cell in row order.

    Parameters
    ----------
    images : folder, file, sequence of paths and arrays, or array of shape (n, height, width[, channels])
        See `load_image` for files and arrays; folders are searched by `list_images`.
    size : int, default=64
        Side of the scaled square in pixels, a multiple of 4 from 16 up.
    max_pixels : int, default=67108864
        Reject files with more pixels before decoding.
    on_error : {"raise", "skip"}, default="raise"
        What to do about an image that cannot be used.
    n_threads : int, optional
        Number of threads; by default the number of CPUs available to the process.
    verbose : int, default=0
        1 shows a progress bar.

    Returns
    -------
    described : ImageVectors
        One vector for each usable image, and the skipped images.

    Raises
    ------
    ImageError
        If an image cannot be used, and ``on_error`` is "raise".

    See Also
    --------
    hog : Another descriptor of whole pictures.

    Examples
    --------
    >>> import numpy as np
    >>> gist(np.zeros((2, 64, 64), np.uint8)).vectors.shape
    (2, 384)
    """
    validation.integer("size", size, 16)
    if size % GIST_CELLS:
        raise ValueError(f"size must be a multiple of {GIST_CELLS}, got {size}")
    options = Options(max_pixels, on_error, n_threads, verbose)
    return describe_squares(images, size, gist_of_squares, GIST_DIMENSIONS, options)


def hog(
    images: Images,
    *,
    max_pixels: int = MAX_PIXELS,
    on_error: str = "raise",
    n_threads: int | None = None,
    verbose: int = 0,
) -> ImageVectors:
    """Compute HOG descriptors, 576 dimensions: histograms of gradient orientations in 8 x 8 cells.

    The central square of each picture is scaled to 64 x 64 pixels. A pixel votes with its gradient magnitude,
    interpolated linearly between the 2 nearest of 9 unsigned orientations and the 4 nearest of the 8 x 8 cells. Each
    block of 2 x 2 cells is L2-normalised, clipped at 0.2, and L2-normalised again. A vector is ordered by block in row
    order, then cell, then orientation.

    Parameters
    ----------
    images : folder, file, sequence of paths and arrays, or array of shape (n, height, width[, channels])
        See `load_image` for files and arrays; folders are searched by `list_images`.
    max_pixels : int, default=67108864
        Reject files with more pixels before decoding.
    on_error : {"raise", "skip"}, default="raise"
        What to do about an image that cannot be used.
    n_threads : int, optional
        Number of threads; by default the number of CPUs available to the process.
    verbose : int, default=0
        1 shows a progress bar.

    Returns
    -------
    described : ImageVectors
        One vector for each usable image, and the skipped images.

    Raises
    ------
    ImageError
        If an image cannot be used, and ``on_error`` is "raise".

    See Also
    --------
    gist : Another descriptor of whole pictures.

    Examples
    --------
    >>> import numpy as np
    >>> hog(np.zeros((2, 64, 64), np.uint8)).vectors.shape
    (2, 576)
    """
    options = Options(max_pixels, on_error, n_threads, verbose)
    return describe_squares(images, HOG_SIZE, hog_of_squares, HOG_DIMENSIONS, options)


def describe_squares(
    images: Images,
    size: int,
    describe: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
    n_dimensions: int,
    options: Options,
) -> ImageVectors:
    """Describe the central square of each picture."""
    none = np.empty((0, n_dimensions), np.float32)
    n_images, blocks, skipped = extract(
        images,
        enough=lambda width, height: (size, size),
        make_part=partial(middle_square, size=size),
        finish=lambda squares: describe(np.stack(squares)) if squares else none,
        options=options,
    )
    used = np.delete(np.arange(n_images), [entry.image for entry in skipped])
    return ImageVectors(np.concatenate([none, *blocks]), used, skipped)


def middle_square(picture: Picture, size: int) -> NDArray[np.uint8]:
    """Central square of a picture, resized."""
    height, width = picture.pixels.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return resize(picture.pixels[top : top + side, left : left + side], (size, size))


# -- GIST ------------------------------------------------------------------------------------------------------------


def gist_of_squares(squares: NDArray[np.uint8]) -> NDArray[np.float32]:
    """GIST of pictures of shape (n, size, size)."""
    n, size, _ = squares.shape
    mirrored = np.pad(np.log1p(squares, dtype=np.float32), ((0, 0), (BORDER, BORDER), (BORDER, BORDER)), "symmetric")
    spectra = fft.fft2(normalize_contrast(mirrored, size))
    vectors = np.empty((n, GIST_SCALES * GIST_ORIENTATIONS, GIST_CELLS, GIST_CELLS), np.float32)
    inside = slice(BORDER, BORDER + size)
    cell = size // GIST_CELLS
    for number, gabor in enumerate(gabor_filters(size + 2 * BORDER)):
        response = np.abs(fft.ifft2(spectra * gabor)[:, inside, inside])
        cells = response.reshape(n, GIST_CELLS, cell, GIST_CELLS, cell)
        np.mean(cells, axis=(2, 4), out=vectors[:, number])
    return vectors.reshape(n, GIST_DIMENSIONS)


def normalize_contrast(pictures: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """High-pass filter and divide by the local standard deviation."""
    n_pixels = pictures.shape[1]
    fall = CONTRAST_CYCLES / np.sqrt(np.log(2)) / size
    rows, columns = np.fft.fftfreq(n_pixels)[:, np.newaxis], np.fft.rfftfreq(n_pixels)
    coarse = np.exp(-(rows**2 + columns**2) / fall**2).astype(np.float32)

    def blur(values: NDArray[np.float32]) -> NDArray[Any]:
        blurred: NDArray[Any] = fft.irfft2(fft.rfft2(values) * coarse, s=values.shape[1:])
        return blurred

    fine = pictures - blur(pictures)
    deviation = np.sqrt(np.maximum(blur(fine * fine), 0))
    normalized: NDArray[np.float32] = fine / (CONTRAST_FLOOR + deviation)
    return normalized


@lru_cache(maxsize=4)
def gabor_filters(n_pixels: int) -> NDArray[np.float32]:
    """Gabor filters in the frequency domain, of shape (24, n_pixels, n_pixels); orientations within scales."""
    rows, columns = np.fft.fftfreq(n_pixels)[:, np.newaxis], np.fft.fftfreq(n_pixels)
    radius, angle = np.hypot(rows, columns), np.arctan2(rows, columns)
    filters = []
    for scale in range(GIST_SCALES):
        radial = RADIAL_WIDTH * (radius * COARSER**scale / FINEST - 1) ** 2
        for orientation in range(GIST_ORIENTATIONS):
            apart = (angle + np.pi * orientation / GIST_ORIENTATIONS + np.pi) % (2 * np.pi) - np.pi
            filters.append(np.exp(-radial - ANGULAR_WIDTH * apart**2))
    transfer = np.array(filters, np.float32)
    transfer[transfer < NO_RESPONSE] = 0
    return transfer


# -- HOG -------------------------------------------------------------------------------------------------------------


def hog_of_squares(squares: NDArray[np.uint8]) -> NDArray[np.float32]:
    """HOG of pictures of shape (n, 64, 64)."""
    n = len(squares)
    padded = np.pad(squares, ((0, 0), (1, 1), (1, 1)), "edge").astype(np.float32)
    across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    length = np.hypot(across, down)
    place = np.arctan2(down, across) * (HOG_ORIENTATIONS / np.pi) - 0.5  # the centre of bin b is at b
    lower = np.floor(place)
    share = place - lower
    votes = np.zeros((n, HOG_ORIENTATIONS, HOG_SIZE, HOG_SIZE), np.float32)
    for neighbor, part in ((lower, 1 - share), (lower + 1, share)):
        index = neighbor.astype(np.intp)[:, np.newaxis] % HOG_ORIENTATIONS
        np.put_along_axis(votes, index, (length * part)[:, np.newaxis], axis=1)
    weights = cell_weights()
    cells = (weights @ votes @ weights.T).transpose(0, 2, 3, 1)
    return normalize_blocks(cells).reshape(n, HOG_DIMENSIONS)


@lru_cache(maxsize=1)
def cell_weights() -> NDArray[np.float32]:
    """Linear interpolation weights of rows of pixels for rows of cells, of shape (8, 64)."""
    side = HOG_SIZE // HOG_CELLS
    middles = side * (np.arange(HOG_CELLS)[:, np.newaxis] + 0.5)
    return np.maximum(0, 1 - np.abs(np.arange(HOG_SIZE) + 0.5 - middles) / side).astype(np.float32)


def normalize_blocks(cells: NDArray[Any]) -> NDArray[np.float32]:
    """L2-Hys normalisation of blocks of 2 x 2 cells: (n, 8, 8, 9) to (n, 16, 36)."""
    n, across = len(cells), HOG_CELLS // HOG_BLOCK
    blocks = cells.reshape(n, across, HOG_BLOCK, across, HOG_BLOCK, HOG_ORIENTATIONS).swapaxes(2, 3)
    blocks = blocks.reshape(n, across**2, HOG_BLOCK**2 * HOG_ORIENTATIONS)
    return unit_length(np.minimum(unit_length(blocks), HOG_CLIP))


def unit_length(blocks: NDArray[Any]) -> NDArray[np.float32]:
    """L2-normalise blocks; zero blocks stay zero."""
    scaled: NDArray[np.float32] = blocks / np.sqrt(np.sum(blocks**2, axis=2, keepdims=True) + HOG_EPSILON**2)
    return scaled
