"""Pictures of items, and drawings of vectors."""

import io

import numpy as np
import pytest
from PIL import Image

from closure_kmeans.explorer import pictures
from closure_kmeans.explorer.pictures import array_pictures, draw_vector, open_pictures
from tests.explorer_data import make_pixels


def opened(encoded):
    assert encoded.media_type == "image/jpeg"
    return Image.open(io.BytesIO(encoded.content))


def test_pictures_of_arrays_and_files(tmp_path):
    shown = array_pictures(make_pixels(3))
    assert opened(shown.small(2)).size == (30, 20)
    for number in range(2):
        Image.new("RGB", (400, 200 + 100 * number), "red").save(tmp_path / f"{number}.png")
    folder = open_pictures(tmp_path)
    assert len(folder) == 2
    assert opened(folder.small(0)).size == (160, 80)
    assert opened(folder.large(1)).size == (400, 300)
    assert opened(folder.small(0)).getpixel((3, 3))[0] > 240  # in colour
    named = open_pictures(tmp_path, ["1.png", "0.png", "1.png"])
    assert opened(named.large(0)).size == (400, 300)


def test_small_pictures_are_kept():
    asked = []

    def read(item, side):
        asked.append(item)
        return np.zeros((4, 4), np.uint8)

    shown = pictures.Pictures(read, 3)
    for _ in range(3):
        shown.small(1)
    assert asked == [1]


def test_transparency_lies_on_white(tmp_path):
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert opened(open_pictures(tmp_path).small(0)).getpixel((3, 3)) == (255, 255, 255)


def test_names_of_images_stay_in_their_folder(tmp_path):
    for name in ("../secret.png", "/etc/passwd", "a/../../b"):
        with pytest.raises(ValueError, match="must be paths below the folder"):
            open_pictures(tmp_path, [name])


@pytest.mark.parametrize("array", [np.zeros((3, 4)), np.zeros((3, 4, 4, 2), np.uint8), np.zeros((0, 4, 4), np.uint8)])
def test_bad_arrays_of_pictures(array, tmp_path):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match="pictures must be bytes of shape"):
        open_pictures(tmp_path / "a.npy")


@pytest.mark.parametrize(
    "row", [np.arange(128), np.zeros(128), np.linspace(-1, 1, 300), np.array([np.nan, 1]), np.zeros(1)]
)
def test_vectors_are_drawn(row):
    drawn = draw_vector(row)
    assert drawn.media_type == "image/svg+xml"
    assert b"nan" not in drawn.content
    assert drawn.content.startswith(b"<svg")


def test_a_petal_for_each_strong_direction():
    row = np.zeros(128)
    row[[0, 9, 127]] = 200
    assert draw_vector(row).content.count(b"Z") == 3
