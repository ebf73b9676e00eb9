"""Files and arrays as pictures: what is read, what is refused, and that nothing else can happen."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers
from PIL import Image

from closure_kmeans.features import ImageError, load_image
from closure_kmeans.features.images import at_most, read_picture

RNG = np.random.default_rng(0)
COLORS = cv2.GaussianBlur(RNG.integers(0, 256, (48, 64, 4), np.uint8), (0, 0), 2)
GREY = COLORS[:, :, 0].copy()
LOSSLESS = ["PNG", "BMP", "PPM", "WEBP"]


def encoded(values, kind, **options):
    file = io.BytesIO()
    Image.fromarray(values).save(file, kind, **{"lossless": True} | options if kind == "WEBP" else options)
    return file.getvalue()


FILES = {
    "jpeg": encoded(COLORS[:, :, :3], "JPEG", quality=90),
    "grey.jpeg": encoded(GREY, "JPEG"),
    "progressive.jpeg": encoded(COLORS[:, :, :3], "JPEG", progressive=True),
    "exif.jpeg": encoded(GREY, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"),
    "png": encoded(COLORS, "PNG"),
    "grey.png": encoded(GREY, "PNG"),
    "16.png": encoded(GREY.astype(np.uint16) * 257, "PNG"),
    "webp": encoded(COLORS, "WEBP"),
    "lossy.webp": encoded(COLORS[:, :, :3], "WEBP", lossless=False),
    "bmp": encoded(COLORS[:, :, :3], "BMP"),
    "ppm": encoded(COLORS[:, :, :3], "PPM"),
}


def write(path, content):
    path.write_bytes(content)
    return path


def luma(colors):
    return np.rint(colors[..., :3] @ np.array([0.299, 0.587, 0.114]))


# -- arrays ----------------------------------------------------------------------------------------------------------


def test_grey_arrays():
    assert np.array_equal(load_image(GREY), GREY)
    assert np.array_equal(load_image(GREY[:, :, np.newaxis]), GREY)
    assert np.array_equal(load_image(GREY[::2, ::-3]), GREY[::2, ::-3])
    assert np.array_equal(load_image(GREY.astype(np.uint16) * 257), GREY)
    for dtype in (np.float16, np.float32, np.float64):
        assert np.array_equal(load_image(GREY.astype(dtype) / 255), GREY)
    assert load_image(np.array([[0, 128, 129, 65535]], np.uint16)).tolist() == [[0, 0, 1, 255]]


def test_colors():
    np.testing.assert_allclose(load_image(COLORS[:, :, :3]), luma(COLORS), atol=1)
    np.testing.assert_allclose(load_image(COLORS[:, :, :3].astype(np.uint16) * 257), luma(COLORS), atol=1)
    assert load_image(np.array([[[255, 0, 0], [0, 0, 255]]], np.uint8)).tolist() == [[76, 29]]  # RGB, not BGR


def test_what_is_transparent_lies_on_white():
    opacity = COLORS[:, :, 3:] / 255
    expected = luma(opacity * COLORS[:, :, :3] + (1 - opacity) * 255)
    np.testing.assert_allclose(load_image(COLORS), expected, atol=1.01)
    assert load_image(np.zeros((2, 2, 4), np.uint8)).tolist() == [[255, 255], [255, 255]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(5, np.uint8), r"image must have shape \(height, width\), or .* got \(5,\)"),
        (np.zeros((5, 5, 2), np.uint8), r"with 1, 3 or 4 channels, got \(5, 5, 2\)"),
        (np.zeros((2, 5, 5, 3), np.uint8), r"got \(2, 5, 5, 3\)"),
        (np.zeros((0, 5), np.uint8), r"image must have at least one pixel, got shape \(0, 5\)"),
        (np.zeros((5, 5), np.int64), "image must be of dtype uint8, uint16 or float, got int64"),
        (np.zeros((5, 5), bool), "got bool"),
        (np.array([[None]]), "got object"),
        (np.array([[0.0, 255.0]]), "image of dtype float64 must hold values from 0 to 1, got 0 to 255"),
        (np.array([[-0.5, 1]], np.float32), "got -0.5 to 1"),
        (np.array([[0.0, np.nan]]), "got nan to nan"),
        (np.array([[0.0, np.inf]]), "got 0 to inf"),
    ],
)
def test_arrays_that_are_no_images(values, message):
    with pytest.raises(ImageError, match=message):
        load_image(values)


def test_max_side():
    assert load_image(GREY, max_side=32).shape == (24, 32)
    assert load_image(GREY.T, max_side=32).shape == (32, 24)
    assert np.array_equal(load_image(GREY, max_side=64), GREY)
    assert load_image(GREY[:1], max_side=10).shape == (1, 10)
    np.testing.assert_allclose(load_image(GREY, max_side=32), GREY.reshape(24, 2, 32, 2).mean(axis=(1, 3)), atol=1)
    noise = RNG.integers(0, 256, (48, 64), np.uint8)
    np.testing.assert_allclose(load_image(noise, max_side=16), noise.reshape(12, 4, 16, 4).mean(axis=(1, 3)), atol=1)
    for options in ({"max_side": 0}, {"max_pixels": 0}):
        with pytest.raises(ValueError, match="must be at least 1, got 0"):
            load_image(GREY, **options)
    with pytest.raises(TypeError, match="image must be a path or an array, got list"):
        load_image([[1, 2]])


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOSSLESS)
def test_files_are_their_arrays(kind, tmp_path):
    assert np.array_equal(
        load_image(write(tmp_path / "x", encoded(COLORS[:, :, :3], kind))), load_image(COLORS[:, :, :3])
    )
    if kind in ("PNG", "BMP", "PPM"):
        assert np.array_equal(load_image(str(write(tmp_path / "x", encoded(GREY, kind)))), GREY)
    if kind in ("PNG", "WEBP"):
        assert np.array_equal(load_image(write(tmp_path / "x", encoded(COLORS, kind))), load_image(COLORS))


@pytest.mark.parametrize("kind", ["PNG", "PPM"])
def test_files_of_16_bits(kind, tmp_path):
    values = RNG.integers(0, 65536, (20, 30), np.uint16)
    assert np.array_equal(load_image(write(tmp_path / "x", encoded(values, kind))), load_image(values))


def test_files_of_16_bits_a_color(tmp_path):
    """Pillow cuts them to 8 bits, which is at most one less than rounding does."""
    values = RNG.integers(0, 65536, (20, 30, 4), np.uint16)
    for n_channels, order in ((3, [2, 1, 0]), (4, [2, 1, 0, 3])):
        path = tmp_path / f"{n_channels}.png"
        cv2.imwrite(str(path), values[:, :, order])
        rounded = load_image(values[:, :, :n_channels])
        np.testing.assert_allclose(load_image(path).astype(int), rounded, atol=2)


def test_other_kinds_of_files(tmp_path):
    palette = Image.fromarray(COLORS[:, :, :3]).quantize(16)
    palette.save(tmp_path / "palette.png")
    assert np.array_equal(load_image(tmp_path / "palette.png"), load_image(np.asarray(palette.convert("RGB"))))
    palette.save(tmp_path / "clear.png", transparency=3)
    assert (load_image(tmp_path / "clear.png")[np.asarray(palette) == 3] == 255).all()
    Image.fromarray(GREY > 128).save(tmp_path / "bits.png")
    assert np.array_equal(load_image(tmp_path / "bits.png"), (GREY > 128) * np.uint8(255))
    Image.fromarray(COLORS[:, :, :3]).convert("CMYK").save(tmp_path / "cmyk.jpg", quality=100)
    np.testing.assert_allclose(load_image(tmp_path / "cmyk.jpg"), load_image(COLORS[:, :, :3]), atol=12)
    (tmp_path / "float.pfm").write_bytes(b"Pf\n2 1\n-1.0\n" + np.float32([0, 1]).tobytes())
    with pytest.raises(ImageError, match=r"float.pfm' must hold 8 or 16 bits a value, got floats"):
        load_image(tmp_path / "float.pfm")


def test_jpeg(tmp_path):
    path = write(tmp_path / "x.jpg", encoded(COLORS[:, :, :3], "JPEG", quality=95))
    np.testing.assert_allclose(load_image(path), load_image(COLORS[:, :, :3]), atol=8)
    large = cv2.resize(COLORS, (1024, 768), interpolation=cv2.INTER_CUBIC)[:, :, :3]
    path = write(tmp_path / "x.jpg", encoded(large, "JPEG", quality=95))
    for max_side in (700, 512, 400, 100):
        expected = load_image(large, max_side=max_side)
        shrunk = load_image(path, max_side=max_side)
        assert shrunk.shape == expected.shape
        np.testing.assert_allclose(shrunk, expected, atol=6)
    decoded = read_picture(path, "x", at_most(100), 10**6)  # no larger than it must be
    assert (decoded.pixels.shape, decoded.full_size) == ((96, 128), (1024, 768))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_photos_are_turned_upright(orientation, kind, tmp_path):
    upright = cv2.resize(GREY, (96, 40))
    turn = {
        1: lambda p: p,
        2: np.fliplr,
        3: lambda p: np.rot90(p, 2),
        4: np.flipud,
        5: np.transpose,
        6: np.rot90,  # stored a quarter to the left, to be shown turned to the right
        7: lambda p: np.rot90(p.T, 2),
        8: lambda p: np.rot90(p, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = write(tmp_path / "x", encoded(np.ascontiguousarray(turn(upright)), kind, exif=exif))
    for max_side in (None, 48):
        expected = load_image(upright, max_side=max_side)
        loaded = load_image(path, max_side=max_side)
        assert loaded.shape == expected.shape
        np.testing.assert_allclose(loaded, expected, atol=14)


# -- files that are refused ------------------------------------------------------------------------------------------


def png_of(width, height):
    """The beginning of a PNG file that says how large it is, and holds next to nothing."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be an image in one of JPEG, PNG, WEBP, BMP, PPM, got 0 bytes of something else"),
        (b"hello", "got 5 bytes of something else"),
        (b"GIF89a" + bytes(100), "got 106 bytes of something else"),
        (png_of(8200, 8200), "must have at most max_pixels=67108864 pixels, got 8200 x 8200"),
        (png_of(60_000, 60_000), "must have at most PIL.Image.MAX_IMAGE_PIXELS pixels: Image size .3600000000 pixels."),
        (png_of(100, 100), "must be a whole and valid image: "),
    ],
    ids=["empty", "text", "gif", "large", "huge", "short"],
)
def test_files_that_are_refused(content, message, tmp_path):
    path = write(tmp_path / "x.png", content)
    with pytest.raises(ImageError, match=message) as error:
        load_image(path)
    assert str(error.value).startswith(f"'{path}' must ")


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "ICO", "PCX"])
def test_whole_files_of_other_kinds_are_refused(kind, tmp_path):
    """Pillow would read them: each decoder is one more to attack."""
    path = write(tmp_path / "x.png", encoded(GREY, kind))
    with Image.open(path) as image:
        assert image.format == kind
    with pytest.raises(ImageError, match=r"must be an image in one of JPEG, PNG, WEBP, BMP, PPM, got \d+ bytes"):
        load_image(path)


