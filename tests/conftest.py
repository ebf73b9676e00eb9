import subprocess
import sys

import pytest
from held import refuse_held
from hypothesis import settings

# The first example of a kind waits for the compiler. The same examples every time, so that a failure repeats.
settings.register_profile("closure-kmeans", deadline=None, derandomize=True, database=None)
settings.load_profile("closure-kmeans")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 kB."""
    if sys.platform != "linux":
        pytest.skip("it is a file system of Linux")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a small disk takes the right to mount one")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def refused(monkeypatch):
    """The files that were not replaced or removed, as on Windows, because this process has them open or mapped."""
    if sys.platform != "linux":
        pytest.skip("open and mapped files are listed by Linux")
    return refuse_held(monkeypatch)
