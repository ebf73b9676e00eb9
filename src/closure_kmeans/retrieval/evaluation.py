"""Retrieval scores by the protocols of UKBench and Oxford Buildings."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import trapezoid

from closure_kmeans.files import FileFormatError

Name = TypeVar("Name")
Box = tuple[float, float, float, float]

# Consecutive images of one object in UKBench.
UKBENCH_GROUP = 4
# Prefix of image names in Oxford's ground truth; Paris has none.
OXFORD_PREFIX = "oxc1_"


class OxfordQuery(NamedTuple):
    """Query of Oxford or Paris Buildings with its ground truth; image names have no extension."""

    name: str
    image: str
    box: Box
    positives: frozenset[str]  # good and ok
    junk: frozenset[str]


def average_precision(ranking: Iterable[Name], positives: Collection[Name], junk: Collection[Name] = ()) -> float:
    """Average precision by Oxford's protocol: area under precision over recall by trapezoids, starting at precision 1.

    Parameters
    ----------
    ranking : iterable
        Names or numbers of images, best first; repeated images count once.
    positives : collection
        Images that should be found, at least one.
    junk : collection, optional
        Images that are removed from the ranking.

    Returns
    -------
    precision : float
        From 0 to 1.

    Raises
    ------
    ValueError
        If ``positives`` is empty.

    See Also
    --------
    oxford_score : Mean over queries.

    Examples
    --------
    >>> average_precision(["a", "x", "b"], {"a", "b"})
    0.7916666666666666
    """
    if not positives:
        raise ValueError("positives must not be empty")
    hits = np.cumsum([0, *(image in positives for image in dict.fromkeys(ranking) if image not in junk)])
    precision = np.append(1, hits[1:] / np.arange(1, len(hits)))
    return float(trapezoid(precision, hits / len(positives)))


def ukbench_score(rankings: Sequence[ArrayLike]) -> float:
    """Mean number of images of the query's own group among the first 4, from 0 to 4.

    Parameters
    ----------
    rankings : sequence of array-like of int
        ``rankings[i]`` is the ranking of image i, which shows object ``i // 4`` and is itself in the collection.

    Returns
    -------
    score : float
        From 0 to 4.

    Raises
    ------
    ValueError
        If the number of rankings is 0 or not a multiple of 4.

    See Also
    --------
    oxford_score : Score of the protocol of Oxford Buildings.

    Examples
    --------
    >>> ukbench_score([[0, 1, 2, 3], [1, 9, 0, 8], [2], [3, 2]])
    2.25
    """
    if len(rankings) == 0 or len(rankings) % UKBENCH_GROUP:
        raise ValueError(f"rankings must be those of whole groups of {UKBENCH_GROUP}, got {len(rankings)}")
    hits = [
        int(np.sum(np.asarray(ranking)[:UKBENCH_GROUP] // UKBENCH_GROUP == image // UKBENCH_GROUP))
        for image, ranking in enumerate(rankings)
    ]
    return float(np.mean(hits))


def oxford_score(queries: Iterable[OxfordQuery], rank: Callable[[OxfordQuery], Iterable[str]]) -> float:
    """Mean average precision over queries.

    Parameters
    ----------
    queries : iterable of OxfordQuery
        Queries with their ground truth.
    rank : callable
        Returns the ranked image names of a query, without extension.

    Returns
    -------
    score : float
        From 0 to 1.

    See Also
    --------
    read_oxford : Read the queries.
    average_precision : Score of one query.

    Examples
    --------
    >>> query = OxfordQuery("tower_1", "tower", (0, 0, 9, 9), frozenset({"a", "b"}), frozenset())
    >>> oxford_score([query], lambda query: ["a", "b", "x"])
    1.0
    """
    return float(np.mean([average_precision(rank(query), query.positives, query.junk) for query in queries]))


def read_oxford(folder: str | os.PathLike[str]) -> list[OxfordQuery]:
    """Read the ground truth of Oxford or Paris Buildings: ``NAME_query.txt``, ``_good``, ``_ok`` and ``_junk``.

    Parameters
    ----------
    folder : str or PathLike
        Folder of the text files.

    Returns
    -------
    queries : list of OxfordQuery
        Queries in the order of their names.

    Raises
    ------
    FileNotFoundError
        If there is no query, or one of its files is missing.
    FileFormatError
        A ``ValueError``: a query has no box or no positive images.

    See Also
    --------
    oxford_score : Score of a search.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     texts = {"query": "oxc1_tower 1 2 30 40", "good": "a", "ok": "b", "junk": "c"}
    ...     for kind, text in texts.items():
    ...         _ = Path(folder, f"tower_1_{kind}.txt").write_text(text)
    ...     [query] = read_oxford(folder)
    >>> query.image, query.box, sorted(query.positives)
    ('tower', (1.0, 2.0, 30.0, 40.0), ['a', 'b'])
    """
    paths = sorted(Path(folder).glob("*_query.txt"))
    if not paths:
        raise FileNotFoundError(f"'{folder}' must hold ground truth, but has no file *_query.txt")
    return [_read_query(path) for path in paths]


def _read_query(path: Path) -> OxfordQuery:
    name = path.name.removesuffix("_query.txt")
    fields = path.read_text().split()
    try:
        image, (left, top, right, bottom) = fields[0].removeprefix(OXFORD_PREFIX), map(float, fields[1:])
        if not (left < right and top < bottom):  # NaN too
            raise ValueError("no box")
    except (IndexError, ValueError) as error:
        raise FileFormatError(
            f"'{path}' must hold an image's name and a box x1 y1 x2 y2 with x1 < x2 and y1 < y2, got {fields[:6]}"
        ) from error
    good, ok, junk = (
        frozenset(path.with_name(f"{name}_{kind}.txt").read_text().split()) for kind in ("good", "ok", "junk")
    )
    if not good | ok:
        raise FileFormatError(f"'{path.parent}' must name images that the query '{name}' should find, but has none")
    return OxfordQuery(name, image, (left, top, right, bottom), good | ok, junk)
