"""Vocabulary: clusters of descriptors are visual words."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tqdm.auto import tqdm

from closure_kmeans import ClosureKMeans
from closure_kmeans import validation as check
from closure_kmeans.baselines import ApproximateKMeans, CanopyKMeans, HierarchicalKMeans, LloydKMeans
from closure_kmeans.checkpoint import Resume
from closure_kmeans.estimator import BaseKMeans
from closure_kmeans.files import FileFormatError, reading
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.points import check_uncut, forget, map_of
from closure_kmeans.retrieval.embedding import (
    N_BITS,
    Embedding,
    SignedWords,
    learn_embedding,
    put_first,
    sign,
)
from closure_kmeans.storage import pack_model, unpack_model
from closure_kmeans.stores.layout import on_disk
from closure_kmeans.tensors import Arrays, read_tensors, write_tensors

# Kind of the file, and the settings stored beside the model.
VOCABULARY, SETTINGS = "vocabulary", ("root", "levels", "n_nearest", "embedding")
# Prefixes of the names of its arrays.
MODEL_PREFIX, EMBEDDING_PREFIX = "model.", "embedding."
# Scale of RootSIFT in bytes: values up to 0.5 are represented, larger ones hardly occur.
ROOT_SCALE = 512
# Rows per block of RootSIFT and of assignment.
ROWS_PER_ROOT, ROWS_PER_ASSIGNMENT, MIN_ROWS_PER_ASSIGNMENT = 1 << 15, 1 << 18, 1 << 8
# Branching factors that ``tree_shape`` considers.
BRANCHINGS = range(6, 25)


def tree_shape(n_words: int) -> tuple[int, int]:
    """Branching and depth of the tree whose number of leaves is closest to a number of words; about 10 children each.

    Parameters
    ----------
    n_words : int
        Number of words.

    Returns
    -------
    branching : int
        Number of children of a node.
    depth : int
        Number of levels.

    See Also
    --------
    closure_kmeans.baselines.HierarchicalKMeans : Takes both numbers.

    Examples
    --------
    >>> tree_shape(100_000)
    (10, 5)
    """
    shapes = [(branching, max(1, round(math.log(n_words, branching)))) for branching in BRANCHINGS]
    return min(shapes, key=lambda shape: (round(abs(math.log(shape[0] ** shape[1] / n_words)), 1), abs(shape[0] - 10)))


# With few descriptors per word, a random descriptor is a large part of its own centre and stays near it, so exact or
# near-exact assignment starts better from random rows than from a tree.
METHODS: dict[str, Callable[..., BaseKMeans]] = {
    "closure": ClosureKMeans,
    "paper": partial(ClosureKMeans.paper, init="random"),
    "akm": partial(ApproximateKMeans, init="random"),
    "rakm": partial(ApproximateKMeans, refined=True, init="random"),
    "hkm": lambda n_words, **settings: HierarchicalKMeans(*tree_shape(n_words), **settings),
    "lloyd": partial(LloydKMeans, init="random"),
    "canopy": partial(CanopyKMeans, init="random"),
}


class Words(NamedTuple):
    """Words of some regions."""

    words: NDArray[np.int32]  # (m, r) the nearest word first
    weights: NDArray[np.float32] | None  # (m, r) weight of each word; None for 1

    def of(self, regions: slice | NDArray[Any]) -> Words:
        """Words of some of the regions.

        Parameters
        ----------
        regions : slice or array
            Slice, mask or numbers of the regions.

        Returns
        -------
        words : Words
            Words and weights of these regions.

        See Also
        --------
        Vocabulary.assign : Words of descriptors.

        Examples
        --------
        >>> Words(np.array([[3], [1], [4]]), None).of(slice(2)).words.tolist()
        [[3], [1]]
        """
        return Words(self.words[regions], None if self.weights is None else self.weights[regions])


class Vocabulary:
    """Visual words and the assignment of descriptors to them.

    Parameters
    ----------
    model : fitted estimator
        Its clusters are the words.
    root : bool, default=True
        Whether descriptors are converted to RootSIFT, as they were for the model.
    levels : int, default=1
        Number of last levels of a hierarchical model that give words: a region has one word per level.
    n_nearest : int, default=1
        Words per region; with more than one, weighted by distance (soft assignment).
    embedding : bool, default=False
        Whether regions have signatures (Hamming embedding), too; a region then has one word.

    See Also
    --------
    learn_vocabulary : Learn the words.
    ImageIndex : Index of images by their words.

    Examples
    --------
    >>> from closure_kmeans.datasets import load_sift
    >>> vocabulary = learn_vocabulary(load_sift()[:5000], 500, random_state=0)
    >>> vocabulary.assign(load_sift()[:3]).words.shape
    (3, 1)
    """

    def __init__(
        self, model: BaseKMeans, *, root: bool = True, levels: int = 1, n_nearest: int = 1, embedding: bool = False
    ) -> None:
        check.boolean("root", root)
        check_levels(levels, len(model.levels_) if isinstance(model, HierarchicalKMeans) else 1)
        check_nearest(n_nearest, len(model.cluster_centers_))
        check_embedding(embedding, levels, n_nearest)
        self.model = model
        self.root = root
        self.levels = levels
        self.n_nearest = n_nearest
        self.embedding = embedding

    @property
    def n_words(self) -> int:
        """Number of words in all levels.

        See Also
        --------
        tree_shape : Shape of a tree of words.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> learn_vocabulary(load_sift()[:500], 50, random_state=0).n_words
        50
        """
        if self.levels == 1:
            return len(self.model.cluster_centers_)
        return sum(len(level.centers) for level in self.model.levels_[-self.levels :])

    def assign(self, descriptors: ArrayLike, n_nearest: int | None = None, *, verbose: int = 0) -> Words:
        """Assign descriptors to their nearest words.

        Several words are weighted by ``exp(-d² / 2 s²)`` (Philbin et al. 2008), where s² is the mean squared distance
        of the training descriptors to their own words.

        Parameters
        ----------
        descriptors : (m, d) array
            Descriptors like those that the words were learned from.
        n_nearest : int, optional
            Number of words per descriptor, by default the constructor's.
        verbose : int, default=0
            1 shows a progress bar.

        Returns
        -------
        words : Words
            Words, the nearest first, and their weights; with several levels, followed by the words of their ancestors.

        Raises
        ------
        ValueError
            If ``n_nearest`` exceeds the number of words.

        See Also
        --------
        Vocabulary.words_of_fit : Words of the training descriptors.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> vocabulary = learn_vocabulary(load_sift()[:500], 50, random_state=0)
        >>> vocabulary.assign(load_sift()[:3], n_nearest=2).words.shape
        (3, 2)
        """
        n_nearest = self.n_nearest if n_nearest is None else n_nearest
        check_nearest(n_nearest, len(self.model.cluster_centers_))
        rows = np.asarray(descriptors)
        if len(rows) == 0:
            return Words(np.empty((0, self.levels), np.int32), None)
        parts = []
        at_once = max(MIN_ROWS_PER_ASSIGNMENT, ROWS_PER_ASSIGNMENT // n_nearest**2)  # soft assignment is slower
        with tqdm(total=len(rows), desc="words", unit_scale=True, leave=False, disable=not verbose) as bar:
            for first in range(0, len(rows), at_once):
                block = rows[first : first + at_once]
                parts.append(self._assign(self._compared(block), n_nearest))
                bar.update(len(block))
        weights = [part.weights for part in parts if part.weights is not None]
        return Words(np.concatenate([part.words for part in parts]), np.concatenate(weights) if weights else None)

    def words_of_fit(self, descriptors: NDArray[Any], *, verbose: int = 0) -> Words:
        """Words of the descriptors that the vocabulary was learned from: the labels of cluster closures, unsearched.

        Nearly all of these are the nearest word. `assign` searches where other methods learned the words, from a sample
        or in another process, and where a region has several words.

        Parameters
        ----------
        descriptors : (m, d) array
            Descriptors that the vocabulary was learned from, in the same order.
        verbose : int, default=0
            1 shows a progress bar.

        Returns
        -------
        words : Words
            Words of the descriptors.

        See Also
        --------
        Vocabulary.assign : Words of any descriptors.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> rows = load_sift()[:500]
        >>> learn_vocabulary(rows, 50, random_state=0).words_of_fit(rows).words.shape
        (500, 1)
        """
        labels = getattr(self.model, "labels_", ())
        if self.n_nearest > 1 or len(labels) != len(descriptors) or not isinstance(self.model, ClosureKMeans):
            return self.assign(descriptors, verbose=verbose)
        return Words(np.asarray(labels)[:, np.newaxis], None)

    def signatures(self, descriptors: NDArray[Any], words: Words) -> NDArray[np.uint64] | None:
        """Signatures of descriptors whose words are known (Hamming embedding).

        Parameters
        ----------
        descriptors : (m, d) array
            Descriptors.
        words : Words
            Their words.

        Returns
        -------
        signatures : (m,) array of uint64 or None
            ``None`` without ``embedding``, or if the descriptors have several words each.

        See Also
        --------
        Vocabulary.sign_query : Signatures for several words.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> rows = load_sift()[:500]
        >>> vocabulary = learn_vocabulary(rows, 50, embedding=True, random_state=0)
        >>> vocabulary.signatures(rows, vocabulary.assign(rows)).dtype
        dtype('uint64')
        """
        if not self.embedding or words.words.shape[1] > 1:
            return None
        groups = self.hyperplanes.groups[words.words[:, 0]]
        found = np.empty(len(groups), np.uint64)

        def fill(first: int, last: int) -> None:
            check_uncut(descriptors)
            found[first:last] = sign(
                self._compared(descriptors[first:last]), groups[first:last], self.hyperplanes.thresholds
            )
            forget(descriptors)

        with Threads(count_threads(self.model.n_threads)) as threads:
            threads.for_each_block(fill, len(found), ROWS_PER_ROOT)
        return found

    def sign_query(self, descriptors: NDArray[Any], words: Words, assignment: int) -> SignedWords | None:
        """Several words of descriptors, the known nearest one first, and their signatures.

        Parameters
        ----------
        descriptors : (m, d) array
            Descriptors of a query.
        words : Words
            Their nearest words.
        assignment : int
            Number of words per descriptor.

        Returns
        -------
        signed : SignedWords or None
            Words and signatures, one row per descriptor; ``None`` as for ``signatures``.

        See Also
        --------
        Vocabulary.signatures : Signatures for one word.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> rows = load_sift()[:500]
        >>> vocabulary = learn_vocabulary(rows, 50, embedding=True, random_state=0)
        >>> vocabulary.sign_query(rows[:3], vocabulary.assign(rows[:3]), assignment=2).signatures.shape
        (3, 2)
        """
        if not self.embedding or words.words.shape[1] > 1:
            return None
        rows, (groups, thresholds) = self._compared(descriptors), self.hyperplanes
        found = words.words
        if assignment > 1:
            found, _ = self.model.several_nearest(rows, assignment)
            put_first(found, words.words[:, 0])
        return SignedWords(found, sign(rows, groups[found], thresholds))

    @cached_property
    def hyperplanes(self) -> Embedding:
        """Hyperplanes of the signatures, made when first needed.

        See Also
        --------
        Vocabulary.signatures : Uses them.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> vocabulary = learn_vocabulary(load_sift()[:500], 50, embedding=True, random_state=0)
        >>> vocabulary.hyperplanes.groups.shape
        (50,)
        """
        return learn_embedding(self.model, as_bytes=self.root)

    def _compared(self, descriptors: NDArray[Any]) -> NDArray[Any]:
        """Descriptors as they are compared: RootSIFT, or as they are."""
        return root_bytes(descriptors) if self.root else descriptors

    def _assign(self, rows: NDArray[Any], n_nearest: int) -> Words:
        if n_nearest == 1:
            return Words(self.with_levels(self.model.predict(rows)[:, np.newaxis]), None)
        words, squares = self.model.several_nearest(rows, n_nearest)
        spread = max(self.model.inertia_ / self.model.cluster_sizes_.sum(), np.finfo(np.float64).tiny)
        weights = np.exp((squares[:, :1] - squares) / (2 * spread))
        weights /= weights.sum(axis=1, keepdims=True)
        return Words(self.with_levels(words), np.tile(weights.astype(np.float32), self.levels))

    def with_levels(self, words: NDArray[np.int32]) -> NDArray[np.int32]:
        """Words of the last level, followed by the words of their ancestors, ``levels`` levels in all.

        Parameters
        ----------
        words : (m, r) array of int32
            Words of the last level.

        Returns
        -------
        words : (m, r * levels) array of int32
            Words of all levels.

        See Also
        --------
        Vocabulary.assign : Words of descriptors.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> vocabulary = learn_vocabulary(load_sift()[:500], 36, method="hkm", levels=2, random_state=0)
        >>> vocabulary.with_levels(np.zeros((3, 1), np.int32)).shape
        (3, 2)
        """
        columns, n_below = [words], 0
        for level in self.model.levels_[: -self.levels : -1] if self.levels > 1 else ():
            nodes = np.searchsorted(level.starts, columns[-1] - n_below, side="right") - 1
            n_below += len(level.centers)
            columns.append((nodes + n_below).astype(np.int32))  # leaves are numbered first, as with one level
        return np.hstack(columns)


def check_embedding(embedding: bool, levels: int, n_nearest: int) -> None:
    """Check that regions with signatures have one word."""
    check.boolean("embedding", embedding)
    if embedding and (levels > 1 or n_nearest > 1):
        raise ValueError(
            f"embedding needs one word of each region, levels=1 and n_nearest=1, got {levels} and {n_nearest}"
        )


def check_levels(levels: int, depth: int) -> None:
    """Check that ``levels`` is between 1 and the depth of the tree."""
    check.integer("levels", levels, 1)
    if levels > depth:
        raise ValueError(f"levels must be at most {depth}, the depth of the tree of words, got {levels}")


def check_nearest(n_nearest: int, n_words: int) -> None:
    """Check that ``n_nearest`` is between 1 and the number of words."""
    check.integer("n_nearest", n_nearest, 1)
    if n_nearest > n_words:
        raise ValueError(f"n_nearest must be at most the number of words, {n_words:,}, got {n_nearest:,}")


def check_n_words(n_words: int, n_descriptors: int) -> None:
    """Check that there are at least as many descriptors as words."""
    if n_descriptors == 0:
        raise ValueError("there must be descriptors to learn words from, but the images have none")
    if n_words > n_descriptors:
        raise ValueError(
            f"the number of words must be at most that of the descriptors to learn them from, {n_descriptors:,}, got "
            f"{n_words:,}: a tenth of it is usual"
        )


def learn_vocabulary(
    descriptors: ArrayLike,
    n_words: int,
    *,
    method: str = "closure",
    root: bool = True,
    sample: int | None = None,
    levels: int = 1,
    embedding: bool = False,
    random_state: int | None = None,
    resume: Resume = False,
    **settings: Any,
) -> Vocabulary:
    """Learn visual words from descriptors.

    Parameters
    ----------
    descriptors : (m, d) array
        uint8 descriptors are not converted to float.
    n_words : int
        Number of words.
    method : {"closure", "paper", "akm", "rakm", "hkm", "lloyd", "canopy"}, default="closure"
        Cluster closures, cluster closures exactly as in the paper, or one of the baselines. All but "closure" and "hkm"
        start from random rows, which is better with few descriptors per word. "hkm" learns as many words as the tree
        closest to ``n_words`` has leaves.
    root : bool, default=True
        Compare SIFT descriptors as RootSIFT, which improves retrieval.
    sample : int, optional
        Largest number of descriptors to learn from, drawn at random; by default all.
    levels : int, default=1
        Scoring levels of hierarchical k-means.
    embedding : bool, default=False
        Whether regions have signatures, too: see `Vocabulary`.
    random_state : int, optional
        Seed.
    resume : bool or "anyway", default=False
        Go on from the parameter ``checkpoint`` of the first two methods, if there is one: see ``ClosureKMeans.fit``.
    **settings
        Parameters of the estimator, such as ``max_iter``, ``n_threads`` or ``verbose``.

    Returns
    -------
    vocabulary : Vocabulary
        The words and their settings.

    Raises
    ------
    ValueError
        If there are fewer descriptors than words, or a parameter is out of range.

    See Also
    --------
    collect : Descriptors of images.
    save_vocabulary : Write the vocabulary to a file.

    Examples
    --------
    >>> from closure_kmeans.datasets import load_sift
    >>> vocabulary = learn_vocabulary(load_sift()[:2000], 100, random_state=0)
    >>> vocabulary.n_words
    100
    """
    check.choice("method", method, tuple(METHODS))
    check.integer("n_words", n_words, 2)
    check_levels(levels, tree_shape(n_words)[1] if method == "hkm" else 1)
    check_embedding(embedding, levels, 1)
    rows = np.asarray(descriptors)
    if sample is not None:
        check.integer("sample", sample, 1)
        if sample < len(rows):
            rng = check.generator(random_state)
            rows = rows[np.sort(rng.choice(len(rows), sample, replace=False))]
    check_n_words(n_words, len(rows))
    model = METHODS[method](n_words, random_state=random_state, **settings)
    model.fit(_root_all(rows, model.n_threads) if root else rows, **({"resume": resume} if resume else {}))
    return Vocabulary(model, root=root, levels=levels, embedding=embedding)


def root_bytes(descriptors: ArrayLike) -> NDArray[np.uint8]:
    """RootSIFT as uint8: 512 times the values, which rarely exceed 0.5; a quarter of the memory of float32.

    Parameters
    ----------
    descriptors : (m, d) array
        SIFT descriptors: finite values, not negative.

    Returns
    -------
    rooted : (m, d) array of uint8
        Larger values are clipped to 255.

    See Also
    --------
    closure_kmeans.features.root_sift : The same in float32.

    Examples
    --------
    >>> root_bytes([[0, 1, 15, 0]])
    array([[  0, 128, 255,   0]], dtype=uint8)
    """
    from closure_kmeans.features import root_sift

    rows = np.asarray(descriptors)
    rooted = np.empty(rows.shape, np.uint8)
    for first in range(0, len(rows), ROWS_PER_ROOT):
        block = slice(first, first + ROWS_PER_ROOT)
        rooted[block] = np.minimum(np.rint(root_sift(rows[block]) * ROOT_SCALE), 255)
    return rooted


def _root_all(descriptors: NDArray[Any], n_threads: int | None) -> NDArray[np.uint8]:
    """RootSIFT of all descriptors; of a memory map in a temporary file, so that memory holds a block of each."""
    if map_of(descriptors) is None:
        return root_bytes(descriptors)
    rooted = on_disk(descriptors.shape, np.uint8)

    def fill(first: int, last: int) -> None:
        check_uncut(descriptors)
        rooted[first:last] = root_bytes(descriptors[first:last])
        forget(descriptors)
        forget(rooted)

    with Threads(count_threads(n_threads)) as threads:
        threads.for_each_block(fill, len(rooted), ROWS_PER_ROOT)
    return rooted


def save_vocabulary(path: str | os.PathLike[str], vocabulary: Vocabulary) -> None:
    """Write a vocabulary into one ``.safetensors`` file.

    Parameters
    ----------
    path : str or PathLike
        File to write; an existing one is replaced atomically.
    vocabulary : Vocabulary
        Vocabulary to write.

    See Also
    --------
    load_vocabulary : Read the file.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from closure_kmeans.datasets import load_sift
    >>> vocabulary = learn_vocabulary(load_sift()[:500], 10, random_state=0)
    >>> with TemporaryDirectory() as folder:
    ...     save_vocabulary(f"{folder}/words.safetensors", vocabulary)
    ...     load_vocabulary(f"{folder}/words.safetensors").n_words
    10
    """
    write_tensors(Path(path), VOCABULARY, *pack_vocabulary(vocabulary))


def load_vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
    """Read a saved vocabulary.

    Parameters
    ----------
    path : str or PathLike
        File written by ``save_vocabulary``.

    Returns
    -------
    vocabulary : Vocabulary
        Assigns descriptors to the same words as the saved one.

    Raises
    ------
    FileFormatError
        A ``ValueError``: the file is truncated, damaged, or not a vocabulary.

    See Also
    --------
    save_vocabulary : Write the file.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from closure_kmeans.datasets import load_sift
    >>> rows = load_sift()[:500]
    >>> vocabulary = learn_vocabulary(rows, 10, random_state=0)
    >>> with TemporaryDirectory() as folder:
    ...     save_vocabulary(f"{folder}/words.safetensors", vocabulary)
    ...     loaded = load_vocabulary(f"{folder}/words.safetensors")
    >>> bool((loaded.assign(rows).words == vocabulary.assign(rows).words).all())
    True
    """
    path = Path(path)
    path.stat()
    with reading(path, "a vocabulary"):
        return unpack_vocabulary(path, *read_tensors(path, VOCABULARY))


def pack_vocabulary(vocabulary: Vocabulary, *, training: bool = False) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and metadata of a vocabulary, for a file; ``training``: the labels and the history of the fit, too."""
    arrays, facts = pack_model(vocabulary.model, training=training)
    arrays = {MODEL_PREFIX + name: array for name, array in arrays.items()}
    if vocabulary.embedding:
        arrays |= {EMBEDDING_PREFIX + name: array for name, array in vocabulary.hyperplanes._asdict().items()}
    return arrays, {"model": facts} | {name: getattr(vocabulary, name) for name in SETTINGS}


