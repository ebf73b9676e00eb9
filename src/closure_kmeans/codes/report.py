"""Quality of codes: distortion after each level, unique ids, usage and perplexity of the levels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.codes.encoding import count_collisions


class Report(NamedTuple):
    """Quality of codes."""

    distortion: list[float]  # after each level: mean squared distance between a row and its decoded codes
    unique: float  # number of distinct tuples / number of rows
    largest_group: int  # number of rows with the most frequent tuple
    used: list[float]  # share of the centres in use, for each level
    perplexity: list[float]  # exp of the entropy of each level; its number of centres if used equally


def judge(
    blocks: Iterable[tuple[slice, NDArray[Any]]], codes: NDArray[Any], codebooks: Sequence[NDArray[Any]]
) -> Report:
    """Quality of the codes of rows that come in blocks; the blocks are overwritten."""
    errors = np.zeros(len(codebooks))
    for some, left in blocks:
        for level, centers in enumerate(codebooks):
            left -= centers[codes[some, level]]
            errors[level] += np.einsum("ij,ij->", left, left, dtype=np.float64)
    counts = [np.bincount(codes[:, level], minlength=len(centers)) for level, centers in enumerate(codebooks)]
    repeated = count_collisions(codes)
    return Report(
        distortion=(errors / len(codes)).tolist(),
        unique=float(np.mean(repeated == 0)),
        largest_group=int(repeated.max()) + 1,
        used=[float(np.mean(count > 0)) for count in counts],
        perplexity=[_perplexity(count) for count in counts],
    )


def _perplexity(counts: NDArray[np.int64]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))
