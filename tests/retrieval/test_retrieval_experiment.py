"""Codebooks compared by their scores."""

import os
import subprocess
import sys

import pytest
from retrieval_data import write_ground_truth

from closure_kmeans.features import local_features
from closure_kmeans.retrieval import Collection, Extraction, experiment, read_oxford
from closure_kmeans.retrieval.experiment import Plan, Scoring, compare

PAPER = {"embedding": False, "burstiness": False, "weighted": False, "expansion": 0}


def test_compare(collection):
    plan = Plan([50, 200], ["closure", "hkm"], ["l1", "l2"], levels=[1, 2], images=[12, None], rerank=True, **PAPER)
    rows = list(compare(collection, plan))
    assert len(rows) == 2 * (1 + 2) * 2 * 2 * 2
    assert {(row.method, row.levels) for row in rows} == {("closure", 1), ("hkm", 1), ("hkm", 2)}
    assert {row.images for row in rows} == {12, 24}
    assert all(1 <= row.score <= 4 for row in rows)
    assert max(row.score for row in rows) > 3.5


def test_the_steps_of_a_plan():
    """Signatures where a region has one word, whatever the norm; then verification, then query expansion."""
    plan = Plan([50], ["hkm"], ["l1", "l2"], levels=[1, 2], rerank=True, expansion=7)
    by_signatures = Scoring(24, embedding=True, burstiness=True, assignment=6)
    verified = by_signatures._replace(reranked=True, weighted=True)
    found = plan.scorings("hkm", 24)
    assert found[:3] == [by_signatures, verified, verified._replace(expansion=7)]
    assert [(s.levels, s.norm, s.embedding) for s in found[3:]] == [(2, "l1", False)] * 3 + [(2, "l2", False)] * 3


def test_images_of_the_ground_truth_that_are_missing_are_named(collection, tmp_path):
    write_ground_truth(tmp_path, good="image000 image001 nowhere", ok="image002")
    with pytest.warns(
        RuntimeWarning, match="1 of the 4 images that queries should find are not there, such as 'nowhere'"
    ):
        next(compare(collection, Plan([50], ["closure"]), read_oxford(tmp_path)))


def test_a_query_without_regions_in_its_box_finds_nothing(collection, tmp_path):
    write_ground_truth(tmp_path, query="oxc1_image000 -9 -9 -1 -1")
    (row,) = compare(collection, Plan([50], ["closure"]), read_oxford(tmp_path))
    assert row.score == 0


def test_evaluations_share_a_folder(collection, tmp_path):
    rows = {}
    first = compare(collection, Plan([50], ["closure"], rerank=True), folder=tmp_path, key="photos")
    rows["first"] = next(first)
    rows["second"] = next(compare(collection, Plan([50], ["hkm"]), folder=tmp_path, key="photos"))
    rows["third"] = next(first)
    kept = {experiment.SCORES.load(path) for path in tmp_path.glob("scores-*")}
    assert kept == set(rows.values())
    with pytest.raises(ValueError, match="with a folder there must be a key"):
        next(compare(collection, Plan([50], ["closure"]), folder=tmp_path))


def test_what_is_named_twice_counts_once():
    images = [24, None, 12, 24]
    plan = Plan([50, 50], ["hkm", "hkm"], ["l1", "l1"], seeds=[0, 0], levels=[1, 2, 1], images=images, **PAPER)
    assert plan.codebooks == [(0, 50, "hkm")]
    assert plan.scorings("hkm", 24) == [Scoring(24), Scoring(12), Scoring(24, 2), Scoring(12, 2)]


TIMED = """
import sys
from closure_kmeans import search
from closure_kmeans.baselines import kernels as of_baselines
from closure_kmeans.kernels import cells, rows, tiles, trees
from closure_kmeans.retrieval import kernels as of_retrieval
from closure_kmeans.retrieval import collect, experiment, stages

def compiled():
    found = [vars(module) for module in (rows, trees, tiles, cells, of_baselines, of_retrieval)]
    functions = {kernel for names in found for kernel in names.values() if hasattr(kernel, "signatures")}
    return {(kernel.__name__, str(signature)) for kernel in functions for signature in kernel.signatures}

def watched(timed):
    def call(*arguments, **settings):
        before = compiled()
        result = timed(*arguments, **settings)
        late.update(compiled() - before)
        return result
    return call

late = set()
search.MANY_CENTERS = 100  # words are in cells
stages.learn_vocabulary = watched(stages.learn_vocabulary)
experiment._score = watched(experiment._score)
plan = experiment.Plan([300], sys.argv[2:], rerank=True)
assert len(list(experiment.compare(collect(sys.argv[1]), plan))) == 3 * len(plan.methods)
print(len(compiled()) > 10, sorted(late))
"""


@pytest.mark.slow
def test_nothing_is_compiled_while_the_clock_runs(photos):
    """Nor loaded from the cache, which a new process does with each kernel once."""
    call = [sys.executable, "-c", TIMED, str(photos), "akm", "closure"]
    assert subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip() == "True []"


DATA = os.environ.get("CLOSURE_KMEANS_DATA")


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="needs CLOSURE_KMEANS_DATA, a folder that holds ukbench1000")
def test_two_hundred_photos_of_ukbench():
    paths = [f"{DATA}/ukbench1000/ukbench{number:05}.jpg" for number in range(200)]
    features = local_features(paths)
    names = [str(number) for number in range(200)]
    collection = Collection(names, None, features.keypoints, features.descriptors, features.offsets, [], Extraction())
    (row, reranked) = compare(collection, Plan([20_000], ["closure"], rerank=True, **PAPER))
    assert row.score > 3.7
    assert reranked.score >= row.score
