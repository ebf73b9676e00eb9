"""SIFT, GIST and HOG: against their definitions, and what must hold for any picture."""

import os
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import reference_features as reference
import test_images
from hypothesis import given
from hypothesis.strategies import integers, sampled_from

from closure_kmeans.features import (
    ImageError,
    gist,
    hog,
    list_images,
    load_image,
    local,
    local_features,
    root_sift,
    whole,
)

EXTRACTORS = {
    "dog": local_features,
    "mser": lambda images, **options: local_features(images, detector="mser", **options),
    "gist": gist,
    "hog": hog,
}


def drawn(seed, height=240, width=320):
    """A picture full of corners and blobs: text, discs and boxes."""
    rng = np.random.default_rng(seed)
    picture = np.full((height, width), 200, np.uint8)
    for _ in range(25):
        x, y = int(rng.integers(width)), int(rng.integers(height))
        color = int(rng.integers(256))
        cv2.circle(picture, (x, y), int(rng.integers(3, 20)), color, -1)
        x, y, angle = int(rng.integers(width)), int(rng.integers(height)), float(rng.integers(180))
        corners = cv2.boxPoints(((x, y), tuple(map(float, rng.integers(8, 40, 2))), angle))
        cv2.fillPoly(picture, [np.int32(corners)], int(rng.integers(256)))
    for line in range(20, height, 40):
        cv2.putText(picture, "closure k-means", (5, line), cv2.FONT_HERSHEY_SIMPLEX, 1, int(rng.integers(256)), 2)
    return cv2.GaussianBlur(picture, (0, 0), 1)


def stripes(angle, size=64, cycles=0.15):
    """Waves whose gradient has the given angle, in degrees, down the picture from the x axis."""
    y, x = np.mgrid[:size, :size]
    phase = 2 * np.pi * cycles * (x * np.cos(np.radians(angle)) + y * np.sin(np.radians(angle)))
    return (127 + 100 * np.cos(phase)).astype(np.uint8)


PICTURES = [drawn(seed) for seed in range(5)]


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


# -- definitions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("square", [drawn(1, 16, 16), drawn(2, 20, 20)], ids=["16", "20"])
def test_gist_is_its_definition(square):
    vectors = gist([square], size=len(square)).vectors
    np.testing.assert_allclose(vectors[0], reference.gist(square), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "square",
    [drawn(3, 64, 64), np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8), stripes(0), stripes(100)],
    ids=["drawn", "noise", "0", "100"],
)
def test_hog_is_its_definition(square):
    np.testing.assert_allclose(hog([square]).vectors[0], reference.hog(square), rtol=1e-4, atol=1e-6)


def test_root_sift():
    rows = np.random.default_rng(0).integers(0, 256, (50, 128), np.uint8)
    rooted = root_sift(rows)
    assert rooted.dtype == np.float32
    np.testing.assert_allclose(rooted**2, rows / rows.sum(axis=1, keepdims=True, dtype=float), rtol=1e-5)
    assert root_sift(np.zeros((2, 128), np.uint8)).tolist() == np.zeros((2, 128)).tolist()
    assert root_sift(np.empty((0, 128), np.uint8)).shape == (0, 128)
    with pytest.raises(ValueError, match=r"descriptors must be numbers of shape \(m, d\), got uint8 of shape \(128,\)"):
        root_sift(rows[0])
    with pytest.raises(ValueError, match="finite and not negative"):
        root_sift([[1.0, -1.0]])
    with pytest.raises(ValueError, match="finite and not negative"):
        root_sift([[1.0, np.nan]])


@pytest.mark.parametrize("detector", ["dog", "mser"])
def test_descriptors_are_opencv_sift_at_the_keypoints(detector):
    keypoints, descriptors, offsets, _ = local_features(PICTURES[:1], detector=detector)
    assert offsets.tolist() == [0, len(keypoints)]
    assert len(keypoints) > 50
    if detector == "dog":
        _, expected = cv2.SIFT.create().detectAndCompute(PICTURES[0], None)
    else:
        points = [cv2.KeyPoint(*map(float, keypoint)) for keypoint in keypoints]
        _, expected = cv2.SIFT.create().compute(PICTURES[0], points)
    assert np.array_equal(expected, np.rint(expected))  # bytes lose nothing
    assert np.array_equal(descriptors, expected)


