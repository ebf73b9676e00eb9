"""Beyond one machine: cluster closures on Dask. The extra ``dask`` brings what it needs."""

from closure_kmeans.distributed.estimator import DistributedClosureKMeans

__all__ = ["DistributedClosureKMeans"]
