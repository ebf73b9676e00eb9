import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.skipif(not DOCS.exists(), reason="the docs are not part of the source distribution")
def test_the_examples_about_files_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in re.findall(r"```python\n(.*?)```", (DOCS / "files.md").read_text(), re.DOTALL):
        exec(example, names)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("fit.ck", "members.npz", "sift.parquet", "sift.u8bin", "words.faiss", "words.fbin", "words.safetensors")
    ]


@pytest.mark.skipif(not DOCS.exists(), reason="the docs are not part of the source distribution")
def test_the_examples_about_retrieval_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in re.findall(r"```python\n(.*?)```", (DOCS / "retrieval.md").read_text(), re.DOTALL):
        exec(example, names)
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[:3]] == [
        *("temple3-1.jpg", "temple3-2.jpg", "temple3-0.jpg")
    ]
    assert all(result.verified for result in names["results"][:3])
    assert (tmp_path / "matches.png").exists()
