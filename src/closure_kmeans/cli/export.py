"""``closure-kmeans export``."""

from __future__ import annotations

import click

import closure_kmeans
from closure_kmeans import export as write
from closure_kmeans.cli import options
from closure_kmeans.cli.common import (
    DISTANCE,
    LABEL,
    START,
    assign,
    check_outputs,
    keep_apart,
    read_vectors,
    write_array,
)
from closure_kmeans.vectors import save_vectors


@click.command(
    epilog=options.example(
        "closure-kmeans export words.safetensors --centers words.fbin --faiss words.faiss",
        "closure-kmeans export words.safetensors --vectors vectors.u8bin --members members.npz",
    )
)
@click.argument("model", type=options.EXISTING)
@options.output("--centers", suffixes=(".npy", ".fbin", ".fvecs"), help="Write the centres (.npy, .fbin or .fvecs).")
@options.output(
    "--faiss", suffixes=(".faiss", ".index"), help="Write a FAISS IVF index with the clusters as inverted lists."
)
@click.option("--vectors", type=options.EXISTING_OR_STANDARD, help="Vectors to assign for the options below.")
@options.name
@options.output("--labels", suffixes=(".npy",), help="Write the label of each row.")
@options.output("--distances", suffixes=(".npy",), help="Write the squared distance of each row to its centre.")
@options.output("--members", suffixes=(".npz",), help="Write the rows of each cluster, as arrays rows and starts.")
@options.output(
    "--table", suffixes=(".parquet",), help="Write rows, labels and distances as a Parquet table for embedding viewers."
)
@options.threads
@options.quiet
def export(
    model: str,
    centers: str | None,
    faiss: str | None,
    vectors: str | None,
    name: str | None,
    labels: str | None,
    distances: str | None,
    members: str | None,
    table: str | None,
    n_threads: int | None,
    quiet: bool,
) -> None:
    """--centers and --faiss need only MODEL; the other outputs assign the rows of --vectors first."""
    about_rows = [target for target in (labels, distances, members, table) if target is not None]
    targets = [target for target in (centers, faiss) if target is not None] + about_rows
    if not targets:
        raise click.UsageError(
            "no output given: use at least one of --centers, --faiss, --labels, --distances, --members, --table"
        )
    if about_rows and vectors is None:
        raise click.UsageError(f"'{about_rows[0]}' needs --vectors")
    keep_apart([model, vectors], list(targets))
    fitted = closure_kmeans.load(model).set_params(n_threads=n_threads)
    n_clusters = len(fitted.cluster_centers_)
    if centers is not None:
        save_vectors(centers, fitted.cluster_centers_)
    if faiss is not None:
        write.save_faiss(faiss, fitted)
    if vectors is not None and about_rows:
        rows = read_vectors(vectors, name)
        n_rows = len(rows)
        sizes = {labels: n_rows * LABEL, distances: n_rows * DISTANCE, members: n_rows * LABEL + n_clusters * START}
        check_outputs(sizes)
        assigned, squares = assign(fitted, rows, quiet=quiet)
        if labels is not None:
            write_array(labels, assigned)
        if distances is not None:
            write_array(distances, squares)
        if members is not None:
            write.save_members(members, assigned, n_clusters)
        if table is not None:
            write.save_table(table, rows, assigned, squares)
    if not quiet:
        click.echo(f"written: {', '.join(targets)}")
