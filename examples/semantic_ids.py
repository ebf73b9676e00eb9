"""
Give texts semantic ids
=======================

A semantic id is a short tuple of cluster numbers; similar items share a prefix of their ids. Recommenders and
generative retrieval (TIGER, Rajput et al. 2023) predict such ids number by number. Residual k-means computes them: the
first level clusters the embeddings, each further one the residuals (embeddings minus centres). The items are the
docstrings of Python's standard library. Needs ``pip install '.[plot]' wordllama``, and Python 3.13 or earlier.
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
# Three levels of 64 clusters give 262,144 possible ids; a fourth distinguishes items with the same three numbers.

model = ResidualKMeans([64, 64, 64], metric="cosine", unique=True, random_state=0).fit(vectors)
codes = model.encode(vectors)
print(f"{len(texts):,} texts; distinct ids per text: {model.report(vectors).unique:.1%} by three numbers, 100% by four")

# %%
# Items with the same first two numbers are about the same topic.

pairs, sizes = np.unique(codes[:, :2], axis=0, return_counts=True)
for pair in pairs[np.argsort(-sizes)][5:8]:
    rows = np.flatnonzero((codes[:, :2] == pair).all(axis=1))[:4]
    print("\n".join(f"{own:26} {texts[row][:70]}" for own, row in zip(as_text(codes[rows]), rows, strict=True)))

# %%
# How often a text shares a prefix with its nearest neighbour, and with a random text.

neighbours = CenterIndex(vectors).search(vectors, n_nearest=2)[0][:, 1]
strangers = np.random.default_rng(0).permutation(len(texts))
for name, others in (("its nearest neighbour", neighbours), ("a random text", strangers)):
    shared = [(codes[:, :n] == codes[others, :n]).all(axis=1).mean() for n in (1, 2, 3)]
    plt.plot((1, 2, 3), shared, marker="o", label=f"with {name}")
    print(f"share a prefix with {name}:", np.round(shared, 3).tolist())
plt.xlabel("numbers in the prefix")
plt.legend()
plt.show()
