"""Queries: photos that were sent, and what an index finds for them."""

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

# Photos that are kept for further queries; then those are forgotten that were not asked about for longest. More than
# wait in any line, so that none is forgotten before its turn.
MOST_UPLOADS = 256
N_RESULTS, N_VERIFIED = 24, 200
# Of an image that is gone.
UNKNOWN_SIZE = 400, 300


class Upload(NamedTuple):
    """A photo that was sent."""

    key: str
    name: str  # as its sender calls it
    path: Path


class Question(NamedTuple):
    """What is searched for: an image of the index or a photo that was sent, or what is in a box on it."""

    source: int | Upload
    box: Box | None = None
    rerank: bool = True


class Answer(NamedTuple):
    """What was found, and how long it took."""

    results: list[Result]
    n_regions: int
    feature_ms: float | None  # None where the index had them
    search_ms: float


class Match(NamedTuple):
    """Two images, and the lines between the regions that they share."""

    sizes: tuple[tuple[int, int], tuple[int, int]]  # width and height of the one and of the other
    lines: list[tuple[float, float, float, float]]  # x, y in the one and x, y in the other
    n_regions: tuple[int, int]


class Searches:
    """An index that is asked, and the photos that it is asked about.

    Parameters
    ----------
    index : ImageIndex
    index_path : str
        Where it was read from.
    folder : Path
        Where to keep photos that are sent.
    """

    def __init__(self, index: ImageIndex, index_path: str, folder: Path) -> None:
        self.index = index
        self.index_path = index_path
        self._folder = folder
        self._uploads: OrderedDict[str, Upload] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Compile, or load, now what the first query would wait for."""
        with suppress(ValueError):  # an image without features
            self.match(Question(0), 0)
            self.answer(Question(0))

    # -- photos that were sent -----------------------------------------------------------------------------------------

    def new_upload(self, name: str) -> Upload:
        """A place for a photo; it is kept once it is known to be one."""
        key = secrets.token_urlsafe(12)
        return Upload(key, Path(name).name or "photo", self._folder / key)

    def keep(self, upload: Upload) -> tuple[int, int]:
        """Keep a photo whose file is written, and tell its size; an ``ImageError`` if it is none."""
        from closure_kmeans.features.images import MAX_PIXELS, ImageError, at_most, decode

        max_side = self.index.extraction.max_side
        try:
            with BUDGET.decoding(upload.path, max_side):
                _, size = decode(upload.path, "the photo", at_most(max_side), MAX_PIXELS)
        except ImageError:
            upload.path.unlink(missing_ok=True)
            raise
        with self._lock:
            self._uploads[upload.key] = upload
            while len(self._uploads) > MOST_UPLOADS:
                _, oldest = self._uploads.popitem(last=False)
                oldest.path.unlink(missing_ok=True)
        return size

    def upload(self, key: str) -> Upload | None:
        """A photo that was sent and is still there."""
        with self._lock:
            if key in self._uploads:
                self._uploads.move_to_end(key)
            return self._uploads.get(key)

    # -- questions -----------------------------------------------------------------------------------------------------

    def path_of(self, question: Question) -> Path:
        """Where the image of a question is."""
        source = question.source
        return source.path if isinstance(source, Upload) else self.index.path_of(source)

    def name_of(self, question: Question) -> str:
        """What the image of a question is called."""
        source = question.source
        return source.name if isinstance(source, Upload) else self.index.names[source]

    def answer(self, question: Question) -> Answer:
        """Search; a ``ValueError`` says why there is nothing to search for."""
        began = time.perf_counter()
        query = self._query(question)
        asked = time.perf_counter()
        n_verified = N_VERIFIED if question.rerank else 0
        results = self.index.search(query, n_results=N_RESULTS, n_rerank=n_verified, n_threads=1)
        return Answer(
            results,
            len(query.places.words),
            1000 * (asked - began) if isinstance(question.source, Upload) else None,
            1000 * (time.perf_counter() - asked),
        )

    def match(self, question: Question, image: int) -> Match:
        """Which regions of a question's image are in the right place in an image of the index."""
        here, there = self._query(question).places, self.index.places_of(image)
        pairs = align(here, there).pairs
        lines = np.hstack([here.keypoints[pairs[:, 0], :2], there.keypoints[pairs[:, 1], :2]])
        return Match(
            (
                picture_size(self.path_of(question), here.keypoints),
                picture_size(self.index.path_of(image), there.keypoints),
            ),
            [tuple(line) for line in lines.tolist()],
            (len(here.words), len(there.words)),
        )

    def command(self, question: Question) -> str:
        """The same query as a command."""
        source = question.source
        path = source.name if isinstance(source, Upload) else str(self.index.path_of(source))
        words = ["closure-kmeans", "retrieval", "query", self.index_path, path]
        if question.box is not None:
            words += ["--box", ",".join(f"{corner:g}" for corner in question.box)]
        words += ["--results", str(N_RESULTS), *(["--rerank"] if question.rerank else [])]
        return shlex.join(words)

    def _query(self, question: Question) -> Query:
        source = question.source
        if isinstance(source, Upload):
            with BUDGET.decoding(source.path, self.index.extraction.max_side):
                return self.index.read_query(source.path, box=question.box)
        return self.index.query_of(source, box=question.box)


def picture_size(path: Path, keypoints: NDArray[np.float32] | None = None) -> tuple[int, int]:
    """The width and height of an image file, upright; of one that is gone, as far as it has regions."""
    from PIL import ExifTags, Image

    from closure_kmeans.features.images import FORMATS, TURNED

    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            turned = image.getexif().get(ExifTags.Base.Orientation) in TURNED
    except Exception:  # damaged files raise whatever the decoder stumbled over
        corner = UNKNOWN_SIZE if keypoints is None else np.ceil(keypoints[:, :2].max(axis=0)).astype(int) + 1
        return int(corner[0]), int(corner[1])
    return (height, width) if turned else (width, height)