# -- properties ------------------------------------------------------------------------------------------------------


def test_stripes_have_an_orientation():
    for turn in range(8):
        responses = gist([stripes(180 * turn / 8)]).vectors.reshape(3, 8, 16).mean(axis=(0, 2))
        assert responses.argmax() == -turn % 8
    for turn in range(9):
        votes = hog([stripes(20 * turn + 10)]).vectors.reshape(-1, 9).mean(axis=0)
        assert votes.argmax() == turn


@pytest.mark.parametrize("feature", [gist, hog])
def test_flat_pictures_are_zero(feature):
    flat = np.arange(0, 256, 51, np.uint8)[:, np.newaxis, np.newaxis] * np.ones((64, 64), np.uint8)
    np.testing.assert_allclose(feature(flat).vectors, 0, atol=1e-5)


@pytest.mark.parametrize("feature", [gist, hog])
def test_the_middle_square_counts(feature):
    wide = PICTURES[0]  # 240 x 320
    assert same(feature([wide]), feature([wide[:, 40:280]]))
    assert same(feature([wide.T]), feature([wide.T[40:280]]))
    assert not np.array_equal(feature([wide]).vectors, feature([wide[:, :240]]).vectors)


def test_gist_of_a_turned_picture():
    """By a quarter of the circle the cells change places, and so do the orientations."""
    square = drawn(1, 64, 64)
    straight = gist([square]).vectors.reshape(3, 8, 4, 4)
    turned = gist([np.rot90(square)]).vectors.reshape(3, 8, 4, 4)
    np.testing.assert_allclose(turned, np.rot90(np.roll(straight, 4, axis=1), axes=(2, 3)), rtol=1e-2, atol=1e-3)


def matched(first, second, size):
    """The share of descriptors whose place in the turned picture holds nearly the same one, or that by half a turn."""
    mapped = np.column_stack([first.keypoints[:, 1], size - 1 - first.keypoints[:, 0]])  # by np.rot90
    half_turn = second.descriptors.reshape(-1, 4, 4, 8)[:, ::-1, ::-1].reshape(-1, 16, 2, 4)[:, :, ::-1]
    either = [second.descriptors.astype(float), half_turn.reshape(-1, 128).astype(float)]
    found = 0
    for place, scale, row in zip(mapped, first.keypoints[:, 2], first.descriptors.astype(float), strict=True):
        near = np.hypot(*(second.keypoints[:, :2] - place).T) < 1.5
        near &= np.abs(second.keypoints[:, 2] / scale - 1) < 0.1
        found += any((np.linalg.norm(rows[near] - row, axis=1) < 130).any() for rows in either)  # of a length of 512
    return found / len(mapped)


@pytest.mark.parametrize("detector", ["dog", "mser"])
def test_a_turned_picture_has_the_same_descriptors(detector):
    turned = [np.rot90(picture) for picture in PICTURES[:3]]
    for straight, after in zip(PICTURES[:3], turned, strict=True):
        first, second = (local_features([picture], detector=detector) for picture in (straight, after))
        assert matched(first, second, straight.shape[1]) > 0.75


@pytest.mark.parametrize("angle", [0, 20, 70, 90, 110, 160])
def test_an_mser_region_is_its_rectangle(angle):
    picture = np.full((200, 200), 220, np.uint8)
    corners = cv2.boxPoints(((100.0, 90.0), (60.0, 25.0), float(angle)))
    cv2.fillPoly(picture, [np.int32(np.rint(corners))], 30)
    keypoint = local.region_keypoint(np.argwhere(picture == 30)[:, ::-1].astype(np.int32))
    assert keypoint.size == pytest.approx(np.sqrt(60 * 25), rel=0.04)
    found = local_features([cv2.GaussianBlur(picture, (0, 0), 3)], detector="mser").keypoints
    assert len(found) >= 1
    for x, y, direction in [(*keypoint.pt, keypoint.angle), *found[:, [0, 1, 3]]]:
        assert (x, y) == pytest.approx((100, 90), abs=1)
        assert (direction - angle + 90) % 180 - 90 == pytest.approx(0, abs=3)
        assert 0 <= direction < 180


