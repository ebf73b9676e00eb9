"""Estimators for the tests."""

import pytest

from closure_kmeans import PAPER, ClosureKMeans, Method

MODES = {
    "default": Method(neighborhoods="fresh"),
    "all clusters": Method(neighborhoods="all"),
    "paper": PAPER,
    "static": PAPER._replace(adaptive=False, max_trees=4),
    "kept by Hartigan's rule": Method(neighborhoods="kept", leaf_size=12, max_trees=3),
}
every_mode = pytest.mark.parametrize("mode", MODES)


def closures(n_clusters=2, *, kind=ClosureKMeans, **parameters):
    """An estimator; the switches of its method may be given like parameters."""
    switches = {name: parameters.pop(name) for name in Method._fields if name in parameters}
    method = (parameters.pop("method", None) or Method())._replace(**switches)
    return kind(n_clusters, method=method, **parameters)


def model(k, mode="default", **parameters):
    return closures(k, **{"method": MODES[mode], "n_threads": 1, "random_state": 0} | parameters)


def covering(k, **parameters):
    """The paper's rule with closures that cover everything."""
    return model(k, "paper", leaf_size=10_000, tol=0, **parameters)


def bits(fitted):
    """All of a result but the time it took."""
    history = [record._replace(seconds=0) for record in fitted.history_]
    return fitted.labels_.tobytes(), fitted.cluster_centers_.tobytes(), fitted.inertia_, history, fitted.stopped_by_
