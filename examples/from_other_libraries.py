"""
From scikit-learn or faiss to ClosureKMeans
===========================================

``ClosureKMeans`` uses scikit-learn's names, so that most code changes in one line. Each block shows code for another
library, then for this one. Needs ``pip install '.[faiss]'``.
"""

# sphinx_gallery_thumbnail_path = 'images/demo.png'
import faiss
import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans

from closure_kmeans import ClosureKMeans
from closure_kmeans.datasets import load_sift

sift = load_sift().astype(np.float32)
X, new, k = sift[:10_000], sift[10_000:], 500

# %%
# scikit-learn
# ------------
# ``KMeans`` and ``ClosureKMeans`` have ``fit``, ``predict``, ``fit_predict``, ``transform`` and ``score``,
# ``sample_weight``, and the fitted ``cluster_centers_``, ``labels_``, ``inertia_`` and ``n_iter_``. There is no
# ``n_init`` and no ``init="k-means++"``: with many clusters, repeated starts hardly differ, and the start is a tree.
# After a fit, ``labels_`` and ``predict(X)`` differ for a few percent of the rows; ``relabel(X)`` makes them equal.

theirs = KMeans(k, n_init=1, init="random", random_state=0).fit(X)
ours = ClosureKMeans(k, random_state=0).fit(X)
print(f"KMeans {theirs.inertia_ / len(X):,.0f}, ClosureKMeans {ours.inertia_ / len(X):,.0f}")

# %%
# ``MiniBatchKMeans`` clusters data larger than memory in batches. ``ClosureKMeans`` has no ``partial_fit``: pass a
# memory map of all rows to ``fit``, and set ``memory_limit``.

theirs = MiniBatchKMeans(k, n_init=1, batch_size=4096, random_state=0).fit(X)
ours = ClosureKMeans(k, memory_limit="8MB", random_state=0).fit(X)
print(f"MiniBatchKMeans {theirs.inertia_ / len(X):,.0f}, ClosureKMeans {ours.inertia_ / len(X):,.0f}")

# %%
# faiss
# -----
# ``Kmeans(d, k, niter, seed, spherical)`` becomes ``ClosureKMeans(k, max_iter, random_state, metric="cosine")``.
# ``train`` is ``fit``, ``centroids`` is ``cluster_centers_``, ``obj`` is in ``history_``, and ``index`` is
# ``center_index_``. By default, faiss samples ``max_points_per_centroid=256`` rows per centre; ``ClosureKMeans`` uses
# all rows.

theirs = faiss.Kmeans(X.shape[1], k, niter=25, seed=0, min_points_per_centroid=1)
theirs.train(X)
distances, labels = theirs.index.search(new, 1)
ours = ClosureKMeans(k, max_iter=25, random_state=0).fit(X)
labels, distances = ours.center_index_.search(new, 1)
print(f"faiss.Kmeans {theirs.obj[-1] / len(X):,.0f}, ClosureKMeans {ours.inertia_ / len(X):,.0f}")

# %%
# A fit can start from the centres of another library.

better = ClosureKMeans(k, init=theirs.centroids).fit(X)
print(f"from the centres of faiss: {better.inertia_ / len(X):,.0f}")