def test_fainter_and_fewer_regions():
    default = local_features(PICTURES[:1])
    assert len(local_features(PICTURES[:1], contrast=0.01).keypoints) > len(default.keypoints)
    few = local_features(PICTURES[:1], n_regions=20)
    assert 20 <= len(few.keypoints) < 30  # OpenCV keeps those that are equally strong
    _, expected = cv2.SIFT.create(nfeatures=20).detectAndCompute(PICTURES[0], None)
    assert np.array_equal(few.descriptors, expected)


@pytest.mark.parametrize("detector", ["dog", "mser"])
def test_upright_regions_have_no_angle(detector):
    rotated = local_features(PICTURES[:1], detector=detector)
    upright = local_features(PICTURES[:1], detector=detector, upright=True)
    assert not upright.keypoints[:, 3].any()
    assert {tuple(row) for row in upright.keypoints[:, :3]} == {tuple(row) for row in rotated.keypoints[:, :3]}
    if detector == "dog":
        assert len(np.unique(upright.keypoints[:, :3], axis=0)) == len(upright.keypoints)
    points = [cv2.KeyPoint(x, y, size, 0.0) for x, y, size in upright.keypoints[:, :3].tolist()]
    if detector == "mser":  # an octave of a DoG region is not in its keypoint
        assert np.array_equal(upright.descriptors, cv2.SIFT.create().compute(PICTURES[0], points)[1])


def test_regions_as_thin_as_a_line_are_left_out(monkeypatch):
    line = np.column_stack([np.arange(40), np.full(40, 7)]).astype(np.int32)
    assert local.region_keypoint(line).size < local.MIN_SCALE
    everything = local_features(PICTURES[:1], detector="mser")
    monkeypatch.setattr(local, "MIN_SCALE", 20.0)
    large = local_features(PICTURES[:1], detector="mser")
    kept = everything.keypoints[:, 2] >= 20
    assert 0 < kept.sum() < len(kept)
    assert np.array_equal(large.keypoints, everything.keypoints[kept])


def test_regions_of_flat_parts_are_left_out(monkeypatch):
    """Their descriptors are zero, which is a direction for nobody. Some versions of OpenCV find such regions."""

    class Finder:
        def detectRegions(self, pixels):  # noqa: N802
            return [square(40), square(250)], None

    def square(left):
        return np.argwhere(np.ones((12, 12))).astype(np.int32) + np.int32([left, 50])

    half_flat = drawn(0, 160, 320)
    half_flat[:, :160] = 99
    monkeypatch.setattr(local.cv2, "MSER", SimpleNamespace(create=lambda **settings: Finder()))
    keypoints, descriptors, *_ = local_features([half_flat], detector="mser")
    assert keypoints[:, :2].tolist() == [[255.5, 55.5]]
    assert descriptors.shape == (1, 128)
    assert descriptors.any()
    assert local_features([np.full_like(half_flat, 99)], detector="mser").descriptors.shape == (0, 128)


@pytest.mark.parametrize("shape", [(3, 4000), (4000, 3), (5, 900), (40, 2000)])
def test_long_pictures(shape):
    rng = np.random.default_rng(0)
    noise = cv2.GaussianBlur(rng.integers(0, 256, shape, np.uint8), (0, 0), 1.5)
    ramp = np.tile(np.linspace(0, 255, max(shape)).astype(np.uint8), (min(shape), 1)).reshape(shape)
    for detector in ("dog", "mser"):
        features = local_features([noise, ramp, noise // 64 * 64], detector=detector)
        assert np.isfinite(features.keypoints).all()


@pytest.mark.parametrize("detector", ["dog", "mser"])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (1, 50), (3, 3), (3, 40_000), (8, 8), (100, 100)])
def test_pictures_without_features(detector, shape):
    flat = np.full(shape, 77, np.uint8)
    keypoints, descriptors, offsets, skipped = local_features([flat, flat], detector=detector)
    assert (keypoints.shape, descriptors.shape, offsets.tolist(), skipped) == ((0, 4), (0, 128), [0, 0, 0], [])
    assert (keypoints.dtype, descriptors.dtype, offsets.dtype) == (np.float32, np.uint8, np.int64)


