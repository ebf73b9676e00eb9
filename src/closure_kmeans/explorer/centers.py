"""Geometry of the centres: distances to nearest neighbours, and a map.

Nearest neighbours of centres are found by exhaustive search while the centres are few, and beyond that among their
neighbours in random partition trees.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans._parallel import Threads, count_threads
from closure_kmeans.partition import DATA_SAMPLE, RandomPartition, grow_partition, principal_axes
from closure_kmeans.quantizer import MANY_CENTERS

# Trees and leaf size; they find nearly all nearest neighbours.
N_TREES, LEAF_SIZE = 6, 128
# Centres in one block of the exhaustive search.
BLOCK_ROWS = 1024
# Fraction of the centres outside each edge of the map, so that outliers do not shrink the rest.
BEYOND = 0.002


def closest_distances(centers: NDArray[Any]) -> NDArray[np.float64]:
    """Distance of each centre to its nearest neighbour; infinite for a single centre."""
    centered = centers - centers.mean(axis=0)
    closest = np.full(len(centers), np.inf)
    everyone = np.arange(len(centers), dtype=np.int32)
    with Threads(count_threads(None)) as threads:
        if len(centers) <= MANY_CENTERS:

            def compare(first: int, last: int) -> None:
                _look(centered, everyone[first:last], everyone, closest)

            threads.for_each_block(compare, len(centers), BLOCK_ROWS)
        else:
            rng = np.random.default_rng(0)
            origin = np.zeros(centered.shape[1], centered.dtype)
            for _ in range(N_TREES):
                tree = grow_partition(centered, origin, -(-len(centered) // LEAF_SIZE), rng, threads)
                threads.for_each_block(partial(_look_in_leaves, centered, tree, closest), len(tree.starts) - 1)
    distances: NDArray[np.float64] = np.sqrt(closest)
    return distances


def _look_in_leaves(
    centers: NDArray[Any], tree: RandomPartition, closest: NDArray[np.float64], first: int, last: int
) -> None:
    for leaf in range(first, last):
        together = tree.members[tree.starts[leaf] : tree.starts[leaf + 1]]
        _look(centers, together, together, closest)


def _look(
    centers: NDArray[Any], some: NDArray[np.int32], others: NDArray[np.int32], closest: NDArray[np.float64]
) -> None:
    """Compare some centres with others, and update their smallest squared distances."""
    here, there = centers[some], centers[others]
    norms = np.einsum("ij,ij->i", here, here)
    squares = norms[:, np.newaxis] - 2 * here @ there.T + np.einsum("ij,ij->i", there, there)
    squares[some[:, np.newaxis] == others] = np.inf
    closest[some] = np.minimum(closest[some], np.maximum(squares.min(axis=1), 0))


def map_centers(centers: NDArray[Any]) -> NDArray[np.float32]:
    """Project the centres onto their first two principal components, scaled to 0 to 1; outliers may exceed it."""
    sample = centers[:: -(-len(centers) // DATA_SAMPLE)]
    mean = sample.mean(axis=0)
    n_axes = min(2, *sample.shape)
    places = np.zeros((len(centers), 2), np.float32)
    places[:, :n_axes] = (centers - mean) @ principal_axes(sample - mean, n_axes, seed=0)
    low, high = np.quantile(places, [BEYOND, 1 - BEYOND], axis=0)
    extent = float((high - low).max()) or 1.0
    scaled: NDArray[np.float32] = ((places - (low + high) / 2) / extent + 0.5).astype(np.float32)
    return scaled
