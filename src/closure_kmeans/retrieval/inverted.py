"""Inverted file and tf-idf ranking (Nistér and Stewénius 2006).

A word weighs ``ln(N / N_i)`` if N_i of N images contain it; an image is its vector of weighted counts, normalised.
Distances are ``‖q − d‖₁ = 2 − 2 Σ min(q_i, d_i)`` and ``‖q − d‖₂² = 2 − 2 Σ q_i d_i``. Only words that the query and
the image share matter, so a query reads only the inverted lists of its own words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from closure_kmeans import validation as check
from closure_kmeans.files import FileFormatError
from closure_kmeans.points import largest
from closure_kmeans.retrieval import kernels

NORMS = ("l1", "l2")


class InvertedFile(NamedTuple):
    """Inverted lists: word counts of images as compressed sparse columns, with weights and norms."""

    starts: NDArray[np.int64]  # (k + 1,) word w is in images[starts[w]:starts[w + 1]]
    images: NDArray[np.int32]  # (m,) ascending for each word
    counts: NDArray[np.float32]  # (m,) number of times, or total weight, of the word in the image
    idf: NDArray[np.float32]  # (k,) ln(N / N_i); 0 for a word that no image has
    norms: NDArray[np.float64]  # (2, N) L1 and L2 norms of the images' weighted counts

    @property
    def n_images(self) -> int:
        """Number of images, N.

        See Also
        --------
        append : Add images.

        Examples
        --------
        >>> invert([0, 1, 1], [0, 2, 3], n_words=4).n_images
        2
        """
        return int(self.norms.shape[1])

    @property
    def n_words(self) -> int:
        """Number of words, k.

        See Also
        --------
        invert : Takes the number.

        Examples
        --------
        >>> invert([0, 1, 1], [0, 2, 3], n_words=4).n_words
        4
        """
        return len(self.idf)


class Ranking(NamedTuple):
    """Images by descending score; ties by ascending image number."""

    images: NDArray[np.int64]  # (r,)
    scores: NDArray[np.float64]  # (r,) 1 for the same image, near 0 for little in common


def invert(words: ArrayLike, offsets: ArrayLike, n_words: int, *, weights: ArrayLike | None = None) -> InvertedFile:
    """Build the inverted file from the words of each image.

    Parameters
    ----------
    words : array-like of int, shape (m,) or (m, r)
        Word of each region, or its r words.
    offsets : array-like of int, shape (N + 1,)
        Image i holds ``words[offsets[i]:offsets[i + 1]]``.
    n_words : int
        Size of the vocabulary.
    weights : array-like of float, optional
        Weight of each word, by default 1.

    Returns
    -------
    file : InvertedFile
        Inverted lists of all words.

    Raises
    ------
    ValueError
        If a word is not in the vocabulary, or the offsets do not rise from 0 to the number of regions.

    See Also
    --------
    append : Add images.
    rank : Search.

    Examples
    --------
    >>> file = invert([0, 1, 1, 2, 0], [0, 3, 5], n_words=4)
    >>> file.images.tolist(), file.starts.tolist()
    ([0, 1, 0, 1], [0, 2, 3, 4, 4])
    """
    return _from_counts(_count_words(words, offsets, n_words, weights))


def append(
    file: InvertedFile, words: ArrayLike, offsets: ArrayLike, *, weights: ArrayLike | None = None
) -> InvertedFile:
    """Append images; returns a new inverted file.

    Parameters
    ----------
    file : InvertedFile
        Remains as it is.
    words : array-like of int, shape (m,) or (m, r)
        Words of the regions of the new images, as in ``invert``.
    offsets : array-like of int, shape (n + 1,)
        New image i holds ``words[offsets[i]:offsets[i + 1]]``.
    weights : array-like of float, optional
        Weight of each word, by default 1.

    Returns
    -------
    file : InvertedFile
        Inverted file of all images; the new ones come last.

    See Also
    --------
    remove : Remove images.

    Examples
    --------
    >>> file = invert([0, 1], offsets=[0, 1, 2], n_words=3)
    >>> append(file, [2, 2], offsets=[0, 2]).n_images
    3
    """
    added = _count_words(words, offsets, file.n_words, weights)
    return _from_counts(sparse.vstack([_to_counts(file), added], format="csc"))


def remove(file: InvertedFile, images: ArrayLike) -> InvertedFile:
    """Remove images; returns a new inverted file.

    Parameters
    ----------
    file : InvertedFile
        Remains as it is.
    images : array-like of int
        Numbers of the images to remove.

    Returns
    -------
    file : InvertedFile
        Inverted file of the other images, renumbered without gaps.

    See Also
    --------
    append : Add images.

    Examples
    --------
    >>> file = invert([0, 1], offsets=[0, 1, 2], n_words=3)
    >>> remove(file, [0]).n_images
    1
    """
    kept = np.ones(file.n_images, bool)
    kept[np.asarray(images, np.int64)] = False
    return _from_counts(_to_counts(file).tocsr()[kept].tocsc())


def rank(
    file: InvertedFile,
    words: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    norm: str = "l1",
    n_results: int | None = None,
) -> Ranking:
    """Rank the images that share words with a query.

    Parameters
    ----------
    file : InvertedFile
        Images to search.
    words : array-like of int, shape (m,) or (m, r)
        Words of the regions of the query, as in ``invert``.
    weights : array-like of float, optional
        Weight of each word, by default 1.
    norm : {"l1", "l2"}, default="l1"
        Norm of the tf-idf vectors.
    n_results : int, optional
        Largest number of images; by default all with a score above 0.

    Returns
    -------
    ranking : Ranking
        Images by descending score.

    See Also
    --------
    ImageIndex.search : Search with spatial verification.
    rerank : Put verified images first.

    Examples
    --------
    >>> file = invert([0, 1, 1, 2, 0], [0, 3, 5], n_words=4)
    >>> rank(file, [1, 1, 0])
    Ranking(images=array([0]), scores=array([1.]))
    """
    if n_results is not None:
        check.integer("n_results", n_results, 1)
    return order(score(file, words, weights=weights, norm=norm), n_results)


def order(scores: NDArray[np.float64], n_results: int | None = None) -> Ranking:
    """Ranking of the images whose score is above 0, or of the best ``n_results`` of them.

    >>> order(np.array([0.2, 0.0, 0.5])).images.tolist()
    [2, 0]
    """
    best = np.flatnonzero(scores > 0)
    best = best[largest(scores[best], len(best) if n_results is None else n_results)]
    return Ranking(best, scores[best])


def score(
    file: InvertedFile, words: ArrayLike, *, weights: ArrayLike | None = None, norm: str = "l1"
) -> NDArray[np.float64]:
    """Similarity of each image to a query: see `rank`."""
    check.choice("norm", norm, NORMS)
    distinct, counts = _count_query(words, weights, file.n_words)
    return _score(file, distinct, counts, norm)


def _score(file: InvertedFile, words: NDArray[Any], counts: NDArray[Any], norm: str) -> NDArray[np.float64]:
    scores = np.zeros(file.n_images)
    weighted = counts * file.idf[words]
    length = weighted.sum() if norm == "l1" else np.sqrt((weighted**2).sum())
    if length > 0:
        norms = np.asarray(file.norms[NORMS.index(norm)])
        inverse = np.divide(1, norms, out=np.zeros(len(norms)), where=norms > 0)  # 0 without weighted words
        if not kernels.add_scores(file, words, weighted / length, inverse, norm == "l1", scores):
            raise _changed_on_disk()
    return scores


def _changed_on_disk() -> FileFormatError:
    return FileFormatError("the index must name images that it has, but does not: it was changed on disk")


def _count_query(
    words: ArrayLike, weights: ArrayLike | None, n_words: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Distinct words of a query and their counts."""
    given = check_words(words, n_words)
    distinct, place = np.unique(given.ravel(), return_inverse=True)
    counted = np.bincount(place, None if weights is None else np.ravel(weights), len(distinct))
    return distinct.astype(np.int64), counted.astype(np.float64)


