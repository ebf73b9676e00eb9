"""All estimators, for tests that each of them passes."""

from functools import partial

import numpy as np
import pytest

from closure_kmeans import ClosureKMeans
from closure_kmeans.baselines import ApproximateKMeans, CanopyKMeans, HierarchicalKMeans, LloydKMeans

# Each estimator, to be made with 50 clusters unless told otherwise.
METHODS = {
    "closures": partial(ClosureKMeans, 50),
    "Lloyd": partial(LloydKMeans, 50),
    "AKM": partial(ApproximateKMeans, 50, n_candidates=20),
    "RAKM": partial(ApproximateKMeans, 50, n_candidates=20, refined=True),
    "canopies": partial(CanopyKMeans, 50, loose=0.2, tight=0.2),
    "HKM": partial(HierarchicalKMeans, branching=5, depth=2),
}
FLAT = [name for name in METHODS if name != "HKM"]
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
every_flat_method = pytest.mark.parametrize("make", [METHODS[name] for name in FLAT], ids=FLAT)


def same(a, b):
    return (
        np.array_equal(a.labels_, b.labels_)
        and np.array_equal(a.cluster_centers_, b.cluster_centers_)
        and a.inertia_ == b.inertia_
    )
