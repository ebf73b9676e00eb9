"""Parallel feature extraction: reading images, skipping unreadable ones, progress bar.

A thread reads a picture, computes its part and frees the picture, so at most one picture per thread is in memory. The
parts of a block of images are finished together. OpenCV is limited to one thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from closure_kmeans import validation
from closure_kmeans.features.images import ImageError, ImageLike, Picture, Sizes, list_images, name_of, read_picture
from closure_kmeans.parallel import BLOCKS_PER_THREAD, Threads, count_threads

Images: TypeAlias = str | os.PathLike[str] | Sequence[ImageLike] | NDArray[Any]
Part = TypeVar("Part")
Block = TypeVar("Block")

# Largest number of images that are finished together.
IMAGES_PER_BLOCK = 16


class Skipped(NamedTuple):
    """An image that could not be used, and why."""

    image: int  # its index among the images
    reason: str  # the error message: image, rule and value


class Options(NamedTuple):
    """Options that all features share."""

    max_pixels: int
    on_error: str
    n_threads: int | None
    verbose: int
    callback: Callable[[], Any] | None = None  # called after each image


def extract(
    images: Images,
    enough: Sizes,
    make_part: Callable[[Picture], Part],
    finish: Callable[[list[Part]], Block],
    options: Options,
) -> tuple[int, list[Block], list[Skipped]]:
    """Compute a part of each picture, and finish the parts of each block of images together.

    JPEG files may be decoded at a lower resolution, but not below ``enough``. Returns the number of images, the
    finished blocks in the order of the images, and the skipped images. The result does not depend on the number of
    threads.
    """
    validation.integer("max_pixels", options.max_pixels, 1)
    validation.choice("on_error", options.on_error, ("raise", "skip"))
    validation.integer("n_threads", options.n_threads, 1, optional=True)
    validation.verbose(options.verbose)
    sources = list_sources(images)
    moving = threading.Lock()

    def work(first: int, last: int) -> tuple[Block, list[Skipped]]:
        parts, skipped = [], []
        for index in range(first, last):
            image = sources[index]
            try:
                parts.append(make_part(read_picture(image, name_of(image, index), enough, options.max_pixels)))
            except ImageError as error:
                if options.on_error == "raise":
                    raise
                skipped.append(Skipped(index, str(error)))
            with moving:
                bar.update()
                if options.callback is not None:
                    options.callback()
        return finish(parts), skipped

    with (
        tqdm(total=len(sources), unit="image", disable=not options.verbose) as bar,
        _single_threaded_opencv,
        Threads(count_threads(options.n_threads)) as threads,
    ):
        # Images take long: small blocks, so that no thread waits for the last one.
        block = min(max(1, len(sources) // (4 * BLOCKS_PER_THREAD * threads.n_threads)), IMAGES_PER_BLOCK)
        done = threads.for_each_block(work, len(sources), block)
    return len(sources), [result for result, _ in done], [entry for _, skipped in done for entry in skipped]


def list_sources(images: Images) -> Sequence[ImageLike] | NDArray[Any]:
    """List the images: one path or array each."""
    if isinstance(images, str | os.PathLike):
        return list_images(images) if Path(images).is_dir() else [images]
    if isinstance(images, np.ndarray) and images.dtype.kind in "biufc" and images.ndim not in (3, 4):
        raise ValueError(
            "images given as one array must have shape (n, height, width) or (n, height, width, channels), "
            f"got {images.shape}; put a single image into a list"
        )
    if not (hasattr(images, "__len__") and hasattr(images, "__getitem__")) or isinstance(images, dict | bytes):
        raise TypeError(f"images must be a path, an array, or a sequence of them, got {type(images).__name__}")
    return images


class SingleThreadedOpenCV:
    """Limit of one OpenCV thread, for overlapping users: the first one sets it, and the last one lifts it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_users = 0
        self._n_threads = 1  # before the limit

    def __enter__(self) -> None:
        with self._lock:
            if self._n_users == 0:
                self._n_threads = cv2.getNumThreads()
                cv2.setNumThreads(1)
            self._n_users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_users -= 1
            if self._n_users == 0:
                cv2.setNumThreads(self._n_threads)


_single_threaded_opencv = SingleThreadedOpenCV()
