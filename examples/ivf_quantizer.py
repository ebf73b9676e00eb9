"""
Train an IVF quantiser and plug it into FAISS
=============================================

An inverted file (IVF) answers a query from a few of its lists only: those whose centres are nearest. The more lists
there are, the shorter each one is, but with exact k-means many centres take long to train. Here they come from
``ClosureKMeans``, trained on all rows, and FAISS does the rest.

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
# The usual rule of thumb for the number of lists is some multiple of the square root of n. ``to_faiss`` gives an
# ``IndexIVFFlat`` that is trained and empty; with 20,000 lists or more it finds the nearest ones by a graph (HNSW).

model = ClosureKMeans(n_clusters=1000, random_state=0).fit(base)
index = to_faiss(model)
index.add(base)

# %%
# For an index of another kind, give FAISS the centres as its coarse quantiser. It trains the rest, here the codes of
# a product quantiser, and leaves the centres alone, since there are as many of them as lists.

coarse = faiss.IndexFlatL2(X.shape[1])
coarse.add(np.ascontiguousarray(model.cluster_centers_, np.float32))
compressed = faiss.IndexIVFPQ(coarse, X.shape[1], len(model.cluster_centers_), 16, 8)
compressed.train(base)
compressed.add(base)
assert (coarse.reconstruct_n() == model.cluster_centers_).all()

# %%
# How many of the true ten nearest rows does a query find, depending on the number of lists that it looks into?

_, truth = faiss.knn(queries, base, 10)
probes = [1, 2, 4, 8, 16, 32]
for name, built in (("IVFFlat, whole rows", index), ("IVFPQ, 16 bytes a row", compressed)):
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
