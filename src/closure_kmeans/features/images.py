"""Image loading: from a file or an array to an upright picture in 8-bit grey.

Files are decoded by Pillow, which reports the size before it decodes, and detects truncated files. Arrays follow the
same rules. Every error is an `ImageError` that names the image.
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
# Map the width and height of a picture to the smallest acceptable ones.
Sizes: TypeAlias = Callable[[int, int], tuple[int, int]]

# Default limit on the pixels of a file: about twice the resolution of good cameras.
MAX_PIXELS = 1 << 26
# Formats that Pillow may decode. Its other decoders are rarely used and enlarge the attack surface.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM")
EXTENSIONS = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".webp")
# The EXIF orientations that swap width and height.
TURNED = (5, 6, 7, 8)


class ImageError(ValueError):
    """An image cannot be used. The message states the image, the rule and the value.

    See Also
    --------
    load_image : Raises it.
    local_features : Skips such images with ``on_error="skip"``.

    Examples
    --------
    >>> try:
    ...     load_image("missing.jpg")
    ... except ImageError as error:
    ...     print(error)
    'missing.jpg' must be a file, but there is none
    """


class Picture(NamedTuple):
    """Pixels, and the size of the picture before it was shrunk."""

    pixels: NDArray[np.uint8]  # (height, width), grey
    full_size: tuple[int, int]  # width and height


def load_image(image: ImageLike, *, max_side: int | None = None, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Load an image as upright 8-bit grey, the input of all features.

    Parameters
    ----------
    image : path or ndarray
        A JPEG, PNG, WebP, BMP or PPM file; or an array of shape (height, width) or (height, width, channels) with 1, 3
        (RGB) or 4 (RGBA) channels, of dtype uint8, uint16 or float; floats range from 0 to 1.
    max_side : int, optional
        Shrink the picture so that its longer side has at most this many pixels.
    max_pixels : int, default=67108864
        Reject files with more pixels before decoding. Above 89 million, Pillow's own limit applies,
        ``PIL.Image.MAX_IMAGE_PIXELS``.

    Returns
    -------
    pixels : (height, width) array of uint8
        The grey values.

    Raises
    ------
    ImageError
        If the file is missing, damaged, truncated, too large or not an image, or the array is not one.

    See Also
    --------
    list_images : Image files in a folder.
    local_features : Features of image regions.

    Notes
    -----
    Colours are converted by Rec. 601 luma; for JPEG, the stored luma is used. Transparent pixels are blended with
    white. 16-bit values are rounded to 8 bits, except that Pillow truncates 16-bit colour files. EXIF orientation is
    applied. Only the first picture of a file is read.

    Examples
    --------
    >>> import numpy as np
    >>> load_image(np.linspace(0, 1, 6).reshape(2, 3))
    array([[  0,  51, 102],
           [153, 204, 255]], dtype=uint8)
    """
    if max_side is not None:
        validation.integer("max_side", max_side, 1)
    validation.integer("max_pixels", max_pixels, 1)
    picture = read_picture(image, name_of(image, None), at_most(max_side), max_pixels)
    return resize(picture.pixels, at_most(max_side)(*picture.full_size))


def list_images(folder: str | os.PathLike[str], *, extensions: Sequence[str] = EXTENSIONS) -> list[Path]:
    """List the image files in a folder, recursively and sorted.

    Parameters
    ----------
    folder : str or PathLike
        Folder to search.
    extensions : sequence of str, optional
        Extensions of the files, in any case; by default those of the formats that ``load_image`` reads.

    Returns
    -------
    paths : list of Path
        Files with one of the extensions.

    Raises
    ------
    NotADirectoryError
        If ``folder`` is not a folder.

    See Also
    --------
    load_image : Load one of the files.

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


def name_of(image: object, index: int | None) -> str:
    """Name of an image in messages."""
    if isinstance(image, str | os.PathLike):
        return f"'{os.fspath(image)}'"
    return "image" if index is None else f"image {index}"


def at_most(max_side: int | None) -> Sizes:
    """Function that limits the longer side of a size."""

    def shrink(width: int, height: int) -> tuple[int, int]:
        ratio = 1.0 if max_side is None else min(1.0, max_side / max(width, height))
        return max(1, round(width * ratio)), max(1, round(height * ratio))

    return shrink


def read_picture(image: ImageLike, name: str, enough: Sizes, max_pixels: int) -> Picture:
    """Read the picture of a file or an array. A JPEG may be decoded smaller, but not below ``enough``."""
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
    """Decode a file: upright values and full size. JPEG is decoded in grey (``mode="L"``) or colour (``"RGB"``)."""
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
    except Exception as error:  # damaged files raise errors of many types
        raise ImageError(f"{name} must be a whole and valid image: {str(error) or type(error).__name__}") from error
    return values, (height, width) if turned else (width, height)


def to_array(image: Image.Image, name: str) -> NDArray[Any]:
    """Values of a decoded image, as an array that `to_grey` accepts."""
    if image.mode == "F":
        raise ImageError(f"{name} must hold 8 or 16 bits a value, got floats")
    if image.mode.startswith("I"):  # 16 bits, stored in 16 or 32
        return np.asarray(image).clip(0, 65535).astype(np.uint16)
    if image.has_transparency_data:
        return np.asarray(image.convert("RGBA"))
    return np.asarray(image if image.mode == "L" else image.convert("RGB"))


def to_grey(values: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Convert an array to 8-bit grey."""
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
    """Convert values to uint8, mapping the full range of their dtype to 0-255."""
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
    """Resize a picture: area averaging to shrink, linear interpolation to enlarge."""
    height, width = pixels.shape
    if size == (width, height):
        return pixels
    smaller = size[0] < width or size[1] < height
    resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR)
    return np.asarray(resized, np.uint8)
