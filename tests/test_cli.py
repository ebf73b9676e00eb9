import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import faiss
import numpy as np
import pytest
from click.testing import CliRunner
from numba import config

from closure_kmeans import PAPER, ClosureKMeans, Iteration, __version__, cli, load, metrics
from closure_kmeans.cache import kernel
from closure_kmeans.cli.options import duration
from closure_kmeans.cli.progress import Progress, clock, seconds_left
from closure_kmeans.compiler import LOGGER, WATCH, say
from closure_kmeans.datasets import load_sift
from closure_kmeans.retrieval.kernels import end_of_run
from closure_kmeans.storage import model_size
from closure_kmeans.vectors import open_vectors, save_vectors


@pytest.fixture
def run(monkeypatch):
    """The command, on a tenth of its data."""
    X = load_sift()[:2000]
    monkeypatch.setattr("closure_kmeans.cli.demo.load_sift", lambda: X)
    return lambda *arguments: CliRunner().invoke(cli.main, list(map(str, arguments)))


def test_demo(run, tmp_path):
    output = tmp_path / "demo.png"
    result = run("demo", "--n-clusters", 20, "--n-threads", 1, "--random-state", 3, "--output", output)
    assert result.exit_code == 0, result.output
    assert "2,000 SIFT descriptors into 20 clusters" in result.output
    rows = [line.split() for line in result.output.splitlines() if line.startswith(("ClosureKMeans ", "exact Lloyd "))]
    assert len(rows) == 2
    assert float(rows[0][-1]) < 1 == float(rows[1][-1])  # the distortion relative to Lloyd's
    assert output.read_bytes().startswith(b"\x89PNG")


def test_demo_without_matplotlib(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("demo", "--n-clusters", 5, "--output", tmp_path / "demo.png")
    assert result.exit_code == 0, result.output
    assert "no plot: a picture needs matplotlib: pip install 'closure-kmeans[plot]'" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n-clusters", 0], "0 is not in the range x>=1"),
        (["--n-clusters", 3000], "n_clusters must be at most the number of rows, got n_clusters=3000, n_samples=2000"),
        (["--n-clusters", "many"], "'many' is not a valid integer"),
        (["--n-threads", 0], "0 is not in the range x>=1"),
        (["--random-state", -1], "-1 is not in the range"),
        (["--output", "demo.txt"], "the name must end in .pdf or .png or .svg, got 'demo.txt'"),
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


def test_the_picture_must_have_a_place(run, monkeypatch):
    """Found out before anything is computed."""
    monkeypatch.setattr("closure_kmeans.cli.options.os.access", lambda *_: False)
    result = run("demo", "--output", "demo.png")
    assert result.exit_code == 2
    assert "the folder '.' is not writable" in result.output


def test_help_and_version(run):
    assert "demo" in run("--help").output
    assert "--n-clusters" in run("demo", "-h").output
    assert __version__ in run("--version").output


def test_the_package_is_imported_without_scikit_learn():
    code = "import sys, closure_kmeans; assert 'sklearn' not in sys.modules and 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "commands"),
    [(["--help"], []), (["--version"], []), (["nothing"], []), (["info", "--help"], ["info"])],
)
def test_a_command_is_imported_when_it_is_used(arguments, commands):
    code = """if True:
        import json
        import sys
        from closure_kmeans.__main__ import run
        try:
            run()
        except SystemExit:
            print(json.dumps(list(sys.modules)))
    """
    said = subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True).stdout
    modules = set(json.loads(said.splitlines()[-1]))
    assert [name for name in cli.main.commands if f"closure_kmeans.cli.{name}" in modules] == commands
    if not commands:
        assert modules.isdisjoint({"dask", "numba", "numpy", "scipy", "sklearn"})


def test_what_the_package_exports():
    import closure_kmeans

    assert all(hasattr(closure_kmeans, name) for name in closure_kmeans.__all__)
    with pytest.raises(AttributeError, match="module 'closure_kmeans' has no attribute 'KMeans'"):
        closure_kmeans.KMeans  # noqa: B018


# -- vectors in, models and labels out ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Vectors, and a model of them."""
    folder = tmp_path_factory.mktemp("files")
    save_vectors(folder / "rows.u8bin", load_sift()[:2000])
    result = CliRunner().invoke(
        cli.main, ["fit", f"{folder}/rows.u8bin", "-k", "30", "-o", f"{folder}/words.safetensors", "-q"]
    )
    assert (result.exit_code, result.output) == (0, "")
    return folder


