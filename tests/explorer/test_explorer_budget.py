"""The limit on pixels that are decoded at a time."""

import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx2
import numpy as np
import pytest
from PIL import Image

from closure_kmeans.explorer import budget, pictures, queries
from closure_kmeans.explorer.app import make_app
from closure_kmeans.explorer.budget import PixelBudget
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.pictures import array_pictures, folder_pictures, open_pictures
from closure_kmeans.explorer.server import running
from closure_kmeans.features import images


def test_pixels_that_a_file_holds_while_it_is_decoded(tmp_path, monkeypatch):
    photo = Image.new("RGB", (800, 400))
    for name, options in (("a.png", {}), ("a.jpg", {}), ("whole.jpg", {"progressive": True})):
        photo.save(tmp_path / name, **options)
    (tmp_path / "none.png").write_text("no image")
    count = partial(budget._count_pixels, max_side=160)
    assert count(tmp_path / "a.png") == count(tmp_path / "whole.jpg") == 320_000
    assert count(tmp_path / "a.jpg") == 200 * 100  # decoded at a quarter
    assert count(tmp_path / "none.png") == count(tmp_path / "gone.png") == 0
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    assert count(tmp_path / "a.jpg") == 0  # it is refused
    assert inspect.signature(images.load_image).parameters["max_pixels"].default <= budget.MOST_PIXELS


def test_a_large_picture_is_not_passed_by_small_ones():
    limited, passed = budget.PixelBudget(100), []

    def ask(n_pixels):
        with limited.hold(n_pixels):
            passed.append(n_pixels)

    with limited.hold(60):
        large = threading.Thread(target=ask, args=(100,))
        large.start()
        large.join(0.05)
        small = threading.Thread(target=ask, args=(40,))
        small.start()
        small.join(0.05)
        assert passed == []
    large.join(60)
    small.join(60)
    assert passed == [100, 40]


def test_the_budget_is_given_back_when_decoding_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "BUDGET", limited := budget.PixelBudget(2_000))
    Image.effect_noise((40, 40), 50).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:-900])
    for _ in range(3):
        with pytest.raises(ValueError, match="must be a whole and valid image"):
            open_pictures(tmp_path).small(0)
    assert limited._free == 2_000
    with pytest.raises(ValueError, match="a picture must have at most 2000 pixels, got 2500"):
        array_pictures(np.zeros((1, 50, 50), np.uint8)).small(0)


def test_a_hundred_large_pictures_are_never_decoded_at_once(catalog, searches, photos, tmp_path, monkeypatch):
    """Views and uploads share one budget of pixels."""
    Image.new("RGB", (90, 100)).save(tmp_path / "large.png")
    Image.new("RGB", (20, 20)).save(tmp_path / "small.png")
    content = (photos / "flower0-0.jpg").read_bytes()  # 300 x 210
    held, most, lock = 0, 0, threading.Lock()
    decode = images.decode

    def counted(path, *arguments, **options):
        nonlocal held, most
        with Image.open(path) as image:
            n_pixels = image.width * image.height
        with lock:
            held += n_pixels
            most = max(most, held)
        time.sleep(0.001)  # so that others come meanwhile
        try:
            return decode(path, *arguments, **options)
        finally:
            with lock:
                held -= n_pixels

    monkeypatch.setattr(images, "decode", counted)
    limited = PixelBudget(70_000)
    for module in (pictures, queries):
        monkeypatch.setattr(module, "BUDGET", limited)
    files = folder_pictures(tmp_path, ["large.png", "small.png"] * 150)
    app = make_app(Catalog(catalog.model, catalog.rows, labels=catalog.labels, pictures=files), searches)
    with running(app) as url, ThreadPoolExecutor(32) as people:
        views = [people.submit(httpx2.get, f"{url}/items/{i}/picture", timeout=60, trust_env=False) for i in range(90)]
        sent = [
            people.submit(httpx2.post, f"{url}/uploads", content=content, timeout=60, trust_env=False)
            for _ in range(10)
        ]
        assert {one.result(120).status_code for one in views} == {200}
        assert {one.result(120).status_code for one in sent} == {201}
    assert held == 0
    assert 0 < most <= 70_000
    assert limited._free == 70_000
