"""An adapter a method: each fits once and tells how long it took, where the centres ended and how they got there.

A curve holds pairs of seconds and distortion per row, and a pair describes centres that existed at that moment.
Iterations of Lloyd report the distortion of the centres that they began with, so that of the centres an iteration
ends with is known one iteration later; the last centres are scored by the harness, like everybody's.

Rows come as contiguous float32, converted off the clock, except where a method takes the data's own dtype. No method
is asked for labels: for faiss and superkmeans those would cost another pass over all pairs.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Curve = list[tuple[float, float]]
Metric = Literal["euclidean", "cosine"]

# Lets superkmeans and faiss use every row.
NO_SAMPLING = 10**6


@dataclass(frozen=True)
class Task:
    X: NDArray[Any]
    n_clusters: int
    threads: int
    seed: int
    iterations: int  # of Lloyd, for those methods that do not stop by themselves
    parameters: dict[str, Any] = field(default_factory=dict)  # settings of the method, over its adapter's
    metric: Metric = "euclidean"  # cosine: the rows have length 1, and centres count as their directions

    def for_metric(self, **settings: Any) -> dict[str, Any]:
        """Settings of a method that make it spherical, where that is asked for."""
        return settings if self.metric == "cosine" else {}


@dataclass(frozen=True)
class Outcome:
    seconds: float  # of the whole fit
    centers: NDArray[Any]
    curve: Curve = field(default_factory=list)
    snapshots: list[tuple[float, NDArray[Any]]] = field(default_factory=list)  # on the way, to be scored afterwards
    labels: NDArray[Any] | None = None  # where the method has them anyway
    repeated: float | None = None  # seconds that more iterations would multiply; None: all
    notes: dict[str, Any] = field(default_factory=dict)  # for the result


class Shape(NamedTuple):
    n_rows: int
    n_features: int
    n_clusters: int
    dtype: str


class Method(NamedTuple):
    title: str
    run: Callable[[Task], Outcome]
    not_for: Callable[[Shape], str | None] = lambda shape: None  # why it is left out
    own_dtype: bool = False  # takes the rows as they are
    iterates: bool = False  # does as many iterations of Lloyd as it is told


# -- ours ------------------------------------------------------------------------------------------------------------


def closures(n_clusters: int, **settings: Any) -> Any:
    import closure_kmeans

    return closure_kmeans.ClosureKMeans(n_clusters, **gather_switches(closure_kmeans.Method(), settings))


def paper_closures(n_clusters: int, **settings: Any) -> Any:
    import closure_kmeans

    return closure_kmeans.ClosureKMeans(n_clusters, **gather_switches(closure_kmeans.PAPER, settings))


def gather_switches(method: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as parameters of ``ClosureKMeans``: switches of the algorithm become changes of a ``Method``.

    In the parameters of runs, which tell results apart, each switch has a name of its own, as in version 0.1.
    """
    switches = {name: value for name, value in settings.items() if name in method._fields}
    others = {name: value for name, value in settings.items() if name not in switches}
    return others | {"method": method._replace(**switches)}


def run_ours(task: Task, make: Callable[..., Any] = closures, *, curve: bool = True, unit: float = 1) -> Outcome:
    """Its history counts the rows where the labels put them, so the curve is never below the true one.

    Rows in another unit are the same problem, but not the whole numbers that are held as bytes.
    """
    settings = task.for_metric(metric="cosine") | task.parameters
    model = make(task.n_clusters, random_state=task.seed, n_threads=task.threads, **settings)
    X = task.X if unit == 1 else task.X / np.float32(unit)
    began = perf_counter()
    model.fit(X)
    seconds = perf_counter() - began
    steps = [(step.seconds, step.inertia * unit**2 / len(X)) for step in model.history_] if curve else []
    history = [step._asdict() for step in model.history_]
    notes = {"history": history, "stopped_by": model.stopped_by_}
    centers = model.cluster_centers_ * model.cluster_centers_.dtype.type(unit)
    return Outcome(seconds, centers, steps, labels=model.labels_, notes=notes)


def not_uint8(shape: Shape) -> str | None:
    return None if shape.dtype == "uint8" else f"the data is {shape.dtype}"


# -- the paper's baselines -------------------------------------------------------------------------------------------


def lloyd(n_clusters: int, **settings: Any) -> Any:
    from closure_kmeans.baselines import LloydKMeans

    return LloydKMeans(n_clusters, **settings)


