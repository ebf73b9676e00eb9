"""Map of the centres."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.trees import DATA_SAMPLE, principal_axes

# Fraction of the centres outside each edge of the map, so that outliers do not shrink the rest.
BEYOND = 0.002


def place_on_map(centers: NDArray[Any]) -> NDArray[np.float32]:
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
