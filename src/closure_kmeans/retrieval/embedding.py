"""Hamming embedding (Jégou, Douze, Schmid 2008): a signature of 64 bits tells regions of the same word apart.

A bit is the side of a hyperplane that a descriptor is on. The hyperplanes of a word pass through its centre, pulled
towards the mean of all descriptors the more, the fewer descriptors the word has: in a word of a few matching regions,
hyperplanes through the centre would separate these from each other. Regions of the same word match by the Hamming
distance of their signatures.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import hadamard

from closure_kmeans.files import FileFormatError
from closure_kmeans.retrieval import kernels
from closure_kmeans.retrieval.inverted import check_words
from closure_kmeans.retrieval.verification import Places

# Bits of a signature.
N_BITS = 64
# Number of descriptors at which a word's hyperplanes are halfway between the mean of all descriptors and its centre.
PRIOR_SIZE = 100.0
# Largest Hamming distance of a match, and the width of the Gaussian that weighs it.
THRESHOLD, SIGMA = 24, 16.0


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


def origins(
    centers: NDArray[Any], sizes: NDArray[np.float64], words: NDArray[Any], mean: NDArray[Any]
) -> NDArray[np.float32]:
    """Points through which the hyperplanes of some words pass; ``mean`` is that of all descriptors."""
    share = (sizes[words] / (sizes[words] + PRIOR_SIZE))[:, np.newaxis]
    found: NDArray[np.float32] = (share * centers[words] + (1 - share) * mean).astype(np.float32)
    return found


def sign(rows: NDArray[Any], words: NDArray[Any], origin_of: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Signatures of descriptors in their words, whose hyperplanes pass through ``origin_of``.

    >>> rows = np.array([[9, 0], [0, 9], [9, 1]], np.uint8)
    >>> one, other, like_one = sign(rows, np.zeros(3, int), np.full((1, 2), 4, np.float32))
    >>> bin(one ^ other).count("1") > bin(one ^ like_one).count("1")
    True
    """
    normals = projection(rows.shape[1])
    residuals = rows.astype(np.float32)
    if rows.dtype == np.uint8:  # whole numbers, whose sums do not depend on the order
        residuals -= np.rint(origin_of)[words]
        products = residuals @ normals.T
    else:
        residuals -= origin_of[words]
        products = np.einsum("ij,kj->ik", residuals, normals)
    signatures: NDArray[np.uint64] = np.packbits(products > 0, axis=1, bitorder="little").view("<u8")[:, 0]
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
    lists: RegionLists, query: Places, idf: NDArray[np.float32], *, burstiness: bool = True
) -> NDArray[np.float64]:
    """Score each image by its matches with the regions of a query.

    A match of a word weighs idf² times the similarity of the signatures, and the sum is normalised as if each region
    matched itself alone. ``burstiness`` (Jégou, Douze, Schmid 2009) lowers the weights of a query region's matches by
    their number, in an image and in all images.
    """
    signatures = _signatures_of(query)
    scores = np.zeros(len(lists.region_norms))
    check_words(query.words, len(idf))
    asked = query.words.astype(np.int64)
    weights = idf.astype(np.float64) ** 2
    if not kernels.add_matches(*lists[:3], asked, signatures, similarities(), weights, burstiness, scores):
        raise FileFormatError("the index must name images that it has, but does not: it was changed on disk")
    norms = lists.region_norms * np.sqrt(weights[asked].sum())
    found: NDArray[np.float64] = np.divide(scores, norms, out=scores, where=norms > 0)
    return found


def _signatures_of(places: Places) -> NDArray[np.uint64]:
    if places.signatures is None:
        raise ValueError("regions must have signatures, which words learned with embedding=True give them")
    return places.signatures