@given(height=integers(1, 70), width=integers(1, 70), seed=integers(0, 99), name=sampled_from(sorted(EXTRACTORS)))
def test_small_pictures_of_noise(height, width, seed, name):
    noise = np.random.default_rng(seed).integers(0, 256, (height, width), np.uint8)
    result = EXTRACTORS[name]([noise], n_threads=1)
    assert not result.skipped
    assert np.isfinite(result[0]).all()


@pytest.mark.parametrize("detector", ["dog", "mser"])
@pytest.mark.parametrize("max_side", [320, 200, 151])
def test_keypoints_are_those_of_the_full_picture(detector, max_side):
    full = local_features(PICTURES, detector=detector).keypoints
    shrunk = local_features(PICTURES, detector=detector, max_side=max_side).keypoints
    small = local_features([load_image(picture, max_side=max_side) for picture in PICTURES], detector=detector)
    ratios = 320 / max_side, 240 / round(240 * max_side / 320)
    np.testing.assert_allclose(shrunk[:, 2] / small.keypoints[:, 2], np.sqrt(np.prod(ratios)), rtol=1e-5)
    np.testing.assert_allclose(shrunk[:, :2], (small.keypoints[:, :2] + 0.5) * ratios - 0.5, rtol=1e-4, atol=1e-3)
    large = shrunk[shrunk[:, 2] > 15]
    nearest = [np.hypot(*(full[:, :2] - place).T).min() for place in large[:, :2]]
    assert np.median(nearest) < 320 / max_side


# -- many images -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXTRACTORS)
def test_the_same_on_any_number_of_threads(name):
    images = [drawn(seed, 80, 100) for seed in range(40)] * 4
    results = [EXTRACTORS[name](images, n_threads=n_threads) for n_threads in (1, 2, 5)]
    assert same(results[0], results[1])
    assert same(results[0], results[2])


@pytest.mark.parametrize("name", EXTRACTORS)
def test_images_do_not_touch_each_other(name):
    together = EXTRACTORS[name](PICTURES)
    alone = [EXTRACTORS[name]([picture]) for picture in PICTURES]
    np.testing.assert_allclose(together[0], np.concatenate([result[0] for result in alone]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EXTRACTORS)
def test_bad_images_are_skipped_and_named(name, tmp_path):
    (tmp_path / "no.jpg").write_text("not an image")
    images = [PICTURES[0], tmp_path / "no.jpg", PICTURES[1], np.zeros((0, 5), np.uint8), PICTURES[2]]
    with pytest.raises(ValueError, match=r"no.jpg' must be an image in one of JPEG, PNG, WEBP, BMP, PPM"):
        EXTRACTORS[name](images)
    result = EXTRACTORS[name](images, on_error="skip")
    assert [entry.image for entry in result.skipped] == [1, 3]
    assert "no.jpg' must be an image" in result.skipped[0].reason
    assert result.skipped[1].reason == "image 3 must have at least one pixel, got shape (0, 5)"
    whole_set = EXTRACTORS[name](PICTURES[:3])
    np.testing.assert_allclose(result[0], whole_set[0], rtol=1e-5, atol=1e-6)
    if name in ("gist", "hog"):
        assert result.images.tolist() == [0, 2, 4]
    else:
        assert np.diff(result.offsets).tolist() == np.insert(np.diff(whole_set.offsets), [1, 2], 0).tolist()


@pytest.mark.parametrize("name", EXTRACTORS)
def test_files_of_every_kind(name, tmp_path, capsys):
    """What is corrupt, cut, empty, too large or no image is refused, or skipped and counted; all others are used."""
    whole_file = test_images.encoded(PICTURES[0], "PNG")
    bad = {
        "corrupt.png": whole_file[:2000] + bytes(100) + whole_file[2100:],
        "cut.jpg": test_images.encoded(PICTURES[0], "JPEG")[:-3000],
        "empty.png": b"",
        "large.png": test_images.png_of(8200, 8200),
        "huge.png": test_images.png_of(60_000, 60_000),
        "text.jpg": b"not an image",
    }
    clear = np.dstack([PICTURES[1]] * 3 + [np.full_like(PICTURES[1], 255)])
    good = {
        "16 bits.png": test_images.encoded(PICTURES[0].astype(np.uint16) * 257, "PNG"),
        "tiny.png": test_images.encoded(np.full((1, 1), 9, np.uint8), "PNG"),
        "transparent.png": test_images.encoded(clear, "PNG"),
    }
    for file, content in (bad | good).items():
        (tmp_path / file).write_bytes(content)
    for file in bad:
        with pytest.raises(ImageError, match=f"{file}' must "):
            EXTRACTORS[name]([tmp_path / file])
    paths = [tmp_path / file for file in [*good, *bad]]
    result = EXTRACTORS[name](paths, on_error="skip", verbose=1)
    assert [paths[entry.image].name for entry in result.skipped] == list(bad)
    assert "9/9" in capsys.readouterr().err  # those that were skipped, too
    expected = EXTRACTORS[name]([PICTURES[0], np.full((1, 1), 9, np.uint8), PICTURES[1]])
    np.testing.assert_array_equal(result[0], expected[0])


@pytest.mark.parametrize(("name", "shape"), [("dog", (0, 4)), ("mser", (0, 4)), ("gist", (0, 384)), ("hog", (0, 576))])
def test_no_images(name, shape):
    assert EXTRACTORS[name]([])[0].shape == shape
    skipped = EXTRACTORS[name]([np.zeros((2, 2, 2), np.uint8)] * 3, on_error="skip")
    assert skipped[0].shape == shape
    assert len(skipped.skipped) == 3


def test_arrays_of_many_images():
    colors = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), np.uint8)
    assert same(hog(colors), hog(list(colors)))
    assert same(hog(colors[..., 0]), hog([picture[..., 0] for picture in colors]))


