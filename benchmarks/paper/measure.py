"""What is measured of runs that are more than a fit, in this process: each function takes one and returns its row."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.job import about, as_task
from benchmarks.paper.plan import Measurement
from benchmarks.results import Row
from benchmarks.rivals.methods import METHODS, Outcome
from closure_kmeans import metrics
from closure_kmeans.parallel import Threads
from closure_kmeans.stores.memory import arrange_points
from closure_kmeans.trees import RandomPartition, grow_leaves

RATIO_EDGES = np.round(np.arange(-0.2, 0.6001, 0.01), 2)
NEAR_BORDER = 0.15  # below it lie 90 % of the active points, says the paper
SAMPLE = 2000  # points whose neighbourhoods are counted


def load_rows(job: Measurement) -> NDArray[np.float32]:
    return np.ascontiguousarray(data.load(job.data, job.n_rows, job.source), np.float32)


def fit(job: Measurement, X: NDArray[Any], **parameters: Any) -> Outcome:
    return METHODS[job.method].run(as_task(dataclasses.replace(job, parameters=job.parameters | parameters), X))


def fit_until(job: Measurement, X: NDArray[Any], iteration: int) -> Outcome:
    """How things stand after an iteration: the same seed takes the same way, and here the fit ends there."""
    return fit(job, X, max_iter=iteration, tol=0.0)


@lru_cache(maxsize=1)
def common_start(
    data_name: str, n_rows: int, n_clusters: int, source: str | None, seed: int, threads: int, iterations: int
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Labels and centres after some exact iterations."""
    job = Measurement("baseline-lloyd", data_name, n_rows, n_clusters, threads, source, seed=seed)
    outcome = fit_until(job, load_rows(job), iterations)
    return outcome.labels, outcome.centers


@lru_cache(maxsize=1)
def next_labels(start: tuple[Any, ...]) -> NDArray[np.int32]:
    """Labels after one exact iteration more."""
    data_name, n_rows, _, source, *_ = start
    _, centers = common_start(*start)
    labels, _ = metrics.exact_labels(data.load(data_name, n_rows, source), centers)
    return labels


def start_of(job: Measurement) -> tuple[Any, ...]:
    """What the common start of an experiment's runs depends on."""
    return job.data, job.n_rows, job.n_clusters, job.source, job.seed, job.threads, job.settings["iteration"]


# -- distance ratio (section 3.1) ------------------------------------------------------------------------------------


def distance_ratio(job: Measurement) -> Row:
    """How near the active points of some iterations were to the border that they crossed."""
    X = load_rows(job)
    parts = []
    for iteration in job.settings["iterations"]:
        before, after = fit_until(job, X, iteration), fit_until(job, X, iteration + 1)
        parts.append(metrics.distance_ratio(X, before.centers, before.labels, after.labels))
    ratios = np.concatenate(parts)
    counts, _ = np.histogram(np.clip(ratios, RATIO_EDGES[0], RATIO_EDGES[-1]), RATIO_EDGES)
    return about(job) | {
        "edges": RATIO_EDGES.tolist(),
        "shares": (counts / len(ratios)).tolist(),
        "near_border": float(np.mean(ratios < NEAR_BORDER)),
        "n_active": [len(part) for part in parts],
    }


# -- coverage (section 3.1) ------------------------------------------------------------------------------------------


def coverage(job: Measurement) -> Row:
    """The share of the active points of an exact iteration that closures cover, over the size of neighbourhoods.

    The trees are those of the library, grown in all dimensions or in some principal ones (``tree_dims``, 0: all). Each
    pair in ``neighborhoods`` is a point of the curve: so many trees united, with leaves of so many points.
    """
    X = load_rows(job)
    old_labels, _ = common_start(*start_of(job))
    new_labels = next_labels(start_of(job))
    rng = np.random.default_rng(job.seed)
    curve = []
    with Threads(job.threads) as threads:
        points, order = arrange_points(X, np.ones(1), 1, job.settings["tree_dims"] or None, rng, threads)
        labels, moved = old_labels[order.members], new_labels[order.members]
        for n_trees, leaf_size in job.settings["neighborhoods"]:
            partitions = [
                grow_leaves(points.coordinates, points.origin, leaf_size, rng, threads) for _ in range(n_trees)
            ]
            size = neighborhood_size(partitions, rng)
            curve.append((size, metrics.coverage(labels, moved, partitions), n_trees, leaf_size))
    return about(job) | {"curve": curve, "n_active": int(np.count_nonzero(labels != moved))}


