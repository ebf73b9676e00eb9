"""
Browse a collection of images
=============================

What is in a collection, on one page: a vector for every picture, clusters of pictures that are alike, and clusters of
clusters to find your way. The pictures here are scikit-learn's handwritten digits. For a folder of photos, take
``hog("photos")`` or ``gist("photos")``, or the vectors of an encoder of your own.

Needs ``pip install '.[images,plot]'``. In a browser: ``closure-kmeans explore MODEL --vectors FILE --images FOLDER``.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from closure_kmeans import ClosureKMeans
from closure_kmeans.export import list_members
from closure_kmeans.features import hog

digits = load_digits()
pictures = digits.images / 16  # pixels given as floats must be between 0 and 1
X = hog(pictures).vectors
print(X.shape)

# %%
# A hundred groups of about eighteen pictures, and ten groups of groups. ``medoids`` are the pictures that stand for
# them.

model = ClosureKMeans(n_clusters=100, random_state=0).fit(X)
(topics,) = model.hierarchy([10])
medoids = model.medoids(X, labels=model.labels_)
members = list_members(model.labels_, 100)


def show(rows, title):
    """Rows of pictures."""
    figure, axes = plt.subplots(len(rows), len(rows[0]), figsize=(8, 0.62 * len(rows)), layout="constrained")
    for ax, number in zip(axes.flat, np.ravel(rows), strict=True):
        ax.imshow(pictures[number], cmap="gray_r") if number >= 0 else None
        ax.set_axis_off()
    figure.suptitle(title, fontsize=10)
    plt.show()


# %%
# The overview: a row for each of the ten topics, and in it the largest clusters by the picture that stands for each.

by_size = np.argsort(-model.cluster_sizes_)
in_topic = [by_size[topics.parents[by_size] == topic] for topic in range(10)]
rows = [np.append(medoids[clusters], np.full(12, -1))[:12] for clusters in in_topic]
show(rows, "ten topics, and the clusters in them")

# %%
# A closer look: the six largest clusters. The farther to the right, the farther from the centre, and the odder.

distances = model.squared_distances(X, model.labels_)
rows = [members.rows[members.starts[c] : members.starts[c + 1]] for c in by_size[:6]]
rows = [r[np.argsort(distances[r])][np.linspace(0, len(r) - 1, 12).astype(int)] for r in rows]
show(rows, "six clusters, odd ones to the right")
