"""Photos of drawn objects, and the stages of a retrieval of them: made once, read by all tests."""

import cv2
import numpy as np
import pytest
from PIL import Image
from retrieval_data import N_OBJECTS, SIDE, view

from closure_kmeans.retrieval import ImageIndex, collect, learn_vocabulary


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Four photos each of some objects, named like UKBench."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(N_OBJECTS):
        texture = cv2.GaussianBlur(rng.integers(0, 256, (SIDE, SIDE), np.uint8), (0, 0), 2.5)
        texture = cv2.normalize(texture, None, 0, 255, cv2.NORM_MINMAX)
        for turn in range(4):
            Image.fromarray(view(texture, turn)).save(folder / f"image{4 * number + turn:03}.png")
    return folder


@pytest.fixture(scope="session")
def collection(photos):
    return collect(photos)


@pytest.fixture(scope="session")
def vocabulary(collection):
    return learn_vocabulary(collection.descriptors, 400, random_state=0)


@pytest.fixture
def index(collection, vocabulary):
    made = ImageIndex(vocabulary)
    made.add(collection)
    return made
