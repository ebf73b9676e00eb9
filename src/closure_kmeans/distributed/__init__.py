"""Cluster closures on Dask, for rows that do not fit on one machine; needs the extra ``dask``."""

from closure_kmeans.distributed.estimator import DistributedClosureKMeans

__all__ = ["DistributedClosureKMeans"]
