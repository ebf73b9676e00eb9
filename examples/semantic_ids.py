"""
Give texts semantic ids
=======================

A semantic id is a short tuple of cluster numbers: what two items have in common shows in the prefix that their ids
share. Recommenders and generative retrieval (TIGER, Rajput et al. 2023) predict such ids number by number. Residual
k-means makes them: the first level clusters the embeddings, each further one what its centres leave. The items are the
docstrings of Python's standard library. Needs ``pip install '.[plot]' wordllama``, for now Python 3.13 at most.
"""

import ast
import sysconfig
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import wordllama

from closure_kmeans import CenterIndex, ResidualKMeans
from closure_kmeans.codes import as_text

library = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))
nodes = [node for file in library for node in ast.walk(ast.parse(file.read_bytes()))]
docstrings = [ast.get_docstring(node) for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
texts = sorted({" ".join(text.split("\n\n")[0].split()) for text in docstrings if text})
encoder = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
vectors = encoder.embed(texts, norm=True).astype(np.float32)
has_words = np.linalg.norm(vectors, axis=1) > 0.5
texts, vectors = np.array(texts)[has_words], vectors[has_words]

# %%
# Three levels of 64 clusters would tell 262,144 items apart; a fourth number tells apart those that share all three.

model = ResidualKMeans([64, 64, 64], metric="cosine", unique=True, random_state=0).fit(vectors)
codes = model.encode(vectors)
print(
    f"{len(texts):,} texts, {model.report(vectors).unique:.1%} as many ids of three numbers; with four all are unique"
)

# %%
# Items with the same first two numbers are about the same thing.

pairs, sizes = np.unique(codes[:, :2], axis=0, return_counts=True)
for pair in pairs[np.argsort(-sizes)][5:8]:
    rows = np.flatnonzero((codes[:, :2] == pair).all(axis=1))[:4]
    print("\n".join(f"{own:26} {texts[row][:70]}" for own, row in zip(as_text(codes[rows]), rows, strict=True)))

# %%
# How often does a text share a prefix with its nearest neighbour, and how often with any other text?

neighbours = CenterIndex(vectors).search(vectors, n_nearest=2)[0][:, 1]
strangers = np.random.default_rng(0).permutation(len(texts))
for name, others in (("its nearest neighbour", neighbours), ("any other", strangers)):
    shared = [(codes[:, :n] == codes[others, :n]).all(axis=1).mean() for n in (1, 2, 3)]
    plt.plot((1, 2, 3), shared, marker="o", label=f"with {name}")
    print(f"share a prefix with {name}:", np.round(shared, 3).tolist())
plt.xlabel("numbers in the prefix")
plt.legend()
plt.show()