@pytest.fixture
def here(folder, tmp_path, monkeypatch):
    """A folder of its own with those files in it."""
    for name in ("rows.u8bin", "words.safetensors"):
        shutil.copy(folder / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def process(*arguments, env=os.environ, **options):
    """A process as users have it: what is written to a pipe is buffered."""
    command = [sys.executable, "-m", "closure_kmeans", *map(str, arguments)]
    environment = {name: value for name, value in env.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, capture_output=True, env=environment, **options)


def test_fit_is_the_library(run, here):
    result = run("fit", "rows.u8bin", "-k", 40, "-o", "new.safetensors", "--labels", "labels.npy", "--random-state", 7)
    assert result.exit_code == 0, result.output
    expected = ClosureKMeans(40, random_state=7).fit(load_sift()[:2000])
    np.testing.assert_array_equal(load("new.safetensors").cluster_centers_, expected.cluster_centers_)
    np.testing.assert_array_equal(np.load("labels.npy"), expected.labels_)
    assert "2,000 x 128 uint8 into 40 clusters" in result.stderr
    assert "iteration 1: distortion" in result.stderr
    table = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    assert table["clusters"].strip() == "40"
    assert table["stopped by"].strip() == expected.stopped_by_
    assert float(table["distortion"].replace(",", "")) == pytest.approx(expected.inertia_ / 2000, rel=1e-5)
    assert "smallest" in table["rows in a cluster"]


def test_fit_takes_all_settings(run, here):
    result = run(
        *("fit", "rows.u8bin", "-k", 40, "-o", "new.safetensors", "-q", "--paper", "--max-iter", 4, "--tol", 0.1),
        *("--leaf-size", 20, "--init", "random", "--n-threads", 1, "--max-time", "10m", "--target-accuracy", 0.5),
    )
    assert (result.exit_code, result.output) == (0, "")
    method = PAPER._replace(leaf_size=20)
    expected = ClosureKMeans(40, method=method, random_state=0, max_iter=4, tol=0.1, init="random")
    expected.set_params(target_accuracy=0.5)
    assert load("new.safetensors").get_params() == expected.get_params()


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (("--metric", "cosine"), {"metric": "cosine"}),
        (("--max-size", 70), {"max_size": 70.0}),
        (("--memory-limit", "5MB"), {"memory_limit": "5MB"}),
    ],
)
def test_options_are_those_of_the_library(run, here, options, settings):
    result = run("fit", "rows.u8bin", "-k", 40, "-o", "new.safetensors", "-q", "--labels", "labels.npy", *options)
    assert (result.exit_code, result.output) == (0, "")
    expected = ClosureKMeans(40, random_state=0, **settings).fit(load_sift()[:2000])
    expected.save("expected.safetensors")
    assert (here / "new.safetensors").read_bytes() == (here / "expected.safetensors").read_bytes()
    np.testing.assert_array_equal(np.load("labels.npy"), expected.labels_)
    plain = ClosureKMeans(40, random_state=0).fit(load_sift()[:2000])
    assert (expected.labels_ != plain.labels_).any()


def test_fit_from_given_centers(run, here):
    save_vectors("centers.fbin", load("words.safetensors").cluster_centers_)
    for start in ("words.safetensors", "centers.fbin"):
        result = run("fit", "rows.u8bin", "-k", 30, "-o", "new.safetensors", "--init", start)
        assert result.exit_code == 0, result.output
        assert load("new.safetensors").inertia_ <= load("words.safetensors").inertia_


def test_fit_speaks_json(run, here):
    result = run("fit", "rows.u8bin", "-k", 40, "-o", "new.safetensors", "--json")
    *iterations, done = map(json.loads, result.stdout.splitlines())
    assert result.stderr == ""
    assert [record["iteration"] for record in iterations] == list(range(1, done["iterations"] + 1))
    assert {record["event"] for record in iterations} == {"iteration"}
    assert done["event"] == "done"
    assert done["distortion"] == iterations[-1]["distortion"]
    assert done["rows_in_a_cluster"]["empty"] == 0
    assert done["model"] == "new.safetensors"
    quiet = run("fit", "rows.u8bin", "-k", 40, "-o", "new.safetensors", "--json", "--quiet")
    assert [json.loads(line)["event"] for line in quiet.stdout.splitlines()] == ["iteration"] * len(iterations) + [
        "done"
    ]


def test_fit_from_standard_input(here):
    np.save("rows.npy", load_sift()[:2000])
    given = (here / "rows.npy").read_bytes()
    result = process("fit", "-", "-k", 30, "-o", "new.safetensors", "--labels", "-", input=given)
    assert result.returncode == 0, result.stderr
    assert (here / "new.safetensors").read_bytes() == (here / "words.safetensors").read_bytes()
    labels = np.load(io.BytesIO(result.stdout))
    np.testing.assert_array_equal(labels, ClosureKMeans(30, random_state=0).fit(load_sift()[:2000]).labels_)


