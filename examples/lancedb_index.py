"""
Build an IVF index in LanceDB with your own centres
===================================================

LanceDB keeps tables in Lance's format, and answers vector queries by an inverted file (IVF). By default Lance trains
the centres of the lists on a sample of the rows. ``create_index`` also takes centres, ``ivf_centroids``: here those of
``ClosureKMeans``, trained on all rows. Lance then assigns the rows, writes the index and answers the queries.

Needs ``pip install pylance '.[plot]'``.
"""

import os
import tempfile
import time

os.environ.setdefault("LANCE_LOG", "error")

import lance
import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa

from closure_kmeans import CenterIndex, ClosureKMeans
from closure_kmeans.datasets import load_sift

X = load_sift().astype(np.float32)  # your rows, (n, d)
base, queries = X[:19_500], X[19_500:]
truth = CenterIndex(base).search(queries, n_nearest=10)[0]
vectors = pa.FixedSizeListArray.from_arrays(base.ravel(), base.shape[1])
table = pa.table({"id": np.arange(len(base)), "vector": vectors})

# %%
# Write the same table twice, once with centres trained by Lance and once with ours. The times include training,
# assignment and writing.

N_LISTS, NAMES = 500, ("centres of Lance", "centres of ClosureKMeans")
folder = tempfile.TemporaryDirectory()
for own, name in enumerate(NAMES):
    data = lance.write_dataset(table, f"{folder.name}/{own}.lance")
    began = time.perf_counter()
    given = ClosureKMeans(N_LISTS, random_state=0).fit(data).cluster_centers_ if own else None
    data.create_index("vector", "IVF_FLAT", num_partitions=N_LISTS, ivf_centroids=given)
    print(f"{name}: {time.perf_counter() - began:.1f} s")

# %%
# Recall of the ten nearest rows against the number of lists searched per query, read from the files.

probes = [1, 2, 4, 8, 16]
for own, name in enumerate(NAMES):
    data = lance.dataset(f"{folder.name}/{own}.lance")
    recall = []
    for n_probes in probes:
        query = {"column": "vector", "k": 10, "minimum_nprobes": n_probes, "maximum_nprobes": n_probes}
        found = [data.to_table(columns=["id", "_distance"], nearest=query | {"q": row})["id"] for row in queries]
        recall.append(np.mean([np.isin(ids, true).mean() for ids, true in zip(found, truth, strict=True)]))
    print(name, dict(zip(probes, np.round(recall, 3).tolist(), strict=True)))
    plt.plot(probes, recall, marker="o", label=name)
plt.legend(title="recall of the ten nearest against lists searched per query")
plt.show()
