"""Queries: uploaded photos and images of the index, and their results."""

from __future__ import annotations

import secrets
import shlex
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.explorer.budget import BUDGET
from closure_kmeans.retrieval.evaluation import Box
from closure_kmeans.retrieval.verification import align

if TYPE_CHECKING:
    from closure_kmeans.retrieval import ImageIndex, Query, Result

# Uploads that are kept; the least recently used ones are deleted. More than can wait in line, so that none is deleted
# before its turn.
MOST_UPLOADS = 256
N_RESULTS, N_VERIFIED = 24, 200
# Assumed size of a missing image.
UNKNOWN_SIZE = 400, 300


class Photo(NamedTuple):
    """Image to search by: an image of the index, or an upload."""

    name: str  # in the index, or given by the client
    path: Path
    image: int | None = None  # number in the index
    key: str = ""  # of an upload

    @property
    def parameter(self) -> tuple[str, str | int]:
        """Address parameter that names the photo, and its value."""
        return ("upload", self.key) if self.image is None else ("image", self.image)

    @property
    def picture(self) -> str:
        """Address of the picture."""
        return f"/uploads/{self.key}/picture" if self.image is None else f"/index/{self.image}/picture"


class Question(NamedTuple):
    """A query: a photo, optionally a box on it."""

    photo: Photo
    box: Box | None = None
    rerank: bool = True


class Answer(NamedTuple):
    """Results of a query, and timings."""

    results: list[Result]
    n_regions: int
    feature_ms: float | None  # None if the index had the features
    search_ms: float


class Match(NamedTuple):
    """Two images and the lines between their matched regions."""

    sizes: tuple[tuple[int, int], tuple[int, int]]  # width and height of each image
    lines: list[tuple[float, float, float, float]]  # x, y in the first and x, y in the second image
    n_regions: tuple[int, int]


class Searches:
    """Searches of an index by its own images and by uploads.

    Parameters
    ----------
    index : ImageIndex
        The index.
    index_path : str
        Path that it was read from.
    folder : Path
        Folder for uploads.
    """

    def __init__(self, index: ImageIndex, index_path: str, folder: Path) -> None:
        self.index = index
        self.index_path = index_path
        self._folder = folder
        self._uploads: OrderedDict[str, Photo] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Compile or load everything that the first query needs."""
        with suppress(ValueError):  # the image may have no features
            self.match(Question(self.photo(0)), 0)
            self.answer(Question(self.photo(0)))

    # -- photos --------------------------------------------------------------------------------------------------------

    def photo(self, image: int) -> Photo:
        """Image of the index."""
        return Photo(self.index.names[image], self.index.path_of(image), image)

    def new_upload(self, name: str) -> Photo:
        """Create a path for an upload, which is registered by ``keep``."""
        key = secrets.token_urlsafe(12)
        return Photo(Path(name).name or "photo", self._folder / key, key=key)

    def keep(self, upload: Photo) -> None:
        """Register a written upload; raises ``ImageError`` for a file that is no image."""
        from closure_kmeans.features.images import MAX_PIXELS, at_most, decode

        max_side = self.index.extraction.max_side
        with BUDGET.decoding(upload.path, max_side):
            decode(upload.path, "the photo", at_most(max_side), MAX_PIXELS)
        with self._lock:
            self._uploads[upload.key] = upload
            while len(self._uploads) > MOST_UPLOADS:
                _, oldest = self._uploads.popitem(last=False)
                oldest.path.unlink(missing_ok=True)

    def upload(self, key: str) -> Photo | None:
        """Upload of a key, if it still exists."""
        with self._lock:
            if key in self._uploads:
                self._uploads.move_to_end(key)
            return self._uploads.get(key)

    # -- questions -----------------------------------------------------------------------------------------------------

    def answer(self, question: Question) -> Answer:
        """Search; raises a ``ValueError`` if the question has no features."""
        began = time.perf_counter()
        query = self._query(question)
        asked = time.perf_counter()
        n_verified = N_VERIFIED if question.rerank else 0
        results = self.index.search(query, n_results=N_RESULTS, n_rerank=n_verified, n_threads=1)
        feature_ms = 1000 * (asked - began) if question.photo.image is None else None
        return Answer(results, len(query.places.words), feature_ms, 1000 * (time.perf_counter() - asked))

    def match(self, question: Question, image: int) -> Match:
        """Match a question's image with an image of the index."""
        here, there = self._query(question).places, self.index.places_of(image)
        pairs = align(here, there).pairs
        lines = np.hstack([here.keypoints[pairs[:, 0], :2], there.keypoints[pairs[:, 1], :2]])
        sizes = (
            picture_size(question.photo.path, here.keypoints),
            picture_size(self.index.path_of(image), there.keypoints),
        )
        return Match(sizes, [tuple(line) for line in lines.tolist()], (len(here.words), len(there.words)))

    def command(self, question: Question) -> str:
        """Shell command for the same query."""
        photo = question.photo
        path = photo.name if photo.image is None else str(photo.path)
        words = ["closure-kmeans", "retrieval", "query", self.index_path, path]
        if question.box is not None:
            words += ["--box", ",".join(f"{corner:g}" for corner in question.box)]
        words += ["--n-results", str(N_RESULTS), *(["--rerank"] if question.rerank else [])]
        return shlex.join(words)

    def _query(self, question: Question) -> Query:
        photo = question.photo
        if photo.image is not None:
            return self.index.query_of(photo.image, box=question.box)
        with BUDGET.decoding(photo.path, self.index.extraction.max_side):
            return self.index.read_query(photo.path, box=question.box)


def picture_size(path: Path, keypoints: NDArray[np.float32] | None = None) -> tuple[int, int]:
    """Width and height of an image file, upright; of a missing file, the extent of its keypoints."""
    from PIL import ExifTags, Image

    from closure_kmeans.features.images import FORMATS, TURNED

    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            turned = image.getexif().get(ExifTags.Base.Orientation) in TURNED
    except Exception:  # damaged files raise errors of many types
        corner = UNKNOWN_SIZE if keypoints is None else np.ceil(keypoints[:, :2].max(axis=0)).astype(int) + 1
        return int(corner[0]), int(corner[1])
    return (height, width) if turned else (width, height)
