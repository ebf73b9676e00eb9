"""Small things to look at: clusters of drawn pictures, and an index of parts of two photos."""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from closure_kmeans import ClosureKMeans
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.metadata import Metadata
from closure_kmeans.explorer.pictures import array_pictures
from closure_kmeans.metrics import squared_distances
from closure_kmeans.retrieval import ImageIndex, collect, learn_vocabulary

COLORS = ["red", "green", "blue"]


def make_rows(n_items: int = 300, n_features: int = 6) -> np.ndarray:
    rng = np.random.default_rng(3)
    middles = rng.normal(0, 10, (12, n_features))
    return (middles[rng.integers(12, size=n_items)] + rng.normal(0, 1, (n_items, n_features))).astype(np.float32)


def make_metadata(n_items: int = 300) -> Metadata:
    import pyarrow

    table = {"title": [f"thing {i}" for i in range(n_items)], "color": [COLORS[i % 3] for i in range(n_items)]}
    return Metadata.of_table(pyarrow.table(table), "made up")


def make_pixels(n_items: int = 300) -> np.ndarray:
    rng = np.random.default_rng(4)
    return rng.integers(0, 256, (n_items, 20, 30, 3)).astype(np.uint8)


def make_catalog(*, pictures: bool = True, metadata: bool = True, n_clusters: int = 30) -> Catalog:
    X = make_rows()
    model = ClosureKMeans(n_clusters=n_clusters, random_state=0, n_threads=1).fit(X)
    return Catalog(
        model,
        X,
        labels=model.labels_,
        squares=squared_distances(X, model.cluster_centers_, model.labels_),
        pictures=array_pictures(make_pixels()) if pictures else None,
        metadata=make_metadata() if metadata else None,
    )


def write_photos(folder: Path) -> None:
    """Parts of the two photos that scikit-learn carries, each seen three times."""
    for scene, pixels in zip(("temple", "flower"), load_sample_images().images, strict=True):
        for part, (left, top) in enumerate([(0, 0), (320, 210)]):
            piece = Image.fromarray(pixels).crop((left, top, left + 300, top + 210))
            for turn in range(3):
                piece.rotate(12 * turn, expand=True).save(folder / f"{scene}{part}-{turn}.jpg")


def make_index(folder: Path) -> ImageIndex:
    collection = collect(folder)
    index = ImageIndex(learn_vocabulary(collection.descriptors, 400, random_state=0), collection.extraction)
    index.add(collection)
    return index
