"""Estimators for the tests."""

from closure_kmeans import ClosureKMeans, Method


def closures(n_clusters=2, *, kind=ClosureKMeans, **parameters):
    """An estimator; the switches of its method may be given like parameters."""
    switches = {name: parameters.pop(name) for name in Method._fields if name in parameters}
    method = (parameters.pop("method", None) or Method())._replace(**switches)
    return kind(n_clusters, method=method, **parameters)
