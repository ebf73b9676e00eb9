"""``closure-kmeans predict`` and ``closure-kmeans evaluate``."""

from __future__ import annotations

from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

import closure_kmeans
from closure_kmeans.cli import options
from closure_kmeans.cli.common import (
    DISTANCE,
    LABEL,
    Share,
    assign,
    check_outputs,
    keep_apart,
    read_vectors,
    report,
    size_summary,
    underscored,
    write_array,
)
from closure_kmeans.metrics import normalized_mutual_information
from closure_kmeans.nearest import SAMPLE_ROWS
from closure_kmeans.vectors import FileFormatError


@click.command(
    epilog=options.example(
        "closure-kmeans predict words.safetensors new.u8bin -o labels.npy",
        "closure-kmeans predict words.safetensors - -o - < new.npy > labels.npy",
    )
)
@click.argument("model", type=options.EXISTING)
@click.argument("vectors", type=options.EXISTING_OR_STANDARD)
@options.name
@options.output(
    "-o",
    "--output",
    suffixes=(".npy",),
    standard=True,
    required=True,
    help="Write the label of each row to this file; - for standard output.",
)
@options.output(
    "--distances", suffixes=(".npy",), help="Write the squared distance of each row to its centre to this file."
)
@click.option("--exact", is_flag=True, help="Compare every row with all centres.")
@options.threads
@options.quiet
def predict(
    model: str,
    vectors: str,
    name: str | None,
    output: str,
    distances: str | None,
    exact: bool,
    n_threads: int | None,
    quiet: bool,
) -> None:
    """Models with more than 10,000 centres are searched approximately, unless --exact is given."""
    keep_apart([model, vectors], [output, distances])
    fitted = closure_kmeans.load(model).set_params(n_threads=n_threads)
    rows = read_vectors(vectors, name)
    check_outputs({output: len(rows) * LABEL, distances: len(rows) * DISTANCE})
    labels, squares = assign(fitted, rows, exact=exact, distances=distances is not None, quiet=quiet)
    write_array(output, labels)
    if distances is not None:
        write_array(distances, squares)
    if not quiet and output != options.STANDARD:
        click.echo(f"written: {output}" + (f", {distances}" if distances is not None else ""))


@click.command(epilog=options.example("closure-kmeans evaluate words.safetensors vectors.u8bin"))
@click.argument("model", type=options.EXISTING)
@click.argument("vectors", type=options.EXISTING_OR_STANDARD)
@options.name
@click.option(
    "--truth", type=options.EXISTING, help="An .npy file of class labels; adds the normalised mutual information."
)
@options.threads
@options.json
@options.quiet
def evaluate(
    model: str, vectors: str, name: str | None, truth: str | None, n_threads: int | None, as_json: bool, quiet: bool
) -> None:
    """Distortion: mean squared distance of a row to its centre.

    Accuracy: fraction of 2,000 sampled rows that predict assigns to their exact nearest centre.
    """
    fitted = closure_kmeans.load(model).set_params(n_threads=n_threads)
    rows = read_vectors(vectors, name)
    classes = None if truth is None else _read_classes(truth, len(rows))
    labels, squares = assign(fitted, rows, quiet=quiet or as_json)
    step = -(-len(rows) // SAMPLE_ROWS)
    nearest = fitted.predict(np.asarray(rows[::step]), exact=True)
    facts: dict[str, Any] = {
        "rows": len(rows),
        "clusters": len(fitted.cluster_centers_),
        "distortion": float(squares.mean()),
        "accuracy": Share(np.mean(nearest == labels[::step])),
        "rows in a cluster": size_summary(labels, len(fitted.cluster_centers_)),
    }
    if classes is not None:
        facts["mutual information"] = normalized_mutual_information(classes, labels)
    report(underscored(facts) if as_json else facts, as_json=as_json)


def _read_classes(path: str, n_rows: int) -> NDArray[Any]:
    try:
        classes: NDArray[Any] = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FileFormatError(f"'{path}' cannot be read as .npy: {error}") from error
    if classes.shape != (n_rows,):
        raise FileFormatError(f"'{path}' must hold one class for each of {n_rows} rows, but has shape {classes.shape}")
    return classes