def check_words(words: ArrayLike, n_words: int) -> NDArray[Any]:
    """Words as int64; check that they are in the vocabulary."""
    given = np.asarray(words)
    if given.ndim not in (1, 2) or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"words must be whole numbers of shape (m,) or (m, r), got {given.dtype} of {given.shape}")
    if given.size and (given.min() < 0 or given.max() >= n_words):
        raise ValueError(f"words must lie in 0..{n_words - 1}, got values in {given.min()}..{given.max()}")
    return given.astype(np.int64, copy=False)


def _count_words(words: ArrayLike, offsets: ArrayLike, n_words: int, weights: ArrayLike | None) -> sparse.csc_array:
    """Sparse (N, k) matrix of word counts."""
    given, ends = check_words(words, n_words), np.asarray(offsets, np.int64)
    if ends[0] != 0 or ends[-1] != len(given) or (np.diff(ends) < 0).any():
        raise ValueError(f"offsets must rise from 0 to the number of regions, {len(given)}")
    per_region = given.size // len(given) if len(given) else 1
    image = np.repeat(np.arange(len(ends) - 1, dtype=np.int32), np.diff(ends) * per_region)
    values = np.ones(given.size, np.float32) if weights is None else np.ravel(weights).astype(np.float32)
    return sparse.coo_array((values, (image, given.ravel())), (len(ends) - 1, n_words)).tocsc()


def _to_counts(file: InvertedFile) -> sparse.csc_array:
    if len(file.images) and not 0 <= file.images.min() <= file.images.max() < file.n_images:  # SciPy does not check
        raise _changed_on_disk()
    return sparse.csc_array((file.counts, file.images, file.starts), (file.n_images, file.n_words))


def _from_counts(counts: sparse.csc_array) -> InvertedFile:
    """Inverted file of a count matrix: idf weights and norms."""
    counts.sort_indices()
    n_images, n_words = counts.shape
    containing = np.diff(counts.indptr)
    idf = np.log(n_images / np.maximum(containing, 1), out=np.zeros(n_words), where=containing > 0).astype(np.float32)
    squares = counts.astype(np.float64)  # a damaged file may hold counts whose squares overflow float32
    squares.data **= 2
    wide = idf.astype(np.float64)
    norms = np.stack([counts @ wide, np.sqrt(squares @ wide**2)])
    return InvertedFile(counts.indptr.astype(np.int64), counts.indices.astype(np.int32), counts.data, idf, norms)