def approximate(n_clusters: int, *, refined: bool = False, **settings: Any) -> Any:
    from closure_kmeans.baselines import ApproximateKMeans

    return ApproximateKMeans(n_clusters, refined=refined, **settings)


def canopy(n_clusters: int, **settings: Any) -> Any:
    from closure_kmeans.baselines import CanopyKMeans

    return CanopyKMeans(n_clusters, **settings)


def hierarchical(n_clusters: int, **settings: Any) -> Any:
    from closure_kmeans.baselines import HierarchicalKMeans

    return HierarchicalKMeans(*tree_shape(n_clusters), **settings)


def tree_shape(n_clusters: int) -> tuple[int, int]:
    """Branching and depth of 2 to 4 levels that make the fewest clusters that are not fewer than asked for."""
    shapes = [(int(np.ceil(round(n_clusters ** (1 / depth), 9))), depth) for depth in (4, 3, 2)]
    return min(shapes, key=lambda shape: shape[0] ** shape[1])


# -- faiss -----------------------------------------------------------------------------------------------------------


def lloyd_curve(ends: list[float], began_with: list[float]) -> Curve:
    """When each iteration but the last ended, and the distortion of the centres that it ended with."""
    return list(zip(ends[:-1], began_with[1:], strict=True))


def run_faiss(task: Task, *, sampling: bool = False, pruning: bool = False) -> Outcome:
    """``faiss.Kmeans``, or ``faiss.SuperKmeans``, which skips most products by bounds.

    With its default sampling it reports the distortion of the sample, which is too low: then there is no curve.
    """
    import faiss

    faiss.omp_set_num_threads(task.threads)
    n, d = task.X.shape
    settings: dict[str, Any] = {"niter": task.iterations, "seed": task.seed} | task.for_metric(spherical=True)
    if not sampling:
        settings["max_points_per_centroid"] = n
    kind = faiss.SuperKmeans if pruning else faiss.Kmeans
    model = kind(d, task.n_clusters, **(settings | task.parameters))
    began = perf_counter()
    model.train(task.X)
    seconds = perf_counter() - began
    stats = model.iteration_stats
    times = [step["time"] for step in stats]
    if pruning:  # it gives the time of each iteration; what comes before them is the rest
        times = (seconds - sum(times) + np.cumsum(times)).tolist()
    values = [step["obj"] / n for step in stats]
    if task.metric == "cosine":  # it reports the sum of cosines
        values = [2 - 2 * value for value in values]
    curve = [] if sampling else lloyd_curve(times, values)
    repeated = None if pruning else stats[-1]["time_search"]
    return Outcome(seconds, model.centroids, curve, repeated=repeated)


def run_faiss_index(task: Task, make_index: Callable[[int], Any], **notes: Any) -> Outcome:
    """``faiss.Clustering`` with an index over the centres, filled anew in every iteration, as assigner."""
    import faiss

    faiss.omp_set_num_threads(task.threads)
    n, d = task.X.shape
    model = faiss.Clustering(d, task.n_clusters)
    model.niter, model.seed, model.max_points_per_centroid = task.iterations, task.seed, n
    began = perf_counter()
    model.train(task.X, make_index(d))
    seconds = perf_counter() - began
    stats = [model.iteration_stats.at(i) for i in range(model.iteration_stats.size())]
    centers = faiss.vector_to_array(model.centroids).reshape(task.n_clusters, d)
    curve = lloyd_curve([step.time for step in stats], [step.obj / n for step in stats])
    return Outcome(seconds, centers, curve, notes=notes)


def hnsw_index(n_features: int) -> Any:
    import faiss

    index = faiss.IndexHNSWFlat(n_features, 32)
    index.hnsw.efSearch = 64
    return index


