"""Average query expansion (Chum et al. 2007): the verified results of a query are queries, too.

Of each verified image the regions that show the object of the query search the index again, and the scores are averaged
with those of the query. So images are found that show other parts or views of the object than the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.retrieval.verification import Places


def object_regions(query: Places, other: Places, transform: NDArray[np.float64]) -> Places:
    """Regions of another picture that the inverse transformation maps into the bounding box of the query's regions.

    >>> from closure_kmeans.retrieval import place
    >>> query = place([0, 1], [[0, 0, 4, 0], [10, 10, 4, 0]])
    >>> other = place([2, 3], [[8, 6, 4, 0], [8, 30, 4, 0]])
    >>> object_regions(query, other, np.array([[1.0, 0.0, 5.0], [0.0, 1.0, 5.0]])).words.tolist()
    [2]
    """
    where = query.keypoints[:, :2]
    back = np.linalg.solve(transform[:, :2], other.keypoints[:, :2].T - transform[:, 2:]).T
    inside = ((back >= where.min(axis=0)) & (back <= where.max(axis=0))).all(axis=1)
    signatures = None if other.signatures is None else other.signatures[inside]
    return Places(other.words[inside], other.keypoints[inside], np.array([0, inside.sum()]), signatures)


def average_scores(
    scores: NDArray[np.float64], others: Iterable[Places], score: Callable[[Places], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Mean of the scores of a query and of those that ``score`` gives for other pictures with regions."""
    total, n_queries = scores.copy(), 1
    for other in others:
        if len(other.words):
            total += score(other)
            n_queries += 1
    return total / n_queries
