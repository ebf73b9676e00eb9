"""Fits that are refused."""

import numpy as np
import pytest
from models import closures
from sklearn.exceptions import NotFittedError

from closure_kmeans import ClosureKMeans
from closure_kmeans.baselines import ApproximateKMeans, CanopyKMeans, HierarchicalKMeans, LloydKMeans

X = np.random.default_rng(0).normal(size=(20, 3))


BASELINES = (LloydKMeans, ApproximateKMeans, CanopyKMeans, HierarchicalKMeans)
every_estimator = pytest.mark.parametrize("kind", [ClosureKMeans, *BASELINES])


def clusters(kind, n):
    """The parameters that ask for so many clusters."""
    return {"branching": n, "depth": 1} if kind is HierarchicalKMeans else {"n_clusters": n}


def tree(kind, tree_dims):
    """How the first tree is grown, if there is one."""
    return {} if kind is HierarchicalKMeans else {"tree_dims": tree_dims}


def make(kind, **parameters):
    return closures(**parameters) if kind is ClosureKMeans else kind(**parameters)


def with_value(value, dtype=np.float64):
    rows = X.astype(dtype)
    rows[7, 1] = value
    return rows


def refuses(error, match, rows=X, weights=None, kind=ClosureKMeans, **parameters):
    """A fit is refused, of a new model and of a fitted one, and both stay what they were."""
    model = make(kind, **clusters(kind, 4) | parameters)
    with pytest.raises(error, match=match):
        model.fit(rows, sample_weight=weights)
    with pytest.raises(NotFittedError):
        model.predict(X)

    other = model.get_params(deep=False)
    model = kind(**clusters(kind, 2), random_state=0).fit(X[:, :2])
    before = dict(vars(model))
    with pytest.raises(error, match=match):
        model.set_params(**other).fit(rows, sample_weight=weights)
    fitted = [name for name in before if name.endswith("_")]
    assert {name: vars(model).get(name) is before[name] for name in fitted} == dict.fromkeys(fitted, True)
    assert not set(vars(model)) - set(before)


def masked(array, n_masked=2):
    return np.ma.array(array, mask=np.arange(np.size(array)).reshape(np.shape(array)) < n_masked)