def test_folders(tmp_path):
    names = ["b.png", "a/z.JPG", "a/c.jpeg", "notes.txt", "c.bmp"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / name), PICTURES[number]) if "txt" not in name else (tmp_path / name).write_text("x")
    (tmp_path / "folder.png").mkdir()
    paths = list_images(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in paths] == ["a/c.jpeg", "a/z.JPG", "b.png", "c.bmp"]
    assert list_images(tmp_path, extensions=[".PNG"]) == [tmp_path / "b.png"]
    assert same(hog(tmp_path), hog(paths))
    assert same(hog(str(tmp_path / "b.png")), hog([tmp_path / "b.png"]))
    with pytest.raises(NotADirectoryError, match=r"folder must be a folder, got '.*b.png'"):
        list_images(tmp_path / "b.png")


@pytest.mark.parametrize("name", EXTRACTORS)
def test_progress(name, capsys):
    EXTRACTORS[name](PICTURES, verbose=1)
    assert "5/5" in capsys.readouterr().err
    EXTRACTORS[name](PICTURES)
    assert capsys.readouterr().err == ""


class Lazy:
    """A sequence that makes each picture when asked for it, and knows how many are alive."""

    def __init__(self, n_images):
        self.n_images, self.most = n_images, 0
        self.lock, self.alive = threading.Lock(), []

    def __len__(self):
        return self.n_images

    def __getitem__(self, index):
        picture = drawn(index % 5, 60, 60)
        with self.lock:
            self.alive = [reference for reference in self.alive if reference() is not None] + [weakref.ref(picture)]
            self.most = max(self.most, len(self.alive))
        return picture


