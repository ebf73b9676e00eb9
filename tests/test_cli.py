import subprocess
import sys

import pytest
from click.testing import CliRunner

from closure_kmeans import __version__, cli
from closure_kmeans.datasets import load_sift


@pytest.fixture
def run(monkeypatch):
    """The command, on a tenth of its data."""
    X = load_sift()[:2000]
    monkeypatch.setattr("closure_kmeans.cli.demo.load_sift", lambda: X)
    return lambda *arguments: CliRunner().invoke(cli.main, list(map(str, arguments)))


def test_demo(run, tmp_path):
    output = tmp_path / "demo.png"
    result = run("demo", "--clusters", 20, "--threads", 1, "--seed", 3, "--output", output)
    assert result.exit_code == 0, result.output
    assert "2,000 SIFT descriptors into 20 clusters" in result.output
    rows = [line.split() for line in result.output.splitlines() if line.startswith(("ClosureKMeans ", "exact Lloyd "))]
    assert len(rows) == 2
    assert float(rows[0][-1]) < 1 == float(rows[1][-1])  # the distortion relative to Lloyd's
    assert output.read_bytes().startswith(b"\x89PNG")


def test_demo_without_matplotlib(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("demo", "--clusters", 5, "--output", tmp_path / "demo.png")
    assert result.exit_code == 0, result.output
    assert "no picture: a picture needs matplotlib: pip install 'closure-kmeans[plot]'" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clusters", 0], "0 is not in the range x>=1"),
        (["--clusters", 3000], "n_clusters must be at most the number of rows, got n_clusters=3000, n_samples=2000"),
        (["--clusters", "many"], "'many' is not a valid integer"),
        (["--threads", 0], "0 is not in the range x>=1"),
        (["--seed", -1], "-1 is not in the range"),
        (["--output", "demo.txt"], "the name must end in one of .pdf, .png, .svg, got 'demo.txt'"),
        (["--output", "nowhere/demo.png"], "the folder 'nowhere' does not exist"),
    ],
)
def test_bad_options(run, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("demo", *arguments)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_help_and_version(run):
    assert "demo" in run("--help").output
    assert "--clusters" in run("demo", "-h").output
    assert __version__ in run("--version").output


def test_the_package_is_imported_without_scikit_learn():
    code = "import sys, closure_kmeans; assert 'sklearn' not in sys.modules and 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_the_package_exports():
    import closure_kmeans

    assert all(hasattr(closure_kmeans, name) for name in closure_kmeans.__all__)
    with pytest.raises(AttributeError, match="module 'closure_kmeans' has no attribute 'KMeans'"):
        closure_kmeans.KMeans  # noqa: B018
