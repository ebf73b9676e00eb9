"""
Cluster a file larger than memory
=================================

``ClosureKMeans`` reads memory maps in their own dtype, without a copy in float32. With ``memory_limit`` it also limits
its own memory: it writes the rows, sorted, to a temporary file, and reads that slab by slab. The points of a
slab are also compared with the centres near it, so that they can move to clusters of other slabs.

Needs ``pip install '.[plot]'``, and disk space for a copy of the file in the temporary folder (environment variable
TMPDIR).
"""

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np

from closure_kmeans import ClosureKMeans
from closure_kmeans.datasets import load_sift
from closure_kmeans.vectors import open_vectors, save_vectors

# %%
# Sample data: means of pairs of SIFT descriptors, in a folder of shards. Any file or folder that ``open_vectors`` opens
# can be used instead.

folder = Path(mkdtemp())
sift, rng = load_sift(), np.random.default_rng(0)
for shard in range(6):
    a, b = sift[rng.integers(len(sift), size=(2, 40_000))].astype(np.uint16)
    save_vectors(folder / f"shard-{shard}.u8bin", ((a + b) // 2).astype(np.uint8))
X = open_vectors(folder)
print(X.shape, X.dtype, f"{X.shape[0] * X.shape[1] / 1e6:.1f} MB")

# %%
# The limit is a third of the data, not counting the centres. For comparison, the same fit without a limit.

limited = ClosureKMeans(800, memory_limit="10MB", random_state=0).fit(X)
in_memory = ClosureKMeans(800, random_state=0).fit(X)
for name, model in (("10 MB", limited), ("no limit", in_memory)):
    print(f"{name}: distortion {model.inertia_ / len(X):,.0f} after {model.n_iter_} iterations")
    distortions = [step.inertia / len(X) for step in model.history_]
    plt.plot(range(1, model.n_iter_ + 1), distortions, marker=".", label=name)
plt.xlabel("iteration")
plt.ylabel("distortion")
plt.legend()
plt.show()

# %%
# Assign rows block by block.

labels = np.concatenate([limited.predict(X[first : first + 10_000]) for first in range(0, len(X), 10_000)])
print(f"same label as in the fit: {np.mean(labels == limited.labels_):.1%}")
