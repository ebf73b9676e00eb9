"""The examples of the docs run, and show what they say."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the docs are not part of the source distribution")


def examples(name):
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)


def test_the_examples_about_files_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in examples("files.md"):
        exec(example, names)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("fit.ck", "members.npz", "sift.parquet", "sift.u8bin", "words.faiss", "words.fbin", "words.safetensors")
    ]


def test_the_examples_about_retrieval_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in examples("retrieval.md"):
        exec(example, names)
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[:3]] == [
        *("temple3-1.jpg", "temple3-2.jpg", "temple3-0.jpg")
    ]
    assert all(result.verified for result in names["results"][:3])
    assert (tmp_path / "matches.png").exists()


def test_the_examples_about_baselines_print_what_they_say(capsys):
    """To rounding: processors differ in the last bit, and so do the ways of the fits then."""
    names = {}
    for example in examples("baselines.md"):
        exec(example, names)
    line = re.compile(r"^ *(\w+KMeans) +([\d,]+) after \d+ iterations, (\d+) candidates a point", re.MULTILINE)
    said, printed = (line.findall(text) for text in ((DOCS / "baselines.md").read_text(), capsys.readouterr().out))
    assert [method for method, *_ in printed] == [method for method, *_ in said]
    assert len(said) == 5
    for (_, distortion, candidates), (_, expected, expected_candidates) in zip(printed, said, strict=True):
        assert float(distortion.replace(",", "")) == pytest.approx(float(expected.replace(",", "")), rel=0.01)
        assert int(candidates) == pytest.approx(int(expected_candidates), rel=0.1)
    model, X = names["model"], names["X"]
    assert model.paths(X[:2]).shape == (2, 3)
    assert model.paths(X[:2])[:, -1].tolist() == model.predict(X[:2]).tolist()
    assert [len(level.centers) for level in model.levels_] == [8, 64, 512]


def test_the_example_about_features_runs(tmp_path, monkeypatch, capsys):
    """With fewer words than photos of one's own would have."""
    from test_features import PICTURES, cv2

    monkeypatch.chdir(tmp_path)
    Path("photos/below").mkdir(parents=True)
    for number in range(8):
        cv2.imwrite(f"photos/below/{number}.png", PICTURES[number % len(PICTURES)])
    Path("photos/broken.jpg").write_text("no image")  # the last one
    names = {}
    for example in examples("features.md"):
        exec(example.replace("10_000", "100"), names)
    first, last = names["features"].offsets[7:9]
    assert last > first
    assert len(names["words"]) == names["features"].offsets[-1]
    assert "broken.jpg' must be an image" in capsys.readouterr().out
