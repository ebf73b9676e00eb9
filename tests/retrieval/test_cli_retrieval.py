"""The commands ``closure-kmeans retrieval ...``: index, query, add, remove, evaluate."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image
from retrieval_data import rewritten, write_ground_truth

from closure_kmeans import cli
from closure_kmeans.cli.options import Manner
from closure_kmeans.cli.photos import collect_photos
from closure_kmeans.features import load_image
from closure_kmeans.retrieval import ImageIndex, experiment, learn_vocabulary, stages
from closure_kmeans.retrieval.experiment import Scoring
from closure_kmeans.tensors import write_tensors


@pytest.fixture
def run():
    def invoke(*arguments, code=0):
        result = CliRunner().invoke(cli.main, ["retrieval", *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result.output

    return invoke


@pytest.fixture
def made(run, photos, tmp_path):
    run("index", photos, "--n-words", "300", "-o", tmp_path / "photos.index", "-q")
    return tmp_path / "photos.index"


def test_index_and_query(run, made, photos, tmp_path):
    output = run("query", made, photos / "image005.png", "--n-results", "3")
    assert "image005.png" in output.splitlines()[0]
    results = json.loads(run("query", made, photos / "image005.png", "--rerank", "--json", "--n-results", "4"))
    assert results[0]["name"] == "image005.png"
    assert results[0]["verified"]
    assert {result["image"] // 4 for result in results} == {1}
    options = ("--montage", tmp_path / "row.png", "--matches", tmp_path / "lines.jpg", "--box", "10,10,140,140")
    run("query", made, photos / "image005.png", "--rerank", *options, "--verifier", "opencv", "--n-nearest", "2")
    assert load_image(tmp_path / "row.png").shape[1] > 1000
    assert load_image(tmp_path / "lines.jpg").shape[1] > 1000


def test_index_speaks_json_and_takes_up_what_is_done(run, photos, tmp_path, monkeypatch):
    arguments = ("index", photos, "--n-words", "200", "-o", tmp_path / "photos.index", "--work", tmp_path, "--json")
    facts = json.loads(run(*arguments))
    assert (facts["images"], facts["words"], facts["without_features"]) == (24, 200, 0)
    before = (tmp_path / "photos.index").read_bytes()

    def fail(*_, **__):
        raise AssertionError("done again")

    monkeypatch.setattr(stages, "collect", fail)
    monkeypatch.setattr(stages, "learn_vocabulary", fail)
    run(*arguments)
    assert (tmp_path / "photos.index").read_bytes() == before
    output = run(*arguments[:-1])
    assert f"features of 24 images from '{tmp_path}'" in output
    assert f"200 words from '{tmp_path}'" in output
    assert run(*arguments[:-1], "--quiet") == ""


def test_photos_of_the_same_name_are_told_apart(run, photos, tmp_path):
    """Moved from one folder to another, a photo has another name: nothing of the last time is taken up."""
    folder = tmp_path / "folder"
    for name in ("here", "there"):
        (folder / name).mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.png").write_bytes((photos / f"image{number:03}.png").read_bytes())
    (folder / "here" / "0.png").write_bytes((photos / "image003.png").read_bytes())
    arguments = ("index", folder, "--n-words", "50", "-o", tmp_path / "photos.index", "--work", tmp_path, "-q")
    run(*arguments)
    assert "here/0.png" in ImageIndex.load(tmp_path / "photos.index").names
    (folder / "here" / "0.png").rename(folder / "there" / "0.png")
    run(*arguments)
    assert ImageIndex.load(tmp_path / "photos.index").names == ["0.png", "1.png", "2.png", "there/0.png"]


def test_hierarchical_and_soft_indexes(run, photos, tmp_path):
    arguments = ("index", photos, "--n-words", "216", "-o", tmp_path / "photos.index", "--work", tmp_path, "-q")
    for kind in (("--levels", "3"), ("--levels", "1", "--n-nearest", "3")):
        run(*arguments, "--method", "hkm", *kind)
        plain = ("--json", "--rerank", "--expansion", "0")
        results = json.loads(run("query", tmp_path / "photos.index", photos / "image005.png", *plain))
        assert results[0]["name"] == "image005.png"
        assert results[0]["score"] == pytest.approx(1)
        assert {result["image"] // 4 for result in results[:3]} == {1}
    hard = json.loads(run("query", tmp_path / "photos.index", photos / "image005.png", "--json", "--n-nearest", "1"))
    assert hard[0]["score"] < 0.99


@pytest.mark.usefixtures("refused")
def test_add_and_remove(run, made, photos, tmp_path):
    more = tmp_path / "more"
    more.mkdir()
    (more / "new.png").write_bytes((photos / "image002.png").read_bytes())
    facts = json.loads(run("add", made, more, "--json"))
    assert (facts["images"], facts["added"]) == (25, 1)
    results = json.loads(run("query", made, photos / "image002.png", "--json", "--n-results", "2"))
    assert {result["name"] for result in results} == {"image002.png", "new.png"}
    before = made.read_bytes()
    assert "already in the index, such as 'new.png'" in run("add", made, more, code=1)
    assert made.read_bytes() == before
    assert json.loads(run("add", made, more, "--new", "--json"))["added"] == 0
    (more / "newer.png").write_bytes((photos / "image007.png").read_bytes())
    assert "1 of the 2 images" in run("add", made, more, code=1)
    assert made.read_bytes() == before
    facts = json.loads(run("add", made, more, "--new", "--json"))
    assert (facts["images"], facts["added"], facts["already_there"]) == (26, 1, 1)
    results = json.loads(run("query", made, photos / "image007.png", "--json", "--protocol", "paper"))
    assert {result["name"] for result in results[:2]} == {"image007.png", "newer.png"}
    run("remove", made, "newer.png")
    (more / "newer.png").write_bytes(b"no picture")
    assert "newer.png" in run("add", made, more, "--new", code=1)
    warning, facts = run("add", made, more, "--new", "--skip", "--json").splitlines()
    assert "skipped" in warning
    facts = json.loads(facts)
    assert (facts["images"], facts["added"], facts["left_out"], facts["already_there"]) == (25, 0, 1, 1)
    (more / "new.png").unlink()
    assert "must hold readable images, but none of its 1 can be" in run("add", made, more, "--skip", code=1)
    assert len(ImageIndex.load(made)) == 25
    (more / "newest.png").write_bytes((photos / "image008.png").read_bytes())
    facts = json.loads(run("add", made, more, "--skip", "--work", tmp_path / "kept", "--json").splitlines()[1])
    assert (facts["images"], facts["added"]) == (26, 1)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    run("remove", made, "newest.png")
    facts = json.loads(run("remove", made, "new.png", "--json"))
    assert (facts["images"], facts["removed"]) == (24, 1)
    assert len(ImageIndex.load(made)) == 24


@pytest.fixture
def work_done(monkeypatch):
    """The codebooks that are learned, and the ways in which they are scored."""
    learned, scored = [], []

    def learn(*data, method, **settings):
        learned.append(method)
        return learn_vocabulary(*data, method=method, **settings)

    def score(indexed, scoring, *others):
        scored.append(scoring)
        return score_once(indexed, scoring, *others)

    score_once = experiment._score
    monkeypatch.setattr(stages, "learn_vocabulary", learn)
    monkeypatch.setattr(experiment, "_score", score)
    return learned, scored


def test_an_evaluation_does_nothing_twice(run, photos, tmp_path, work_done):
    learned, scored = work_done
    arguments = ("evaluate", "ukbench", photos, "--n-words", "50", "--json", "--work", tmp_path / "kept")
    first = run(*arguments, "--methods", "closure")
    assert run(*arguments, "--methods", "closure,hkm").startswith(first)
    assert (learned, len(scored)) == (["closure", "hkm"], 2)
    scored.clear()
    options = ("--norms", "l1,l2", "--subsets", "12,24", "--rerank", "--levels", "1,2")
    rows = [json.loads(line) for line in run(*arguments, "--methods", "closure,hkm", *options).splitlines()]
    assert len(rows) == 8 + 16
    assert len(scored) == len(rows) - 2
    assert len({(row["method"], row["seconds"]) for row in rows}) == 2
    assert json.loads(first) in rows
    scored.clear()
    run(*arguments, "--methods", "hkm", "--n-nearest", "2")
    assert scored == [Scoring(24)]
    index = ("index", photos, "--n-words", "50", "-o", tmp_path / "photos.index", "--work", tmp_path / "kept")
    run(*index)
    assert learned == ["closure", "hkm"]
    run(*index, "--sample", "500")
    assert learned == ["closure", "hkm", "closure"]
    run(*index, "--sample", "1000000")  # is no sample of the few that there are
    assert learned == ["closure", "hkm", "closure"]
    learned.clear()
    run(*arguments, "--methods", "closure", "--sift")
    run(*arguments, "--methods", "closure", "--seeds", "1")
    run(*arguments, "--methods", "closure", "--max-side", "100")
    assert learned == ["closure", "closure", "closure"]
    assert run(*arguments, "--methods", "closure") == first


def test_an_evaluation_that_was_stopped_goes_on(run, photos, tmp_path, work_done, monkeypatch):
    learned, scored = work_done
    arguments = ("evaluate", "ukbench", photos, "--n-words", "50", "--rerank", "--json")
    whole = [json.loads(line)["score"] for line in run(*arguments).splitlines()]
    score = experiment._score

    def interrupted(indexed, scoring, *others):
        if scoring.reranked:
            raise KeyboardInterrupt
        return score(indexed, scoring, *others)

    with monkeypatch.context() as patch:
        patch.setattr(experiment, "_score", interrupted)
        output = run(*arguments, code=130)
        assert json.loads(output.splitlines()[0])["score"] == whole[0]
        assert "interrupted; no output was written; --work FOLDER would keep intermediate results" in output
        output = run(*arguments, "--work", tmp_path / "kept", code=130)
        assert f"interrupted; run the same command again to continue from '{tmp_path / 'kept'}'" in output
    learned.clear()
    scored.clear()
    rows = [json.loads(line) for line in run(*arguments, "--work", tmp_path / "kept").splitlines()]
    assert [row["score"] for row in rows] == whole
    assert learned == []
    verified = Scoring(24, reranked=True, embedding=True, burstiness=True, assignment=6, weighted=True)
    assert scored == [verified, verified._replace(expansion=20)]


def test_the_protocol_of_the_paper(run, photos, made):
    """One switch, and each step by itself."""
    steps = ("embedding", "burstiness", "assignment", "weighted", "expansion")

    def taken(*options):
        rows = run("evaluate", "ukbench", photos, "--n-words", "50", "--rerank", "--json", *options).splitlines()
        return [tuple(json.loads(row)[step] for step in steps) for row in rows]

    assert taken("--protocol", "paper") == [(False, False, 1, False, 0)] * 2
    assert taken("--protocol", "paper", "--weighted", "--expansion", "3") == [
        (False, False, 1, False, 0),
        (False, False, 1, True, 0),
        (False, False, 1, True, 3),
    ]
    assert taken("--no-burstiness", "--expansion", "0") == [(True, False, 6, False, 0), (True, False, 6, True, 0)]
    assert taken("--assignment", "2", "--expansion", "0") == [(True, True, 2, False, 0), (True, True, 2, True, 0)]
    plain = run("query", made, photos / "image005.png", "--protocol", "paper", "--json")
    assert json.loads(plain)[0]["score"] == pytest.approx(1)
    assert run("query", made, photos / "image005.png", "--no-embedding", "--json") == plain


def test_another_ground_truth_is_scored_again(run, photos, tmp_path, work_done):
    learned, scored = work_done
    truth = tmp_path / "truth"
    for good in ("image000 image001", "image000 image004"):
        write_ground_truth(truth, good=good, ok="image002", junk="image003")
        run("evaluate", "oxford", photos, truth, "--n-words", "50", "--work", tmp_path / "kept")
    assert (len(learned), len(scored)) == (1, 2)


def test_photos_without_features_come_first(run, photos, tmp_path):
    for number in range(4):
        Image.new("L", (80, 80), 128).save(tmp_path / f"a{number}.png")
        (tmp_path / f"image{number}.png").write_bytes((photos / f"image00{number}.png").read_bytes())
    (row,) = run("evaluate", "ukbench", tmp_path, "--n-words", "20", "--json").splitlines()
    assert json.loads(row)["score"] == 2


def test_kept_work_that_cannot_be_read_is_named(run, photos, tmp_path):
    arguments = ("evaluate", "ukbench", photos, "--n-words", "50", "--work", tmp_path)
    run(*arguments)
    for kind, name in (("a score", "scores-*"), ("a vocabulary", "words-*"), ("a collection", "features-*")):
        path = min(tmp_path.glob(name))
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        output = " ".join(run(*arguments, "--subsets", "12,24", code=1).split())
        assert f"{path.name}' cannot be read as {kind}" in output
        assert "remove it to have it made again" in output
        path.write_bytes(whole)
    (path,) = tmp_path.glob("scores-*")
    write_tensors(path, "score", {}, experiment.SCORES.load(path)._asdict() | {"score": None})
    assert f"{path.name}' cannot be read as a score" in " ".join(run(*arguments, code=1).split())


def test_evaluate(run, photos, tmp_path):
    arguments = ("--n-words", "50,200", "--methods", "closure,akm", "--json")
    rows = [json.loads(line) for line in run("evaluate", "ukbench", photos, *arguments).splitlines()]
    assert [(row["method"], row["words"], row["norm"]) for row in rows] == [
        *(("closure", 50, "l1"), ("akm", 50, "l1"), ("closure", 200, "l1"), ("akm", 200, "l1"))
    ]
    assert all(row["score"] > 1 and row["seconds"] > 0 for row in rows)
    assert "score" in run("evaluate", "ukbench", photos, "--n-words", "100", "-q")
    truth = write_ground_truth(tmp_path / "truth", good="image000 image001", ok="image002", junk="image003")
    (row,) = [
        json.loads(line)
        for line in run("evaluate", "oxford", photos, truth, "--n-words", "200", "--json").split("\n")
        if line
    ]
    assert 0.6 < row["score"] <= 1
    (tmp_path / "twice" / "below").mkdir(parents=True)
    for name in ("image000.png", "image001.png", "below/image000.png"):
        (tmp_path / "twice" / name).write_bytes((photos / Path(name).name).read_bytes())
    output = run("evaluate", "oxford", tmp_path / "twice", truth, "--n-words", "50", code=1)
    assert "names of their own, whatever their folders, but 'image000' occurs twice" in " ".join(output.split())


HKM_OF_100 = ("evaluate", "ukbench", "{photos}", "--methods", "hkm", "--n-words", "100")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("query", "{made}", "{folder}/flat.png"), 1, "flat.png' must have features, but has none"),
        (
            ("query", "{made}", "{photos}/image000.png", "--n-nearest", "301"),
            1,
            "at most the number of words, 300, got 301",
        ),
        (
            ("index", "{photos}", "-o", "{folder}/new.index", "--n-words", "9", "--n-nearest", "10"),
            2,
            "--n-words, 9",
        ),
        (("query", "{made}", "{photos}/image000.png", "--box", "300,300,400,400"), 1, "none inside the box"),
        (("query", "{made}", "{photos}/image000.png", "--box", "9,9,1,1"), 2, "x1 < x2"),
        (("query", "{made}", "{photos}/image000.png", "--box", "9,9"), 2, "four numbers"),
        (("query", "{made}", "{folder}/broken.png"), 1, "must be an image in one of"),
        (("query", "{folder}/broken.png", "{photos}/image000.png"), 1, "cannot be read as an index"),
        (("query", "{made}", "{photos}/image000.png", "--rerank", "--dof", "5"), 2, "3<=x<=4"),
        (("query", "{made}", "{photos}/image000.png", "--verify", "5"), 2, "--verify needs --rerank"),
        (("query", "{made}", "{photos}/image000.png", "--dof", "3"), 2, "--dof needs --rerank"),
        (("query", "{made}", "{photos}/image000.png", "--verifier", "opencv"), 2, "--verifier needs --rerank"),
        (("query", "{made}", "{photos}/image000.png", "--expansion", "5"), 2, "--expansion needs --rerank"),
        (("query", "{made}", "{photos}/image000.png", "--no-weighted"), 2, "--weighted/--no-weighted needs --rerank"),
        (
            ("query", "{made}", "{photos}/image000.png", "--matches", "{folder}/lines.png", "--expansion", "5"),
            2,
            "--expansion needs --rerank",
        ),
        ((*HKM_OF_100, "--weighted"), 2, "--weighted/--no-weighted needs --rerank"),
        (
            ("query", "{made}", "{photos}/image000.png", "--rerank", "--verifier", "opencv", "--dof", "3"),
            2,
            "--dof needs --verifier matches",
        ),
        ((*HKM_OF_100, "--subsets", "6"), 1, "the images of subsets must be whole groups of 4, got 6"),
        ((*HKM_OF_100, "--subsets", "28"), 1, "subsets must have 1 to 24 images, got 28"),
        (("index", "{folder}", "-o", "{folder}/new.index", "--n-words", "10"), 1, "broken.png' must be an image"),
        (
            ("index", "{photos}", "-o", "{folder}/new.index", "--levels", "2"),
            2,
            "--levels above 1 needs --method hkm, got 2 with 'closure'",
        ),
        ((*HKM_OF_100, "--levels", "9"), 1, "levels must be at most 2, the depth of the tree of words, got 9"),
        ((*HKM_OF_100, "--levels", "0"), 1, "levels must be at least 1"),
        (("evaluate", "ukbench", "{photos}", "--n-words", "0"), 1, "words must be at least 2"),
        (("evaluate", "ukbench", "{folder}/empty", "--n-words", "50"), 1, "must hold images, but has none"),
        (("evaluate", "ukbench", "{photos}", "--n-words", "50,99999999"), 1, "at most that of the descriptors"),
        (("query", "{made}", "{folder}/flat.png", "--montage", "{folder}/flat.png"), 2, "would be overwritten"),
        (
            ("query", "{made}", "{photos}/image000.png", "--montage", "{folder}/a.png", "--matches", "{folder}/a.png"),
            2,
            "would be overwritten",
        ),
        (("query", "{made}", "{photos}/image000.png", "--montage", "{photos}/image005.png"), 2, "image of the index"),
        (("add", "{made}", "{photos}"), 1, "24 of the 24 images of"),
        (("index", "{folder}/bad", "-o", "{folder}/new.index", "--skip"), 1, "must hold readable images"),
        (("index", "{folder}/empty", "-o", "{folder}/new.index"), 1, "must hold images, but has none"),
        (
            ("index", "{photos}", "-o", "{folder}/new.index", "--n-words", "1000000"),
            1,
            "words must be at most that of the descriptors",
        ),
        (("index", "{photos}", "-o", "{folder}/nowhere/new.index"), 2, "does not exist"),
        (("add", "{made}", "{folder}"), 1, "broken.png' must be an image"),
        (("remove", "{made}", "nothing"), 1, "must hold the image 'nothing'"),
        (("evaluate", "ukbench", "{photos}", "--methods", "magic"), 2, "'magic' must be one of"),
        (("evaluate", "ukbench", "{photos}", "--n-words", "many"), 2, "whole numbers"),
        (("evaluate", "oxford", "{photos}"), 2, "oxford needs the folder"),
        (("evaluate", "ukbench", "{photos}", "--levels", "1,2"), 2, "--levels needs hkm"),
        (("evaluate", "ukbench", "{photos}", "--skip"), 2, "--skip cannot be used with ukbench"),
    ],
)
def test_bad_calls(run, made, photos, tmp_path, arguments, code, message):
    Image.new("L", (50, 50), 128).save(tmp_path / "flat.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "broken.png").write_bytes(b"no image")
    before = made.read_bytes()
    names = {"made": made, "photos": photos, "folder": tmp_path}
    output = run(*(part.format(**names) for part in arguments), code=code)
    assert message in " ".join(output.split())
    assert made.read_bytes() == before
    assert not (tmp_path / "new.index").exists()


def test_threads_find_words(run, made, photos, monkeypatch):
    seen = []

    def search(index, *_, **settings):
        seen.append((index.vocabulary.model.n_threads, settings["n_threads"]))
        return []

    monkeypatch.setattr(ImageIndex, "search", search)
    run("query", made, photos / "image000.png", "--n-threads", "3")
    assert seen == [(3, 3)]


def test_photos_that_are_gone(run, made, photos, tmp_path):
    arguments = ("query", made, photos / "image000.png", "--montage", tmp_path / "row.png")
    assert "gone" not in run(*arguments)
    rewritten(made, lambda arrays, facts: facts.update(folders=[str(tmp_path)]))
    assert "Warning: 10 of the images found no longer exist, the first is 'image000.png'" in run(*arguments)
    lines = tmp_path / "lines.png"
    assert "no other image was found" in run("query", made, photos / "image000.png", "--matches", lines, code=1)
    assert not lines.exists()


def test_lines_do_not_depend_on_how_many_results_are_listed(run, made, photos, tmp_path):
    query = ("query", made, photos / "image000.png", "--rerank", "--matches")
    assert len(run(*query, tmp_path / "one.png", "--n-results", 1).splitlines()) == 1
    run(*query, tmp_path / "ten.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "ten.png").read_bytes()
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "image023.png").write_bytes((photos / "image023.png").read_bytes())
    rewritten(made, lambda arrays, facts: facts.update(folders=[str(tmp_path / "left")]))  # all others are gone
    run(*query, tmp_path / "far.png", "--n-results", 1)
    assert load_image(tmp_path / "far.png").shape == load_image(tmp_path / "one.png").shape


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--n-words", "0"), "words must be at least 2, got 0"),
        (("--n-words", "20", "--subsets", "6"), "must be whole groups of 4, got 6"),
        (("--n-words", "20", "--subsets", "4000"), "subsets must have 1 to"),
        (("--n-words", "20", "--seeds", "0,-1"), "seeds must be at least 0, got -1"),
        (("--n-words", "100", "--methods", "hkm", "--levels", "3"), "levels must be at most 2"),
        (("--n-words", "100,20", "--n-nearest", "21"), "n_nearest must be at most the number of words, 20, got 21"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused_before_features_are_taken(run, photos, tmp_path, arguments, message):
    assert message in run("evaluate", "ukbench", photos, *arguments, "--work", tmp_path / "work", code=1)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("oxc1_elsewhere 10 20 100 110", (), "those of all queries, but 'elsewhere' is not there"),
        ("oxc1_image020 10 20 100 110", ("--subsets", "24,8"), "those of all queries, but 'image020' is not there"),
        ("oxc1_image000 10 20 5 110", (), "with x1 < x2 and y1 < y2"),
        ("oxc1_image000 10 nan 50 110", (), "with x1 < x2 and y1 < y2"),
    ],
)
def test_a_ground_truth_that_cannot_be_is_refused_before(run, photos, tmp_path, query, options, message):
    truth = write_ground_truth(tmp_path / "truth", query=query)
    arguments = ("evaluate", "oxford", photos, truth, "--n-words", "50", "--work", tmp_path / "work", *options)
    assert message in " ".join(run(*arguments, code=1).split())
    assert not (tmp_path / "work").exists()


@pytest.mark.usefixtures("refused")
def test_what_changes_an_index_while_photos_are_added_stays(run, made, photos, tmp_path, monkeypatch):
    def collect_slowly(*arguments, **settings):
        run("remove", made, "image000.png")
        return collect_photos(*arguments, **settings)

    monkeypatch.setattr("closure_kmeans.cli.retrieval.collect_photos", collect_slowly)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "new.png").write_bytes((photos / "image002.png").read_bytes())
    run("add", made, tmp_path / "more")
    names = ImageIndex.load(made).names
    assert "image000.png" not in names
    assert "new.png" in names


def test_a_polite_end_is_an_interrupt(run, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "learn_vocabulary", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    arguments = ("index", photos, "--n-words", "50", "-o", tmp_path / "photos.index", "--work", tmp_path / "kept")
    assert "interrupted; run the same command again" in run(*arguments, code=130)
    assert signal.getsignal(signal.SIGTERM) is before
    assert {path.name.partition("-")[0] for path in (tmp_path / "kept").iterdir()} == {"features"}


def test_what_is_skipped_is_said(run, photos, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes((photos / f"image00{number}.png").read_bytes())
    (folder / "broken.png").write_bytes(b"no image")
    output = run("index", folder, "-o", tmp_path / "new.index", "--n-words", "50", "--skip")
    assert "skipped: '" in output
    assert ImageIndex.load(tmp_path / "new.index").names == ["0.png", "1.png", "2.png"]
    for _ in range(2):  # also when the features are those of the last time
        arguments = ("--n-words", "50", "--skip", "--work", tmp_path / "work")
        assert "skipped: '" in run("index", folder, "-o", tmp_path / "new.index", *arguments)


@pytest.mark.slow
def test_warmup_leaves_nothing_to_compile(photos, tmp_path):
    def call(*arguments):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        subprocess.run([sys.executable, "-m", "closure_kmeans", *map(str, arguments)], check=True, env=environment)
        return sorted(path.name for path in (tmp_path / "cache").rglob("*.kernel"))

    compiled = call("warmup", "--dtype", "uint8")
    index, query = tmp_path / "photos.index", ("retrieval", "query", tmp_path / "photos.index", photos / "image005.png")
    call("retrieval", "index", photos, "--n-words", "300", "-o", index)
    call(*query, "--rerank", "--montage", tmp_path / "row.png", "--matches", tmp_path / "lines.png")
    assert call(*query, "--rerank", "--norm", "l2", "--n-nearest", "2", "--dof", "3") == compiled


def test_json_shows_progress_on_a_terminal_only(monkeypatch):
    for on_terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda on_terminal=on_terminal: on_terminal)
        assert Manner(None, as_json=True, quiet=False).shows_progress == on_terminal
        assert Manner(None, as_json=False, quiet=False).shows_progress
        assert not Manner(None, as_json=True, quiet=True).shows_progress
