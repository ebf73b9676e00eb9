"""
Deduplicate text by its meaning (SemDeDup)
==========================================

Copies that differ in a few words are not found by comparing strings. SemDeDup (Abbas et al. 2023) embeds all texts,
clusters the embeddings, and compares only within a cluster: of texts more alike than a threshold, one is kept. With
many small clusters that costs next to nothing. Opposites may be alike, too: look at what is dropped.

The encoder is WordLlama, whose weights come in its package. The texts are some that every Python has: the docstrings of
its standard library. Needs ``pip install '.[plot]' wordllama``, and for now Python 3.13 at most.
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
texts = sorted(set(firsts))  # copies to the letter are gone already

# %%
# The folder of the package holds the weights and the tokenizer, so that nothing has to be downloaded.

home = Path(wordllama.__file__).parent
encoder = wordllama.WordLlama.load(cache_dir=home, disable_download=True)
vectors = encoder.embed(texts, norm=True).astype(np.float32)
has_words = np.linalg.norm(vectors, axis=1) > 0.5
texts, vectors = np.array(texts)[has_words], vectors[has_words]

# %%
# About ten texts a cluster: near copies end up in the same one. Each cluster is gone through from the outside in, and
# a text is dropped if one before it is as similar as the threshold: of a group of copies, the least typical one
# stays.

model = ClosureKMeans(len(texts) // 10, metric="cosine", random_state=0).fit(vectors)
members, threshold = list_members(model.labels_, model.n_clusters), 0.9
nearest, copy_of = np.zeros(len(texts)), np.arange(len(texts))
for rows, center in zip(np.split(members.rows, members.starts[1:-1]), model.cluster_centers_, strict=True):
    rows = rows[np.argsort(vectors[rows] @ center)]  # the least typical first
    cosines = np.triu(vectors[rows] @ vectors[rows].T, k=1)  # with those before it
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
