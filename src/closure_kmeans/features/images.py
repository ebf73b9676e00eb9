"""From a file or an array to a picture: grey, one byte a pixel, upright.

Files are decoded by Pillow, which tells the size before it decodes anything and notices when a file ends too early.
Arrays go through the same rules. Whatever is wrong with an image is an `ImageError` that names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from closure_kmeans import validation

ImageLike: TypeAlias = str | os.PathLike[str] | NDArray[Any]
# From the width and height of a picture to the least ones that will do.
Sizes: TypeAlias = Callable[[int, int], tuple[int, int]]

# Pixels that a file may hold unless told otherwise: twice what good cameras take.
MAX_PIXELS = 1 << 26
# What Pillow may decode: its other decoders are little used, and each is one more to attack.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM")
EXTENSIONS = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".webp")
# The EXIF orientations that swap width and height.
TURNED = (5, 6, 7, 8)


class ImageError(ValueError):
    """An image that cannot be used. The message names it, the rule and the value."""


class Picture(NamedTuple):
    """Pixels, and how large the picture was before it was shrunk."""

    pixels: NDArray[np.uint8]  # (height, width), grey
    full_size: tuple[int, int]  # width and height


def load_image(image: ImageLike, *, max_side: int | None = None, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Load an image as all features see it: grey, one byte a pixel, upright.

    Parameters
    ----------
    image : path or ndarray
        A JPEG, PNG, WebP, BMP or PPM file; or an array of shape (height, width) or (height, width, channels) with 1, 3
        (RGB) or 4 (RGBA) channels, of dtype uint8, uint16 or float, the latter from 0 to 1.
    max_side : int, optional
        Shrink the picture so that its longer side has at most this many pixels.
    max_pixels : int, default=67108864
        Refuse a file that holds more pixels, before decoding it. Beyond 89 million Pillow has a limit of its own,
        ``PIL.Image.MAX_IMAGE_PIXELS``.

    Returns
    -------
    pixels : ndarray of shape (height, width), dtype uint8

    Raises
    ------
    ImageError
        If the file is missing, damaged, cut short, too large or not an image, or the array is not one.

    Notes
    -----
    Colours become grey by the luma of Rec. 601; of a JPEG it is taken as stored. What is transparent lies on white.
    16 bits are rounded to 8, but cut by Pillow in files of colours. A photo is turned upright as its EXIF orientation
    says. Of several pictures in a file the first is taken.

    Examples
    --------
    >>> import numpy as np
    >>> load_image(np.linspace(0, 1, 6).reshape(2, 3))
    array([[  0,  51, 102],
           [153, 204, 255]], dtype=uint8)
    """
    check_limits(max_side, max_pixels)
    picture = read_picture(image, name_of(image, None), at_most(max_side), max_pixels)
    return resize(picture.pixels, at_most(max_side)(*picture.full_size))


