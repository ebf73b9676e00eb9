"""ImageIndex: a collection of images that is searched by image, and its file format."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans import validation as check
from closure_kmeans.files import FileFormatError, reading
from closure_kmeans.points import check_uncut
from closure_kmeans.retrieval import inverted
from closure_kmeans.retrieval.collection import (
    Collection,
    Extraction,
    check_names,
    check_rows,
    pack_names,
    unpack_names,
)
from closure_kmeans.retrieval.embedding import RegionLists, SignedWords, list_regions, score_matches
from closure_kmeans.retrieval.evaluation import Box
from closure_kmeans.retrieval.expansion import average_scores, object_regions
from closure_kmeans.retrieval.inverted import InvertedFile, Ranking
from closure_kmeans.retrieval.verification import (
    CIRCLES,
    ELLIPSES,
    Matches,
    Places,
    Verification,
    beyond_chance,
    join_places,
    match_images,
    place,
    rerank,
    select_places,
)
from closure_kmeans.retrieval.vocabulary import Vocabulary, Words, pack_vocabulary, unpack_vocabulary
from closure_kmeans.tensors import Arrays, read_tensors, unmap, write_tensors

# Kind of the file, and the names of the fields of ``Places`` in it.
INDEX, PLACES = "image index", ("region_words", "keypoints", "offsets")
SIGNATURES = "region_signatures"
# Words that a region of a query is matched in.
ASSIGNMENT = 6


class Query(NamedTuple):
    """Words of a query image and the positions of its regions."""

    words: Words
    places: Places
    signed: SignedWords | None = None  # words and signatures of the Hamming embedding


class Verified(NamedTuple):
    """Verification of the first images of a ranking."""

    matches: Matches
    verified: NDArray[np.bool_]  # (n,) whether there are more inliers than chance explains
    order: NDArray[np.int64]  # verified images first


class Result(NamedTuple):
    """One search result."""

    image: int  # image number in the index
    name: str
    score: float  # 1 for the same image by tf-idf, less by signatures
    inliers: int | None = None  # number of inliers; None if not verified
    verified: bool = False  # whether the inliers are more than chance explains


class Steps(NamedTuple):
    """Steps of a search beyond tf-idf, each taken where the index and the search allow it."""

    embedding: bool = True  # score by signatures, if the index and the query have them, and not by tf-idf
    burstiness: bool = True  # with signatures: lower the weights of matches that come in numbers
    assignment: int = ASSIGNMENT  # with signatures: words that a region of a query is matched in (multiple assignment)
    expansion: int = 20  # with verification: number of best verified images that search again (average query expansion)


# tf-idf as in the paper.
PAPER_STEPS = Steps(embedding=False, burstiness=False, assignment=1, expansion=0)


class ImageIndex:
    """Image collection that is searched by image.

    Parameters
    ----------
    vocabulary : Vocabulary
        Words of the index.
    extraction : Extraction, optional
        Settings of the feature extraction, for images of the index and for queries.

    Attributes
    ----------
    names : list of str
        Paths of the images relative to their folders.
    folders : list of str
        Folders of the images at the time that these were added.

    See Also
    --------
    learn_vocabulary : Learn the words.
    collect : Extract the features of the images.

    Examples
    --------
    >>> import numpy as np
    >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
    >>> rng = np.random.default_rng(0)
    >>> descriptors = rng.integers(0, 200, (600, 128), np.uint8)
    >>> keypoints = rng.uniform(1, 300, (600, 4))
    >>> collection = Collection(["a", "b", "c"], None, keypoints, descriptors, [0, 200, 400, 600], [], Extraction())
    >>> index = ImageIndex(learn_vocabulary(descriptors, 100, random_state=0))
    >>> index.add(collection)
    >>> [result.name for result in index.search(index.query_of(1), n_results=1)]
    ['b']
    """

    def __init__(self, vocabulary: Vocabulary, extraction: Extraction | None = None) -> None:
        self.vocabulary = vocabulary
        self.extraction = extraction or Extraction()
        self.names: list[str] = []
        self.folders: list[str] = []
        self._folder_of = np.empty(0, np.int32)
        self._inverted = inverted.invert(np.empty(0, np.int32), [0], vocabulary.n_words)
        signatures = np.empty(0, np.uint64) if vocabulary.embedding else None
        self._places = place([], np.empty((0, CIRCLES)), [0], signatures)
        self._regions = self._list_regions(self._inverted, self._places)

    def __len__(self) -> int:
        return len(self.names)

    # -- images in and out ---------------------------------------------------------------------------------------------

    def add(
        self,
        collection: Collection,
        words: Words | None = None,
        signatures: NDArray[np.uint64] | None = None,
        *,
        verbose: int = 0,
    ) -> None:
        """Add the images of a collection.

        Parameters
        ----------
        collection : Collection
            Images with new names, and their features.
        words : Words, optional
            Words of the regions, if they are known.
        signatures : (m,) array of uint64, optional
            Signatures of the regions, if they are known.
        verbose : int, default=0
            1 shows a progress bar.

        Raises
        ------
        ValueError
            If a name is in the index already, occurs twice, or leaves its folder.

        See Also
        --------
        ImageIndex.remove : Remove images.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
        >>> rows, where = load_sift()[:600], np.random.default_rng(0).uniform(1, 300, (600, 4))
        >>> photos = Collection(["a", "b", "c"], None, where, rows, [0, 200, 400, 600], [], Extraction())
        >>> index = ImageIndex(learn_vocabulary(rows, 100, random_state=0))
        >>> index.add(photos)
        >>> len(index)
        3
        """
        check_names(collection.names, known=set(self.names))
        words = words or self.vocabulary.assign(collection.descriptors, verbose=verbose)
        check_uncut(self._inverted.images)
        if signatures is None:
            signatures = self.vocabulary.signatures(collection.descriptors, words)
        added = place(words.words[:, 0], collection.keypoints, collection.offsets, signatures)
        placed = join_places(self._places, added)
        file = inverted.append(self._inverted, words.words, collection.offsets, weights=words.weights)
        regions = self._list_regions(file, placed)
        # State changes only after everything succeeded.
        self._inverted, self._places, self._regions = file, placed, regions
        folder = collection.folder or ""
        if folder not in self.folders:
            self.folders.append(folder)
        number = np.full(len(collection.names), self.folders.index(folder), np.int32)
        self._folder_of = np.append(self._folder_of, number)
        self.names = [*self.names, *collection.names]

    def remove(self, names: Iterable[str]) -> None:
        """Remove images by name.

        Parameters
        ----------
        names : str or iterable of str
            Names of the images. Later images are renumbered without gaps.

        Raises
        ------
        ValueError
            If the index does not hold one of the images; it then remains as it is.

        See Also
        --------
        ImageIndex.add : Add images.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
        >>> rows, where = load_sift()[:600], np.random.default_rng(0).uniform(1, 300, (600, 4))
        >>> photos = Collection(["a", "b", "c"], None, where, rows, [0, 200, 400, 600], [], Extraction())
        >>> index = ImageIndex(learn_vocabulary(rows, 100, random_state=0))
        >>> index.add(photos)
        >>> index.remove(["a"])
        >>> index.names
        ['b', 'c']
        """
        check_uncut(self._inverted.images)
        number = {name: image for image, name in enumerate(self.names)}
        asked = [names] if isinstance(names, str) else list(names)
        for name in asked:
            if name not in number:
                raise ValueError(f"the index must hold the image '{name}', but does not")
        gone = [number[name] for name in asked]
        kept = np.delete(np.arange(len(self)), gone)
        self._inverted = inverted.remove(self._inverted, gone)
        self._places = select_places(self._places, kept)
        self._regions = self._list_regions(self._inverted, self._places)
        self._folder_of = self._folder_of[kept]
        self.names = [self.names[image] for image in kept]

    def _list_regions(self, file: InvertedFile, places: Places) -> RegionLists | None:
        return list_regions(places, file.idf) if self.vocabulary.embedding else None

    def path_of(self, image: int) -> Path:
        """Path of an image at the time that it was added.

        Parameters
        ----------
        image : int
            Number of the image in the index.

        Returns
        -------
        path : Path
            Folder and name.

        See Also
        --------
        ImageIndex.holds : Whether a file is in the index.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
        >>> rows, where = load_sift()[:600], np.random.default_rng(0).uniform(1, 300, (600, 4))
        >>> photos = Collection(["a", "b", "c"], None, where, rows, [0, 200, 400, 600], [], Extraction())
        >>> index = ImageIndex(learn_vocabulary(rows, 100, random_state=0))
        >>> index.add(photos._replace(folder="photos"))
        >>> index.path_of(1).as_posix()
        'photos/b'
        """
        return Path(self.folders[self._folder_of[image]]) / self.names[image]

    def holds(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file is one of the images, provided that their folders have not moved.

        Parameters
        ----------
        path : str or PathLike
            Path of the file.

        Returns
        -------
        is_held : bool
            False for images without a folder.

        See Also
        --------
        ImageIndex.path_of : Path of an image.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
        >>> rows, where = load_sift()[:600], np.random.default_rng(0).uniform(1, 300, (600, 4))
        >>> photos = Collection(["a", "b", "c"], None, where, rows, [0, 200, 400, 600], [], Extraction())
        >>> index = ImageIndex(learn_vocabulary(rows, 100, random_state=0))
        >>> index.add(photos._replace(folder=str(Path("photos").resolve())))
        >>> index.holds("photos/b"), index.holds("photos/d")
        (True, False)
        """
        place = Path(path).resolve()
        return any(
            place.is_relative_to(folder) and place.relative_to(folder).as_posix() in self.names
            for folder in self.folders
            if folder
        )

    # -- queries -------------------------------------------------------------------------------------------------------

    def read_query(
        self,
        image: str | os.PathLike[str] | NDArray[Any],
        *,
        box: Box | None = None,
        n_nearest: int | None = None,
        assignment: int = ASSIGNMENT,
    ) -> Query:
        """Extract the features of an image as a query.

        Parameters
        ----------
        image : str, PathLike or array
            File or pixels: see `load_image`.
        box : (x1, y1, x2, y2), optional
            Use only the features inside this box, in pixels.
        n_nearest : int, optional
            Number of words of a region for tf-idf, by default as in the vocabulary.
        assignment : int, default=6
            Number of words of a region for signatures; ``Steps.assignment`` may be smaller.

        Returns
        -------
        query : Query
            Words and positions of the regions.

        Raises
        ------
        ImageError
            If the image cannot be used.
        ValueError
            If there are no features.

        See Also
        --------
        ImageIndex.make_query : Query from extracted features.
        ImageIndex.search : Search by the query.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
        >>> rows, where = load_sift()[:600], np.random.default_rng(0).uniform(1, 300, (600, 4))
        >>> photos = Collection(["a", "b", "c"], None, where, rows, [0, 200, 400, 600], [], Extraction())
        >>> index = ImageIndex(learn_vocabulary(rows, 100, random_state=0))
        >>> noise = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
        >>> query = index.read_query(noise)
        >>> query.words.words.shape[1]
        1
        """
        from closure_kmeans.features import local_features

        features = local_features([image], **self.extraction._asdict())
        if len(features.descriptors) == 0 and not isinstance(image, np.ndarray):
            raise ValueError(f"the query '{os.fspath(image)}' must have features, but has none")
        return self.make_query(
            features.keypoints, features.descriptors, box=box, n_nearest=n_nearest, assignment=assignment
        )

    def make_query(
        self,
        keypoints: ArrayLike,
        descriptors: ArrayLike,
        words: Words | None = None,
        *,
        box: Box | None = None,
        n_nearest: int | None = None,
        assignment: int = ASSIGNMENT,
    ) -> Query:
        """Make a query from extracted features.

        Parameters
        ----------
        keypoints : (m, 4) or (m, 5) array
            Circles (x, y, diameter, angle) or ellipses (x, y, a, b, c), as those of the index.
        descriptors : (m, d) array
            Descriptor of each region.
        words : Words, optional
            Words of the regions, if they are known.
        box : (x1, y1, x2, y2), optional
            Use only the features inside this box, in pixels.
        n_nearest : int, optional
            Number of words of a region for tf-idf, by default as in the vocabulary.
        assignment : int, default=6
            Number of words of a region for signatures; ``Steps.assignment`` may be smaller.

        Returns
        -------
        query : Query
            Words and positions of the regions.

        Raises
        ------
        ValueError
            If there are no features, or none inside the box.

        See Also
        --------
        ImageIndex.read_query : Query from an image.
        ImageIndex.search : Search by the query.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
        >>> rows, where = load_sift()[:600], np.random.default_rng(0).uniform(1, 300, (600, 4))
        >>> photos = Collection(["a", "b", "c"], None, where, rows, [0, 200, 400, 600], [], Extraction())
        >>> index = ImageIndex(learn_vocabulary(rows, 100, random_state=0))
        >>> query = index.make_query(where[:200], rows[:200], box=(0, 0, 300, 300))
        >>> query.places.keypoints.shape
        (200, 4)
        """
        check.integer("assignment", assignment, 1)
        points, rows = np.asarray(keypoints, np.float32), np.asarray(descriptors)
        if box is not None:
            inside = inside_box(points, box)
            points, rows, words = points[inside], rows[inside], None if words is None else words.of(inside)
        if len(rows) == 0:
            raise ValueError(f"the query must have features, but has none{'' if box is None else ' inside the box'}")
        words = self.vocabulary.assign(rows, n_nearest) if words is None else words
        signed = self.vocabulary.sign_query(rows, words, assignment)
        if signed is None:
            return query_by_words(words, points)
        order = np.argsort(words.words[:, 0], kind="stable")  # as in ``place``
        query = query_by_words(words, points, signatures=signed.signatures[:, 0])
        return query._replace(signed=SignedWords(signed.words[order], signed.signatures[order]))

    def query_of(self, image: int, *, box: Box | None = None) -> Query:
        """Query by an image of the index, with the nearest word of each region.

        Parameters
        ----------
        image : int
            Number of the image in the index.
        box : (x1, y1, x2, y2), optional
            Use only the features inside this box, in pixels.

        Returns
        -------
        query : Query
            Words and positions of the regions.

        Raises
        ------
        ValueError
            If the index is empty, or the image has no features, or none inside the box.

        See Also
        --------
        ImageIndex.read_query : Query by another image.
        ImageIndex.search : Search by the query.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
        >>> rows, where = load_sift()[:600], np.random.default_rng(0).uniform(1, 300, (600, 4))
        >>> photos = Collection(["a", "b", "c"], None, where, rows, [0, 200, 400, 600], [], Extraction())
        >>> index = ImageIndex(learn_vocabulary(rows, 100, random_state=0))
        >>> index.add(photos)
        >>> len(index.query_of(1).places.words)
        200
        """
        self._check_not_empty()
        check_uncut(self._places.words)
        own = self._places.of(image)
        query = self._query_by(own, box)
        if len(query.places.words) == 0:
            raise ValueError(f"the query must have features, but '{self.names[image]}' has none in the place asked for")
        return query

    def search(
        self,
        query: Query,
        *,
        norm: str = "l1",
        n_results: int | None = 10,
        n_rerank: int = 0,
        steps: Steps = Steps(),  # noqa: B008
        verification: Verification | None = None,
        n_threads: int | None = None,
    ) -> list[Result]:
        """Find the images most similar to a query.

        Parameters
        ----------
        query : Query
            Query for this index.
        norm : {"l1", "l2"}, default="l1"
            Norm of the tf-idf vectors.
        n_results : int or None, default=10
            Number of results; ``None`` returns all images that match the query.
        n_rerank : int, default=0
            Number of the best images that are verified spatially; images with more inliers than chance explains come
            first.
        steps : Steps, optional
            Steps that replace tf-idf or refine the results.
        verification : Verification, optional
            Settings of the spatial verification.
        n_threads : int, optional
            Number of threads of the verification; by default the number of CPUs available to the process.

        Returns
        -------
        results : list of Result
            Best first.

        Raises
        ------
        ValueError
            If the index is empty, or a parameter is out of range.

        See Also
        --------
        ImageIndex.read_query : Query by an image.
        rank : Ranking by tf-idf only.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
        >>> rows, where = load_sift()[:600], np.random.default_rng(0).uniform(1, 300, (600, 4))
        >>> photos = Collection(["a", "b", "c"], None, where, rows, [0, 200, 400, 600], [], Extraction())
        >>> index = ImageIndex(learn_vocabulary(rows, 100, random_state=0))
        >>> index.add(photos)
        >>> best = index.search(index.query_of(1), n_rerank=3)[0]
        >>> best.name, best.verified
        ('b', True)
        """
        self._check_not_empty()
        check.integer("n_rerank", n_rerank, 0)
        check.integer("expansion", steps.expansion, 0)
        check.integer("assignment", steps.assignment, 1)
        if n_results is not None:
            check.integer("n_results", n_results, 1)
        check_uncut(self._inverted.images)
        most = None if n_results is None else max(n_results, n_rerank)
        scores = self._score(query, norm, steps)
        ranking = inverted.order(scores, most)
        if n_rerank == 0:
            return self._results(ranking)
        settings = verification or Verification()
        verify = partial(self._verify, query, n_rerank=n_rerank, settings=settings, n_threads=n_threads)
        found = verify(ranking)
        if steps.expansion > 0:
            best = found.order[: min(steps.expansion, int(found.verified.sum()))]
            views = (
                object_regions(query.places, self._places.of(ranking.images[i]), found.matches.transforms[i])
                for i in best
            )
            scores = average_scores(scores, views, lambda view: self._score(self._query_by(view), norm, steps))
            ranking = inverted.order(scores, most)
            found = verify(ranking)
        results = self._results(ranking)
        for i, (inliers, holds) in enumerate(zip(found.matches.inliers.tolist(), found.verified.tolist(), strict=True)):
            results[i] = results[i]._replace(inliers=inliers, verified=holds)
        return [results[i] for i in found.order[:n_results]]

    def _results(self, ranking: Ranking) -> list[Result]:
        found = zip(ranking.images.tolist(), ranking.scores.tolist(), strict=True)
        return [Result(image, self.names[image], score) for image, score in found]

    def _score(self, query: Query, norm: str, steps: Steps) -> NDArray[np.float64]:
        """Scores of all images."""
        if self._regions is not None and query.signed is not None and steps.embedding:
            words, signatures = query.signed
            signed = SignedWords(
                np.ascontiguousarray(words[:, : steps.assignment]),
                np.ascontiguousarray(signatures[:, : steps.assignment]),
            )
            return score_matches(self._regions, signed, self._inverted.idf, burstiness=steps.burstiness)
        return inverted.score(self._inverted, query.words.words, weights=query.words.weights, norm=norm)

    def _verify(
        self, query: Query, ranking: Ranking, n_rerank: int, settings: Verification, n_threads: int | None
    ) -> Verified:
        """Verify the first images of a ranking."""
        images, idf = ranking.images[:n_rerank], self._inverted.idf
        matches = match_images(query.places, self._places, images, settings, n_threads, idf)
        verified = beyond_chance(matches, settings.tolerance)
        return Verified(matches, verified, rerank(ranking, matches.strengths(settings), verified))

    def _query_by(self, places: Places, box: Box | None = None) -> Query:
        """Query by regions of the index, with the nearest word of each."""
        words = Words(self.vocabulary.with_levels(places.words[:, np.newaxis]), None)
        query = query_by_words(words, places.keypoints, box, places.signatures)
        if query.places.signatures is None:
            return query
        return query._replace(
            signed=SignedWords(query.places.words[:, np.newaxis], query.places.signatures[:, np.newaxis])
        )

    def _check_not_empty(self) -> None:
        if len(self) == 0:
            raise ValueError("the index must hold images, but is empty")

    def places_of(self, image: int) -> Places:
        """Words and positions of an image's regions.

        Parameters
        ----------
        image : int
            Number of the image in the index.

        Returns
        -------
        places : Places
            Places of one image.

        Raises
        ------
        ValueError
            If the index is empty, or the image has no features.

        See Also
        --------
        align : Transformation between two pictures.

        Examples
        --------
        >>> from closure_kmeans.datasets import load_sift
        >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
        >>> rows, where = load_sift()[:600], np.random.default_rng(0).uniform(1, 300, (600, 4))
        >>> photos = Collection(["a", "b", "c"], None, where, rows, [0, 200, 400, 600], [], Extraction())
        >>> index = ImageIndex(learn_vocabulary(rows, 100, random_state=0))
        >>> index.add(photos)
        >>> index.places_of(1).keypoints.shape
        (200, 4)
        """
        return self.query_of(image).places

    # -- the file ------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index into one file.

        Parameters
        ----------
        path : str or PathLike
            File to write; an existing one is replaced atomically.

        See Also
        --------
        ImageIndex.load : Open the file.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from closure_kmeans.datasets import load_sift
        >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
        >>> rows, where = load_sift()[:600], np.random.default_rng(0).uniform(1, 300, (600, 4))
        >>> photos = Collection(["a", "b", "c"], None, where, rows, [0, 200, 400, 600], [], Extraction())
        >>> index = ImageIndex(learn_vocabulary(rows, 100, random_state=0))
        >>> index.add(photos)
        >>> with TemporaryDirectory() as folder:
        ...     index.save(f"{folder}/photos.safetensors")
        ...     ImageIndex.load(f"{folder}/photos.safetensors").names
        ['a', 'b', 'c']
        """
        check_uncut(self._inverted.images)
        unmap(self, Path(path))
        arrays, facts = pack_vocabulary(self.vocabulary)
        arrays |= self._inverted._asdict() | dict(zip(PLACES, self._places[: len(PLACES)], strict=True))
        if self._regions is not None and self._places.signatures is not None:
            arrays |= self._regions._asdict() | {SIGNATURES: self._places.signatures}
        arrays |= {"names": pack_names(self.names), "folder_of": self._folder_of}
        facts |= {"folders": self.folders, "extraction": self.extraction._asdict()}
        write_tensors(Path(path), INDEX, arrays, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Open an index file. The vocabulary is read, the other arrays are memory-mapped; no other file is opened.

        Parameters
        ----------
        path : str or PathLike
            File written by ``save``.

        Returns
        -------
        ImageIndex
            The index.

        Raises
        ------
        FileFormatError
            A ``ValueError``: the file is truncated, damaged, or not an index.

        See Also
        --------
        ImageIndex.save : Write the file.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from closure_kmeans.datasets import load_sift
        >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
        >>> rows, where = load_sift()[:600], np.random.default_rng(0).uniform(1, 300, (600, 4))
        >>> photos = Collection(["a", "b", "c"], None, where, rows, [0, 200, 400, 600], [], Extraction())
        >>> index = ImageIndex(learn_vocabulary(rows, 100, random_state=0))
        >>> with TemporaryDirectory() as folder:
        ...     index.save(f"{folder}/empty.safetensors")
        ...     len(ImageIndex.load(f"{folder}/empty.safetensors"))
        0
        """
        path = Path(path)
        path.stat()
        with reading(path, "an index of images"):
            arrays, facts = read_tensors(path, INDEX)
            vocabulary = unpack_vocabulary(path, arrays, facts)
            index = cls(vocabulary, Extraction(**facts["extraction"]))
            names = unpack_names(path, arrays["names"])
            _check_arrays(path, arrays, len(names), vocabulary.n_words, len(facts["folders"]))
            index.names, index.folders, index._folder_of = names, facts["folders"], np.array(arrays["folder_of"])
            index._inverted = InvertedFile(*(arrays[name] for name in InvertedFile._fields))
            words, keypoints, offsets = (arrays[name] for name in PLACES)
            index._places = Places(words, keypoints, offsets, arrays.get(SIGNATURES))
            if vocabulary.embedding:
                _check_regions(path, arrays, len(names), vocabulary.n_words)
                index._regions = RegionLists(*(arrays[name] for name in RegionLists._fields))
        return index


