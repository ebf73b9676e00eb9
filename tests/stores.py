"""Stores for the tests."""

import numpy as np

from closure_kmeans.stores.memory import MemoryStore


def store_of(X, k, threads, *, look_back=False, tree_dims=None):
    """The rows in memory, and the state of the start from the tree."""
    rng = np.random.default_rng(0)
    store = MemoryStore(X, np.ones(1), k, tree_dims=tree_dims, look_back=look_back, rng=rng, threads=threads)
    return store, store.begin(store.tree_labels())


class Spoiling:
    """A store whose outcomes are spoilt."""

    def __init__(self, store, spoil):
        self._store, self._spoil = store, spoil

    def __getattr__(self, name):
        return getattr(self._store, name)

    def assign(self, state, leaves, rule):
        return self._spoil(self._store.assign(state, leaves, rule), state, rule)
