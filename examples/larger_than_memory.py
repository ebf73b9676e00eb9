"""
Clusters of a file larger than memory
=====================================

A memory map is taken as it is: no copy in float32 is made, and the file is never read as a whole. With
``memory_limit`` the fit stays within the memory that you allow it: the rows are written to a temporary file in a new
order, and read back slab by slab. The centres near a slab take part in it, so that points and clusters still meet.

Needs ``pip install '.[plot]'``, and as much room as the file takes in the folder of temporary files, which the
environment variable TMPDIR names.
"""

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np

from closure_kmeans import ClosureKMeans
from closure_kmeans.datasets import load_sift
from closure_kmeans.vectors import open_vectors, save_vectors

# %%
# A file to try it on: mixtures of SIFT descriptors, written block by block into a folder of shards. Any file or
# folder that ``open_vectors`` opens will do.

folder = Path(mkdtemp())
sift, rng = load_sift(), np.random.default_rng(0)
for shard in range(6):
    a, b = sift[rng.integers(len(sift), size=(2, 40_000))].astype(np.uint16)
    save_vectors(folder / f"shard-{shard}.u8bin", ((a + b) // 2).astype(np.uint8))
X = open_vectors(folder)
print(X.shape, X.dtype, f"{X.shape[0] * X.shape[1] / 1e6:.1f} MB")

# %%
# A third of that in memory, not counting the centres; and for comparison the same fit without a limit.

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
# New rows are assigned block by block, too.

labels = np.concatenate([limited.predict(X[first : first + 10_000]) for first in range(0, len(X), 10_000)])
print(f"the same cluster as in the fit: {np.mean(labels == limited.labels_):.1%}")