def query_by_words(
    words: Words,
    keypoints: NDArray[np.float32],
    box: Box | None = None,
    signatures: NDArray[np.uint64] | None = None,
) -> Query:
    """Query of regions whose words are known, only of those inside a box if one is given."""
    if box is not None:
        inside = inside_box(keypoints, box)
        words, keypoints = words.of(inside), keypoints[inside]
        signatures = None if signatures is None else signatures[inside]
    return Query(words, place(words.words[:, 0], keypoints, signatures=signatures))


def inside_box(keypoints: NDArray[np.float32], box: Box) -> NDArray[np.bool_]:
    """Mask of the keypoints inside a box x1, y1, x2, y2."""
    left, top, right, bottom = box
    if not (left < right and top < bottom):
        raise ValueError(f"box must be x1, y1, x2, y2 with x1 < x2 and y1 < y2, got {box}")
    x, y = keypoints[:, 0], keypoints[:, 1]
    inside: NDArray[np.bool_] = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
    return inside


def _check_arrays(path: Path, arrays: Arrays, n_images: int, n_words: int, n_folders: int) -> None:
    """Check shapes, types and offsets that kernels rely on. Image numbers and words are checked when they are used."""
    n_postings = len(arrays["images"])
    n_columns = ELLIPSES if arrays["keypoints"].shape[1] == ELLIPSES else CIRCLES
    shapes = {
        "starts": ((n_words + 1,), "int64"),
        "images": ((n_postings,), "int32"),
        "counts": ((n_postings,), "float32"),
        "idf": ((n_words,), "float32"),
        "norms": ((2, n_images), "float64"),
        "folder_of": ((n_images,), "int32"),
        "region_words": ((len(arrays["keypoints"]),), "int32"),
        "keypoints": ((len(arrays["region_words"]), n_columns), "float32"),
    }
    _check_shapes(path, arrays, shapes)
    _check_starts(path, arrays["starts"], n_postings)
    folder_of = arrays["folder_of"]
    if n_images and not 0 <= folder_of.min() <= folder_of.max() < n_folders:
        raise FileFormatError(f"'{path}' must name one of {n_folders} folders for each image, but does not")
    check_rows(path, arrays, ("region_words", "keypoints"), n_images)


