"""Local features: SIFT descriptors of image regions, and the geometry of the regions.

Regions are extrema of differences of Gaussians (DoG, Lowe 2004) or maximally stable extremal regions (MSER, Matas et
al. 2002), detected by OpenCV.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans import validation
from closure_kmeans.features.extract import Images, Options, Skipped, extract
from closure_kmeans.features.images import MAX_PIXELS, Picture, Sizes, at_most, resize

# Detects more regions than the defaults. The number depends on OpenCV's version: 5.0.0 reads ``min_diversity`` as the
# smallest variation, which discards the most stable regions; other versions find more.
MSER_SETTINGS: dict[str, Any] = {"delta": 2, "min_area": 30, "max_variation": 0.5, "min_diversity": 0.2}
# Smallest side of a picture that OpenCV's MSER accepts.
MSER_MIN_SIDE = 3
# Smallest keypoint size in pixels; thinner regions are lines and have no scale.
MIN_SCALE = 1.0
# Contrast threshold of OpenCV's SIFT.
CONTRAST = 0.04

# Keypoints and their descriptors.
Described: TypeAlias = tuple[Sequence[cv2.KeyPoint], NDArray[Any]]


class LocalFeatures(NamedTuple):
    """Local features of many images, image by image."""

    keypoints: NDArray[np.float32]  # (m, 4) x, y, scale (a diameter) in pixels of the full picture, angle in degrees
    descriptors: NDArray[np.uint8]  # (m, 128)
    offsets: NDArray[np.int64]  # (n_images + 1,) image i holds rows offsets[i]:offsets[i + 1]
    skipped: list[Skipped]  # unusable images; they have no rows


def local_features(
    images: Images,
    *,
    detector: str = "dog",
    max_side: int | None = None,
    n_regions: int | None = None,
    contrast: float = CONTRAST,
    upright: bool = False,
    max_pixels: int = MAX_PIXELS,
    on_error: str = "raise",
    n_threads: int | None = None,
    verbose: int = 0,
    callback: Callable[[], Any] | None = None,
) -> LocalFeatures:
    """Compute SIFT descriptors of image regions, and the geometry of the regions.

    Parameters
    ----------
    images : folder, file, sequence of paths and arrays, or array of shape (n, height, width[, channels])
        See `load_image` for files and arrays; folders are searched by `list_images`.
    detector : {"dog", "mser"}, default="dog"
        Extrema of differences of Gaussians, or maximally stable extremal regions.
    max_side : int, optional
        Shrink larger pictures so that their longer side has this many pixels. Keypoints still refer to the full
        picture.
    n_regions : int, optional
        Keep only the regions of highest contrast, at most so many of a picture (detector "dog").
    contrast : float, default=0.04
        Contrast threshold of detector "dog", as OpenCV's SIFT defines it: a lower one finds more and fainter regions.
    upright : bool, default=False
        Describe all regions as if they had the angle 0: more distinctive where pictures are not rotated.
    max_pixels : int, default=67108864
        Reject files with more pixels before decoding.
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
    features : LocalFeatures
        Keypoints and descriptors, image by image, and the skipped images.

    Raises
    ------
    ImageError
        If an image cannot be used, and ``on_error`` is "raise".

    See Also
    --------
    root_sift : Convert the descriptors.
    closure_kmeans.retrieval.collect : Features of a folder, with the names of the images.

    Notes
    -----
    A picture without structure has no rows. The keypoint of an MSER region comes from its minimum-area rectangle: the
    centre, the square root of the area, and the direction of the longer side, from 0 to 180 degrees. Regions as thin as
    a line are discarded.

    Examples
    --------
    >>> import numpy as np
    >>> noise = np.random.default_rng(0).integers(0, 256, (2, 64, 64), np.uint8)
    >>> features = local_features(noise)
    >>> features.descriptors.shape[1], len(features.offsets)
    (128, 3)
    """
    validation.choice("detector", detector, tuple(DETECTORS))
    if max_side is not None:
        validation.integer("max_side", max_side, 1)
    if n_regions is not None:
        validation.integer("n_regions", n_regions, 1)
    validation.number("contrast", contrast, 0)
    validation.boolean("upright", upright)
    if detector != "dog" and (n_regions is not None or contrast != CONTRAST):
        raise ValueError(f"n_regions and contrast are of the detector 'dog', got {n_regions} and {contrast}")
    describe_found = DETECTORS[detector]
    if detector == "dog":
        describe_found = partial(describe_dog, n_regions=n_regions, contrast=contrast)
    options = Options(max_pixels, on_error, n_threads, verbose, callback)
    shrink = at_most(max_side)
    describe = partial(describe_regions, shrink=shrink, describe=partial(describe_found, upright=upright))
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
    """Convert SIFT to RootSIFT: L1-normalise, then take square roots (Arandjelović and Zisserman 2012).

    The Euclidean distance of RootSIFT is proportional to the Hellinger distance of the histograms.

    Parameters
    ----------
    descriptors : (m, d) array
        Finite values, not negative.

    Returns
    -------
    rooted : (m, d) array of float32
        Rows of unit length; zero rows stay zero.

    Raises
    ------
    ValueError
        If the shape differs, or values are negative or not finite.

    See Also
    --------
    closure_kmeans.retrieval.root_bytes : The same in uint8.

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


