"""
Semantic deduplication of text (SemDeDup)
=========================================

Comparing strings misses copies that differ in a few words. SemDeDup (Abbas et al. 2023) embeds all texts, clusters the
embeddings, and compares only within clusters: of texts more similar than a threshold, only one is kept.
With many small clusters the comparison is cheap. Texts of opposite meaning can be similar, too: check what is dropped.

The encoder is WordLlama, whose package contains its weights. The texts are the docstrings of Python's standard library.
Needs ``pip install '.[plot]' wordllama``, and Python 3.13 or earlier.
"""

import ast
import sysconfig
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import wordllama

from closure_kmeans import ClosureKMeans
from closure_kmeans.export import list_members

library = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))
nodes = [node for file in library for node in ast.walk(ast.parse(file.read_bytes()))]
docstrings = [ast.get_docstring(node) for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
firsts = [" ".join(text.split("\n\n")[0].split()) for text in docstrings if text]
texts = sorted(set(firsts))  # without exact copies

# %%
# Weights and tokenizer are in the folder of the package; nothing is downloaded.

home = Path(wordllama.__file__).parent
encoder = wordllama.WordLlama.load(cache_dir=home, disable_download=True)
vectors = encoder.embed(texts, norm=True).astype(np.float32)
has_words = np.linalg.norm(vectors, axis=1) > 0.5
texts, vectors = np.array(texts)[has_words], vectors[has_words]

# %%
# With about ten texts per cluster, near copies share a cluster. In each cluster, texts are visited from the farthest to
# the nearest to the centre, and dropped if an earlier one is more similar than the threshold: of a group of copies, the
# least typical one is kept.

model = ClosureKMeans(len(texts) // 10, metric="cosine", random_state=0).fit(vectors)
members, threshold = list_members(model.labels_, model.n_clusters), 0.9
nearest, copy_of = np.zeros(len(texts)), np.arange(len(texts))
for rows, center in zip(np.split(members.rows, members.starts[1:-1]), model.cluster_centers_, strict=True):
    rows = rows[np.argsort(vectors[rows] @ center)]  # least typical first
    cosines = np.triu(vectors[rows] @ vectors[rows].T, k=1)  # with earlier texts
    nearest[rows], copy_of[rows] = cosines.max(axis=0), rows[cosines.argmax(axis=0)]
dropped = np.flatnonzero(nearest >= threshold)
print(f"{len(texts):,} texts in {model.n_clusters} clusters, {len(dropped)} dropped, for example:")
for row in dropped[:: max(1, len(dropped) // 5)]:
    print(f"  {texts[row][:76]!r}\n    is like {texts[copy_of[row]][:70]!r}")
plt.hist(nearest[nearest > 0], bins=50)
plt.axvline(threshold, color="black")
plt.xlabel("cosine with the most similar text of the cluster")
plt.ylabel("texts")
plt.show()