@pytest.mark.filterwarnings("default:the checkpoint .* may end with other bits")
def test_fit_is_resumed(run, here, monkeypatch):
    arguments = ("fit", "rows.u8bin", "-k", 30, "-o", "new.safetensors", "--checkpoint", "ck/")
    assert run(*arguments, "--max-iter", 3, "--resume").exit_code == 0
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert "holds a fit: add --resume to continue it, or remove the file" in refused.output
    other = run(*arguments[:3], 31, *arguments[4:], "--resume")
    assert other.exit_code == 1
    assert "belongs to another fit: n_clusters was 30 and is 31" in other.output
    assert "iteration" not in other.output  # it does not say that the fit goes on
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("numba.config.CPU_NAME", "generic")
        refused = run(*arguments, "--resume")
        assert refused.exit_code == 1
        assert "may end with other bits here: processor was" in refused.output
        assert "on the command line with --resume-anyway" in refused.output
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("sklearn.__version__", "9.9")
        anyway = run(*arguments, "--max-iter", 3, "--resume-anyway")
        assert anyway.exit_code == 0
        assert "Warning: the checkpoint 'ck" in anyway.output
        assert "the fit already ended after iteration 3 of 'ck" in anyway.output
    from_its_centers = run("fit", "rows.u8bin", "-k", 30, "-o", "other.safetensors", "--init", "ck/", "--max-iter", 1)
    assert from_its_centers.exit_code == 0
    assert load("other.safetensors").inertia_ < json.loads(run("info", "ck", "--json").stdout)["inertia"]
    resumed = run(*arguments, "--resume")
    assert resumed.exit_code == 0
    assert "resuming after iteration 3 of 'ck/checkpoint.safetensors'" in resumed.output.replace("\\", "/")
    assert (here / "new.safetensors").read_bytes() == (here / "words.safetensors").read_bytes()
    again = run(*arguments, "--resume")
    assert again.exit_code == 0
    assert f"the fit already converged after iteration {load('new.safetensors').n_iter_} of" in again.output


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    ("checkpoint", "kind"), [((), signal.SIGINT), (("--checkpoint", "ck"), signal.SIGINT), ((), signal.SIGTERM)]
)
def test_an_interrupt_saves_what_there_is(here, checkpoint, kind):
    arguments = (
        "fit",
        "rows.u8bin",
        "-k",
        "60",
        "-o",
        "new.safetensors",
        "--tol",
        "0",
        "--max-iter",
        "1000000",
        *checkpoint,
    )
    command = [sys.executable, "-m", "closure_kmeans", *arguments, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as fit:
        for _ in range(3):
            fit.stdout.readline()
        fit.send_signal(kind)
        output, errors = fit.communicate()
    assert fit.returncode == 130, errors
    done = json.loads(output.splitlines()[-1])
    assert done["stopped_by"] == "interrupted"
    assert load("new.safetensors").n_iter_ == done["iterations"] >= 3
    assert "Traceback" not in errors
    assert "interrupted; the model of the last iteration was written" in errors
    if checkpoint:
        assert f"continue with: closure-kmeans {' '.join(arguments)} --json --resume" in errors
        resumed = process(*arguments[:-4], "--max-iter", done["iterations"] + 2, *checkpoint, "--resume", "--json")
        assert json.loads(resumed.stdout.splitlines()[0])["iteration"] == done["iterations"] + 1, resumed.stderr
    else:
        assert "--init new.safetensors starts from these centres" in errors


def test_an_interrupt_before_there_is_anything(run, here, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("closure_kmeans.stores.memory.arrange_points", interrupt)
    result = run("fit", "rows.u8bin", "-k", 30, "-o", "new.safetensors", "-q")
    assert (result.exit_code, result.output) == (130, "interrupted; no output was written\n")
    assert not (here / "new.safetensors").exists()
    monkeypatch.undo()
    monkeypatch.chdir(here)
    arguments = ("fit", "rows.u8bin", "-k", 30, "-o", "new.safetensors", "-q", "--checkpoint", "ck", "--resume")
    assert run(*arguments, "--max-iter", 2).exit_code == 0
    before = (here / "ck" / "checkpoint.safetensors").read_bytes()
    monkeypatch.setattr("closure_kmeans.stores.memory.arrange_points", interrupt)
    result = run(*arguments)
    command = " ".join(map(str, arguments))
    assert result.exit_code == 130
    assert "interrupted before the first iteration; the checkpoint is unchanged; continue with: " in result.output
    assert result.output.endswith(f"{command}\n")
    assert (here / "ck" / "checkpoint.safetensors").read_bytes() == before


def test_predict(run, here):
    said = run("predict", "words.safetensors", "rows.u8bin", "-o", "labels.npy", "--distances", "d.npy").output
    assert said == "written: labels.npy, d.npy\n"
    model = load("words.safetensors")
    X = load_sift()[:2000]
    np.testing.assert_array_equal(np.load("labels.npy"), model.predict(X))
    assert np.load("d.npy").sum() == pytest.approx(-model.score(X))
    exact = run("predict", "words.safetensors", "rows.u8bin", "-o", "exact.npy", "--exact", "--n-threads", 1)
    assert exact.exit_code == 0
    np.testing.assert_array_equal(np.load("exact.npy"), model.predict(X, exact=True))


def test_predict_in_batches(run, here, monkeypatch):
    monkeypatch.setattr("closure_kmeans.cli.common.BATCH_ROWS", 300)
    run("predict", "words.safetensors", "rows.u8bin", "-o", "labels.npy")
    np.testing.assert_array_equal(np.load("labels.npy"), load("words.safetensors").predict(load_sift()[:2000]))


def test_a_bad_row_of_a_later_batch(run, here, monkeypatch):
    monkeypatch.setattr("closure_kmeans.cli.common.BATCH_ROWS", 300)
    X = load_sift()[:2000].astype(np.float32)
    X[1007] = np.nan
    np.save("rows.npy", X)
    result = run("predict", "words.safetensors", "rows.npy", "-o", "labels.npy")
    assert result.exit_code == 1
    rule = "X must not contain NaN or infinity, but row 107 does (row numbers relative to row 900)"
    assert rule in " ".join(result.output.split())


def test_predict_in_a_pipe(here):
    np.save("rows.npy", load_sift()[:50])
    result = process("predict", "words.safetensors", "-", "-o", "-", input=(here / "rows.npy").read_bytes())
    labels = np.load(io.BytesIO(result.stdout))
    np.testing.assert_array_equal(labels, load("words.safetensors").predict(load_sift()[:50]))


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "words.safetensors", "rows.npy", "-o", "rows.npy"),
        ("predict", "words.safetensors", "rows.npy", "-o", "same.npy", "--distances", "../{here}/same.npy"),
        ("fit", "rows.npy", "-k", 3, "-o", "new.safetensors", "--labels", "rows.npy"),
        ("fit", "rows.npy", "-k", 30, "-o", "words.safetensors", "--init", "words.safetensors"),
        ("export", "words.safetensors", "--centers", "rows.npy", "--vectors", "rows.npy"),
    ],
)
def test_nothing_that_is_read_is_overwritten(run, here, arguments):
    np.save("rows.npy", load_sift()[:50])
    before = {file.name: file.read_bytes() for file in here.iterdir()}
    result = run(*(str(argument).format(here=here.name) for argument in arguments))
    assert result.exit_code == 2
    assert "would be overwritten: outputs must differ from the inputs and from each other" in " ".join(
        result.output.split()
    )
    assert {file.name: file.read_bytes() for file in here.iterdir()} == before


