import os
import re
import signal
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest

from tests.page import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the docs are not part of the source distribution")

# Some have tests of their own, below.
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if "```python\n" in page.read_text("utf-8")
    and page.name not in ("files.md", "retrieval.md", "baselines.md", "features.md")
]


def blocks(page):
    """The examples of a page, as pairs of language and text."""
    return re.findall(r"^```(python|console)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def commands(text):
    return [line[2:] for line in text.splitlines() if line.startswith("$ ")]


def run(command):
    command = re.sub(r"\bclosure-kmeans ", f"'{sys.executable}' -m closure_kmeans ", command)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"


def follow(page):
    """Do what a page says, one example after the other; the names that its Python has in the end.

    Commands of pages that speak of the reader's own files are tested in test_cli.py and test_cli_retrieval.py.
    """
    names = {}
    for language, text in blocks(page):
        if language == "python":
            exec(text, names)
        elif (page.parent.name == "start" or page.name == "README.md") and os.name == "posix":
            for command in commands(text):
                if "closure-kmeans" in command:
                    run(command)
    return names


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder to be in, whose Python finds the package."""
    source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", source) if (ROOT / "src").exists() else None
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save_photos(folder):
    from PIL import Image
    from sklearn.datasets import load_sample_images

    folder.mkdir(parents=True)
    for scene, pixels in enumerate(load_sample_images().images):
        for part, (left, top) in enumerate([(0, 0), (320, 0), (0, 210), (320, 210)]):
            piece = Image.fromarray(pixels).crop((left, top, left + 300, top + 210))
            for turn in range(4):
                piece.rotate(10 * turn, expand=True).save(folder / f"{scene}-{part}-{turn}.png")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(DOCS).with_suffix("").as_posix())
def test_the_examples_run(page, place):
    follow(page)


# What the calls of each library need.
OTHER_LIBRARIES = {
    "scikit-learn": "import joblib; from sklearn.cluster import KMeans, MiniBatchKMeans; kmeans = KMeans(k).fit(X)",
    "faiss": "import faiss; kmeans = faiss.Kmeans(d, k); kmeans.train(X)",
    "superkmeans": "from superkmeans import SuperKMeans; kmeans = SuperKMeans(k, d)",
}


@pytest.mark.parametrize("library", OTHER_LIBRARIES)
@pytest.mark.filterwarnings("ignore:.*:sklearn.exceptions.ConvergenceWarning")
def test_the_calls_of_other_libraries_and_ours_run(library, place):
    page = DOCS / "start" / "coming-from.md"
    names = {}
    exec(blocks(page)[0][1], names)
    try:
        exec(OTHER_LIBRARIES[library], names)
    except ImportError:
        theirs_runs = False
    else:
        theirs_runs = True
    (section,) = re.findall(rf"^## {library}$(.*?)(?=^## |\Z)", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert len(lines) >= 7
    for theirs, ours, _ in lines:
        for call in re.findall("`([^`]+)`", ours + (theirs if theirs_runs else "")):
            if "gpu" not in call:
                eval(call, names)


def test_the_readme_runs(place):
    names = follow(ROOT / "README.md")
    assert len(set(names["labels"])) == 2000
    assert {"words.safetensors", "labels.npy", "words.faiss", "ck"} <= {path.name for path in place.iterdir()}
    if os.name == "posix":
        (explore,) = re.findall(r"`closure-kmeans (explore [^`]*)`", (ROOT / "README.md").read_text("utf-8"))
        page = look_at(sys.executable, "-m", "closure_kmeans", *explore.split(), "--no-browser")
        assert page.all("heading", "2,000 clusters")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_make_explore_is_what_the_makefile_says():
    """It sets up, and then runs this."""
    assert "@$(BIN)/python -m benchmarks.explore\n" in (ROOT / "Makefile").read_text("utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "CLOSURE_KMEANS_DATA"}
    command = sys.executable, "-m", "benchmarks.explore", "--", "--no-browser"
    assert look_at(*command, cwd=ROOT, env=environment).all("heading", "500 clusters")


def test_make_explore_asks_for_no_more_than_its_extra():
    """The environment that it makes has nothing of these."""
    script = (
        "import sys; sys.modules |= dict.fromkeys(['dask', 'faiss', 'h5py', 'matplotlib', 'psutil']); "
        "import benchmarks.explore"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def look_at(*command, **options):
    """The first page of an explorer, which is then told to end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as explorer:
        address = explorer.stdout.readline().split()[0]
        with urllib.request.urlopen(address) as page:
            shown = Page(page.read().decode())
        explorer.send_signal(signal.SIGINT)
    assert explorer.returncode == 0
    return shown


def test_every_command_of_the_readme_is_run_somewhere():
    ci = (ROOT / ".ci" / "run").read_text("utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    found = [
        command for language, text in blocks(ROOT / "README.md") if language == "console" for command in commands(text)
    ]
    assert len(found) >= 6
    for command in found:
        tool, *rest = command.split("#")[0].split()
        if tool == "make":
            assert re.search(rf"for step in .*\b{rest[0]}\b.*; do", ci), f"{command} is not part of .ci/run"
        elif tool == "pip":  # as the Makefile does for .ci/run
            named = re.fullmatch(r"install '?\.(?:\[([\w,]+)\])?'?", " ".join(rest))
            assert named is not None, command
            assert named[1] is None or set(named[1].split(",")) <= set(extras), command
        else:
            assert tool == "closure-kmeans", command  # run by the test above


def test_the_benchmarks_that_the_readme_names_answer():
    named = set(re.findall(r"`python -m (benchmarks\.[^`]+)`", (ROOT / "README.md").read_text("utf-8")))
    assert named >= {"benchmarks.rivals sift", "benchmarks.million"}
    for command in sorted(named):  # each takes minutes: that they start, and know what is asked of them, must do
        arguments = [sys.executable, "-m", *command.split(), "--help"]
        done = subprocess.run(arguments, cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"])
def test_links_outside_the_site_lead_somewhere(page):
    """Those inside are followed by Sphinx."""
    page = ROOT / page
    for target in re.findall(r"(?:\]\(|src=\")(?!https?:|#)([^)#\s\"]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_map_has_every_module():
    import closure_kmeans

    named = (DOCS / "developers" / "map.md").read_text("utf-8")
    for path in sorted(Path(closure_kmeans.__file__).parent.iterdir()):
        if path.suffix == ".py" and not path.name.startswith("__"):
            assert f"`{path.name}`" in named, path.name
        elif (path / "__init__.py").exists():
            assert f"`{path.name}/`" in named, path.name


def test_every_parameter_has_its_paragraph():
    from closure_kmeans import ClosureKMeans

    paragraphs = (DOCS / "parameters.md").read_text("utf-8")
    missing = [name for name in ClosureKMeans().get_params() if f"**`{name}`**" not in paragraphs]
    assert missing == []


def test_the_versions_of_python_are_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = [text.split(" :: ")[-1] for text in project["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert project["requires-python"] == f">={versions[0]}"
    for workflow in ("wheels", "checks"):
        text = (ROOT / ".github" / "workflows" / f"{workflow}.yml").read_text("utf-8")
        assert f"python: {versions}\n".replace("'", '"') in text, workflow


def test_the_citation_has_the_version():
    import closure_kmeans

    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {closure_kmeans.__version__}\n" in citation


def test_the_examples_about_files_leave_what_they_say(place):
    follow(DOCS / "files.md")
    assert sorted(path.name for path in place.iterdir()) == [
        *("fit.ck", "members.npz", "sift.parquet", "sift.u8bin", "words.faiss", "words.fbin", "words.safetensors")
    ]


def test_the_examples_about_retrieval_find_what_they_say(place, capsys):
    names = follow(DOCS / "retrieval.md")
    first, *others = [line.split()[1] for line in capsys.readouterr().out.splitlines()[:4]]
    assert first == "temple3-1.jpg"
    assert sorted(others) == ["temple3-0.jpg", "temple3-2.jpg", "temple3-3.jpg"]
    assert all(result.verified for result in names["results"][:4])
    assert names["score"] > 3.9
    assert (place / "matches.png").exists()


def test_the_examples_about_baselines_print_what_they_say(capsys):
    """To rounding: processors differ in the last bit, and so do the ways of the fits then."""
    names = follow(DOCS / "baselines.md")
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


def test_the_example_about_features_runs(place, capsys):
    save_photos(place / "photos" / "below")
    (place / "photos" / "broken.jpg").write_text("no image")  # the last one
    names = follow(DOCS / "features.md")
    first, last = names["features"].offsets[7:9]
    assert last > first
    assert len(names["words"]) == names["features"].offsets[-1]
    assert "broken.jpg' must be an image" in capsys.readouterr().out


def test_guides_are_short():
    scripts = sorted((ROOT / "examples").glob("*.py"))
    assert len(scripts) >= 7
    for script in scripts:
        assert len(script.read_text("utf-8").splitlines()) < 60, script.name


def test_the_api_page_has_every_public_name():
    import closure_kmeans
    from closure_kmeans import baselines, codes, distributed, export, features, metrics, retrieval, vectors

    listed = re.findall(r"^(?:   |\.\. data:: )(\w+)$", (DOCS / "api.rst").read_text("utf-8"), re.MULTILINE)
    own = {
        name
        for module in (export, metrics)
        for name, thing in vars(module).items()
        if getattr(thing, "__module__", None) == module.__name__ and not name.startswith("_")
    }
    public = own.union(
        *(module.__all__ for module in (closure_kmeans, baselines, codes, distributed, features, retrieval, vectors))
    )
    assert public - set(listed) == {"METHODS", "Rows", "__version__"}


@pytest.mark.slow
def test_the_pictures_are_those_of_the_script(place):
    subprocess.run([sys.executable, DOCS / "pictures.py", place / "drawn"], check=True)
    names = {path.name for path in (place / "drawn").iterdir()}
    assert names == {path.name for path in (DOCS / "images" / "method").iterdir()}
    pages = "".join(page.read_text("utf-8") for page in DOCS.rglob("*.md"))
    assert all(f"images/method/{name}" in pages for name in names)
