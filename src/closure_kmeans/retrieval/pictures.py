"""Pictures of results: a query with its results, and matched regions joined by lines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from closure_kmeans.features import ImageError, load_image
from closure_kmeans.files import replacing
from closure_kmeans.retrieval.evaluation import Box
from closure_kmeans.retrieval.index import ImageIndex, Query, Result
from closure_kmeans.retrieval.verification import Verification, align

# Pixels: longer side of a picture in a row, space between pictures, height of a line of text.
SIDE, GAP, TEXT = 200, 8, 16
PER_ROW = 6
# Pixels of the longer side of each picture in ``draw_matches``.
LARGE_SIDE = 600
# Largest number of lines between two pictures; more would hide the pictures.
MOST_LINES = 60
GREEN, RED, YELLOW = (0, 150, 0), (200, 0, 0), (255, 200, 0)
GREY, BLACK, WHITE = (150, 150, 150), (0, 0, 0), (255, 255, 255)


def draw_results(
    index: ImageIndex, query_path: str | os.PathLike[str], results: Sequence[Result], box: Box | None = None
) -> Image.Image:
    """Draw the query and its results in rows, with names and scores.

    Verified results have a green frame. An image that no longer exists is drawn as a blank tile that says so.

    Parameters
    ----------
    index : ImageIndex
        Index that was searched.
    query_path : str or PathLike
        Image file of the query.
    results : sequence of Result
        Results of the search.
    box : (x1, y1, x2, y2), optional
        Box of the query, which is drawn.

    Returns
    -------
    picture : PIL.Image.Image
        The sheet.

    See Also
    --------
    save_picture : Write it to a file.

    Examples
    --------
    >>> from closure_kmeans.datasets import load_sift
    >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
    >>> rows, where = load_sift()[:600], np.random.default_rng(0).uniform(1, 300, (600, 4))
    >>> photos = Collection(["a", "b", "c"], None, where, rows, [0, 200, 400, 600], [], Extraction())
    >>> index = ImageIndex(learn_vocabulary(rows, 100, random_state=0))
    >>> index.add(photos)
    >>> found = index.search(index.query_of(0), n_results=2)
    >>> draw_results(index, "a", found).mode
    'RGB'
    """
    tiles = [_tile(Path(query_path), Path(query_path).name, "query", RED, box)]
    for result in results:
        inliers = "" if result.inliers is None else f", {result.inliers} inliers"
        color = GREEN if result.verified else GREY
        tiles.append(_tile(index.path_of(result.image), result.name, f"{result.score:.3f}{inliers}", color))
    return draw_rows([join(tiles[first : first + PER_ROW]) for first in range(0, len(tiles), PER_ROW)])


def draw_rows(rows: Sequence[Image.Image]) -> Image.Image:
    """Stack pictures vertically.

    Parameters
    ----------
    rows : sequence of PIL.Image.Image
        Pictures from top to bottom, at least one.

    Returns
    -------
    picture : PIL.Image.Image
        As wide as the widest picture.

    See Also
    --------
    draw_results : Rows of results.

    Examples
    --------
    >>> from PIL import Image
    >>> draw_rows([Image.new("RGB", (30, 10)), Image.new("RGB", (20, 10))]).size
    (30, 20)
    """
    tops = accumulate((row.height for row in rows), initial=0)
    return _paste(rows, ((0, top) for top in tops))


def draw_matches(
    index: ImageIndex,
    query_path: str | os.PathLike[str],
    query: Query,
    result: Result,
    verification: Verification | None = None,
    box: Box | None = None,
) -> Image.Image:
    """Draw the query and a result side by side, with lines between their inlier regions.

    Of many regions, every n-th is drawn. A line of text names the result.

    Parameters
    ----------
    index : ImageIndex
        Index that was searched.
    query_path : str or PathLike
        Image file of the query.
    query : Query
        Query of the search.
    result : Result
        One of the results.
    verification : Verification, optional
        Settings of the spatial verification.
    box : (x1, y1, x2, y2), optional
        Box of the query, which is drawn.

    Returns
    -------
    picture : PIL.Image.Image
        The sheet.

    See Also
    --------
    draw_results : Overview of all results.

    Examples
    --------
    >>> from closure_kmeans.datasets import load_sift
    >>> from closure_kmeans.retrieval import Collection, Extraction, ImageIndex, learn_vocabulary
    >>> rows, where = load_sift()[:600], np.random.default_rng(0).uniform(1, 300, (600, 4))
    >>> photos = Collection(["a", "b", "c"], None, where, rows, [0, 200, 400, 600], [], Extraction())
    >>> index = ImageIndex(learn_vocabulary(rows, 100, random_state=0))
    >>> index.add(photos)
    >>> query = index.query_of(0)
    >>> [best] = index.search(query, n_results=1)
    >>> draw_matches(index, "a", query, best).mode
    'RGB'
    """
    other = index.places_of(result.image)
    alignment = align(query.places, other, verification or Verification())
    left, right = (_picture(path, LARGE_SIDE) for path in (Path(query_path), index.path_of(result.image)))
    pictures = join([left[0], right[0]])
    sheet = ImageOps.expand(pictures, (0, 0, 0, TEXT), WHITE)
    pen = ImageDraw.Draw(sheet)
    known = "" if result.inliers is None else ", verified" if result.verified else ", not verified"
    text = f"{result.name}: {len(alignment.pairs)} regions in place{known}"
    pen.text((left[0].width + GAP + 2, pictures.height + 2), text, fill=BLACK)
    if box is not None:
        _draw_box(pen, box, left[1], left[0].size)
    rng = np.random.default_rng(0)
    for here, there in alignment.pairs[:: max(1, -(-len(alignment.pairs) // MOST_LINES))]:
        color = tuple(int(part) for part in rng.integers(60, 256, 3))
        begin = query.places.keypoints[here, :2] * left[1]
        end = other.keypoints[there, :2] * right[1] + (left[0].width + GAP, 0)
        pen.line([*map(float, begin), *map(float, end)], fill=color, width=1)
        for x, y in (begin, end):
            pen.ellipse([x - 3, y - 3, x + 3, y + 3], outline=color)
    return sheet


def join(tiles: Sequence[Image.Image]) -> Image.Image:
    """Place pictures side by side."""
    lefts = accumulate((tile.width + GAP for tile in tiles), initial=0)
    return _paste(tiles, ((left, 0) for left in lefts))


def _paste(pictures: Sequence[Image.Image], corners: Iterable[tuple[int, int]]) -> Image.Image:
    """Paste pictures at their upper left corners into the smallest sheet that holds them."""
    placed = list(zip(pictures, corners, strict=False))
    width = max(left + picture.width for picture, (left, _) in placed)
    height = max(top + picture.height for picture, (_, top) in placed)
    sheet = Image.new("RGB", (width, height), WHITE)
    for picture, corner in placed:
        sheet.paste(picture, corner)
    return sheet


def save_picture(path: str | os.PathLike[str], picture: Image.Image) -> None:
    """Write a picture atomically.

    Parameters
    ----------
    path : str or PathLike
        File to write; its extension is the format.
    picture : PIL.Image.Image
        Picture to write.

    See Also
    --------
    draw_results : Picture of results.

    Examples
    --------
    >>> from PIL import Image
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save_picture(f"{folder}/row.png", Image.new("RGB", (30, 10)))
    ...     with Image.open(f"{folder}/row.png") as picture:
    ...         picture.size
    (30, 10)
    """
    with replacing(Path(path)) as beside:
        picture.save(beside)


def _picture(path: Path, side: int) -> tuple[Image.Image, float]:
    """Image with its longer side scaled to ``side``, and the ratio; a blank one if it cannot be read."""
    try:
        full = load_image(path)
    except ImageError:
        empty = Image.new("RGB", (side, side * 3 // 4), WHITE)
        pen = ImageDraw.Draw(empty)
        pen.rectangle([0, 0, empty.width - 1, empty.height - 1], outline=GREY)
        pen.text((6, empty.height // 2), f"{path.name[-24:]} is gone", fill=RED)
        return empty, 1.0
    ratio = side / max(full.shape)
    size = max(1, round(full.shape[1] * ratio)), max(1, round(full.shape[0] * ratio))
    return Image.fromarray(full).resize(size, Image.Resampling.LANCZOS).convert("RGB"), ratio


def _tile(path: Path, name: str, text: str, color: tuple[int, int, int], box: Box | None = None) -> Image.Image:
    """Small framed picture with its name and a text below."""
    picture, ratio = _picture(path, SIDE)
    tile = Image.new("RGB", (SIDE, picture.height + 2 * TEXT + GAP), WHITE)
    tile.paste(picture, (0, 0))
    pen = ImageDraw.Draw(tile)
    pen.rectangle([0, 0, picture.width - 1, picture.height - 1], outline=color, width=2)
    if box is not None:
        _draw_box(pen, box, ratio, picture.size)
    pen.multiline_text((2, picture.height + 2), f"{shorten(name, SIDE - 4)}\n{text}", fill=BLACK)
    return tile


def _draw_box(pen: ImageDraw.ImageDraw, box: Box, ratio: float, size: tuple[int, int]) -> None:
    """Draw a box, scaled by a ratio and clipped to a size."""
    x, y = (np.clip(np.array(box)[t::2] * ratio, 0, size[t] - 1) for t in (0, 1))
    pen.rectangle([x[0], y[0], x[1], y[1]], outline=YELLOW, width=2)


def shorten(name: str, width: int) -> str:
    """Truncate a name at its beginning to a width in pixels.

    >>> shorten("holiday/IMG_0001.jpg", 200)
    'holiday/IMG_0001.jpg'
    >>> shorten("a/long/way/from/here/to/holiday/IMG_0001.jpg", 200).endswith("holiday/IMG_0001.jpg")
    True
    """
    font = ImageFont.load_default()
    if font.getlength(name) <= width:
        return name
    start = next(first for first in range(len(name) + 1) if font.getlength(f"...{name[first:]}") <= width)
    return f"...{name[start:]}"
