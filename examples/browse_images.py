"""
Browse a collection of images
=============================

An overview of a collection on one page: a vector per image, clusters of similar images, and clusters of clusters. The
images are scikit-learn's handwritten digits. For a folder of photos, use ``hog("photos")``, ``gist("photos")`` or the
vectors of your own encoder.

Needs ``pip install '.[images,plot]'``. In a browser: ``closure-kmeans explore MODEL --vectors FILE --images FOLDER``.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from closure_kmeans import ClosureKMeans
from closure_kmeans.export import list_members
from closure_kmeans.features import hog

digits = load_digits()
pictures = digits.images / 16  # float pixels must be between 0 and 1
X = hog(pictures).vectors
print(X.shape)

# %%
# A hundred clusters of about eighteen images, and ten topics (clusters of clusters). ``medoids`` are the images nearest
# to the centres.

model = ClosureKMeans(n_clusters=100, random_state=0).fit(X)
(topics,) = model.hierarchy([10])
medoids = model.medoids(X, labels=model.labels_)
members = list_members(model.labels_, 100)


def show(rows, title):
    """Draw rows of images."""
    figure, axes = plt.subplots(len(rows), len(rows[0]), figsize=(8, 0.62 * len(rows)), layout="constrained")
    for ax, number in zip(axes.flat, np.ravel(rows), strict=True):
        ax.imshow(pictures[number], cmap="gray_r") if number >= 0 else None
        ax.set_axis_off()
    figure.suptitle(title, fontsize=10)
    plt.show()


# %%
# The overview: one row per topic, with the medoids of its largest clusters.

by_size = np.argsort(-model.cluster_sizes_)
in_topic = [by_size[topics.parents[by_size] == topic] for topic in range(10)]
rows = [np.append(medoids[clusters], np.full(12, -1))[:12] for clusters in in_topic]
show(rows, "ten topics and their clusters")

# %%
# The six largest clusters, with images sorted by their distance to the centre; outliers are on the right.

distances = model.squared_distances(X, model.labels_)
rows = [members.rows[members.starts[c] : members.starts[c + 1]] for c in by_size[:6]]
rows = [r[np.argsort(distances[r])][np.linspace(0, len(r) - 1, 12).astype(int)] for r in rows]
show(rows, "six clusters, outliers on the right")
