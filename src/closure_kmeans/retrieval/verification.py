"""Spatial verification (Philbin et al. 2007): whether two pictures have the same words in the same places.

Regions of the same word are matched. A region has a position, a size and an angle or a shape, so one match determines a
transformation between the pictures: one hypothesis. The hypothesis with the most inliers wins.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtrc

from closure_kmeans import validation as check
from closure_kmeans.files import library
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.retrieval import kernels
from closure_kmeans.retrieval.inverted import Ranking

# Columns of keypoints: x, y, diameter, angle of circles; x, y, a, b, c of ellipses.
CIRCLES, ELLIPSES = 4, 5
# Fewest distinct places in a verified image.
MIN_PLACES = 4
# Expected number of wrongly verified images per query.
FALSE_ALARMS = 0.01
VERIFIERS = ("matches", "opencv")


class Places(NamedTuple):
    """Words of images and the positions of their regions."""

    words: NDArray[np.int32]  # (m,) ascending in each image
    keypoints: NDArray[np.float32]  # (m, 4) x, y, diameter, angle; or (m, 5) x, y, a, b, c of ellipses
    offsets: NDArray[np.int64]  # (N + 1,) image i holds rows offsets[i]:offsets[i + 1]
    signatures: NDArray[np.uint64] | None = None  # (m,) of the Hamming embedding

    def of(self, image: int) -> Places:
        """Places of one image.

        Parameters
        ----------
        image : int
            Number of the image.

        Returns
        -------
        places : Places
            Regions of the image.

        See Also
        --------
        place : Make places.

        Examples
        --------
        >>> places = place([5, 2, 7], [[0, 0, 9, 0], [4, 4, 9, 0], [1, 1, 9, 0]], offsets=[0, 2, 3])
        >>> places.of(0).words.tolist()
        [2, 5]
        """
        own = slice(self.offsets[image], self.offsets[image + 1])
        signatures = None if self.signatures is None else self.signatures[own]
        return place(self.words[own], self.keypoints[own], signatures=signatures)


class Alignment(NamedTuple):
    """Transformation from one picture to another."""

    transform: NDArray[np.float64]  # (2, 3) affine
    pairs: NDArray[np.int32]  # (n, 2) inliers: region in the first and in the second picture


class Matches(NamedTuple):
    """Numbers of matches between a query and each of some images."""

    pairs: NDArray[np.int64]  # (n,) pairs of regions that have the same word
    inliers: NDArray[np.int64]  # (n,) inliers
    places: NDArray[np.int64]  # (n,) inliers farther from each other than the tolerance
    weights: NDArray[np.float64] = np.empty(0)  # (n,) idf times the consistency of scales, summed over the inliers
    transforms: NDArray[np.float64] = np.empty((0, 2, 3))  # (n, 2, 3) affine transformations of the query

    def strengths(self, settings: Verification) -> NDArray[Any]:
        """Values that images are ranked by.

        Parameters
        ----------
        settings : Verification
            Settings that the images were matched with.

        Returns
        -------
        strengths : (n,) array
            Weights of the inliers if ``settings.weighted``, otherwise their numbers.

        See Also
        --------
        rerank : Rank by these values.

        Examples
        --------
        >>> four = np.array([4])
        >>> matches = Matches(pairs=four, inliers=four, places=four, weights=np.array([2.5]))
        >>> matches.strengths(Verification()).tolist(), matches.strengths(Verification(weighted=False)).tolist()
        ([2.5], [4])
        """
        return self.weights if settings.weighted else self.inliers


class Verification(NamedTuple):
    """Settings of the spatial verification."""

    dof: int | None = None  # degrees of freedom of a hypothesis; None for 4 with circles and 5 with ellipses
    tolerance: float = 0.04  # largest transfer error, relative to the longer side of the keypoints' bounding box
    verifier: str = "matches"
    weighted: bool = True  # rank by weighted inliers, and refit every best hypothesis and not only the last


def place(
    words: ArrayLike,
    keypoints: ArrayLike,
    offsets: ArrayLike | None = None,
    signatures: NDArray[np.uint64] | None = None,
) -> Places:
    """Sort the regions of each image by word.

    Parameters
    ----------
    words : array-like of int, shape (m,)
        Word of each region.
    keypoints : (m, 4) or (m, 5) array
        Circles (x, y, diameter, angle) or ellipses (x, y, a, b, c).
    offsets : array-like of int, shape (N + 1,), optional
        Image i holds rows ``offsets[i]:offsets[i + 1]``; by default there is one image.
    signatures : (m,) array of uint64, optional
        Signatures of the Hamming embedding.

    Returns
    -------
    places : Places
        The sorted regions.

    Raises
    ------
    ValueError
        If ``keypoints`` has another shape.

    See Also
    --------
    align : Transformation between two pictures.
    match_images : Match a query with images.

    Examples
    --------
    >>> place([5, 2], [[0, 0, 9, 0], [4, 4, 9, 0]]).words.tolist()
    [2, 5]
    """
    named, where = np.asarray(words, np.int32), np.asarray(keypoints, np.float32)
    ends = np.array([0, len(named)]) if offsets is None else np.asarray(offsets, np.int64)
    if where.ndim != 2 or where.shape[1] not in (CIRCLES, ELLIPSES) or named.shape != where.shape[:1]:
        raise ValueError(
            f"keypoints must have 4 (x, y, diameter, angle) or 5 (x, y, a, b, c) columns and a row for each of "
            f"{named.shape} words, got {where.shape}"
        )
    image = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    order = np.lexsort((named, image))
    return Places(named[order], where[order], ends, None if signatures is None else signatures[order])


def join_places(places: Places, added: Places) -> Places:
    """Concatenate the places of two groups of images."""
    if len(places.offsets) == 1:  # no images, whose keypoints would tell the number of columns
        return added
    if places.keypoints.shape[1] != added.keypoints.shape[1]:
        raise ValueError(
            f"keypoints must have {places.keypoints.shape[1]} columns like those in the index, "
            f"got {added.keypoints.shape[1]}"
        )
    return Places(
        np.concatenate([places.words, added.words]),
        np.concatenate([places.keypoints, added.keypoints]),
        np.concatenate([places.offsets, added.offsets[1:] + places.offsets[-1]]),
        None if added.signatures is None else np.concatenate([places.signatures, added.signatures]),
    )


def select_places(places: Places, images: NDArray[np.int64]) -> Places:
    """Places of some images, in ascending order."""
    sizes = np.diff(places.offsets)
    rows = np.repeat(np.isin(np.arange(len(sizes)), images), sizes)
    offsets = np.append(0, np.cumsum(sizes[images]))
    signatures = None if places.signatures is None else places.signatures[rows]
    return Places(places.words[rows], places.keypoints[rows], offsets, signatures)


def check_verification(settings: Verification, query: Places, others: Places) -> int:
    """Check the settings against the kind of keypoints; return the degrees of freedom."""
    n_columns = query.keypoints.shape[1]
    if others.keypoints.shape[1] != n_columns:
        raise ValueError(
            f"keypoints must have as many columns in the query as in the index, "
            f"got {n_columns} and {others.keypoints.shape[1]}"
        )
    check.choice("verifier", settings.verifier, VERIFIERS)
    check.number("tolerance", settings.tolerance, 0)
    allowed = (4, 3) if n_columns == CIRCLES else (5,)
    if settings.dof is None:
        return allowed[0]
    if settings.dof not in allowed:
        raise ValueError(
            f"dof must be {' or '.join(map(str, sorted(allowed)))} for keypoints of {n_columns} columns, "
            f"got {settings.dof}"
        )
    return settings.dof


def align(query: Places, other: Places, settings: Verification = Verification()) -> Alignment:  # noqa: B008
    """Estimate the transformation between two pictures.

    Parameters
    ----------
    query : Places
        Places of a single image.
    other : Places
        Places of another single image.
    settings : Verification, optional
        Settings of the spatial verification.

    Returns
    -------
    alignment : Alignment
        Transformation and inliers; NaN and none if no word is in both pictures.

    Raises
    ------
    ValueError
        If the pictures differ in the kind of keypoints, or the settings do not fit them.

    See Also
    --------
    match_images : Numbers of inliers of many images.

    Examples
    --------
    >>> x, y = np.array([0, 10, 0, 10, 5]), np.array([0, 0, 10, 10, 5])
    >>> here = place(np.arange(5), np.stack([x, y, 0 * x + 4, 0 * x], axis=1))
    >>> there = place(np.arange(5), np.stack([x + 7, y, 0 * x + 4, 0 * x], axis=1))
    >>> align(here, there).transform.round(3).tolist()  # seven to the right
    [[1.0, 0.0, 7.0], [0.0, 1.0, 0.0]]
    """
    dof = check_verification(settings, query, other)
    pairs = kernels.match_words(query.words, other.words)
    transform = np.full((2, 3), np.nan)
    if len(pairs) == 0:
        return Alignment(transform, pairs)
    tolerances = _tolerances(query, other, settings)
    if settings.verifier == "opencv":
        return _align_by_opencv(query.keypoints, other.keypoints, pairs, tolerances)
    pairs = kernels.verify_pairs(query.keypoints, other.keypoints, pairs, dof, tolerances, settings.weighted, transform)
    return Alignment(transform, pairs)


def _tolerances(query: Places, other: Places, settings: Verification) -> tuple[float, float]:
    """Tolerances in pixels in the first and in the second picture."""
    return settings.tolerance * kernels.reach(query.keypoints), settings.tolerance * kernels.reach(other.keypoints)


def _align_by_opencv(
    keypoints: NDArray[Any], others: NDArray[Any], pairs: NDArray[np.int32], tolerances: tuple[float, float]
) -> Alignment:
    """Similarity by OpenCV's RANSAC, which measures the error in the second picture only."""
    cv2 = library("cv2", "images", "the verifier 'opencv'")
    here, there = keypoints[pairs[:, 0], :2], others[pairs[:, 1], :2]
    found, mask = cv2.estimateAffinePartial2D(here, there, ransacReprojThreshold=max(tolerances[1], 1e-3))
    if found is None:
        return Alignment(np.full((2, 3), np.nan), pairs[:0])
    inliers = np.empty(len(pairs), np.int32)
    agreed = pairs[mask.ravel() > 0]
    n_inliers = kernels.find_inliers(keypoints, others, agreed, found, (np.inf, np.inf), inliers)  # each region once
    return Alignment(found, agreed[inliers[:n_inliers]])