def list_images(folder: str | os.PathLike[str], *, extensions: Sequence[str] = EXTENSIONS) -> list[Path]:
    """List the image files in a folder and the folders below it, sorted.

    Parameters
    ----------
    folder : path
    extensions : sequence of str
        The endings of the names to list, in upper or lower case.

    Returns
    -------
    paths : list of Path

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for name in ("b.jpg", "a.png", "notes.txt"):
    ...         Path(folder, name).touch()
    ...     [path.name for path in list_images(folder)]
    ['a.png', 'b.jpg']
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise NotADirectoryError(f"folder must be a folder, got '{folder}'")
    endings = {extension.lower() for extension in extensions}
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in endings and path.is_file())


def check_limits(max_side: int | None, max_pixels: int) -> None:
    """The two limits on the size of a picture."""
    if max_side is not None:
        validation.integer("max_side", max_side, 1)
    validation.integer("max_pixels", max_pixels, 1)


def name_of(image: object, index: int | None) -> str:
    """What to call an image in a message."""
    if isinstance(image, str | os.PathLike):
        return f"'{os.fspath(image)}'"
    return "image" if index is None else f"image {index}"


def at_most(max_side: int | None) -> Sizes:
    """Sizes whose longer side has at most so many pixels."""

    def shrink(width: int, height: int) -> tuple[int, int]:
        ratio = 1.0 if max_side is None else min(1.0, max_side / max(width, height))
        return max(1, round(width * ratio)), max(1, round(height * ratio))

    return shrink


def read_picture(image: ImageLike, name: str, enough: Sizes, max_pixels: int) -> Picture:
    """The picture of a file or an array. That of a JPEG may come smaller, but no smaller than is ``enough``."""
    if isinstance(image, np.ndarray):
        values, full_size = image, image.shape[1::-1]
    elif isinstance(image, str | os.PathLike):
        values, full_size = decode(Path(image), name, enough, max_pixels)
    else:
        raise TypeError(f"{name} must be a path or an array, got {type(image).__name__}")
    return Picture(to_grey(values, name), full_size)


def decode(
    path: Path, name: str, enough: Sizes, max_pixels: int, mode: str = "L"
) -> tuple[NDArray[Any], tuple[int, int]]:
    """The values of a file, upright, and its full size; those of a JPEG in grey (``mode="L"``) or in colour (RGB)."""
    if not path.is_file():
        raise ImageError(f"{name} must be a file, but there is {'something else' if path.exists() else 'none'}")
    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise ImageError(f"{name} must have at most max_pixels={max_pixels} pixels, got {width} x {height}")
            image.draft(mode, enough(width, height))  # JPEG only: decodes at 1/2, 1/4 or 1/8
            image.load()
            turned = image.getexif().get(ExifTags.Base.Orientation) in TURNED
            ImageOps.exif_transpose(image, in_place=True)
            values = to_array(image, name)
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"{name} must have at most PIL.Image.MAX_IMAGE_PIXELS pixels: {error}") from error
    except UnidentifiedImageError as error:
        found = f"{path.stat().st_size} bytes of something else"
        raise ImageError(f"{name} must be an image in one of {', '.join(FORMATS)}, got {found}") from error
    except Exception as error:  # damaged files raise whatever the decoder stumbled over
        raise ImageError(f"{name} must be a whole and valid image: {str(error) or type(error).__name__}") from error
    return values, (height, width) if turned else (width, height)


def to_array(image: Image.Image, name: str) -> NDArray[Any]:
    """The values of a decoded file as one of the arrays that `to_grey` takes."""
    if image.mode == "F":
        raise ImageError(f"{name} must hold 8 or 16 bits a value, got floats")
    if image.mode.startswith("I"):  # 16 bits, be it that Pillow spends 32 on them
        return np.asarray(image).clip(0, 65535).astype(np.uint16)
    if image.has_transparency_data:
        return np.asarray(image.convert("RGBA"))
    return np.asarray(image if image.mode == "L" else image.convert("RGB"))


def to_grey(values: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """An array as grey bytes."""
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in (1, 3, 4)):
        raise ImageError(
            f"{name} must have shape (height, width), or (height, width, channels) with 1, 3 or 4 channels, "
            f"got {values.shape}"
        )
    if values.size == 0:
        raise ImageError(f"{name} must have at least one pixel, got shape {values.shape}")
    pixels = np.ascontiguousarray(to_bytes(values, name))
    if pixels.ndim == 2:
        return pixels
    if pixels.shape[2] == 1:
        return pixels[:, :, 0]
    grey = np.asarray(cv2.cvtColor(pixels[:, :, :3], cv2.COLOR_RGB2GRAY), np.uint8)
    if pixels.shape[2] == 4:
        opacity = pixels[:, :, 3] / np.float32(255)
        grey = np.rint(255 - (255 - grey) * opacity).astype(np.uint8)
    return grey


def to_bytes(values: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Values of any dtype that images have, the full range of it becoming 0 to 255."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.uint16:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if values.dtype.kind != "f":
        raise ImageError(f"{name} must be of dtype uint8, uint16 or float, got {values.dtype}")
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 1):  # NaN too
        raise ImageError(f"{name} of dtype {values.dtype} must hold values from 0 to 1, got {low:.6g} to {high:.6g}")
    pixels: NDArray[np.uint8] = np.rint(values * 255).astype(np.uint8)
    return pixels


def resize(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The picture in another width and height: means of the pixels when it shrinks, linear when it grows."""
    height, width = pixels.shape
    if size == (width, height):
        return pixels
    smaller = size[0] < width or size[1] < height
    resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR)
    return np.asarray(resized, np.uint8)
