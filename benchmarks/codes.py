"""Codes of rows: residual k-means against levels of faiss.Kmeans and against faiss.ResidualQuantizer.

python -m benchmarks.codes [--data PATH] [--vectors FILE] [--rows N] [--levels 8192,8192,8192] [--methods "A;B"]

The rows are SIFT descriptors, or those of a file, ``--vectors``. All codes are judged in one way: by the mean squared
distance of the rows to the sums of their centres after each level. faiss.Kmeans sees all rows in 25 iterations; its
time is that of its three calls of ``train``, without the residuals in between. After ``--pause-after`` seconds no
further level of it is begun, and the same command goes on there. The residual quantizer has its own settings, with a
beam of 5, but for the number of rows, which is all, too.

Fitted centres are kept in ``.cache/benchmarks/codes``. ``--encode`` times encoding by them: all rows by ours, and the
first ``--flat-rows`` by ours and by a flat index of FAISS in turns, with the same centres; the first ``--beam-rows`` by
a beam.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from benchmarks import data
from benchmarks.cache import CACHE, keep
from benchmarks.data import Rows
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, Row, append_row, forget, markdown_table, read_rows
from closure_kmeans import CenterIndex, ResidualKMeans
from closure_kmeans.codes import count_collisions
from closure_kmeans.codes.encoding import encode_greedily
from closure_kmeans.datasets import load_sift
from closure_kmeans.vectors import open_vectors

ITERATIONS = 25  # of faiss.Kmeans
JUDGED_ROWS = 1 << 15
BEAM = 8
ROUNDS = 3  # of encoding in turns
FITS = (
    "method",
    "fit, s",
    "distortion after each level",
    "unique ids, %",
    "rows with the most frequent id",
    "numbering them, s",
    "perplexity of each level",
)
ENCODINGS = ("encoding", "rows/s", "distortion")

Codes = NDArray[np.int32]


class Job:
    """One method on some rows: where its centres are kept, and when to pause."""

    def __init__(self, key: Row, pause_at: float) -> None:
        self.key, self._pause_at = key, pause_at
        self.folder = CACHE / "codes" / sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]

    def may_go_on(self) -> bool:
        return time.perf_counter() < self._pause_at


class Paused(Exception):  # noqa: N818
    """No further level is begun."""


# -- fits: each returns seconds and codes, and leaves its centres in a folder -----------------------------------------


def fit_ours(X: Rows, job: Job, **parameters: Any) -> tuple[float, Codes]:
    began = time.perf_counter()
    model = ResidualKMeans(job.key["levels"], random_state=job.key["seed"], **parameters).fit(X)
    seconds = time.perf_counter() - began
    model.save(job.folder / "model.safetensors")
    return seconds, model.codes_ if "max_size" in parameters else model.encode(X)


def fit_balanced(X: Rows, job: Job) -> tuple[float, Codes]:
    return fit_ours(X, job, max_size=2 * len(X) / min(job.key["levels"]))


def fit_refined(X: Rows, job: Job) -> tuple[float, Codes]:
    """Joint refinement after a fit: each level again on what all others leave, first codes, then centres."""
    began = time.perf_counter()
    model = ResidualKMeans(job.key["levels"], random_state=job.key["seed"]).fit(X)
    codes, centers = model.codes_, [level.cluster_centers_ for level in model.levels_]
    left = X.astype(np.float32)
    for level, found in enumerate(centers):
        left -= found[codes[:, level]]
    for level, found in enumerate(centers):
        left += found[codes[:, level]]
        codes[:, level], _ = CenterIndex(found).nearest(left)
        members = csr_array((np.ones(len(X), np.float32), codes[:, level], np.arange(len(X) + 1)), (len(X), len(found)))
        sizes = members.sum(axis=0)[:, np.newaxis]
        centers[level] = np.where(sizes > 0, members.T @ left / np.maximum(sizes, 1), found).astype(np.float32)
        left -= centers[level][codes[:, level]]
        keep(centers[level], job.folder / f"level-{level}.npy")
    seconds = time.perf_counter() - began
    print(f"{job.key['method']}: {np.einsum('ij,ij->', left, left) / len(X):,.5g} by codes that are refined, too")
    indexes = [CenterIndex(found) for found in centers]
    blocks = [encode_greedily(X[i : i + JUDGED_ROWS].astype(np.float32), indexes, False) for i in starts_of_blocks(X)]
    return seconds, np.concatenate(blocks)


def fit_faiss_levels(X: Rows, job: Job) -> tuple[float, Codes]:
    left, seconds = X.astype(np.float32), 0.0
    codes = np.empty((len(X), len(job.key["levels"])), np.int32)
    for level, size in enumerate(job.key["levels"]):
        kept = job.folder / f"level-{level}.npy"
        time_file = kept.with_suffix(".json")
        if not time_file.exists():
            if not job.may_go_on():
                raise Paused
            kmeans = faiss.Kmeans(
                X.shape[1],
                size,
                niter=ITERATIONS,
                seed=job.key["seed"],
                min_points_per_centroid=1,
                max_points_per_centroid=len(X),
            )
            began = time.perf_counter()
            kmeans.train(left)
            taken = time.perf_counter() - began
            keep(kmeans.centroids, kept)
            np.save(job.folder / f"codes-{level}.npy", kmeans.index.search(left, 1)[1][:, 0])
            time_file.write_text(json.dumps(taken))
            print(f"{job.key['method']}: level {level + 1} in {taken:.1f} s", flush=True)
        seconds += json.loads(time_file.read_text())
        codes[:, level] = np.load(job.folder / f"codes-{level}.npy")
        left -= np.load(kept)[codes[:, level]]
    return seconds, codes


def fit_faiss_quantizer(X: Rows, job: Job) -> tuple[float, Codes]:
    n_bits = faiss.UInt64Vector()
    for size in job.key["levels"]:
        n_bits.push_back(size.bit_length() - 1)
    quantizer = faiss.ResidualQuantizer(X.shape[1], n_bits)
    quantizer.cp.seed, quantizer.cp.max_points_per_centroid = job.key["seed"], len(X)
    rows = np.ascontiguousarray(X, np.float32)
    began = time.perf_counter()
    quantizer.train(rows)
    seconds = time.perf_counter() - began
    keep(faiss.vector_to_array(quantizer.codebooks).reshape(-1, X.shape[1]), job.folder / "codebooks.npy")
    return seconds, encode_by_quantizer(quantizer, rows, job.key["levels"])


def encode_by_quantizer(quantizer: Any, rows: Rows, levels: list[int]) -> Codes:
    """Codes by the beam of the quantizer, as numbers."""
    bits = np.unpackbits(quantizer.compute_codes(rows), axis=1, bitorder="little")
    ends = np.cumsum([size.bit_length() - 1 for size in levels])
    parts = np.split(bits[:, : ends[-1]].astype(np.int64), ends[:-1], axis=1)
    return np.stack([part @ (1 << np.arange(part.shape[1])) for part in parts], axis=1).astype(np.int32)


def load_codebooks(job: Job) -> list[Rows]:
    """The centres of each level that a fit left in its folder."""
    if (job.folder / "model.safetensors").exists():
        return ResidualKMeans.load(job.folder / "model.safetensors").codebooks_
    if (job.folder / "codebooks.npy").exists():
        return np.split(np.load(job.folder / "codebooks.npy"), np.cumsum(job.key["levels"])[:-1])
    return [np.load(job.folder / f"level-{level}.npy") for level in range(len(job.key["levels"]))]


METHODS: dict[str, Callable[[Rows, Job], tuple[float, Codes]]] = {
    "ours": fit_ours,
    "ours, normalize_residuals": partial(fit_ours, normalize_residuals=True),
    "ours, max_size of 2 means": fit_balanced,
    "ours, refined jointly": fit_refined,
    "faiss.Kmeans, level by level": fit_faiss_levels,
    "faiss.ResidualQuantizer": fit_faiss_quantizer,
}


def starts_of_blocks(X: Rows) -> range:
    return range(0, len(X), JUDGED_ROWS)


def judge(X: Rows, codebooks: list[Rows], codes: Codes) -> list[float]:
    """The distortion after each level."""
    errors = np.zeros(len(codebooks))
    for first in starts_of_blocks(X):
        left = X[first : first + JUDGED_ROWS].astype(np.float64)
        for level, centers in enumerate(codebooks):
            left -= centers[codes[first : first + JUDGED_ROWS, level]]
            errors[level] += np.einsum("ij,ij->", left, left)
    return (errors / len(X)).tolist()


def perplexities(codes: Codes) -> list[float]:
    found = []
    for level in codes.T:
        shares = np.unique(level, return_counts=True)[1] / len(level)
        found.append(float(np.exp(-(shares * np.log(shares)).sum())))
    return found


def fit(X: Rows, job: Job) -> Row:
    job.folder.mkdir(parents=True, exist_ok=True)
    seconds, codes = METHODS[job.key["method"]](X, job)
    numbering_seconds, numbers = timed(count_collisions, codes)
    return {
        "seconds": seconds,
        "distortion": judge(X, load_codebooks(job), codes),
        "unique": float(np.mean(numbers == 0)),
        "largest_group": int(numbers.max()) + 1,
        "numbering_seconds": numbering_seconds,
        "perplexity": perplexities(codes),
    }


def timed(call: Callable[[Rows], Codes], rows: Rows) -> tuple[float, Codes]:
    began = time.perf_counter()
    codes = call(rows)
    return time.perf_counter() - began, codes


# -- encoding ----------------------------------------------------------------------------------------------------------


def encode(X: Rows, job: Job, flat_rows: int, beam_rows: int) -> Row:
    """Rows a second by the centres that a fit left."""
    if job.key["method"] == "faiss.ResidualQuantizer":
        return encode_as_faiss(X, job, beam_rows)
    model = ResidualKMeans.load(job.folder / "model.safetensors")
    codebooks = model.codebooks_
    indexes = [faiss.IndexFlatL2(X.shape[1]) for _ in codebooks]
    for index, centers in zip(indexes, codebooks, strict=True):
        index.add(centers)

    def encode_flat(rows: Rows) -> Codes:
        codes, left = np.empty((len(rows), len(codebooks)), np.int32), rows.astype(np.float32)
        for level, (index, centers) in enumerate(zip(indexes, codebooks, strict=True)):
            codes[:, level] = index.search(left, 1)[1][:, 0]
            left -= centers[codes[:, level]]
        return codes

    model.encode(X[: 1 << 15])  # makes the index of each level, which is a part of every use
    few, some = X[:flat_rows], X[:beam_rows]
    ours, flat, alike = [], [], 0.0
    for _ in range(ROUNDS):
        seconds, codes = timed(model.encode, few)
        flat_seconds, flat_codes = timed(encode_flat, few)
        ours.append(len(few) / seconds)
        flat.append(len(few) / flat_seconds)
        alike = float(np.mean((codes == flat_codes).all(axis=1)))
    all_seconds, all_codes = timed(model.encode, X)
    beam_seconds, by_beam = timed(partial(model.encode, beam=BEAM), some)
    return {
        "speed": float(np.median(ours)),
        "flat_speed": float(np.median(flat)),
        "times_flat": float(np.median(np.array(ours) / flat)),
        "flat_rows": len(few),
        "alike": alike,
        "speed_of_all": len(X) / all_seconds,
        "distortion_of_all": judge(X, codebooks, all_codes)[-1],
        "beam_rows": len(some),
        "beam_speed": len(some) / beam_seconds,
        "beam_distortion": judge(some, codebooks, by_beam)[-1],
        "greedy_distortion": judge(some, codebooks, codes[: len(some)])[-1],
    }


def encode_as_faiss(X: Rows, job: Job, beam_rows: int) -> Row:
    """Rows a second of FAISS's quantizer, by the beam of its training."""
    n_bits = faiss.UInt64Vector()
    for size in job.key["levels"]:
        n_bits.push_back(size.bit_length() - 1)
    quantizer = faiss.ResidualQuantizer(X.shape[1], n_bits)
    codebooks = load_codebooks(job)
    faiss.copy_array_to_vector(np.concatenate(codebooks).ravel(), quantizer.codebooks)
    quantizer.is_trained = True
    quantizer.compute_codebook_tables()
    some = np.ascontiguousarray(X[:beam_rows], np.float32)
    seconds, codes = timed(partial(encode_by_quantizer, quantizer, levels=job.key["levels"]), some)
    return {
        "beam_rows": len(some),
        "beam_speed": len(some) / seconds,
        "beam_distortion": judge(some, codebooks, codes)[-1],
    }