@pytest.mark.parametrize("name", ["0.npy", "labels.npy"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "shards", "-k", 3, "-o", "new.safetensors", "--labels"),
        ("predict", "words.safetensors", "shards", "-o"),
        ("export", "words.safetensors", "--vectors", "shards/", "--centers"),
    ],
)
def test_nothing_is_written_among_the_vectors(run, here, arguments, name):
    (here / "shards").mkdir()
    np.save("shards/0.npy", load_sift()[:50])
    before = (here / "shards" / "0.npy").read_bytes()
    result = run(*arguments, f"shards/{name}")
    assert result.exit_code == 2
    assert f"'shards/{name}' would be read as one of the files of vectors in" in " ".join(result.output.split())
    assert os.listdir("shards") == ["0.npy"]
    assert (here / "shards" / "0.npy").read_bytes() == before


def test_other_files_may_lie_beside_the_vectors(run, here):
    assert run("fit", ".", "-k", 3, "-o", "new.safetensors", "-q").exit_code == 0


@pytest.mark.parametrize("checkpoint", ["new.safetensors", "ck"])
def test_a_model_is_not_written_over_its_checkpoint(run, here, checkpoint):
    (here / "ck").mkdir()
    output = "ck/checkpoint.safetensors" if checkpoint == "ck" else checkpoint
    result = run("fit", "rows.u8bin", "-k", 3, "-o", output, "--checkpoint", checkpoint)
    assert result.exit_code == 2
    assert f"'{output}' would be overwritten" in result.output


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_a_full_disk_behind_standard_output_is_an_error(here):
    np.save("rows.npy", load_sift()[:50])
    command = [sys.executable, "-u", "-m", "closure_kmeans", "predict", "words.safetensors", "rows.npy", "-o", "-"]
    with open("/dev/full", "wb") as full:
        assert subprocess.run(command, stdout=full, stderr=subprocess.PIPE).returncode == 1


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
def test_a_fit_outlives_those_who_watch_it(here):
    command = [
        sys.executable,
        "-m",
        "closure_kmeans",
        "fit",
        "rows.u8bin",
        "-k",
        "30",
        "-o",
        "new.safetensors",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as fit:
        fit.stdout.readline()
        fit.stdout.close()
        fit.wait()
    assert (here / "new.safetensors").read_bytes() == (here / "words.safetensors").read_bytes()


def closing(descriptor, *arguments):
    """A process that begins with one of its standard streams closed."""
    return process(*arguments, preexec_fn=lambda: os.close(descriptor))


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors")
@pytest.mark.parametrize("descriptor", [0, 1, 2])
def test_a_fit_works_while_a_standard_stream_is_closed(here, descriptor):
    result = closing(descriptor, "fit", "rows.u8bin", "-k", 30, "-o", "new.safetensors", "--labels", "labels.npy")
    assert result.returncode == 0, result.stderr
    assert (here / "new.safetensors").read_bytes() == (here / "words.safetensors").read_bytes()
    assert np.load("labels.npy").shape == (2000,)


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors")
@pytest.mark.parametrize(
    ("descriptor", "arguments", "message"),
    [
        (0, ("fit", "-", "-k", 3, "-o", "a.safetensors"), b"Invalid value for 'VECTORS': standard input is closed"),
        (0, ("export", "words.safetensors", "--vectors", "-", "--labels", "a.npy"), b"'--vectors': standard input is"),
        (1, ("fit", "rows.u8bin", "-k", 3, "-o", "a.safetensors", "--labels", "-"), b"'--labels': standard output is"),
        (1, ("predict", "words.safetensors", "rows.u8bin", "-o", "-"), b"'-o' / '--output': standard output is closed"),
    ],
)
def test_a_closed_stream_that_is_named(here, descriptor, arguments, message):
    result = closing(descriptor, *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert sorted(os.listdir()) == ["rows.u8bin", "words.safetensors"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes")
@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ("explore words.safetensors --vectors rows.u8bin --labels pipe.npy", "--labels"),
        ("explore words.safetensors --vectors rows.u8bin --metadata pipe.csv", "--metadata"),
        ("explore words.safetensors --vectors rows.u8bin --images pipe.npy", "--images"),
        ("explore words.safetensors --vectors pipe.npy", "--vectors"),
        ("explore --index pipe.npy", "--index"),
        ("explore --checkpoint pipe.npy", "--checkpoint"),
        ("report pipe.npy -o a.html", "MODEL"),
        ("predict pipe.npy rows.u8bin -o a.npy", "MODEL"),
        ("predict words.safetensors pipe.npy -o a.npy", "VECTORS"),
        ("predict words.safetensors rows.u8bin -o pipe.npy", "--output"),
        ("evaluate words.safetensors rows.u8bin --truth pipe.npy", "--truth"),
        ("export words.safetensors --vectors pipe.npy --labels a.npy", "--vectors"),
        ("info pipe.npy", "PATH"),
        ("fit pipe.npy -k 3 -o a.safetensors", "VECTORS"),
        ("fit rows.u8bin -k 3 -o a.safetensors --checkpoint pipe.npy", "--checkpoint"),
        ("retrieval index pipe.npy -o a.index", "PHOTOS"),
        ("retrieval query pipe.npy rows.u8bin", "INDEX"),
        ("retrieval query words.safetensors pipe.npy", "IMAGE"),
        ("retrieval add words.safetensors . --work pipe.npy", "--work"),
    ],
)
def test_a_pipe_is_not_waited_for(run, here, arguments, option):
    for name in ("pipe.npy", "pipe.csv"):
        os.mkfifo(name)
    result = run(*arguments.split())
    assert result.exit_code == 2
    assert re.search(
        rf"Invalid value for .*{option}\W.*: 'pipe\.\w+' (must be a file or a folder|exists)", result.output
    )


def test_what_is_wrong_with_standard_input(here):
    result = process("predict", "words.safetensors", "-", "-o", "-", input=(here / "rows.u8bin").read_bytes())
    assert result.returncode == 1
    assert b"Error: standard input must begin like a .npy file" in result.stderr


def test_standard_input_that_finds_no_room(run, here, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("closure_kmeans.cli.common.shutil.copyfileobj", fail)
    result = run("predict", "words.safetensors", "-", "-o", "labels.npy")
    assert result.exit_code == 1
    assert "Error: standard input could not be copied to '" in result.output
    assert "': No space left on device" in result.output


# -- room on the disk --------------------------------------------------------------------------------------------------


@pytest.fixture
def full_disk(tmp_path, monkeypatch):
    """A folder with room for 60 kB."""
    (tmp_path / "disk").mkdir()
    usage = shutil.disk_usage(tmp_path)._replace(free=61_440)
    monkeypatch.setattr("closure_kmeans.files.shutil.disk_usage", lambda folder: usage)
    return tmp_path / "disk"


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("training", [False, True])
def test_the_size_of_a_model_is_known_before_the_fit(tmp_path, dtype, training):
    X = load_sift()[:1000].astype(dtype)
    model = ClosureKMeans(200, max_iter=5, random_state=0).fit(X)
    model.save(tmp_path / "words.safetensors", training=training)
    estimate = model_size(200, 128, dtype, n_labels=1000 if training else 0)
    assert 0 < (tmp_path / "words.safetensors").stat().st_size - estimate < 4000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit rows.u8bin -k 300 -o {}/a.safetensors", r"a\.safetensors' needs 156,000 bytes"),
        ("fit rows.u8bin -k 110 -o {}/a.safetensors --training", r"a\.safetensors' needs 65,200 bytes"),
        (
            "fit rows.u8bin -k 110 -o {0}/a.safetensors --labels {0}/b.npy",
            r"b\.npy' needs 8,000 bytes, 65,200 with the other files to write",
        ),
        ("predict words.safetensors many.npy -o {}/a.npy", r"a\.npy' needs 80,000 bytes"),
        ("predict words.safetensors many.npy -o - --distances {}/a.npy", r"a\.npy' needs 160,000 bytes"),
        ("export words.safetensors --vectors many.npy --members {}/a.npz", r"a\.npz' needs 80,240 bytes"),
    ],
)
def test_what_will_not_fit_on_the_disk_is_found_before_the_work(run, here, monkeypatch, full_disk, arguments, message):
    np.save("many.npy", np.tile(load_sift()[:2000], (10, 1)))
    for work in (
        "closure_kmeans.ClosureKMeans.fit",
        "closure_kmeans.cli.predict.assign",
        "closure_kmeans.cli.export.assign",
    ):
        monkeypatch.setattr(work, None)
    result = run(*arguments.format(full_disk).split())
    assert result.exit_code == 1
    assert re.search(rf"Error: '.*{message}, but '.*disk' has 61,440 free", result.output), result.output
    assert os.listdir(full_disk) == []


