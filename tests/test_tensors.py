"""Files of arrays that other tools read too, and arrays that are mapped from them."""

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from closure_kmeans import ClosureKMeans, load
from closure_kmeans.points import map_of


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def model(rows):
    return ClosureKMeans(50, random_state=0).fit(rows)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_saved_to_the_file_that_its_labels_are_mapped_from(model, path, training, refused):
    model.save(path, training=True)
    loaded = load(path)
    assert map_of(loaded.labels_) is not None
    loaded.save(path.with_name("other.safetensors"), training=training)
    assert map_of(loaded.labels_) is not None
    loaded.save(path, training=training)
    np.testing.assert_array_equal(loaded.labels_, model.labels_)
    assert path.read_bytes() == path.with_name("other.safetensors").read_bytes()
    path.unlink()
    assert refused == []


def test_other_tools_read_it(model, path):
    model.save(path, training=True)
    arrays = load_file(path)
    np.testing.assert_array_equal(arrays["cluster_centers_"], model.cluster_centers_)
    np.testing.assert_array_equal(arrays["labels_"], model.labels_)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    save_file(arrays, path.with_name("library"), metadata)
    assert path.read_bytes() == path.with_name("library").read_bytes()