def describe_regions(
    picture: Picture, shrink: Sizes, describe: Callable[[NDArray[np.uint8]], Described]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Keypoints and descriptors of one picture."""
    picture = picture._replace(pixels=resize(picture.pixels, shrink(*picture.full_size)))
    found, descriptors = describe(picture.pixels)
    if not found:
        return np.empty((0, 4), np.float32), np.empty((0, 128), np.uint8)
    keypoints = np.array([(*point.pt, point.size, point.angle) for point in found], np.float32)
    return to_full_size(keypoints, picture), descriptors.astype(np.uint8)  # whole numbers up to 255


def describe_dog(
    pixels: NDArray[np.uint8], *, upright: bool, n_regions: int | None = None, contrast: float = CONTRAST
) -> Described:
    """DoG keypoints of OpenCV, and their descriptors."""
    sift = cv2.SIFT.create(nfeatures=n_regions or 0, contrastThreshold=contrast)
    if not upright:
        found, descriptors = sift.detectAndCompute(pixels, None)
        return found, descriptors
    # A region with several dominant directions is found several times.
    regions = {(point.pt, point.size): point for point in sift.detect(pixels, None)}
    return describe_points(sift, pixels, list(regions.values()), upright=True)


def describe_mser(pixels: NDArray[np.uint8], *, upright: bool) -> Described:
    """Keypoints of MSER regions that are neither thin nor flat, and their descriptors."""
    regions: Sequence[Any] = ()
    if min(pixels.shape) >= MSER_MIN_SIDE:
        regions, _ = cv2.MSER.create(**MSER_SETTINGS).detectRegions(pixels)
    keypoints = [point for point in map(region_keypoint, regions) if point.size >= MIN_SCALE]
    found, descriptors = describe_points(cv2.SIFT.create(), pixels, keypoints, upright=upright)
    described = np.any(descriptors != 0, axis=1)  # some OpenCV versions find regions in flat pictures
    return [point for point, kept in zip(found, described, strict=True) if kept], descriptors[described]


def describe_points(sift: Any, pixels: NDArray[np.uint8], points: list[cv2.KeyPoint], *, upright: bool) -> Described:
    """Descriptors of keypoints, of angle 0 if ``upright``."""
    if not points:
        return (), np.empty((0, 128))
    if upright:
        for point in points:
            point.angle = 0.0
    found, descriptors = sift.compute(pixels, points)
    return found, descriptors


def region_keypoint(region: NDArray[np.int32]) -> cv2.KeyPoint:
    """Keypoint of a region's minimum-area rectangle: centre, square root of the area, direction of the longer side.

    OpenCV versions differ in the side whose angle ``minAreaRect`` returns, and SIFT fills wrong bins for negative
    angles. Therefore the angle is normalised to the longer side, 0 to 180 degrees.
    """
    (x, y), (width, height), angle = cv2.minAreaRect(region)
    scale = math.sqrt(width * height)
    direction = (angle if width >= height else angle + 90) % 180
    return cv2.KeyPoint(x, y, scale, direction)


DETECTORS: dict[str, Callable[..., Described]] = {"dog": describe_dog, "mser": describe_mser}


def to_full_size(keypoints: NDArray[np.float32], picture: Picture) -> NDArray[np.float32]:
    """Scale keypoints to the full picture. Pixel centres have integer coordinates."""
    ratios = np.array(picture.full_size, np.float32) / np.array(picture.pixels.shape[::-1], np.float32)
    keypoints[:, :2] = (keypoints[:, :2] + 0.5) * ratios - 0.5
    keypoints[:, 2] *= np.sqrt(ratios.prod())
    return keypoints