def test_what_fits_on_the_disk_is_written(run, here, small_disk):
    options = ("-o", small_disk / "a.safetensors", "--labels", small_disk / "b.npy")
    assert run("fit", "rows.u8bin", "-k", 90, *options).exit_code == 0
    assert (small_disk / "a.safetensors").stat().st_size > 90 * 128 * 4


def test_a_checkpoint_that_will_not_fit_is_found_before_the_first_iteration(full_disk):
    done = []
    model = ClosureKMeans(300, checkpoint=full_disk / "ck", random_state=0, callback=done.append)
    with pytest.raises(
        OSError, match=r"checkpoint\.safetensors' needs 170,000 bytes, but '.*' has 61,440 free"
    ) as caught:
        model.fit(load_sift()[:2000])
    assert caught.value.errno == errno.ENOSPC
    assert done == []


def test_evaluate(run, here):
    model = load("words.safetensors")
    X = load_sift()[:2000]
    np.save("truth.npy", model.predict(X) // 2)
    result = run("evaluate", "words.safetensors", "rows.u8bin", "--truth", "truth.npy", "--json")
    facts = json.loads(result.stdout)
    assert facts["distortion"] == pytest.approx(metrics.distortion(X, model.cluster_centers_))
    assert facts["accuracy"] == 1
    assert 0.5 < facts["mutual_information"] < 1
    assert sum(facts["rows_in_a_cluster"].values()) > 0
    table = run("evaluate", "words.safetensors", "rows.u8bin").stdout
    assert "accuracy           100.0%" in table
    np.save("truth.npy", np.zeros(3))
    assert (
        "must hold one class for each of 2000 rows, but has shape (3,)"
        in run("evaluate", "words.safetensors", "rows.u8bin", "--truth", "truth.npy").output
    )


def test_info(run, here):
    model = json.loads(run("info", "words.safetensors", "--json").stdout)
    assert (model["kind"], model["clusters"], model["features"]) == ("model", 30, 128)
    vectors = json.loads(run("info", "rows.u8bin", "--json").stdout)
    assert vectors == {
        "kind": "vectors",
        "rows": 2000,
        "features": 128,
        "dtype": "uint8",
        "bytes in memory": 256_000,
        "memory-mapped": True,
    }
    run("fit", "rows.u8bin", "-k", 30, "-o", "new.safetensors", "--checkpoint", "ck", "--max-iter", 2)
    for path in ("ck", "ck/checkpoint.safetensors"):
        checkpoint = json.loads(run("info", path, "--json").stdout)
        assert (checkpoint["kind"], checkpoint["iterations"], checkpoint["n_clusters"]) == ("checkpoint", 2, 30)
    assert "clusters    30" in run("info", "words.safetensors").stdout


def test_export(run, here):
    result = run(
        *("export", "words.safetensors", "--centers", "c.fbin", "--faiss", "w.faiss", "--vectors", "rows.u8bin"),
        *("--labels", "l.npy", "--distances", "d.npy", "--members", "m.npz", "--table", "t.parquet"),
    )
    assert result.exit_code == 0, result.output
    assert "written: c.fbin, w.faiss, l.npy, d.npy, m.npz, t.parquet" in result.output
    model = load("words.safetensors")
    np.testing.assert_array_equal(open_vectors("c.fbin"), model.cluster_centers_)
    labels = np.load("l.npy")
    np.testing.assert_array_equal(labels, model.predict(load_sift()[:2000]))
    with np.load("m.npz") as members:
        np.testing.assert_array_equal(members["starts"], np.r_[0, np.cumsum(np.bincount(labels, minlength=30))])
    np.testing.assert_array_equal(np.asarray(open_vectors("t.parquet")), load_sift()[:2000])
    assert faiss.read_index("w.faiss").nlist == 30
    assert "no output given: use at least one of --centers" in run("export", "words.safetensors").output
    assert "'l.npy' needs --vectors" in run("export", "words.safetensors", "--labels", "l.npy").output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("fit nothing.npy -k 3 -o a.safetensors", 2, "Path 'nothing.npy' does not exist"),
        ("fit rows.u8bin -k 3 -o a.pkl", 2, "the name must end in .safetensors, got 'a.pkl'"),
        ("fit rows.u8bin -k 3 -o nowhere/a.safetensors", 2, "the folder 'nowhere' does not exist"),
        (
            "fit rows.u8bin -k 3 -o a.safetensors --max-time soon",
            2,
            "'soon' is not a duration: expected for example 90, 90s, 5m or 1.5h",
        ),
        ("fit rows.u8bin -k 3 -o a.safetensors --resume", 2, "--resume needs --checkpoint"),
        ("fit rows.u8bin -k 3 -o a.safetensors --json --labels -", 2, "cannot both write to standard output"),
        ("fit rows.u8bin -k 3 -o a.safetensors --metric manhattan", 2, "'manhattan' is not one of"),
        ("fit rows.u8bin -k 3 -o a.safetensors --memory-limit lots", 1, "memory_limit must be a number of bytes"),
        ("fit rows.u8bin -k 3 -o a.safetensors --memory-limit 1MB", 1, "memory_limit must be at least"),
        ("fit rows.u8bin -k 3 -o a.safetensors --max-size 9", 1, "max_size must be at least the mean size"),
        ("fit rows.u8bin -k 3000 -o a.safetensors", 1, "n_clusters must be at most the number of rows"),
        ("fit words.safetensors -k 3 -o a.safetensors", 1, "'words.safetensors' must end in one of .npy, .fvecs"),
        (
            "fit rows.u8bin -k 3 -o a.safetensors --init half.npy",
            2,
            "'half.npy' must be tree, random, or an existing model, file",
        ),
        (
            "fit rows.u8bin -k 3 -o a.safetensors --checkpoint rows.u8bin",
            2,
            "'rows.u8bin' must be a folder, but is a file",
        ),
        ("predict rows.u8bin rows.u8bin -o l.npy", 1, "'rows.u8bin' cannot be read as a model"),
        (
            "predict rows.npy words.safetensors -o l.npy",
            1,
            "'rows.npy' must begin like a .safetensors file, but it begins like a .npy file",
        ),
        ("predict words.safetensors words.safetensors -o l.npy", 1, "must end in one of .npy"),
        ("predict words.safetensors rows.u8bin -o -l.txt", 2, "the name must end in .npy"),
        ("info empty", 1, "the folder 'empty' must hold files of vectors of one kind, but there is none"),
    ],
)
def test_bad_calls(run, here, arguments, code, message):
    (here / "empty").mkdir()
    np.save("rows.npy", load_sift()[:50])
    before = sorted(path.name for path in here.iterdir())
    result = run(*arguments.split())
    assert result.exit_code == code, result.output
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert sorted(path.name for path in here.iterdir()) == before


