"""One budget of pixels for all requests: memory does not grow with the number of images that are asked for at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Pixels that are decoded at a time: as many as one file may have.
MOST_PIXELS = 1 << 26


class PixelBudget:
    """Pixels that may be in memory together. A request whose pixels do not fit waits for those before it.

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
        self._first_in_line = threading.Lock()  # small pictures must not pass a large one for ever
        self._returned = threading.Condition()

    @contextmanager
    def hold(self, n_pixels: int) -> Iterator[None]:
        """Wait until so many pixels are free, and hold them inside the block."""
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

    @contextmanager
    def decoding(self, path: Path, max_side: int | None) -> Iterator[None]:
        """Hold the pixels of an image file inside the block, where it is decoded for a side of so many pixels."""
        with self.hold(_count_pixels(path, max_side)):
            yield


BUDGET = PixelBudget(MOST_PIXELS)


def _count_pixels(path: Path, max_side: int | None) -> int:
    """The pixels that are in memory while a file is decoded; 0 for a file that ``decode`` refuses."""
    from PIL import Image

    from closure_kmeans.features.images import FORMATS, MAX_PIXELS, at_most

    try:
        with Image.open(path, formats=FORMATS) as image:
            n_pixels = image.width * image.height
            image.draft("RGB", at_most(max_side)(*image.size))
            # The decoder holds all coefficients of a progressive JPEG, however small the result.
            n_decoded = n_pixels if "progressive" in image.info else image.width * image.height
    except Exception:  # damaged files raise whatever the decoder stumbled over
        return 0
    return n_decoded if n_pixels <= MAX_PIXELS else 0
