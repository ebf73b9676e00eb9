"""Local features: SIFT descriptors of many small regions of a picture, and where those are.

The regions are extrema of differences of Gaussians (DoG, Lowe 2004) or maximally stable extremal regions (MSER, Matas
et al. 2002), as OpenCV finds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans import validation
from closure_kmeans.features.extract import Images, Options, Skipped, extract
from closure_kmeans.features.images import MAX_PIXELS, Picture, at_most, check_limits, resize

# More regions than with the defaults. How many depends on OpenCV's version: 5.0.0 takes ``min_diversity`` for the least
# variation, so that it leaves out the most stable regions; others find more.
MSER_SETTINGS: dict[str, Any] = {"delta": 2, "min_area": 30, "max_variation": 0.5, "min_diversity": 0.2}
# Pixels a side without which OpenCV's MSER refuses to work.
MSER_MIN_SIDE = 3
# Regions narrower than that are lines: they have no scale.
MIN_SCALE = 1.0


class LocalFeatures(NamedTuple):
    """The local features of many images, one image after the other."""

    keypoints: NDArray[np.float32]  # (m, 4) x, y, scale (a diameter) in pixels of the full picture, angle in degrees
    descriptors: NDArray[np.uint8]  # (m, 128)
    offsets: NDArray[np.int64]  # (n_images + 1,) image i holds rows offsets[i]:offsets[i + 1]
    skipped: list[Skipped]  # images that could not be used; they hold no rows


def local_features(
    images: Images,
    *,
    detector: str = "dog",
    max_side: int | None = None,
    max_pixels: int = MAX_PIXELS,
    on_error: str = "raise",
    n_threads: int | None = None,
    verbose: int = 0,
    callback: Callable[[], Any] | None = None,
) -> LocalFeatures:
    """Compute SIFT descriptors of the images' regions, and the geometry of these.

    Parameters
    ----------
    images : folder, file, sequence of paths and arrays, or array of shape (n, height, width[, channels])
        `load_image` says which files and arrays; a folder is searched by `list_images`.
    detector : {"dog", "mser"}, default="dog"
        Extrema of differences of Gaussians, or maximally stable extremal regions.
    max_side : int, optional
        Shrink larger pictures so that their longer side has this many pixels. The keypoints are those of the full
        picture all the same.
    max_pixels : int, default=67108864
        Refuse a file that holds more pixels, before decoding it.
    on_error : {"raise", "skip"}, default="raise"
        What to do about an image that cannot be used.
    n_threads : int, optional
        Number of threads; by default as many as the process may use CPUs.
    verbose : int, default=0
        1 shows a progress bar.
    callback : callable, optional
        Called after each image, by one thread at a time.

    Returns
    -------
    features : LocalFeatures
        Named tuple of ``keypoints``, ``descriptors``, ``offsets`` and ``skipped``. A picture without any structure has
        no rows.

    Notes
    -----
    An MSER region becomes a keypoint by the rectangle of least area around it: its centre, the square root of its area,
    and the direction of its longer side, from 0 to 180 degrees. Regions as thin as a line are left out.

    Examples
    --------
    >>> import numpy as np
    >>> noise = np.random.default_rng(0).integers(0, 256, (2, 64, 64), np.uint8)
    >>> features = local_features(noise)
    >>> features.descriptors.shape[1], len(features.offsets)
    (128, 3)
    """
    validation.choice("detector", detector, tuple(DETECTORS))
    check_limits(max_side, max_pixels)
    options = Options(max_pixels, on_error, n_threads, verbose, callback)
    shrink = at_most(max_side)

    def describe(picture: Picture) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        pixels = resize(picture.pixels, shrink(*picture.full_size))
        return describe_regions(Picture(pixels, picture.full_size), detector)

    n_images, blocks, skipped = extract(images, shrink, describe, list, options)
    parts = [part for block in blocks for part in block]
    counts = np.zeros(n_images, np.int64)
    used = np.delete(np.arange(n_images), [entry.image for entry in skipped])
    counts[used] = [len(keypoints) for keypoints, _ in parts]
    return LocalFeatures(
        keypoints=np.concatenate([np.empty((0, 4), np.float32), *(keypoints for keypoints, _ in parts)]),
        descriptors=np.concatenate([np.empty((0, 128), np.uint8), *(descriptors for _, descriptors in parts)]),
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        skipped=skipped,
    )


def root_sift(descriptors: ArrayLike) -> NDArray[np.float32]:
    """Turn SIFT descriptors into RootSIFT: the square roots of their values as shares of the sum.

    Euclidean distances between the results compare the descriptors as histograms, which suits them better.

    Parameters
    ----------
    descriptors : array of shape (m, 128)

    Returns
    -------
    rooted : ndarray of shape (m, 128), dtype float32
        Rows of length 1; a row of zeros stays one.

    Examples
    --------
    >>> root_sift([[0, 4, 12, 0]])
    array([[0.       , 0.5      , 0.8660254, 0.       ]], dtype=float32)
    """
    rows = np.asarray(descriptors)
    if rows.ndim != 2 or rows.dtype.kind not in "iuf":
        raise ValueError(f"descriptors must be numbers of shape (m, d), got {rows.dtype} of shape {rows.shape}")
    rooted = rows.astype(np.float32)
    if not (np.isfinite(rooted).all() and (rooted >= 0).all()):
        raise ValueError("descriptors must be finite and not negative")
    rooted /= np.maximum(rooted.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return np.sqrt(rooted, out=rooted)


def describe_regions(picture: Picture, detector: str) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Keypoints and descriptors of one picture."""
    found, descriptors = DETECTORS[detector](picture.pixels)
    if not found:
        return np.empty((0, 4), np.float32), np.empty((0, 128), np.uint8)
    keypoints = np.array([(*point.pt, point.size, point.angle) for point in found], np.float32)
    return to_full_size(keypoints, picture), descriptors.astype(np.uint8)  # whole numbers up to 255