def test_files_that_are_none(tmp_path):
    with pytest.raises(ImageError, match=r"none.png' must be a file, but there is none"):
        load_image(tmp_path / "none.png")
    with pytest.raises(ImageError, match="must be a file, but there is something else"):
        load_image(tmp_path)
    with pytest.raises(ImageError, match="must have at most max_pixels=3071 pixels, got 64 x 48"):
        load_image(write(tmp_path / "x.png", FILES["png"]), max_pixels=3071)
    assert load_image(tmp_path / "x.png", max_pixels=3072).shape == (48, 64)


def load_or_refuse(path, content, **options):
    """The picture, or None if it was refused by our own error, which names the file."""
    try:
        return load_image(write(path, content), **options)
    except ImageError as error:
        reason = str(error)
    assert reason.startswith(f"'{path}' must ")
    return None


@pytest.mark.parametrize("name", FILES)
def test_cut_files_are_refused_or_whole(name, tmp_path):
    """Only what follows the last pixel may be missing."""
    content, path = FILES[name], tmp_path / name
    whole = load_image(write(path, content))
    sizes = {*range(0, len(content), max(1, len(content) // 25)), *range(len(content) - 20, len(content))}
    loaded = [load_or_refuse(path, content[:size]) for size in sizes]
    assert sum(pixels is None for pixels in loaded) >= 25
    assert all(np.array_equal(pixels, whole) for pixels in loaded if pixels is not None)


@given(seed=integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_damaged_files_are_refused_or_pictures(tmp_path_factory, seed):
    """Bits turned, bytes cut out or put in: the only error is our own."""
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.getbasetemp() / "damaged"
    for content in FILES.values():
        pixels = load_or_refuse(path, damaged(content, rng), max_pixels=10**6)
        assert pixels is None or (pixels.dtype == np.uint8 and pixels.ndim == 2 and pixels.size)


def damaged(content, rng):
    content = bytearray(content)
    reach = len(content) if rng.random() < 0.5 else min(len(content), 100)  # often the header
    for _ in range(rng.integers(1, 6)):
        place = int(rng.integers(min(reach, len(content))))
        what = rng.integers(4)
        if what <= 1:
            content[place] ^= 1 << int(rng.integers(8))
        elif what == 2:
            del content[place : place + int(rng.integers(1, 20))]
        else:
            content[place:place] = rng.bytes(int(rng.integers(1, 20)))
        if not content:
            break
    return bytes(content)
