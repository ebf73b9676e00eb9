"""``closure-kmeans codes``: each command does what the library does."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from closure_kmeans import ResidualKMeans, cli
from closure_kmeans.datasets import load_sift
from closure_kmeans.vectors import save_vectors

X = load_sift()[:1500]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_vectors("items.u8bin", X)
    return lambda *arguments: CliRunner().invoke(cli.main, ["codes", *map(str, arguments)])


def done(result):
    assert result.exit_code == 0, result.output
    return result


def test_codes_from_fit_to_rows(run):
    import faiss
    import pyarrow.parquet as pq

    result = done(run("fit", "items.u8bin", "--levels", "20,10", "-o", "m.safetensors", "--codes", "own.npy"))
    assert "perplexity" in result.output
    model = ResidualKMeans([20, 10], random_state=0).fit(X)
    np.testing.assert_array_equal(np.load("own.npy"), model.codes_)

    done(run("encode", "m.safetensors", "items.u8bin", "-o", "codes.npy"))
    np.testing.assert_array_equal(np.load("codes.npy"), model.encode(X))
    done(run("encode", "m.safetensors", "items.u8bin", "-o", "ids.parquet", "--beam", 4))
    assert pq.read_table("ids.parquet")["codes"].to_pylist() == model.encode(X, beam=4).tolist()

    done(run("decode", "m.safetensors", "codes.npy", "-o", "rows.npy"))
    np.testing.assert_array_equal(np.load("rows.npy"), model.decode(model.encode(X)))

    facts = json.loads(done(run("report", "m.safetensors", "items.u8bin", "--json")).output)
    quality = model.report(X)
    assert facts == {
        "rows": 1500,
        "distortion": quality.distortion,
        "unique_ids": quality.unique,
        "rows_with_one_id": quality.largest_group,
        "used": quality.used,
        "perplexity": quality.perplexity,
    }

    about = json.loads(CliRunner().invoke(cli.main, ["info", "m.safetensors", "--json"]).output)
    assert about["kind"] == "codes"
    assert about["levels"] == [20, 10]

    done(run("export", "m.safetensors", "--faiss", "items.faiss", "--ivf", "--codes", "codes.npy"))
    index = faiss.read_index("items.faiss")
    assert (index.nlist, index.ntotal) == (20, 1500)


def test_options_are_those_of_the_library(run):
    options = "--metric cosine --normalize-residuals --unique --max-size 200 --max-iter 3 --tol 0.1 --random-state 5"
    done(run("fit", "items.u8bin", "--levels", "20,10", "-o", "m.safetensors", *options.split(), "--json"))
    model = ResidualKMeans.load("m.safetensors")
    expected = {"metric": "cosine", "normalize_residuals": True, "unique": True, "max_size": 200.0, "max_iter": 3}
    expected |= {"tol": 0.1, "random_state": 5}
    assert model.get_params() == ResidualKMeans([20, 10], **expected).get_params()


def test_iterations_as_json(run):
    result = done(run("fit", "items.u8bin", "--levels", "9,9", "-o", "m.safetensors", "--max-iter", 2, "--json"))
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["event"], line.get("level")) for line in lines] == [
        *(("iteration", level) for level in (0, 0, 1, 1)),
        ("done", None),
    ]
    assert lines[-1]["iterations"] == [2, 2]


def test_an_interrupted_fit_goes_on(run, monkeypatch):
    arguments = "fit", "items.u8bin", "--levels", "9,9", "-o", "m.safetensors"
    fit = ResidualKMeans.fit

    def interrupt(level, record):
        if level == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(ResidualKMeans, "fit", lambda self, *a, **k: fit(self.set_params(callback=interrupt), *a, **k))
    result = run(*arguments)
    assert result.exit_code == 130
    assert "no output was written; --checkpoint would allow resuming" in result.output
    result = run(*arguments, "--checkpoint", "ck")
    assert "continue from 'ck' with --resume" in result.output
    monkeypatch.setattr(ResidualKMeans, "fit", fit)
    assert "holds a fit" in run(*arguments, "--checkpoint", "ck").output
    done(run(*arguments, "--checkpoint", "ck", "--resume"))
    np.testing.assert_array_equal(
        ResidualKMeans.load("m.safetensors").encode(X), ResidualKMeans([9, 9], random_state=0).fit(X).encode(X)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "items.u8bin", "--levels", "9,x", "-o", "m.safetensors"), "must be whole numbers separated by commas"),
        (("fit", "items.u8bin", "--levels", "9,0", "-o", "m.safetensors"), "each of levels must be at least 1, got 0"),
        (("fit", "items.u8bin", "--levels", "9", "-o", "m.npy"), "must end in .safetensors"),
        (("fit", "items.u8bin", "--levels", "9", "-o", "m.safetensors", "--resume"), "--resume needs --checkpoint"),
        (("encode", "items.u8bin", "items.u8bin", "-o", "c.npy"), "cannot be read as codes"),
        (("encode", "items.u8bin", "items.u8bin", "-o", "items.u8bin"), "must end in"),
    ],
)
def test_bad_calls(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert message in result.output