def unpack_vocabulary(path: Path, arrays: Arrays, facts: dict[str, Any]) -> Vocabulary:
    """Vocabulary from the arrays and metadata of a file."""
    own = {name.removeprefix(MODEL_PREFIX): array for name, array in arrays.items() if name.startswith(MODEL_PREFIX)}
    model = unpack_model(path, own, facts["model"])
    vocabulary = Vocabulary(model, **{name: facts[name] for name in SETTINGS if name in facts})  # older files lack some
    if vocabulary.embedding:
        check_hyperplanes(path, arrays, len(model.cluster_centers_))
        vocabulary.hyperplanes = Embedding(*(np.array(arrays[EMBEDDING_PREFIX + name]) for name in Embedding._fields))
    return vocabulary


def check_hyperplanes(path: Path, arrays: Arrays, n_words: int) -> None:
    """Check the arrays of the Hamming embedding in a file."""
    names = [EMBEDDING_PREFIX + name for name in Embedding._fields]
    if any(name not in arrays for name in names):
        raise FileFormatError(f"'{path}' must hold the groups of its words, but is of an older version: make it again")
    groups, thresholds = (arrays[name] for name in names)
    shapes_hold = groups.shape == (n_words,) and thresholds.ndim == 2 and thresholds.shape[1] == N_BITS
    types_hold = groups.dtype == np.int32 and thresholds.dtype == np.float32
    if not (shapes_hold and types_hold and 0 <= groups.min() <= groups.max() < len(thresholds)):
        raise FileFormatError(f"'{path}' must hold the groups of {n_words} words, but does not")
