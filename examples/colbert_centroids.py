"""
Centroids for late interaction, as ColBERT and PLAID have them
==============================================================

A late-interaction retriever has a vector for every token. PLAID stores each one as the number of its nearest centroid
and a few bits for the rest, and a query reads only the documents that share a centroid with it. The number of
centroids grows with the square root of the number of tokens. For an ordinary collection that is tens of thousands,
and they are trained on a sample, since exact k-means on all tokens takes too long. Closures train on all of them.

The token vectors here are made up: random directions, one for each topic, with noise. Put yours in their place: rows
of length one. ``pip install .`` is all it needs.
"""

# sphinx_gallery_thumbnail_path = 'images/method/leaf.png'
import numpy as np

from closure_kmeans import ClosureKMeans
from closure_kmeans.export import list_members

rng = np.random.default_rng(0)
n_documents, n_tokens = 2000, 30
topics = rng.normal(size=(400, 64))
topic = rng.integers(400, size=(n_documents, 3))[:, rng.integers(3, size=n_tokens)].ravel()
tokens = topics[topic] + 0.6 * rng.normal(size=(len(topic), 64))
tokens = (tokens / np.linalg.norm(tokens, axis=1, keepdims=True)).astype(np.float32)
document = np.repeat(np.arange(n_documents), n_tokens)

# %%
# ColBERTv2 takes 16 times the square root of the number of tokens, rounded down to a power of two.
# ``metric="cosine"`` is spherical k-means: centroids have length one, like the rows.

n_centroids = 2 ** int(np.log2(16 * np.sqrt(len(tokens))))
model = ClosureKMeans(n_centroids, metric="cosine", random_state=0).fit(tokens)
print(f"{len(tokens):,} tokens, {n_centroids:,} centroids, mean cosine {1 - model.inertia_ / len(tokens) / 2:.3f}")

# %%
# The labels come with the fit: no second pass has to assign the tokens. The residual, what is left of a token without
# its centroid, is coded by the quantile that each of its values falls into: two bits a value.

residuals = tokens - model.cluster_centers_[model.labels_]
cuts = np.quantile(residuals, (0.25, 0.5, 0.75))
levels = np.quantile(residuals, (0.125, 0.375, 0.625, 0.875)).astype(np.float32)
codes = np.searchsorted(cuts, residuals).astype(np.uint8)
rebuilt = model.cluster_centers_[model.labels_] + levels[codes]
cosine = np.einsum("ij,ij->i", rebuilt, tokens) / np.linalg.norm(rebuilt, axis=1)
print(f"cosine of a token and its code: {cosine.mean():.3f} on average")

# %%
# The inverted file: which documents have a token near each centroid. A query looks up the centroids nearest to its
# tokens and scores only the documents found there: the best match of each of its tokens, summed up.

members = list_members(model.labels_, n_centroids)
query = tokens[document == 7] + 0.1 * rng.normal(size=(n_tokens, 64)).astype(np.float32)
nearest = np.argsort(-query @ model.cluster_centers_.T, axis=1)[:, :4].ravel()
rows = np.concatenate([members.rows[members.starts[c] : members.starts[c + 1]] for c in np.unique(nearest)])
candidates = np.unique(document[rows])
scores = [(query @ rebuilt[document == number].T).max(axis=1).sum() for number in candidates]
print(f"{len(candidates)} of {n_documents} documents read; the best is document {candidates[np.argmax(scores)]}")