def test_a_file_cut_short(run, here):
    (here / "rows.u8bin").write_bytes((here / "rows.u8bin").read_bytes()[:-1])
    result = run("fit", "rows.u8bin", "-k", 3, "-o", "a.safetensors")
    assert result.exit_code == 1
    message = "Error: 'rows.u8bin' should have 2000 x 128 values of uint8, 256008 bytes in all, but has 256007 bytes"
    assert result.output.strip() == message


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400), ("2d", 172800), ("0", 0)]
)
def test_durations(text, seconds):
    assert duration(text) == seconds


def test_doctor(run, monkeypatch):
    facts = json.loads(run("doctor", "--json").stdout)
    assert facts["closure-kmeans"] == __version__
    assert facts["libraries"]["numpy"] == np.__version__
    assert facts["kernel cache writable"] is True
    assert facts["threads"] >= 1
    assert "free memory" in run("doctor").stdout


def test_doctor_looks_at_the_cache(run, monkeypatch, tmp_path):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    facts = json.loads(run("doctor", "--json").stdout)
    assert Path(facts["kernel cache"]).parent == tmp_path
    assert (facts["kernel cache writable"], facts["kernels compiled"]) == (True, False)
    kernel(end_of_run.py_func)(np.array([2, 2, 5]), 0)
    assert json.loads(run("doctor", "--json").stdout)["kernels compiled"] is True
    monkeypatch.setattr("closure_kmeans.cache.os.access", lambda *_: False)
    (path,) = tmp_path.glob("*/*.kernel")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    facts = json.loads(run("doctor", "--json").stdout)
    assert (facts["kernels compiled"], facts["kernels not used"]) == (False, [f"'{path}' is damaged"])
    path.write_bytes(whole)
    read_only = run("doctor", "--json")
    assert read_only.exit_code == 0  # kernels that root has compiled will do
    assert json.loads(read_only.stdout)["kernel cache writable"] is False
    assert json.loads(read_only.stdout)["kernels of another version"] is False
    monkeypatch.setattr("closure_kmeans.cache.STAMP", bytes(32))  # those of another version will not
    sick = run("doctor")
    assert sick.exit_code == 1
    assert re.search(r"kernels compiled +no\nkernels of another version +yes\n", sick.stdout)
    assert "set NUMBA_CACHE_DIR to a folder that you, and nobody else, can write to" in sick.output


