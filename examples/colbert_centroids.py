"""
Centroids for late interaction (ColBERT, PLAID)
===============================================

A late-interaction retriever stores one vector per token. PLAID encodes each as its nearest centroid and a few bits of
residual, and reads only documents that share a centroid with the query. The number of centroids grows with the square
root of the number of tokens: tens of thousands for common collections. They are usually trained on a sample, because
exact k-means on all tokens is too slow. Here they are trained on all tokens.

The token vectors are synthetic: a random direction per topic, with noise. Replace them with your own L2-normalised
rows. Needs only ``pip install .``.
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
# ColBERTv2 uses 16 times the square root of the number of tokens, rounded down to a power of two.
# ``metric="cosine"`` is spherical k-means: centroids have length one, like the rows.

n_centroids = 2 ** int(np.log2(16 * np.sqrt(len(tokens))))
model = ClosureKMeans(n_centroids, metric="cosine", random_state=0).fit(tokens)
print(f"{len(tokens):,} tokens, {n_centroids:,} centroids, mean cosine {1 - model.inertia_ / len(tokens) / 2:.3f}")

# %%
# ``labels_`` already assigns all tokens. The residual (token minus centroid) is quantised to two bits per value, by
# quantiles.

residuals = tokens - model.cluster_centers_[model.labels_]
cuts = np.quantile(residuals, (0.25, 0.5, 0.75))
levels = np.quantile(residuals, (0.125, 0.375, 0.625, 0.875)).astype(np.float32)
codes = np.searchsorted(cuts, residuals).astype(np.uint8)
rebuilt = model.cluster_centers_[model.labels_] + levels[codes]
cosine = np.einsum("ij,ij->i", rebuilt, tokens) / np.linalg.norm(rebuilt, axis=1)
print(f"mean cosine of tokens and their codes: {cosine.mean():.3f}")

# %%
# The inverted file lists the tokens of each centroid. A query looks up the centroids nearest to its tokens and scores
# only the documents found there, by the sum of the best match of each query token (MaxSim).

members = list_members(model.labels_, n_centroids)
query = tokens[document == 7] + 0.1 * rng.normal(size=(n_tokens, 64)).astype(np.float32)
nearest = np.argsort(-query @ model.cluster_centers_.T, axis=1)[:, :4].ravel()
rows = np.concatenate([members.rows[members.starts[c] : members.starts[c + 1]] for c in np.unique(nearest)])
candidates = np.unique(document[rows])
scores = [(query @ rebuilt[document == number].T).max(axis=1).sum() for number in candidates]
print(f"{len(candidates)} of {n_documents} documents scored; the best is document {candidates[np.argmax(scores)]}")
