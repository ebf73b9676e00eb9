"""Features of a folder of photos."""

import numpy as np
import pytest

from closure_kmeans.retrieval import Extraction, collect, load_collection, save_collection


def test_a_collection_of_a_folder(photos, tmp_path):
    with pytest.raises(ValueError, match="must hold images, but has none"):
        collect(tmp_path)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.png").write_bytes((photos / "image000.png").read_bytes())
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="broken"):
        collect(tmp_path)
    found = collect(tmp_path, Extraction(max_side=100), on_error="skip")
    assert found.names == ["below/a.png"]
    assert len(found.skipped) == 1
    assert found.offsets[-1] == len(found.descriptors) > 0


def test_a_saved_collection_is_read_back(collection, tmp_path):
    save_collection(tmp_path / "features.safetensors", collection)
    for ours, theirs in zip(load_collection(tmp_path / "features.safetensors"), collection, strict=True):
        np.testing.assert_array_equal(ours, theirs)
