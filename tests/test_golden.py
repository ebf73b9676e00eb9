"""Results are the same bits as before: see ``golden.py``."""

import golden
import pytest


@pytest.mark.slow
def test_the_same_bits():
    known = golden.known()
    if golden.machine() not in known:
        pytest.skip(f"no results are known of this machine; python -m tests.golden writes them: {golden.machine()}")
    assert golden.found() == known[golden.machine()]
