"""
Train an IVF quantiser and plug it into FAISS
=============================================

An inverted file (IVF) searches only the lists whose centres are nearest to the query. With more lists each is
shorter, but training many centres by exact k-means is slow. This guide trains them on all rows with ``ClosureKMeans``
and builds FAISS indexes with them.

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
# A common rule for the number of lists is a small multiple of the square root of n. ``to_faiss`` returns an
# ``IndexIVFFlat``, trained and empty; from 20,000 lists it finds the nearest ones by an HNSW graph.

model = ClosureKMeans(n_clusters=1000, random_state=0).fit(base)
index = to_faiss(model)
index.add(base)

# %%
# For other index types, pass the centres to FAISS as the coarse quantiser. FAISS then trains only the rest, here a
# product quantiser, because the number of centres equals the number of lists.

coarse = faiss.IndexFlatL2(X.shape[1])
coarse.add(np.ascontiguousarray(model.cluster_centers_, np.float32))
compressed = faiss.IndexIVFPQ(coarse, X.shape[1], len(model.cluster_centers_), 16, 8)
compressed.train(base)
compressed.add(base)
assert (coarse.reconstruct_n() == model.cluster_centers_).all()

# %%
# Recall of the ten nearest rows against the number of lists searched per query (``nprobe``).

_, truth = faiss.knn(queries, base, 10)
probes = [1, 2, 4, 8, 16, 32]
for name, built in (("IVFFlat, full vectors", index), ("IVFPQ, 16 bytes per vector", compressed)):
    recall = []
    for built.nprobe in probes:
        _, found = built.search(queries, 10)
        recall.append(np.mean([len(np.intersect1d(*pair)) / 10 for pair in zip(found, truth, strict=True)]))
    print(name, dict(zip(probes, np.round(recall, 3).tolist(), strict=True)))
    plt.plot(probes, recall, marker="o", label=name)
plt.xlabel("lists searched per query")
plt.ylabel("recall of the ten nearest")
plt.legend()
plt.show()
