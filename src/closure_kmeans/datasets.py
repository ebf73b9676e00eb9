"""Data sets in the package."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
from numpy.typing import NDArray


def load_sift() -> NDArray[np.uint8]:
    """Load 20,000 SIFT descriptors of the Caltech-101 images.

    Returns
    -------
    (20000, 128) array of uint8
        SIFT descriptors on MSER regions, computed with OpenCV; a random sample.

    See Also
    --------
    closure_kmeans.features.local_features : Compute descriptors of your own images.

    Notes
    -----
    Derived from Caltech-101 [1]_, published under CC BY 4.0; the sample is under the same licence.
    ``data/README.md`` in the package says how it was made.

    References
    ----------
    .. [1] L. Fei-Fei, R. Fergus and P. Perona. Learning generative visual models from few training
       examples: an incremental Bayesian approach tested on 101 object categories. CVPR 2004,
       Workshop on Generative-Model Based Vision.

    Examples
    --------
    >>> from closure_kmeans.datasets import load_sift
    >>> load_sift().shape
    (20000, 128)
    """
    with (files("closure_kmeans") / "data" / "caltech101_sift_20k.npy").open("rb") as file:
        descriptors: NDArray[np.uint8] = np.load(file, allow_pickle=False)
    return descriptors