def neighborhood_size(partitions: list[RandomPartition], rng: np.random.Generator) -> float:
    """Points in the neighbourhood of a point, on average over a sample: its leaves, united."""
    n_points = len(partitions[0].members)
    places = [np.argsort(partition.members) for partition in partitions]
    sizes = []
    for point in rng.choice(n_points, min(n_points, SAMPLE), replace=False):
        leaves = [leaf_of(partition, place[point]) for partition, place in zip(partitions, places, strict=True)]
        sizes.append(len(np.unique(np.concatenate(leaves))))
    return float(np.mean(sizes))


def leaf_of(partition: RandomPartition, place: int) -> NDArray[np.int32]:
    """The members of the leaf at a place of a partition."""
    leaf = np.searchsorted(partition.starts, place, side="right") - 1
    return partition.members[partition.starts[leaf] : partition.starts[leaf + 1]]


# -- candidates (section 4.4) ----------------------------------------------------------------------------------------


def candidates(job: Measurement) -> Row:
    """Accuracy of one assignment and time of an iteration, over the number of candidates.

    All begin with the labels after some exact iterations. ``sweep`` names the parameter of the method that sets the
    number of candidates, and ``values`` its values. The accuracy is exact, over all rows: the share that the first
    assignment puts to the nearest of the centres that it began with. The time is the shorter one of the second and the
    third iteration: what a method does once is not in it, what it grows in every iteration is.
    """
    X = load_rows(job)
    labels, centers = common_start(*start_of(job))
    points = []
    for value in job.settings["values"]:
        setting = {job.settings["sweep"]: value, "init": labels, "tol": 0.0}
        first = fit(job, X, **setting, max_iter=1)
        history = fit(job, X, **setting, max_iter=4).notes["history"]
        moments = [step["seconds"] for step in history]
        points.append(
            {
                "value": value,
                "candidates": first.notes["history"][0]["n_candidates"],
                "accuracy": metrics.assignment_accuracy(X, centers, first.labels, job.threads),
                "seconds": float(np.diff(moments)[:2].min()),
            }
        )
    return about(job) | {"points": points}


# -- rows of pictures (section 4.3) ----------------------------------------------------------------------------------


def clusters(job: Measurement) -> Row:
    """Some clusters drawn at random, and of each some pictures drawn at random; nothing is chosen by eye."""
    X = load_rows(job)
    outcome = fit(job, X)
    labels, classes = outcome.labels, data.load_pictures(job.data, job.n_rows, job.source).labels
    n_pictures = job.settings["n_pictures"]
    rng = np.random.default_rng(job.seed)
    large = np.flatnonzero(np.bincount(labels) >= n_pictures)
    shown = []
    for cluster in rng.choice(large, min(len(large), job.settings["n_clusters"]), replace=False):
        members = np.flatnonzero(labels == cluster)
        shown.append(
            {
                "size": len(members),
                "purity": float(np.bincount(classes[members]).max() / len(members)),
                "pictures": np.sort(rng.choice(members, n_pictures, replace=False)).tolist(),
            }
        )
    return about(job) | {
        "shown": shown,
        "nmi": metrics.normalized_mutual_information(classes, labels),
        "seconds": outcome.seconds,
    }


MEASUREMENTS = {"distance-ratio": distance_ratio, "coverage": coverage, "candidates": candidates, "clusters": clusters}