@pytest.mark.parametrize("n_threads", [1, 3])
def test_few_pictures_are_in_memory_at_a_time(n_threads):
    images = Lazy(400)
    local_features(images, n_threads=n_threads)
    assert images.most <= 2 * n_threads


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupts_end_the_call_and_lift_the_limits(n_threads, error, monkeypatch):
    def interrupted(picture, size):
        seen.append(cv2.getNumThreads())
        if len(seen) > 20:
            raise error
        return np.zeros((size, size), np.uint8)

    seen = []
    monkeypatch.setattr(whole, "middle_square", interrupted)
    before = cv2.getNumThreads()
    cv2.setNumThreads(2)
    try:
        with pytest.raises(error):
            hog(PICTURES * 100, n_threads=n_threads)
        assert cv2.getNumThreads() == 2
    finally:
        cv2.setNumThreads(before)
    assert set(seen) == {1}
    assert len(seen) < 100


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"images": PICTURES[0]}, ValueError, r"images given as one array must have shape \(n, height, width\)"),
        (
            {"images": iter(PICTURES)},
            TypeError,
            "images must be a path, an array, or a sequence of them, got list_iter",
        ),
        ({"images": 3}, TypeError, "images must be a path, an array, or a sequence of them, got int"),
        ({"images": [None]}, TypeError, "image 0 must be a path or an array, got NoneType"),
        ({"images": "nowhere.png"}, ValueError, "'nowhere.png' must be a file, but there is none"),
        ({"on_error": "ignore"}, ValueError, "on_error must be one of 'raise', 'skip', got 'ignore'"),
        ({"n_threads": 0}, ValueError, "n_threads must be at least 1, got 0"),
        ({"verbose": -1}, ValueError, "verbose must be at least 0, got -1"),
        ({"max_pixels": 0}, ValueError, "max_pixels must be at least 1, got 0"),
    ],
)
@pytest.mark.parametrize("name", EXTRACTORS)
def test_bad_options(name, options, error, message):
    with pytest.raises(error, match=message):
        EXTRACTORS[name](**{"images": PICTURES} | options)


def test_bad_options_of_one_feature():
    with pytest.raises(ValueError, match="detector must be one of 'dog', 'mser', got 'surf'"):
        local_features(PICTURES, detector="surf")
    with pytest.raises(ValueError, match="n_regions must be at least 1, got 0"):
        local_features(PICTURES, n_regions=0)
    with pytest.raises(ValueError, match="contrast must be at least 0, got -1"):
        local_features(PICTURES, contrast=-1)
    with pytest.raises(ValueError, match=r"n_regions and contrast are of the detector 'dog', got 5 and 0\.04"):
        local_features(PICTURES, detector="mser", n_regions=5)
    with pytest.raises(ValueError, match="max_side must be at least 1, got 0"):
        local_features(PICTURES, max_side=0)
    with pytest.raises(ValueError, match="size must be at least 16, got 8"):
        gist(PICTURES, size=8)
    with pytest.raises(ValueError, match="size must be a multiple of 4, got 30"):
        gist(PICTURES, size=30)


@pytest.mark.parametrize("missing", ["cv2", "PIL"])
def test_the_extra_is_named(missing, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("closure_kmeans.features")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"pip install 'closure-kmeans\[images\]'"):
        import closure_kmeans.features  # noqa: F401


# -- photos ----------------------------------------------------------------------------------------------------------


def photos():
    folder = Path(os.environ.get("CLOSURE_KMEANS_DATA", "")) / "ukbench1000"
    if not ("CLOSURE_KMEANS_DATA" in os.environ and folder.is_dir()):
        pytest.skip("CLOSURE_KMEANS_DATA names no folder that holds ukbench1000")
    return list_images(folder)


def test_photos_have_many_regions():
    features = local_features(photos()[:20], detector="mser")
    assert 100 < np.diff(features.offsets).mean() < 1200  # 200 by OpenCV 5.0.0, 870 by 4.14
    assert features.descriptors.any(axis=1).all()


def test_photos_of_one_object_are_near():
    """Of the nearest other photo more show the same object than chance would have: 3 in 199."""
    paths = photos()[:200]
    for feature in (gist, hog):
        rows = feature(paths).vectors
        distances = np.linalg.norm(rows[:, np.newaxis] - rows, axis=2)
        np.fill_diagonal(distances, np.inf)
        assert (distances.argmin(axis=1) // 4 == np.arange(200) // 4).mean() > 0.2


def test_shrunk_photos_keep_their_geometry():
    path = photos()[0]
    full, shrunk = load_image(path), load_image(path, max_side=200)
    assert shrunk.shape == (full.shape[0] // 2, full.shape[1] // 2)
    keypoints = local_features([path], max_side=200).keypoints
    assert keypoints[:, 0].max() > 0.8 * full.shape[1]
    assert keypoints[:, 1].max() < full.shape[0]