def describe_dog(pixels: NDArray[np.uint8]) -> tuple[Sequence[cv2.KeyPoint], NDArray[Any]]:
    """OpenCV's keypoints at extrema of differences of Gaussians, and their descriptors."""
    found, descriptors = cv2.SIFT.create().detectAndCompute(pixels, None)
    return found, descriptors


def describe_mser(pixels: NDArray[np.uint8]) -> tuple[Sequence[cv2.KeyPoint], NDArray[Any]]:
    """A keypoint at each MSER region that is not as thin as a line nor flat, and their descriptors."""
    regions: Sequence[Any] = ()
    if min(pixels.shape) >= MSER_MIN_SIDE:
        regions, _ = cv2.MSER.create(**MSER_SETTINGS).detectRegions(pixels)
    keypoints = [point for point in map(region_keypoint, regions) if point.size >= MIN_SCALE]
    if not keypoints:
        return (), np.empty((0, 128))
    found, descriptors = cv2.SIFT.create().compute(pixels, keypoints)
    described = np.any(descriptors != 0, axis=1)  # some versions find regions in flat pictures
    return [point for point, kept in zip(found, described, strict=True) if kept], descriptors[described]


def region_keypoint(region: NDArray[np.int32]) -> cv2.KeyPoint:
    """The rectangle of least area around a region: its centre, the root of its area, the direction of its longer side.

    Versions of OpenCV differ in which side they measure the angle of, and their SIFT takes angles below 0 without an
    error and fills the wrong bins: so it is that of the longer side, and never negative.
    """
    (x, y), (width, height), angle = cv2.minAreaRect(region)
    scale = math.sqrt(width * height)
    direction = (angle if width >= height else angle + 90) % 180
    return cv2.KeyPoint(x, y, scale, direction)


DETECTORS = {"dog": describe_dog, "mser": describe_mser}


def to_full_size(keypoints: NDArray[np.float32], picture: Picture) -> NDArray[np.float32]:
    """Keypoints in pixels of the picture as it was before it was shrunk. The middle of a pixel is a whole number."""
    ratios = np.array(picture.full_size, np.float32) / np.array(picture.pixels.shape[::-1], np.float32)
    keypoints[:, :2] = (keypoints[:, :2] + 0.5) * ratios - 0.5
    keypoints[:, 2] *= np.sqrt(ratios.prod())
    return keypoints
