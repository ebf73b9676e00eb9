"""``closure-kmeans codes``: fit, encode, decode, report and export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from closure_kmeans import Iteration, ResidualKMeans
from closure_kmeans import codes as library
from closure_kmeans.checkpoint import Resume
from closure_kmeans.cli import Interrupted, options
from closure_kmeans.cli.common import (
    LABEL,
    Share,
    check_outputs,
    keep_apart,
    long_work,
    read_vectors,
    underscored,
    write_array,
)
from closure_kmeans.cli.common import (
    report as write_report,
)
from closure_kmeans.storage import model_size

MODEL, CODES = (".safetensors",), (".npy", ".parquet")

with_model = click.argument("model", type=options.EXISTING_FILE)
with_vectors = click.argument("vectors", type=options.EXISTING_OR_STANDARD)
with_beam = click.option(
    "--beam", type=click.IntRange(1), default=1, help="Beam width: paths kept at each level; 1 is greedy."
)


@click.group(
    cls=options.InOrder,
    epilog=options.example(
        "closure-kmeans codes fit items.npy --levels 8192,8192,8192 -o items.codes.safetensors",
        "closure-kmeans codes encode items.codes.safetensors new_items.npy -o codes.npy",
    ),
)
def codes() -> None:
    """The codes of a row are its clusters on several levels; each level clusters the residuals of the previous one.

    fit trains the levels, encode computes codes, decode reconstructs rows, report measures quality, and export writes
    a FAISS index.
    """


@codes.command(
    epilog=options.example(
        "closure-kmeans codes fit items.npy --levels 8192,8192,8192 -o items.codes.safetensors --codes ids.parquet"
    )
)
@with_vectors
@options.name
@options.numbers("--levels", required=True, help="Number of clusters of each level.")
@options.output("-o", "--output", suffixes=MODEL, required=True, help="Write the model to this file.")
@options.output(
    "--codes", "codes_file", suffixes=CODES, help="Write the codes of VECTORS: .npy as numbers, .parquet as text."
)
@click.option(
    "--metric",
    type=click.Choice(["euclidean", "cosine"]),
    default="euclidean",
    help="Distance; cosine L2-normalises the rows.",
)
@click.option("--normalize-residuals", is_flag=True, help="L2-normalise the residuals before each level.")
@click.option("--unique", is_flag=True, help="Append a number that tells apart rows with equal codes.")
@click.option("--max-size", type=click.FloatRange(0), help="Upper bound on the cluster size in each level, in rows.")
@options.seed
@click.option("--max-time", type=options.duration, metavar="TIME", help="Time limit: 90, 90s, 5m, 1.5h.")
@click.option("--max-iter", type=click.IntRange(1), default=100, help="Maximum number of iterations of each level.")
@click.option(
    "--tol",
    type=click.FloatRange(0),
    default=5e-4,
    help="Converged when the distortion falls by less than this fraction.",
)
@click.option(
    "--target-accuracy",
    type=click.FloatRange(0, 1),
    default=0.95,
    help="Enlarge leaves while fewer rows than this fraction are at their nearest centre.",
)
@click.option("--memory-limit", metavar="SIZE", help="Memory for rows and buffers, without the centres: 500MB, 1GB.")
@click.option(
    "--checkpoint", type=options.FileOrFolder(file_okay=False), help="Folder for checkpoints of the running fit."
)
@click.option(
    "--checkpoint-every", type=options.duration, metavar="TIME", default="60s", help="Interval between checkpoints."
)
@click.option("--resume", is_flag=True, help="Resume from --checkpoint if it holds a fit.")
@click.option(
    "--resume-anyway",
    is_flag=True,
    help="Like --resume, even if processor, BLAS or versions differ; results may differ in the last bits.",
)
@options.manner
def fit(
    vectors: str,
    name: str | None,
    output: str,
    codes_file: str | None,
    resume: bool,
    resume_anyway: bool,
    manner: options.Manner,
    **settings: Any,
) -> None:
    """Train the levels on VECTORS.

    VECTORS is a file, a folder of files, or - for an .npy file on standard input.
    """
    go_on: Resume = "anyway" if resume_anyway else resume
    if go_on and settings["checkpoint"] is None:
        raise click.UsageError("--resume needs --checkpoint")
    keep_apart([vectors], [output, codes_file])
    rows = read_vectors(vectors, name)
    model = ResidualKMeans(n_threads=manner.n_threads, verbose=manner.shows_progress, **settings)
    model_bytes = sum(model_size(size, rows.shape[1], rows.dtype, n_labels=0) for size in model.levels)
    check_outputs({output: model_bytes, codes_file: len(rows) * len(model.levels) * LABEL})
    if manner.as_json:
        model.set_params(callback=_write_iteration)
    try:
        with long_work():
            model.fit(rows, resume=go_on)
    except KeyboardInterrupt:
        kept = settings["checkpoint"]
        advice = (
            "no output was written; --checkpoint would allow resuming"
            if kept is None
            else f"continue from '{kept}' with --resume"
        )
        raise Interrupted(advice) from None
    model.save(output)
    if codes_file is not None:
        _write_codes(codes_file, model.codes_)
    if not manner.quiet:
        facts = {
            "levels": [len(level.cluster_centers_) for level in model.levels_],
            "iterations": [level.n_iter_ for level in model.levels_],
            "stopped by": [level.stopped_by_ for level in model.levels_],
            "seconds": sum(level.history_[-1].seconds for level in model.levels_),
            "model": output,
            "codes": codes_file,
        } | _about(model.set_params(verbose=False).report(rows, model.codes_))
        write_report({"event": "done"} | underscored(facts) if manner.as_json else facts, as_json=manner.as_json)


def _write_iteration(level: int, record: Iteration) -> None:
    click.echo(json.dumps({"event": "iteration", "level": level, **record._asdict()}))


def _about(quality: library.Report) -> dict[str, Any]:
    """Report with fractions printed in percent."""
    return {
        "distortion": quality.distortion,
        "unique ids": Share(quality.unique),
        "rows with one id": quality.largest_group,
        "used": [Share(used) for used in quality.used],
        "perplexity": quality.perplexity,
    }


def _write_codes(target: str, codes: NDArray[np.int32]) -> None:
    if Path(target).suffix.lower() == ".parquet":
        library.save_table(target, codes)
    else:
        write_array(target, codes)


@codes.command(
    epilog=options.example(
        "closure-kmeans codes encode items.codes.safetensors new_items.npy -o codes.npy",
        "closure-kmeans codes encode items.codes.safetensors items.npy -o ids.parquet --beam 8",
    )
)
@with_model
@with_vectors
@options.name
@options.output(
    "-o",
    "--output",
    suffixes=CODES,
    standard=True,
    required=True,
    help="Write the codes: .npy as numbers, .parquet as text, - for standard output.",
)
@with_beam
@options.threads
@options.quiet
def encode(
    model: str, vectors: str, name: str | None, output: str, beam: int, n_threads: int | None, quiet: bool
) -> None:
    """Compute the codes of VECTORS, greedily or by beam search."""
    keep_apart([model, vectors], [output])
    fitted = ResidualKMeans.load(model).set_params(n_threads=n_threads, verbose=not quiet)
    rows = read_vectors(vectors, name)
    check_outputs({output: len(rows) * len(fitted.levels_) * LABEL})
    _write_codes(output, fitted.encode(rows, beam=beam))
    if not quiet and output != options.STANDARD:
        click.echo(f"written: {output}")


@codes.command(epilog=options.example("closure-kmeans codes decode items.codes.safetensors codes.npy -o rows.npy"))
@with_model
@click.argument("codes_file", metavar="CODES", type=options.EXISTING_OR_STANDARD)
@options.output("-o", "--output", suffixes=(".npy",), standard=True, required=True, help="Write the rows to this file.")
@options.quiet
def decode(model: str, codes_file: str, output: str, quiet: bool) -> None:
    """Reconstruct rows from CODES, an .npy file."""
    keep_apart([model, codes_file], [output])
    fitted = ResidualKMeans.load(model)
    write_array(output, fitted.decode(np.asarray(read_vectors(codes_file))))
    if not quiet and output != options.STANDARD:
        click.echo(f"written: {output}")


@codes.command(epilog=options.example("closure-kmeans codes report items.codes.safetensors items.npy --json"))
@with_model
@with_vectors
@options.name
@with_beam
@options.manner
def report(model: str, vectors: str, name: str | None, beam: int, manner: options.Manner) -> None:
    """Measure the quality of the codes of VECTORS.

    Prints the distortion after each level, the fraction of unique ids, and usage and perplexity of each level.
    """
    fitted = ResidualKMeans.load(model).set_params(n_threads=manner.n_threads, verbose=manner.shows_progress)
    rows = read_vectors(vectors, name)
    facts = {"rows": len(rows), **_about(fitted.report(rows, fitted.encode(rows, beam=beam)))}
    write_report(underscored(facts) if manner.as_json else facts, as_json=manner.as_json)


@codes.command(
    epilog=options.example(
        "closure-kmeans codes export items.codes.safetensors --faiss items.faiss --ivf --codes codes.npy"
    )
)
@with_model
@options.output("--faiss", suffixes=(".faiss", ".index"), required=True, help="Write the FAISS index to this file.")
@click.option("--ivf", is_flag=True, help="Use the clusters of the first level as inverted lists.")
@click.option("--codes", "codes_file", type=options.EXISTING_FILE, help="An .npy file of codes to add to the index.")
@options.quiet
def export(model: str, faiss: str, ivf: bool, codes_file: str | None, quiet: bool) -> None:
    """Write a FAISS index that decodes codes to the same rows."""
    keep_apart([model, codes_file], [faiss])
    fitted = ResidualKMeans.load(model)
    given = None if codes_file is None else np.asarray(read_vectors(codes_file))
    library.save_faiss(faiss, fitted, given, ivf=ivf)
    if not quiet:
        click.echo(f"written: {faiss}")