def match_images(
    query: Places,
    places: Places,
    images: NDArray[np.int64],
    settings: Verification = Verification(),  # noqa: B008
    n_threads: int | None = None,
    idf: NDArray[np.float32] | None = None,
) -> Matches:
    """Match a query with images: numbers of matched regions, of inliers and of distinct places.

    Parameters
    ----------
    query : Places
        Places of a single image.
    places : Places
        Places of all images.
    images : (n,) array of int64
        Numbers of the images to match.
    settings : Verification, optional
        Settings of the spatial verification.
    n_threads : int, optional
        Number of threads; by default the number of CPUs available to the process.
    idf : (k,) array of float32, optional
        Weights of the words, by default 1.

    Returns
    -------
    matches : Matches
        Numbers for each of the images.

    Raises
    ------
    ValueError
        If the query and the images differ in the kind of keypoints, or the settings do not fit them.

    See Also
    --------
    beyond_chance : Which images are verified.
    align : Inliers of one image.

    Examples
    --------
    >>> corners = [[0, 0, 4, 0], [10, 0, 4, 0], [0, 10, 4, 0], [10, 10, 4, 0]]
    >>> query = place([0, 1, 2, 3], corners)
    >>> images = place([0, 1, 2, 3, 7, 8], [*corners, *corners[:2]], offsets=[0, 4, 6])
    >>> match_images(query, images, np.array([0, 1])).inliers.tolist()
    [4, 0]
    """
    dof = check_verification(settings, query, places)
    n = len(images)
    pairs, inliers, distinct = np.zeros((3, n), np.int64)
    matches = Matches(pairs, inliers, distinct, np.zeros(n), np.full((n, 2, 3), np.nan))
    idf = np.ones(1 + max(query.words.max(initial=-1), 0), np.float32) if idf is None else idf
    if settings.verifier == "opencv":
        for i, image in enumerate(images):
            other = places.of(image)
            matches.transforms[i], agreed = align(query, other, settings)
            matches.pairs[i] = len(kernels.match_words(query.words, other.words))
            matches.weights[i] = kernels.weigh_inliers(
                query.keypoints, other.keypoints, agreed, query.words, idf, matches.transforms[i], dof
            )
            matches.inliers[i] = len(agreed)
            tolerances = _tolerances(query, other, settings)
            matches.places[i] = kernels.count_places(query.keypoints, other.keypoints, agreed, tolerances)
        return matches
    verify = partial(
        kernels.verify_images,
        *(query.words, query.keypoints, places.offsets, places.words, places.keypoints, idf),
        *(np.ascontiguousarray(images, np.int64), dof, float(settings.tolerance), settings.weighted),
        *matches,
    )
    with Threads(count_threads(n_threads)) as threads:
        threads.for_each_block(verify, len(images))
    return matches