def _check_regions(path: Path, arrays: Arrays, n_images: int, n_words: int) -> None:
    """Check the arrays of the Hamming embedding."""
    n_regions = len(arrays["region_words"])
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "region_starts": ((n_words + 1,), "int64"),
        "region_images": ((n_regions,), "int32"),
        "signatures": ((n_regions,), "uint64"),
        "region_norms": ((n_images,), "float64"),
        SIGNATURES: ((n_regions,), "uint64"),
    }
    _check_shapes(path, arrays, shapes)
    _check_starts(path, arrays["region_starts"], n_regions)


def _check_shapes(path: Path, arrays: Arrays, shapes: dict[str, tuple[tuple[int, ...], str]]) -> None:
    for name, (shape, dtype) in shapes.items():
        if arrays[name].shape != shape or arrays[name].dtype != dtype:
            found = f"{arrays[name].shape} {arrays[name].dtype}"
            raise FileFormatError(f"'{path}' must hold '{name}' as {shape} {dtype}, but it is {found}")


def _check_starts(path: Path, starts: NDArray[Any], n_postings: int) -> None:
    if starts[0] != 0 or starts[-1] != n_postings or (np.diff(starts) < 0).any():
        raise FileFormatError(f"'{path}' must list {n_postings} images of words, but does not")
