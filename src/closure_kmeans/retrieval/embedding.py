"""Hamming embedding (Jégou, Douze, Schmid 2008): signatures of 64 bits tell regions of the same word apart.

A bit is the side of a hyperplane that a descriptor is on. Regions of the same word match by the Hamming distance of
their signatures. Hyperplanes pass through the mean of a group of words: a word has too few descriptors, since with ten
of them hyperplanes through its centre separate descriptors that match.

A region of a query is compared with the regions of several words (multiple assignment: Jégou, Douze, Schmid 2010), by
a signature in each of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import hadamard

from closure_kmeans import ClosureKMeans
from closure_kmeans.estimator import BaseKMeans
from closure_kmeans.files import FileFormatError
from closure_kmeans.retrieval import kernels
from closure_kmeans.retrieval.inverted import check_words
from closure_kmeans.retrieval.verification import Places

# Bits of a signature.
N_BITS = 64
# Mean number of words that share their hyperplanes: some thousand descriptors.
WORDS_PER_GROUP = 200
# Largest Hamming distance of a match, half of the bits, and the width of the Gaussian that weighs it.
THRESHOLD, SIGMA = 32, 16.0


class Embedding(NamedTuple):
    """Hyperplanes of groups of words."""

    groups: NDArray[np.int32]  # (k,) group of each word
    thresholds: NDArray[np.float32]  # (g, 64) projections of the mean of each group


class SignedWords(NamedTuple):
    """Words of the regions of a query, and the signatures of the regions in these words."""

    words: NDArray[np.int32]  # (m, n) the nearest word first
    signatures: NDArray[np.uint64]  # (m, n)


class RegionLists(NamedTuple):
    """Inverted lists of regions: for each word its regions, with the images that they are in and their signatures."""

    region_starts: NDArray[np.int64]  # (k + 1,) word w has the regions region_starts[w]:region_starts[w + 1]
    region_images: NDArray[np.int32]  # (m,) ascending for each word
    signatures: NDArray[np.uint64]  # (m,)
    region_norms: NDArray[np.float64]  # (N,) square root of the sum of idf² over the regions of an image


@cache
def projection(n_features: int) -> NDArray[np.float32]:
    """Normals of the hyperplanes: random rows of a Hadamard matrix, with random signs, cut to ``n_features`` columns.

    They are orthogonal if the number of features is a power of two. Their values are 1 and -1, so products with
    bytes are exact.
    """
    rng = np.random.default_rng(0)
    size = 1 << (max(n_features, N_BITS) - 1).bit_length()
    signs = rng.choice([-1, 1], size)
    rows = rng.choice(size, N_BITS, replace=False)
    normals: NDArray[np.float32] = (hadamard(size)[rows] * signs)[:, :n_features].astype(np.float32)
    return normals


def learn_embedding(model: BaseKMeans, *, as_bytes: bool) -> Embedding:
    """Group the words of a model by cluster closures.

    ``as_bytes`` rounds the centres to bytes for this, which descriptors that are bytes allow.
    """
    centers, sizes = model.cluster_centers_, model.cluster_sizes_
    rows = np.rint(centers).clip(0, 255).astype(np.uint8) if as_bytes else centers
    groups, means = np.zeros(len(rows), np.int32), sizes[np.newaxis] @ centers / sizes.sum()
    if len(rows) >= 2 * WORDS_PER_GROUP:
        n_groups = len(rows) // WORDS_PER_GROUP
        grouped = ClosureKMeans(n_groups, random_state=0, n_threads=model.n_threads).fit(rows, sample_weight=sizes)
        groups, means = grouped.labels_, grouped.cluster_centers_
    thresholds = np.einsum("ij,kj->ik", means.astype(np.float64), projection(rows.shape[1])).astype(np.float32)
    return Embedding(groups, thresholds)


def put_first(words: NDArray[np.int32], first: NDArray[np.int32]) -> None:
    """Move one word of each row to the front, in place of the last if it is not in the row.

    >>> words = np.array([[1, 2, 3], [1, 2, 3]], np.int32)
    >>> put_first(words, np.array([2, 5]))
    >>> words.tolist()
    [[2, 1, 3], [5, 1, 2]]
    """
    places = np.where(words == first[:, np.newaxis], 0, 1 + np.arange(words.shape[1]))
    places[:, -1] = np.where(places.all(axis=1), 0, places[:, -1])
    order = np.argsort(places, axis=1, kind="stable")
    words[:] = np.take_along_axis(words, order, axis=1)
    words[:, 0] = first


def sign(rows: NDArray[Any], groups: NDArray[Any], thresholds: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Signatures of descriptors in the groups of their words, one or several for each.

    >>> rows = np.array([[9, 0], [0, 9], [9, 1]], np.uint8)
    >>> thresholds = np.array([[4, 4]], np.float32) @ projection(2).T
    >>> one, other, like_one = sign(rows, np.zeros(3, int), thresholds)
    >>> bin(one ^ other).count("1") > bin(one ^ like_one).count("1")
    True
    """
    normals = projection(rows.shape[1])
    # Sums of whole numbers do not depend on the order that BLAS takes.
    products = rows.astype(np.float32) @ normals.T if rows.dtype == np.uint8 else np.einsum("ij,kj->ik", rows, normals)
    beyond = np.expand_dims(products, tuple(range(1, groups.ndim))) > thresholds[groups]
    signatures: NDArray[np.uint64] = np.packbits(beyond, axis=-1, bitorder="little").view("<u8")[..., 0]
    return signatures


