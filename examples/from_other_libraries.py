"""
From scikit-learn or faiss to closures, line by line
====================================================

The names are those of scikit-learn, so that most code changes in one line. Each block below is the code of another
library, and then ours. Needs ``pip install '.[faiss]'``.
"""

import faiss
import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans

from closure_kmeans import ClosureKMeans
from closure_kmeans.datasets import load_sift

X = load_sift().astype(np.float32)[:10_000]
new = load_sift().astype(np.float32)[10_000:]
k = 500

# %%
# scikit-learn
# ------------
# ``KMeans`` and ``ClosureKMeans`` have ``fit``, ``predict``, ``fit_predict``, ``transform`` and ``score``,
# ``sample_weight``, and the fitted ``cluster_centers_``, ``labels_``, ``inertia_`` and ``n_iter_``. There is no
# ``n_init``: where there are many clusters one start is as good as another. ``init="k-means++"`` has no counterpart,
# since it costs n k distances; the start is a tree.

theirs = KMeans(k, n_init=1, init="random", random_state=0).fit(X)
ours = ClosureKMeans(k, random_state=0).fit(X)
print(f"KMeans {theirs.inertia_ / len(X):,.0f}, ClosureKMeans {ours.inertia_ / len(X):,.0f}")

# %%
# ``MiniBatchKMeans`` is for what does not fit in memory. Instead of batches, give ``fit`` the memory map, and
# ``memory_limit``.

theirs = MiniBatchKMeans(k, n_init=1, batch_size=4096, random_state=0).fit(X)
ours = ClosureKMeans(k, memory_limit="8MB", random_state=0).fit(X)
print(f"MiniBatchKMeans {theirs.inertia_ / len(X):,.0f}, ClosureKMeans {ours.inertia_ / len(X):,.0f}")

# %%
# faiss
# -----
# ``Kmeans(d, k, niter, seed, spherical)`` becomes ``ClosureKMeans(k, max_iter, random_state, metric="cosine")``.
# ``train`` is ``fit``, ``centroids`` is ``cluster_centers_``, ``obj`` is in ``history_``. faiss takes at most
# ``max_points_per_centroid=256`` rows for each centre unless told otherwise; here all rows count.

theirs = faiss.Kmeans(X.shape[1], k, niter=25, seed=0, min_points_per_centroid=1)
theirs.train(X)
distances, labels = theirs.index.search(new, 1)
ours = ClosureKMeans(k, max_iter=25, random_state=0).fit(X)
labels = ours.predict(new)
distances = np.square(new - ours.cluster_centers_[labels]).sum(axis=1)
print(f"faiss.Kmeans {theirs.obj[-1] / len(X):,.0f}, ClosureKMeans {ours.inertia_ / len(X):,.0f}")

# %%
# The result of either can be where ours begins.

better = ClosureKMeans(k, init=theirs.centroids).fit(X)
print(f"from the centres of faiss: {better.inertia_ / len(X):,.0f}")
