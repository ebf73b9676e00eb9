"""Data of the tests of retrieval: photos, ground truth, parts of collections, index files with changes."""

import cv2
import numpy as np

from closure_kmeans.tensors import read_tensors, write_tensors

N_OBJECTS, SIDE = 6, 160


def view(texture, number):
    """A photo of a textured object: turned, scaled, brighter."""
    turn = cv2.getRotationMatrix2D((SIDE / 2, SIDE / 2), 13 * number, 1 + 0.08 * number)
    return cv2.warpAffine(texture, turn, (SIDE, SIDE), borderMode=cv2.BORDER_REFLECT)


def write_ground_truth(folder, query="oxc1_image000 10 20.5 100 110", good="image001\n", ok="image002\n", junk=""):
    folder.mkdir(exist_ok=True)
    for kind, text in (("query", query), ("good", good), ("ok", ok), ("junk", junk)):
        (folder / f"object_1_{kind}.txt").write_text(text)
    return folder


def parts(collection, begin, end):
    rows = slice(collection.offsets[begin], collection.offsets[end])
    return collection._replace(
        names=collection.names[begin:end],
        keypoints=collection.keypoints[rows],
        descriptors=collection.descriptors[rows],
        offsets=collection.offsets[begin : end + 1] - collection.offsets[begin],
    )


def rewritten(path, change):
    """An index with some of its arrays or facts changed."""
    arrays, facts = read_tensors(path, "image index")
    arrays = {name: np.array(array) for name, array in arrays.items()}
    facts = {name: value for name, value in facts.items() if name not in ("kind", "format")}
    change(arrays, facts)
    write_tensors(path, "image index", arrays, facts)


def put(name, value):
    return lambda arrays, facts: arrays.update({name: value(arrays[name])})