# -- tables ------------------------------------------------------------------------------------------------------------


def format_fit(row: Row) -> list[str]:
    return [
        row["method"],
        f"{row['seconds']:,.1f}",
        ", ".join(f"{value:,.5g}" for value in row["distortion"]),
        f"{100 * row['unique']:.1f}",
        f"{row['largest_group']:,}",
        f"{row['numbering_seconds']:.2f}",
        ", ".join(f"{value:,.0f}" for value in row["perplexity"]),
    ]


def format_encodings(row: Row) -> list[list[str]]:
    """Lines of the table of encoding."""
    lines = []
    if "speed" in row:
        lines = [
            ["ours, greedy, all rows", f"{row['speed_of_all']:,.0f}", f"{row['distortion_of_all']:,.5g}"],
            [f"ours, greedy, {row['flat_rows']:,} rows at a time", f"{row['speed']:,.0f}", ""],
            [
                f"flat FAISS with these centres, the same rows: {row['alike']:.2%} equal codes; "
                f"ours are {row['times_flat']:.1f}× as fast",
                f"{row['flat_speed']:,.0f}",
                "",
            ],
            [f"ours, greedy, {row['beam_rows']:,} rows", "", f"{row['greedy_distortion']:,.5g}"],
        ]
    name = f"ours, beam of {BEAM}" if "speed" in row else "faiss.ResidualQuantizer, with its centres and its beam of 5"
    distortion = f"{row['beam_distortion']:,.5g}"
    return [*lines, [f"{name}, {row['beam_rows']:,} rows", f"{row['beam_speed']:,.0f}", distortion]]


