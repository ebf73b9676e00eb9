"""The methods that the paper compares with, as estimators of the same interface."""

from closure_kmeans.baselines.approximate import ApproximateKMeans
from closure_kmeans.baselines.canopy import CanopyKMeans
from closure_kmeans.baselines.flat import LloydKMeans
from closure_kmeans.baselines.hierarchical import HierarchicalKMeans

__all__ = ["ApproximateKMeans", "CanopyKMeans", "HierarchicalKMeans", "LloydKMeans"]
