"""Image features: SIFT of regions, and GIST and HOG of whole pictures."""

try:
    import cv2  # noqa: F401
    import PIL  # noqa: F401
except ImportError as error:
    raise ImportError(
        "closure_kmeans.features needs OpenCV and Pillow: pip install 'closure-kmeans[images]'"
    ) from error

from closure_kmeans.features.extract import Skipped
from closure_kmeans.features.images import ImageError, list_images, load_image
from closure_kmeans.features.local import LocalFeatures, local_features, root_sift
from closure_kmeans.features.whole import ImageVectors, gist, hog

__all__ = [
    "ImageError",
    "ImageVectors",
    "LocalFeatures",
    "Skipped",
    "gist",
    "hog",
    "list_images",
    "load_image",
    "local_features",
    "root_sift",
]