def describe(rows: list[Row]) -> str:
    """A table of fits, and one of encoding, for each data set and its levels."""
    text = (
        "# Codes\n\nThe distortion is the mean squared distance of a row to the sum of its centres. faiss.Kmeans: "
        f"{ITERATIONS} iterations over all rows at each level, and only the time of these.\n"
    )
    for title, levels in dict.fromkeys((row["rows"], tuple(row["levels"])) for row in rows):
        own = [row for row in rows if (row["rows"], tuple(row["levels"])) == (title, levels)]
        text += f"\n{title} into {' x '.join(map(str, levels))}:\n"
        fits = [format_fit(row) for row in own if row["part"] == "fit"]
        encodings = [line for row in own if row["part"] == "encode" for line in format_encodings(row)]
        for header, lines in ((FITS, fits), (ENCODINGS, encodings)):
            text += f"\n{markdown_table(header, lines)}\n" if lines else ""
    return text


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codes", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--vectors", type=Path, metavar="FILE", help="a file of vectors in place of SIFT")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--levels", default="8192,8192,8192", help="powers of two")
    parser.add_argument("--methods", default=";".join(METHODS), help="some of the methods, separated by semicolons")
    parser.add_argument("--encode", action="store_true", help="time encoding by the centres of fits that were made")
    parser.add_argument("--flat-rows", type=int, default=100_000)
    parser.add_argument("--beam-rows", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--pause-after", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--fresh", action="store_true", help="redo what was done of these methods and rows")
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    pause_at = time.perf_counter() + arguments.pause_after
    levels = [int(size) for size in arguments.levels.split(",")]
    if arguments.vectors is None:
        X = data.load("sift", arguments.rows, arguments.data)
        title = data.describe("sift", len(X), arguments.data)
    else:
        X = np.array(open_vectors(arguments.vectors)[: arguments.rows])
        title = f"{len(X):,} x {X.shape[1]} {X.dtype} rows of {arguments.vectors.name}"
    warm_up(X)
    path = arguments.output / "codes.jsonl"
    about = {"machine": describe_machine(), "versions": describe_versions()}
    for seed in range(arguments.seeds):
        for method in arguments.methods.split(";"):
            if arguments.encode and method not in ("ours", "faiss.ResidualQuantizer"):
                continue
            job = Job({"rows": title, "n_rows": len(X), "levels": levels, "method": method, "seed": seed}, pause_at)
            key = job.key | {"part": "encode" if arguments.encode else "fit"}
            if arguments.fresh:
                forget(path, lambda row, key=key: key.items() <= row.items())
            if any(key.items() <= row.items() for row in read_rows(path)):
                continue
            try:
                found = encode(X, job, arguments.flat_rows, arguments.beam_rows) if arguments.encode else fit(X, job)
            except Paused:
                print(f"{method}: paused, the same command goes on", flush=True)
                continue
            append_row(path, key | found | about)
            print(json.dumps(found), flush=True)
    text = describe(read_rows(path))
    path.with_suffix(".md").write_text(text)
    print(f"\n{text}")


def warm_up(X: Rows) -> None:
    """Compile, which is no part of a figure."""
    rows = load_sift()[:2000] if X.dtype == np.uint8 else X[:2000]
    for parameters in ({}, {"normalize_residuals": True}, {"max_size": 200}):
        ResidualKMeans([64, 64], random_state=0, **parameters).fit(rows).encode(rows, beam=2)


if __name__ == "__main__":
    main()
