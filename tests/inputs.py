"""Data for the tests."""

import numpy as np
from hypothesis import strategies as st

DTYPES = [np.float64, np.float32, np.float16, np.uint8, np.int8]


@st.composite
def rows(draw, max_rows=80, dtypes=DTYPES):
    """Rows with and without structure, often repeated, near the origin or far from it."""
    rng = np.random.default_rng(draw(st.integers(0, 999), "seed"))
    shape = draw(st.integers(1, max_rows), "n"), draw(st.integers(1, 6), "d")
    X = rng.normal(size=shape) * rng.choice([0, 1, 1, 9], shape[1])
    if draw(st.booleans(), "clustered"):
        X += 15 * rng.normal(size=(5, shape[1]))[rng.integers(5, size=shape[0])]
    if draw(st.booleans(), "repeated"):
        X = X[rng.integers(shape[0], size=shape[0])]
    dtype = draw(st.sampled_from(dtypes), "dtype")
    if np.dtype(dtype).kind in "iu":
        return (X.clip(-60, 60) + 60).astype(dtype)
    return (X + draw(st.sampled_from([0, 1000]), "offset")).astype(dtype)


def draw_k(data, X, smallest=1):
    return data.draw(st.integers(smallest, len(np.unique(X, axis=0))), "n_clusters")


AWKWARD = {
    "k = n": lambda rng: (rng.normal(size=(25, 3)), 25),
    "k = 1": lambda rng: (rng.normal(size=(25, 3)), 1),
    "one row": lambda rng: (rng.normal(size=(1, 3)), 1),
    "one feature": lambda rng: (rng.normal(size=(50, 1)), 20),
    "constant columns": lambda rng: (rng.normal(size=(50, 4)) * [0, 1, 0, 1] + 3, 20),
    "all columns but one constant": lambda rng: (np.outer(rng.permutation(30), [0.0, 1.0, 0.0]) - 7, 30),
    "on a line": lambda rng: (rng.normal(size=(50, 1)) * [1, -2, 3], 20),
    "k distinct rows": lambda rng: (rng.normal(size=(9, 2))[np.append(np.arange(9), rng.integers(9, size=60))], 9),
    "one row most of the time": lambda rng: (np.append(np.zeros((90, 2)), rng.normal(size=(9, 2)), axis=0), 10),
    "few whole numbers": lambda rng: (np.append(np.arange(5), rng.integers(5, size=60)).reshape(-1, 1) * 1.0, 5),
    "far from the origin": lambda rng: (rng.normal(size=(50, 3)) + 1e6, 20),
    "one far away": lambda rng: (np.append(rng.normal(size=(50, 3)), [[1e6, 0, 0]], axis=0), 20),
}
