"""
Train an IVF quantiser and plug it into FAISS
=============================================

An inverted file searches the lists of the few centres nearest to a query. More lists make each one shorter, but exact
k-means makes them expensive to train. Here the centres come from ``ClosureKMeans``, all rows are used, and FAISS does
the rest.

Needs ``pip install '.[faiss,plot]'``.
"""

import faiss
import matplotlib.pyplot as plt
import numpy as np

from closure_kmeans import ClosureKMeans
from closure_kmeans.datasets import load_sift
from closure_kmeans.export import to_faiss

X = load_sift().astype(np.float32)  # your rows, (n, d)
base, queries = X[:19_000], X[19_000:]

# %%
# The usual rule of thumb is some multiple of the square root of n lists. ``to_faiss`` gives an ``IndexIVFFlat`` that
# is trained and empty; from 20,000 lists on it finds them by a graph.

model = ClosureKMeans(n_clusters=1000, random_state=0).fit(base)
index = to_faiss(model)
index.add(base)

# %%
# For an index of another kind, give FAISS the centres as its coarse quantiser. It trains the rest, here the codes of
# a product quantiser, and leaves the centres alone.

coarse = faiss.IndexFlatL2(X.shape[1])
coarse.add(np.ascontiguousarray(model.cluster_centers_, np.float32))
compressed = faiss.IndexIVFPQ(coarse, X.shape[1], len(model.cluster_centers_), 16, 8)
compressed.train(base)  # "coarse.is_trained" and as many centres as lists: these stay
compressed.add(base)
assert (coarse.reconstruct_n() == model.cluster_centers_).all()

# %%
# How many of the true ten nearest are found, for the number of lists that a query looks into?

_, truth = faiss.knn(queries, base, 10)
probes = [1, 2, 4, 8, 16, 32]
for name, built in (("IVF, all bytes", index), ("IVF, 16 bytes a row", compressed)):
    recall = []
    for built.nprobe in probes:
        _, found = built.search(queries, 10)
        recall.append(np.mean([len(np.intersect1d(*pair)) / 10 for pair in zip(found, truth, strict=True)]))
    print(name, dict(zip(probes, np.round(recall, 3).tolist(), strict=True)))
    plt.plot(probes, recall, marker="o", label=name)
plt.xlabel("lists that a query looks into")
plt.ylabel("recall of the ten nearest")
plt.legend()
plt.show()
