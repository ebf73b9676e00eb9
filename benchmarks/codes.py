"""Codes of rows: residual k-means against levels of faiss.Kmeans and against faiss.ResidualQuantizer.

python -m benchmarks.codes [--data PATH] [--vectors FILE] [--rows N] [--levels 8192,8192,8192] [--methods A,B]

The rows are SIFT descriptors, or those of a file, ``--vectors``. All codes are judged in one way: by the mean squared
distance of the rows to the sums of their centres after each level. faiss.Kmeans sees all rows in 25 iterations; the
residual quantizer has its own settings, with a beam of 5, but for the number of rows, which is all, too. Codes with a
beam are compared on the first ``--beam-rows`` rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.data import Rows
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.results import FOLDER, append_row, markdown_table, read_rows
from closure_kmeans import ResidualKMeans
from closure_kmeans.codes import count_collisions
from closure_kmeans.datasets import load_sift
from closure_kmeans.vectors import open_vectors

ITERATIONS = 25  # of faiss.Kmeans
JUDGED_ROWS = 1 << 15
BEAM = 8
HEADER = ("method", "fit s", "encode, rows/s", "distortion after each level", "unique ids", "perplexity", "beam")

Codes = NDArray[np.int32]


class Fitted(NamedTuple):
    """What a method has learned."""

    codebooks: list[Rows]  # whose sums the rows are to be near
    encode: Callable[[Rows, int], Codes]  # of rows, with a beam
    own_codes: Codes | None = None  # of the rows of the fit, where they are more than what ``encode`` finds


def fit_ours(X: Rows, levels: list[int], seed: int, **parameters: Any) -> Fitted:
    model = ResidualKMeans(levels, random_state=seed, **parameters).fit(X)
    own = model.codes_ if "max_size" in parameters else None
    return Fitted(model.codebooks_, lambda rows, beam: model.encode(rows, beam=beam), own)


def fit_balanced(X: Rows, levels: list[int], seed: int) -> Fitted:
    return fit_ours(X, levels, seed, max_size=2 * len(X) / min(levels))


def fit_faiss_levels(X: Rows, levels: list[int], seed: int) -> Fitted:
    indexes, left = [], X.astype(np.float32)
    for size in levels:
        kmeans = faiss.Kmeans(
            X.shape[1], size, niter=ITERATIONS, seed=seed, min_points_per_centroid=1, max_points_per_centroid=len(X)
        )
        kmeans.train(left)
        indexes.append(kmeans.index)
        left -= kmeans.centroids[kmeans.index.search(left, 1)[1][:, 0]]
    codebooks = [index.reconstruct_n(0, index.ntotal) for index in indexes]

    def encode(rows: Rows, beam: int) -> Codes:
        codes, rest = np.empty((len(rows), len(levels)), np.int32), rows.astype(np.float32)
        for level, (index, centers) in enumerate(zip(indexes, codebooks, strict=True)):
            codes[:, level] = index.search(rest, 1)[1][:, 0]
            rest -= centers[codes[:, level]]
        return codes

    return Fitted(codebooks, encode)


def fit_faiss_quantizer(X: Rows, levels: list[int], seed: int) -> Fitted:
    n_bits = faiss.UInt64Vector()
    for size in levels:
        n_bits.push_back(size.bit_length() - 1)
    quantizer = faiss.ResidualQuantizer(X.shape[1], n_bits)
    quantizer.cp.seed, quantizer.cp.max_points_per_centroid = seed, len(X)
    quantizer.train(np.ascontiguousarray(X, np.float32))
    values = faiss.vector_to_array(quantizer.codebooks).reshape(-1, X.shape[1])
    trained_beam = quantizer.max_beam_size

    def encode(rows: Rows, beam: int) -> Codes:
        quantizer.max_beam_size = beam if beam > 1 else trained_beam
        packed = quantizer.compute_codes(np.ascontiguousarray(rows, np.float32))
        bits = np.unpackbits(packed, axis=1, bitorder="little")
        ends = np.cumsum([size.bit_length() - 1 for size in levels])
        parts = np.split(bits[:, : ends[-1]].astype(np.int64), ends[:-1], axis=1)
        return np.stack([part @ (1 << np.arange(part.shape[1])) for part in parts], axis=1).astype(np.int32)

    return Fitted(np.split(values, np.cumsum(levels)[:-1]), encode)


METHODS: dict[str, Callable[[Rows, list[int], int], Fitted]] = {
    "ours": fit_ours,
    "ours, normalize_residuals": partial(fit_ours, normalize_residuals=True),
    "ours, max_size of 2 means": fit_balanced,
    "faiss.Kmeans, level by level": fit_faiss_levels,
    "faiss.ResidualQuantizer": fit_faiss_quantizer,
}


def judge(X: Rows, codebooks: list[Rows], codes: Codes) -> list[float]:
    """The distortion after each level."""
    errors = np.zeros(len(codebooks))
    for first in range(0, len(X), JUDGED_ROWS):
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


def measure(method: str, X: Rows, levels: list[int], seed: int, beam_rows: int) -> dict[str, Any]:
    began = time.perf_counter()
    fitted = METHODS[method](X, levels, seed)
    fit_seconds = time.perf_counter() - began
    began = time.perf_counter()
    codes = fitted.encode(X, 1)
    encode_seconds = time.perf_counter() - began
    codes = codes if fitted.own_codes is None else fitted.own_codes
    row = {
        "fit_seconds": fit_seconds,
        "encode_seconds": encode_seconds,
        "distortion": judge(X, fitted.codebooks, codes),
        "unique": float(np.mean(count_collisions(codes) == 0)),
        "perplexity": perplexities(codes),
    }
    if method in ("ours", "faiss.ResidualQuantizer"):
        some = X[:beam_rows]
        began = time.perf_counter()
        by_beam = fitted.encode(some, BEAM)
        row["beam_seconds"] = time.perf_counter() - began
        row["beam_distortion"] = judge(some, fitted.codebooks, by_beam)[-1]
        row["greedy_distortion"] = judge(some, fitted.codebooks, codes[: len(some)])[-1]
        row["beam_rows"] = len(some)
    return row


def format_line(row: dict[str, Any]) -> list[str]:
    beam = ""
    if "beam_seconds" in row:
        change = row["beam_distortion"] / row["greedy_distortion"] - 1
        beam = f"{row['beam_distortion']:,.4g} ({change:+.1%}), {row['beam_rows'] / row['beam_seconds']:,.0f} rows/s"
    return [
        row["method"],
        f"{row['fit_seconds']:,.1f}",
        f"{row['n_rows'] / row['encode_seconds']:,.0f}",
        ", ".join(f"{value:,.5g}" for value in row["distortion"]),
        f"{row['unique']:.1%}",
        ", ".join(f"{value:,.0f}" for value in row["perplexity"]),
        beam,
    ]


def describe(rows: list[dict[str, Any]]) -> str:
    """A table for each data set and its levels."""
    text = (
        "# Codes\n\nThe distortion is the mean squared distance of a row to the sum of its centres. faiss.Kmeans: "
        f"{ITERATIONS} iterations over all rows at each level. The last column is with a beam of {BEAM}, "
        "against the other codes of the same rows.\n"
    )
    for title, levels in dict.fromkeys((row["rows"], tuple(row["levels"])) for row in rows):
        lines = [format_line(row) for row in rows if (row["rows"], tuple(row["levels"])) == (title, levels)]
        text += f"\n{title} into {' x '.join(map(str, levels))}:\n\n{markdown_table(HEADER, lines)}\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codes", description=__doc__.split("\n")[0])
    data.add_data_option(parser)
    parser.add_argument("--vectors", type=Path, metavar="FILE", help="a file of vectors in place of SIFT")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--levels", default="8192,8192,8192", help="powers of two")
    parser.add_argument("--methods", default=";".join(METHODS), help="some of the methods, separated by semicolons")
    parser.add_argument("--beam-rows", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="redo finished runs")
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    levels = [int(size) for size in arguments.levels.split(",")]
    if arguments.vectors is None:
        X = data.load("sift", arguments.rows, arguments.data)
        title = data.describe("sift", len(X), arguments.data)
    else:
        X = np.array(open_vectors(arguments.vectors)[: arguments.rows])
        title = f"{len(X):,} x {X.shape[1]} {X.dtype} rows of {arguments.vectors.name}"
    warm = load_sift()[:2000] if X.dtype == np.uint8 else X[:2000]  # compiled code is no part of it
    for parameters in ({}, {"normalize_residuals": True}, {"max_size": 200}):
        ResidualKMeans([64, 64], random_state=0, **parameters).fit(warm).encode(warm, beam=2)
    path = arguments.output / "codes.jsonl"
    if arguments.fresh:
        path.unlink(missing_ok=True)
    job = {"rows": title, "n_rows": len(X), "levels": levels}
    about = {"machine": describe_machine(), "versions": describe_versions()}
    for seed in range(arguments.seeds):
        for method in arguments.methods.split(";"):
            key = job | {"method": method, "seed": seed}
            if not any(key.items() <= row.items() for row in read_rows(path)):
                append_row(path, key | measure(method, X, levels, seed, arguments.beam_rows) | about)
                print(*format_line(read_rows(path)[-1]), sep="  ", flush=True)
    text = describe(read_rows(path))
    path.with_suffix(".md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