def beyond_chance(matches: Matches, tolerance: float) -> NDArray[np.bool_]:
    """Images with more distinct places than chance explains (a-contrario test: Moisan and Stival 2004).

    Under the null model, a matched pair is in place with probability π tolerance², the area of the tolerance circle.
    The number of false alarms is the binomial tail times the number of hypotheses: one for each pair, which itself is
    not counted as evidence, in each compared image. Regions closer than the tolerance are not independent and count
    once.

    Parameters
    ----------
    matches : Matches
        Matches of a query with all compared images.
    tolerance : float
        Tolerance of the verification, relative to the size of the pictures.

    Returns
    -------
    verified : (n,) array of bool
        Whether each image is verified.

    See Also
    --------
    match_images : Match a query with images.
    rerank : Put verified images first.

    Examples
    --------
    >>> eight = np.array([8, 8])
    >>> beyond_chance(Matches(pairs=np.array([10, 1000]), inliers=eight, places=eight), tolerance=0.04).tolist()
    [True, False]
    """
    others, others_in_place = np.maximum(matches.pairs - 1, 1), np.maximum(matches.places - 1, 1)
    by_chance = bdtrc(others_in_place - 1, others, min(1.0, math.pi * tolerance**2))
    n_hypotheses = len(matches.pairs) * matches.pairs
    found: NDArray[np.bool_] = (matches.places >= MIN_PLACES) & (n_hypotheses * by_chance < FALSE_ALARMS)
    return found


def rerank(ranking: Ranking, inliers: NDArray[Any], verified: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Order that puts verified images first, by inliers (or their weights) and then by score.

    The others keep their order.

    Parameters
    ----------
    ranking : Ranking
        Images by score.
    inliers : (n,) array
        Inliers, or their weights, of the first n images of the ranking.
    verified : (n,) array of bool
        Whether these images are verified.

    Returns
    -------
    order : (r,) array of int64
        Places in the ranking, best first.

    See Also
    --------
    beyond_chance : Which images are verified.

    Examples
    --------
    >>> ranking = Ranking(np.array([8, 3, 5]), np.array([0.5, 0.4, 0.3]))
    >>> order = rerank(ranking, np.array([4, 12]), np.array([False, True]))
    >>> ranking.images[order].tolist()
    [3, 8, 5]
    """
    is_verified, counted = np.zeros((2, len(ranking.images)))
    is_verified[: len(verified)] = verified
    counted[: len(inliers)] = np.where(verified, inliers, 0)
    return np.lexsort((-counted, -is_verified))
