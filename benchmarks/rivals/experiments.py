"""The experiments, as data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from benchmarks import data
from benchmarks.job import LLOYD_ITERATIONS, Job
from benchmarks.rivals.methods import Metric

QUICK_SHARE = 10


class Claim(NamedTuple):
    """Something that an experiment must show of ours against a rival; ``bound`` is a ratio of ours to the rival."""

    kind: Literal["reach", "fit", "end", "when it stops", "always"]
    rival: str
    bound: float

    def __str__(self) -> str:
        return {
            "reach": f"time to reach the final distortion of {self.rival}",
            "fit": f"time of the whole fit, against {self.rival}",
            "end": f"final distortion, against {self.rival}",
            "when it stops": f"distortion when {self.rival} ends",
            "always": f"never above {self.rival} at the same time",
        }[self.kind]

    @property
    def limit(self) -> str:
        return "–" if self.kind == "always" else f"{self.bound:.4g}"


@dataclass(frozen=True)
class Experiment:
    name: str
    data: str
    n_rows: int
    n_clusters: int
    methods: tuple[str, ...]
    iterations: dict[str, int] = field(default_factory=dict)  # where 25 of Lloyd would take too long: estimated
    limits: dict[str, float] = field(default_factory=dict)  # seconds after which a method too slow here is stopped
    claims: tuple[Claim, ...] = ()
    metric: Metric = "euclidean"
    reduced: bool = False  # smaller than it was meant to be: the claims are not judged

    def quick(self) -> Experiment:
        """A tenth of the rows and of the clusters, and all iterations."""
        return self.reduced_to(self.n_rows // QUICK_SHARE, f"{self.name}-quick")

    def on_available_rows(self, source: str | None) -> Experiment:
        """As many rows as there are, and clusters to keep n/k."""
        available = data.DATA_SETS[self.data].largest(source)
        if available is None or available >= self.n_rows:
            return self
        name = f"{self.name}-embedded" if data.is_stand_in(self.data, source) else f"{self.name}-{available}"
        return self.reduced_to(available, name)

    def reduced_to(self, n_rows: int, name: str) -> Experiment:
        n_clusters = max(2, self.n_clusters * n_rows // self.n_rows)
        return replace(self, name=name, n_rows=n_rows, n_clusters=n_clusters, iterations={}, reduced=True)

    def job(self, method: str, repeat: int, threads: int, source: str | None, score_rows: int | None) -> Job:
        return Job(
            method=method,
            data=self.data,
            n_rows=self.n_rows,
            n_clusters=self.n_clusters,
            threads=threads,
            source=source,
            repeat=repeat,
            seed=repeat + 1,
            iterations=self.iterations.get(method, LLOYD_ITERATIONS),
            score_rows=score_rows,
            timeout=self.limits.get(method),
            metric=self.metric,
        )


ALL_METHODS = (
    "ours",
    "superkmeans",
    "ours-uint8",
    "ours-fractions",
    "superkmeans-default",
    "superkmeans-refine-1",
    "superkmeans-refine-2",
    "superkmeans-refine-5",
    "ours-paper",
    "sklearn-minibatch",
    "sklearn-minibatch-default",
    "faiss-default",
    "faiss-super",
    "superkmeans-flat",
    "faiss-hnsw",
    "faiss",
    "sklearn-lloyd",
    "lance",
    "sklearnex-lloyd",
    "clostera-exact",
    "clostera",
)
RIVALS = tuple(name for name in ALL_METHODS if not name.startswith("ours"))

SIFT = (
    Experiment(
        "sift-2k",
        "sift",
        1_000_000,
        2_000,
        ALL_METHODS,
        iterations={"sklearnex-lloyd": 5, "clostera-exact": 5},
        limits={"clostera": 110},  # exact Lloyd by faiss is done by then
        claims=(Claim("reach", "faiss", 1 / 15),),
    ),
    Experiment(
        "sift-10k",
        "sift",
        1_000_000,
        10_000,
        tuple(name for name in ALL_METHODS if name != "clostera"),  # too slow at 2,000 already
        iterations={"sklearn-lloyd": 2, "faiss-hnsw": 10, "sklearnex-lloyd": 2, "clostera-exact": 1},
        claims=(
            Claim("reach", "faiss", 1 / 80),
            Claim("end", "faiss", 0.994),
            Claim("end", "superkmeans-flat", 0.994),  # exact Lloyd as well, and much sooner
            Claim("when it stops", "superkmeans", 1.0),
            *(Claim("always", rival, 1.0) for rival in RIVALS),
        ),
    ),
    Experiment(
        "sift-100k",
        "sift",
        1_000_000,
        100_000,
        (
            "ours",
            "superkmeans",
            "ours-uint8",
            "ours-fractions",
            "ours-paper",
            "superkmeans-refine-1",
            "superkmeans-refine-2",
            "faiss-hnsw",
            "faiss",
            "lance",
        ),
        iterations={"faiss": 1, "faiss-hnsw": 2},
        claims=(
            Claim("when it stops", "superkmeans", 0.94),
            Claim("end", "superkmeans", 0.89),
            Claim("fit", "faiss", 1 / 300),
            *(Claim("always", rival, 1.0) for rival in RIVALS),
        ),
    ),
)

SHAPE_METHODS = ("ours", "superkmeans", "superkmeans-refine-2", "lance", "faiss-super", "faiss")


def other_shape(name: str, data_name: str, n_rows: int, n_clusters: int) -> Experiment:
    """Data that nothing was tuned for: never much above exact Lloyd, and faster than it from 1,000 clusters on."""
    claims = [Claim("end", "faiss", 1.005)]
    if n_clusters >= 1000:
        claims.append(Claim("fit", "faiss", 1.0))
    return Experiment(name, data_name, n_rows, n_clusters, SHAPE_METHODS, claims=tuple(claims))


SHAPES = (
    other_shape("glove", "glove", 341_479, 1_000),
    other_shape("gaussian", "gaussian", 100_000, 1_000),
    other_shape("d2", "plane", 100_000, 1_000),
    other_shape("d32", "synthetic-32", 100_000, 1_000),
    other_shape("d384", "synthetic-384", 100_000, 1_000),
    other_shape("d768", "synthetic-768", 50_000, 1_000),
    other_shape("duplicates", "duplicates", 100_000, 1_000),
    other_shape("far", "far", 100_000, 1_000),
    other_shape("n-over-k-3", "sift", 30_000, 10_000),
    other_shape("n-over-k-30", "sift", 90_000, 3_000),
    other_shape("n-over-k-1000", "sift", 1_000_000, 1_000),
    other_shape("n-over-k-10000", "sift", 1_000_000, 100),
)

# What the paper reviews without comparing: which is the right choice for which n, k and d?
CHOICE_METHODS = (
    "ours",
    "faiss",
    "faiss-super",
    "faiss-subsample",
    "faiss-projected",
    "faiss-pq",
    "faiss-hnsw",
    "superkmeans",
    "lance",
    "clostera",
    "clostera-exact",
    "sklearnex-lloyd",
    "sklearn-minibatch",
    "sklearn-elkan",
    "mlpack-kd",
)
CHOICES = (
    Experiment("choice-k100", "sift", 100_000, 100, CHOICE_METHODS),
    Experiment("choice-k1000", "sift", 100_000, 1_000, CHOICE_METHODS, iterations={"mlpack-kd": 2}),
    Experiment(
        "choice-k10000", "sift", 100_000, 10_000, CHOICE_METHODS, iterations={"sklearn-elkan": 5, "mlpack-kd": 1}
    ),
    Experiment("choice-d2", "plane", 300_000, 3_000, CHOICE_METHODS, iterations={"sklearn-elkan": 5}),
    Experiment(
        "choice-d768",
        "synthetic-768",
        50_000,
        1_000,
        CHOICE_METHODS,
        iterations={"sklearn-elkan": 5, "mlpack-kd": 1},
    ),
)

EMBEDDING_METHODS = ("ours", "superkmeans", "superkmeans-refine-2", "lance", "faiss")


def by_both_metrics(
    name: str, data_name: str, n_rows: int, n_clusters: int, **iterations: int
) -> tuple[Experiment, Experiment]:
    """Real embeddings; exact Lloyd in so many iterations as are worth their time."""
    euclidean = Experiment(name, data_name, n_rows, n_clusters, EMBEDDING_METHODS, iterations=iterations)
    return euclidean, replace(euclidean, name=f"{name}-cosine", metric="cosine")


EMBEDDINGS = (
    *by_both_metrics("sentences-1k", "sentences", 300_000, 1_000),
    *by_both_metrics("sentences-10k", "sentences", 300_000, 10_000, faiss=2),
    *by_both_metrics("sentences-30k", "sentences", 300_000, 30_000, faiss=1),
    *by_both_metrics("tokens-16k", "tokens", 1_000_000, 16_384, faiss=1),
    *by_both_metrics("tokens-65k", "tokens", 1_000_000, 65_536, faiss=1),
    *by_both_metrics("static", "static", 300_000, 3_000, faiss=5),
    *by_both_metrics("words", "glove", 341_479, 10_000, faiss=5),
    *by_both_metrics("tiny", "tiny-gist", 60_000, 1_000),
)

EXPERIMENTS = {experiment.name: experiment for experiment in (*SIFT, *SHAPES, *CHOICES, *EMBEDDINGS)}
GROUPS = {
    "sift": [e.name for e in SIFT],
    "shapes": [e.name for e in SHAPES],
    "choices": [e.name for e in CHOICES],
    "embeddings": [e.name for e in EMBEDDINGS],
    "all": [e.name for e in (*SIFT, *SHAPES, *CHOICES)],  # embeddings have to be made first
}


def own_experiment(source: str | None, n_clusters: int) -> Experiment:
    """Somebody's file, all of its rows."""
    n_rows = data.count_own(source)
    return Experiment(f"own-{Path(str(source)).stem}", "own", n_rows, n_clusters, ALL_METHODS)