def list_regions(places: Places, idf: NDArray[np.float32]) -> RegionLists:
    """Inverted lists of the regions of images."""
    signatures = _signatures_of(places)
    n_images = len(places.offsets) - 1
    order = np.argsort(places.words, kind="stable")
    image = np.repeat(np.arange(n_images, dtype=np.int32), np.diff(places.offsets))
    squares = idf.astype(np.float64)[places.words] ** 2
    return RegionLists(
        np.append(0, np.cumsum(np.bincount(places.words, minlength=len(idf)))),
        image[order],
        signatures[order],
        np.sqrt(np.bincount(image, squares, n_images)),
    )


@cache
def similarities(threshold: int = THRESHOLD, sigma: float = SIGMA) -> NDArray[np.float64]:
    """Similarity of two signatures by their Hamming distance h: exp(-h² / sigma²), 0 beyond the threshold."""
    distances = np.arange(N_BITS + 1)
    return np.where(distances <= threshold, np.exp(-((distances / sigma) ** 2)), 0.0)


def score_matches(
    lists: RegionLists, query: SignedWords, idf: NDArray[np.float32], *, burstiness: bool = True
) -> NDArray[np.float64]:
    """Score each image by its matches with the regions of a query.

    A match of a word weighs idf² times the similarity of the signatures, and the sum is normalised as if each region
    matched itself alone. ``burstiness`` (Jégou, Douze, Schmid 2009) lowers the weights of a query region's matches by
    their number, in an image and in all images.
    """
    n_images = len(lists.region_norms)
    words = check_words(query.words, len(idf))
    weights = idf.astype(np.float64) ** 2
    scores, sums, touched = np.zeros(n_images), np.zeros(n_images), np.empty(n_images, np.int64)
    if not kernels.add_matches(
        *lists[:3], words, query.signatures, similarities(), weights, burstiness, sums, touched, scores
    ):
        raise FileFormatError("the index must name images that it has, but does not: it was changed on disk")
    norms = lists.region_norms * np.sqrt(weights[words[:, 0]].sum())
    found: NDArray[np.float64] = np.divide(scores, norms, out=scores, where=norms > 0)
    return found


def _signatures_of(places: Places) -> NDArray[np.uint64]:
    if places.signatures is None:
        raise ValueError("regions must have signatures, which words learned with embedding=True give them")
    return places.signatures