def test_doctor_knows_the_extras(run, monkeypatch):
    needed = ["numpy>=1.26", "tqdm[notebook]; extra == 'explore'", "closure-kmeans[io]; extra == 'explore'"]
    needed += ['nowhere>=3; extra == "io"', "pytest>=8.0; extra == 'test'"]
    monkeypatch.setattr("closure_kmeans.cli.doctor.requires", lambda _: needed)
    facts = json.loads(run("doctor", "--json").stdout)
    assert facts["libraries"] == {"numpy": np.__version__}
    assert facts["optional libraries"] == {"tqdm": version("tqdm"), "nowhere": None}


@pytest.mark.slow
def test_warmup_fails_if_no_kernel_is_kept(tmp_path, monkeypatch):
    """Else an image without kernels would be built."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("closure_kmeans.cli.doctor.compile_kernels", lambda dtype: None)
    result = CliRunner().invoke(cli.main, ["warmup", "--dtype", "uint8"])
    assert result.exit_code == 1
    assert "set NUMBA_CACHE_DIR to a folder that you, and nobody else, can write to" in result.stderr


def test_warmup_leaves_nothing_to_compile(tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    result = process("warmup", "--dtype", "float32", env=os.environ | cache)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(b"float32 ")
    files = sorted(path.name for path in tmp_path.rglob("*.kernel"))
    code = """if True:
        import numpy as np
        from closure_kmeans import ClosureKMeans
        import closure_kmeans.search
        closure_kmeans.search.MANY_CENTERS = 20
        X = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
        limited = ClosureKMeans(30, memory_limit="16MB")
        for model in (ClosureKMeans(30), ClosureKMeans.paper(30), ClosureKMeans(30, init="random"), limited):
            model.fit(X, sample_weight=np.arange(1, 501)).predict(X)
            model.fit(X).predict(X, exact=True)
    """
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | cache)
    assert sorted(path.name for path in tmp_path.rglob("*.kernel")) == files


def records(inertias, seconds=1.0):
    return [Iteration(i + 1, seconds * (i + 1), inertia, 1, 1, 1.0, None) for i, inertia in enumerate(inertias)]


def test_the_estimated_end():
    limits = {"max_iter": 100, "at_most": float("inf")}
    halving = [1.0]
    for i in range(8):
        halving.append(halving[-1] * (1 - 0.1 * 0.5**i))
    # The last fall was 0.1 / 128; five more halvings bring it below 0.1 / 4096.
    assert seconds_left(records(halving, 2.0), tol=0.1 / 4095, **limits) == pytest.approx(10.0)
    assert seconds_left(records(halving), tol=0.5, **limits) == 0
    assert seconds_left(records(halving), tol=0, **limits) == 91
    assert seconds_left(records(halving), tol=0, max_iter=100, at_most=3.0) == 3
    assert seconds_left(records(halving[:3]), tol=0.001, **limits) is None
    assert seconds_left(records([1.0] * 9), tol=0.001, **limits) is None


def test_compiling_is_no_part_of_the_estimated_end(monkeypatch):
    history = records([2.0**-i for i in range(6)])
    progress = Progress(ClosureKMeans(2, tol=0), 1, quiet=True, as_json=False)
    for record in history:
        if record.iteration == 3:
            monkeypatch.setattr(WATCH, "seconds", WATCH.seconds + 1000)
        progress(record._replace(seconds=record.seconds + 1000 * (record.iteration >= 3)))
    assert progress._text(history[-1]).endswith(f", about {clock(94)} left")


@pytest.mark.parametrize(("option", "said"), [("--quiet", False), ("--exact", True)])
def test_quiet_commands_compile_quietly(run, here, monkeypatch, caplog, option, said):
    monkeypatch.setattr("closure_kmeans.cli.predict.write_array", lambda *_: say("compiling"))
    level = LOGGER.level
    result = run("predict", "words.safetensors", "rows.u8bin", "-o", "labels.npy", option)
    assert result.exit_code == 0, result.output
    assert ("compiling" in caplog.messages) == said
    assert LOGGER.level == level


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3661, "1:01:01")])
def test_the_clock(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(("command", "module"), [("bench", "benchmarks.rivals"), ("paper", "benchmarks.paper")])
def test_commands_of_version_0_1(run, command, module):
    result = run(command, "own")
    assert result.exit_code == 2
    assert f"{command} was removed in version 0.2: in a clone of the repository, use python -m {module}" in " ".join(
        result.output.split()
    )


@pytest.mark.parametrize(
    ("arguments", "old", "new"),
    [
        (("fit", "rows.u8bin", "-k", 3, "-o", "a.safetensors", "--threads", 2), "--threads", "--n-threads"),
        (("fit", "rows.u8bin", "--clusters", 3, "-o", "a.safetensors"), "--clusters", "--n-clusters"),
        (("fit", "rows.u8bin", "-k", 3, "-o", "a.safetensors", "--dask", "local"), "--dask", "--client"),
        (("demo", "--seed", 3), "--seed", "--random-state"),
        (("retrieval", "index", ".", "--words", 3), "--words", "--n-words"),
    ],
)
def test_options_of_version_0_1(run, here, arguments, old, new):
    result = run(*arguments)
    assert result.exit_code == 2
    assert f"{old} was renamed in version 0.2: use {new}" in result.output


@pytest.mark.parametrize("name", cli.main.commands)
def test_every_command_has_an_example(run, name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"Example:\n    closure-kmeans {name}" in result.output
    short = next(line for line in run("--help").output.splitlines() if line.startswith(f"  {name} "))
    assert not short.endswith("...")
