"""Limit on decoded pixels, shared by all requests: bounds memory when many images are requested at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

# Limit on decoded pixels: the largest number of pixels of one file.
MOST_PIXELS = 1 << 26


class PixelBudget:
    """Semaphore that counts pixels. A request waits until its pixels fit, and later requests wait behind it.

    Examples
    --------
    >>> budget = PixelBudget(100)
    >>> with budget.hold(60), budget.hold(40):
    ...     pass
    >>> with budget.hold(101):
    ...     pass
    Traceback (most recent call last):
    ...
    ValueError: a picture must have at most 100 pixels, got 101
    """

    def __init__(self, most: int) -> None:
        self._most = self._free = most
        self._first_in_line = threading.Lock()  # so that small pictures do not starve a large one
        self._returned = threading.Condition()

    @contextmanager
    def hold(self, n_pixels: int) -> Iterator[None]:
        """Wait until this many pixels are free, and hold them inside the block."""
        if n_pixels > self._most:
            raise ValueError(f"a picture must have at most {self._most} pixels, got {n_pixels}")
        with self._first_in_line, self._returned:
            self._returned.wait_for(lambda: self._free >= n_pixels)
            self._free -= n_pixels
        try:
            yield
        finally:
            with self._returned:
                self._free += n_pixels
                self._returned.notify()

    def decoding(self, path: Path, max_side: int | None) -> AbstractContextManager[None]:
        """Hold the pixels of decoding an image file for a longer side of ``max_side``."""
        return self.hold(_count_pixels(path, max_side))


BUDGET = PixelBudget(MOST_PIXELS)


def _count_pixels(path: Path, max_side: int | None) -> int:
    """Pixels in memory while a file is decoded; 0 for a file that ``decode`` rejects."""
    from PIL import Image

    from closure_kmeans.features.images import FORMATS, MAX_PIXELS, at_most

    try:
        with Image.open(path, formats=FORMATS) as image:
            n_pixels = image.width * image.height
            image.draft("RGB", at_most(max_side)(*image.size))
            # For a progressive JPEG, the decoder holds all coefficients at any scale.
            n_decoded = n_pixels if "progressive" in image.info else image.width * image.height
    except Exception:  # damaged files raise errors of many types
        return 0
    return n_decoded if n_pixels <= MAX_PIXELS else 0