def product_quantizer(n_features: int) -> Any:
    """Four bits for every two dimensions, searched in registers; trained on the first centres."""
    import faiss

    return faiss.IndexPQFastScan(n_features, n_features // 2, 4)


def run_subsample(task: Task, *, share: float) -> Outcome:
    """Exact Lloyd of a part of the rows, drawn at random; the others are assigned when it is scored."""
    rng = np.random.default_rng(task.seed)
    began = perf_counter()
    part = task.X[np.sort(rng.choice(len(task.X), max(task.n_clusters, int(share * len(task.X))), replace=False))]
    drawing = perf_counter() - began
    outcome = run_faiss(replace(task, X=part))
    # Its curve is the distortion of the part, which is too low.
    return Outcome(drawing + outcome.seconds, outcome.centers, repeated=outcome.repeated)


def run_random_projection(task: Task, *, n_components: int) -> Outcome:
    """Exact Lloyd in a random subspace; the centres are the means of its clusters in all dimensions."""
    from scipy.sparse import csr_array
    from sklearn.random_projection import GaussianRandomProjection

    from closure_kmeans.metrics import exact_labels

    began = perf_counter()
    projected = GaussianRandomProjection(n_components, random_state=task.seed).fit_transform(task.X)
    outcome = run_faiss(replace(task, X=np.ascontiguousarray(projected, np.float32)))
    labels, _ = exact_labels(projected, outcome.centers, task.threads)
    n = len(labels)
    member = csr_array((np.ones(n, np.float32), labels, np.arange(n + 1)), (n, task.n_clusters))
    sizes = np.bincount(labels, minlength=task.n_clusters)
    centers = (member.T @ task.X)[sizes > 0] / sizes[sizes > 0, np.newaxis]
    return Outcome(perf_counter() - began, centers, labels=None, repeated=outcome.repeated)


def faiss_takes_all(shape: Shape) -> str | None:
    return "it samples nothing at this n/k" if shape.n_rows <= 256 * shape.n_clusters else None


def too_few_dimensions(shape: Shape) -> str | None:
    return "it needs 32 dimensions" if shape.n_features < 32 else None


def odd_dimensions(shape: Shape) -> str | None:
    return "it takes dimensions in pairs" if shape.n_features % 2 else None


# -- superkmeans -----------------------------------------------------------------------------------------------------


def run_superkmeans(task: Task, **settings: Any) -> Outcome:
    """A point a run: it tells no times on the way."""
    from superkmeans import SuperKMeans

    settings = (
        {"n_threads": task.threads, "seed": task.seed} | settings | task.for_metric(angular=True) | task.parameters
    )
    if settings.get("hierarchical") is False:
        settings["iters"] = task.iterations
    model = SuperKMeans(task.n_clusters, task.X.shape[1], **settings)
    began = perf_counter()
    centers = model.train(task.X)
    seconds = perf_counter() - began
    return Outcome(seconds, np.asarray(centers), notes={"hierarchical": model.hierarchical_})


def superkmeans_takes_all(shape: Shape) -> str | None:
    if 100_000 < shape.n_rows <= 256 * shape.n_clusters:
        return "it samples nothing at this n/k and is hierarchical at this n: the same as superkmeans"
    return None


def refined_superkmeans(n_refinements: int) -> Method:
    run = partial(run_superkmeans, **SUPERKMEANS_ALL, hierarchical=True, iters_refinement=n_refinements)
    plural = "s" if n_refinements > 1 else ""
    return Method(f"superkmeans, hierarchical, {n_refinements} flat refinement{plural}, all rows", run)


SUPERKMEANS_ALL: dict[str, Any] = {"sampling_fraction": 1.0, "max_points_per_cluster": NO_SAMPLING}


# -- lance -----------------------------------------------------------------------------------------------------------


def run_lance(task: Task) -> Outcome:
    """A point a run: no times on the way. Takes no seed, so that every run has another start.

    Its own ``metric_type="cosine"`` ends in a panic (14.0.2); Euclidean clusters of rows of length 1 are what it means.
    """
    from lance.util import KMeans

    model = KMeans(task.n_clusters, **task.parameters)
    began = perf_counter()
    model.fit(task.X)
    seconds = perf_counter() - began
    return Outcome(seconds, model.centroids.to_numpy_ndarray())


# -- clostera --------------------------------------------------------------------------------------------------------

CLOSTERA_ITERATIONS = 20  # its default; the same number trains its quantizer


def run_clostera(task: Task, *, most_iterations: int = CLOSTERA_ITERATIONS, **settings: Any) -> Outcome:
    """A point a run: it keeps the objective of each iteration, and no times."""
    from clostera import Clusterer

    iterations = min(most_iterations, task.iterations)
    settings = {"metric": "l2", "iterations": iterations, "seed": task.seed} | task.for_metric(metric="cos") | settings
    model = Clusterer(k=task.n_clusters, **(settings | task.parameters))
    began = perf_counter()
    model.fit(task.X)
    seconds = perf_counter() - began
    return Outcome(seconds, np.asarray(model.dense_centers_), notes={"algorithm": model.algorithm_})


# -- scikit-learn ----------------------------------------------------------------------------------------------------


def run_sklearn_lloyd(task: Task, algorithm: str = "lloyd") -> Outcome:
    """Its only hook is what it prints: each iteration's line is stamped as it comes.

    Printing makes it compute the distortion, n·d operations beside the n·k·d of an iteration.
    """
    from sklearn.cluster import KMeans

    model = KMeans(
        task.n_clusters,
        init="random",
        n_init=1,
        algorithm=algorithm,
        max_iter=task.iterations,
        tol=0,
        random_state=task.seed,
        verbose=1,
        **task.parameters,
    )
    lines = StampedLines()
    with contextlib.redirect_stdout(lines), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = perf_counter()
        model.fit(task.X)
        seconds = perf_counter() - began
    steps = [(moment - began, float(found[1])) for moment, line in lines.stamped if (found := INERTIA.match(line))]
    curve = lloyd_curve([moment for moment, _ in steps], [inertia / len(task.X) for _, inertia in steps])
    return Outcome(seconds, model.cluster_centers_, curve, labels=model.labels_)


def run_sklearnex_lloyd(task: Task) -> Outcome:
    """The same by oneDAL, which prints nothing: a point a run."""
    from sklearnex.cluster import KMeans

    model = KMeans(
        task.n_clusters,
        init="random",
        n_init=1,
        algorithm="lloyd",
        max_iter=task.iterations,
        tol=0,
        random_state=task.seed,
        n_jobs=task.threads,
        **task.parameters,
    )
    began = perf_counter()
    model.fit(task.X)
    return Outcome(perf_counter() - began, model.cluster_centers_, labels=model.labels_)


def bounds_too_large(shape: Shape) -> str | None:
    """It keeps a bound for every pair."""
    size = 4 * shape.n_rows * shape.n_clusters
    return f"its bounds would take {size / 1e9:,.0f} GB" if size > MOST_BOUNDS else None


MOST_BOUNDS = 8e9
INERTIA = re.compile(r"Iteration \d+, inertia ([0-9.e+]+?)\.?$")


class StampedLines(io.TextIOBase):
    """What is printed, and when."""

    def __init__(self) -> None:
        self.stamped: list[tuple[float, str]] = []

    def write(self, text: str) -> int:
        moment = perf_counter()
        self.stamped += [(moment, line) for line in text.splitlines() if line]
        return len(text)


MINIBATCH_PASSES = 5


def run_sklearn_minibatch(task: Task) -> Outcome:
    """Large batches and a random start: five passes, with centres kept at times that grow by half.

    Copying them is off the clock. Batches have as many rows as there are centres, and 4,096 at least.
    """
    from sklearn.cluster import MiniBatchKMeans

    size = max(4096, task.n_clusters)
    n_passes = min(MINIBATCH_PASSES, task.iterations)
    rng = np.random.default_rng(task.seed)
    model = MiniBatchKMeans(task.n_clusters, init="random", n_init=1, batch_size=size, random_state=task.seed)
    clock, due = 0.0, 0.1
    snapshots = []
    for _ in range(n_passes):
        order = rng.permutation(len(task.X))
        # A short last batch would be too small for the first step.
        for first in range(0, max(1, len(order) - size + 1), size):
            began = perf_counter()
            model.partial_fit(task.X[order[first : first + size]])
            clock += perf_counter() - began
            if clock >= due:
                snapshots.append((clock, model.cluster_centers_.copy()))
                due = 1.5 * clock
    notes = {"passes": n_passes, "batch_size": size}
    return Outcome(clock, model.cluster_centers_, snapshots=snapshots, notes=notes)


def run_sklearn_minibatch_default(task: Task) -> Outcome:
    from sklearn.cluster import MiniBatchKMeans

    model = MiniBatchKMeans(task.n_clusters, random_state=task.seed, **task.parameters)
    began = perf_counter()
    model.fit(task.X)
    seconds = perf_counter() - began
    return Outcome(seconds, model.cluster_centers_, labels=model.labels_, notes={"steps": model.n_steps_})


# -- mlpack ----------------------------------------------------------------------------------------------------------


def run_mlpack(task: Task) -> Outcome:
    """Exact, by a k-d tree of the rows that rules out centres node by node; in float64, and on one thread."""
    import mlpack

    rows = task.X.astype(np.float64)
    settings = {"algorithm": "pelleg-moore", "max_iterations": task.iterations, "seed": task.seed}
    began = perf_counter()
    found = mlpack.kmeans(input_=rows, clusters=task.n_clusters, **(settings | task.parameters))
    return Outcome(perf_counter() - began, np.asarray(found["centroid"]))


# -- all -------------------------------------------------------------------------------------------------------------

METHODS = {
    "ours": Method("closure-kmeans", run_ours),
    "ours-uint8": Method("closure-kmeans, uint8 rows", run_ours, not_uint8, own_dtype=True),
    "ours-fractions": Method(
        "closure-kmeans, float32 that are not whole numbers", partial(run_ours, unit=3), not_uint8
    ),
    "ours-paper": Method("closure-kmeans, the paper's mode", partial(run_ours, make=paper_closures)),
    "baseline-lloyd": Method("exact Lloyd, from the same start", partial(run_ours, make=lloyd)),
    "baseline-akm": Method("AKM", partial(run_ours, make=approximate)),
    "baseline-rakm": Method("RAKM", partial(run_ours, make=partial(approximate, refined=True))),
    "baseline-canopy": Method("Canopy", partial(run_ours, make=canopy)),
    # A point: until its last level it has fewer clusters than the others.
    "baseline-hkm": Method("HKM", partial(run_ours, make=hierarchical, curve=False)),
    "faiss": Method("faiss.Kmeans, all rows (exact Lloyd)", run_faiss, iterates=True),
    "faiss-default": Method(
        "faiss.Kmeans, its default sample of 256 k rows", partial(run_faiss, sampling=True), faiss_takes_all
    ),
    "faiss-super": Method(
        "faiss.SuperKmeans, all rows", partial(run_faiss, pruning=True), too_few_dimensions, iterates=True
    ),
    "faiss-hnsw": Method(
        "faiss.Clustering with an HNSW assigner, all rows",
        partial(run_faiss_index, make_index=hnsw_index, efSearch=64, M=32),
        iterates=True,
    ),
    "faiss-pq": Method(
        "faiss.Clustering with a product quantizer as assigner, all rows",
        partial(run_faiss_index, make_index=product_quantizer),
        odd_dimensions,
        iterates=True,
    ),
    "faiss-subsample": Method("faiss.Kmeans of a tenth of the rows", partial(run_subsample, share=0.1), iterates=True),
    "faiss-projected": Method(
        "faiss.Kmeans in 32 random dimensions, all rows",
        partial(run_random_projection, n_components=32),
        too_few_dimensions,
        iterates=True,
    ),
    "superkmeans": Method(
        "superkmeans, hierarchical, all rows", partial(run_superkmeans, **SUPERKMEANS_ALL, hierarchical=True)
    ),
    "superkmeans-default": Method("superkmeans, all its defaults", run_superkmeans, superkmeans_takes_all),
    "superkmeans-refine-1": refined_superkmeans(1),
    "superkmeans-refine-2": refined_superkmeans(2),
    "superkmeans-refine-5": refined_superkmeans(5),
    "superkmeans-flat": Method(
        "superkmeans, flat, all rows", partial(run_superkmeans, **SUPERKMEANS_ALL, hierarchical=False), iterates=True
    ),
    "lance": Method("lance.util.KMeans, its defaults", run_lance),
    "clostera": Method("clostera, its defaults", run_clostera),
    "clostera-exact": Method(
        "clostera, exact, random start, all rows",
        partial(run_clostera, algorithm="clostera-dense-exact-random"),
        iterates=True,
    ),
    "mlpack-kd": Method("mlpack, k-d tree of the rows (Pelleg and Moore)", run_mlpack, iterates=True),
    "sklearn-lloyd": Method("scikit-learn KMeans, random start", run_sklearn_lloyd, iterates=True),
    "sklearnex-lloyd": Method(
        "scikit-learn-intelex KMeans, random start (exact Lloyd)", run_sklearnex_lloyd, iterates=True
    ),
    "sklearn-elkan": Method(
        "scikit-learn KMeans, Elkan's bounds, random start",
        partial(run_sklearn_lloyd, algorithm="elkan"),
        bounds_too_large,
        iterates=True,
    ),
    "sklearn-minibatch": Method("scikit-learn MiniBatchKMeans, large batches", run_sklearn_minibatch),
    "sklearn-minibatch-default": Method("scikit-learn MiniBatchKMeans, its defaults", run_sklearn_minibatch_default),
}
