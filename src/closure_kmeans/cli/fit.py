"""``closure-kmeans fit``."""

from __future__ import annotations

import json
import shlex
import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from closure_kmeans import ClosureKMeans, load
from closure_kmeans.base import BaseKMeans
from closure_kmeans.checkpoint import checkpoint_file
from closure_kmeans.cli.common import (
    INTERRUPTED,
    STANDARD,
    Share,
    duration,
    example,
    output_option,
    read_vectors,
    report,
    size_summary,
    with_json,
    with_quiet,
    with_seed,
    with_threads,
    with_vectors,
    write_array,
)
from closure_kmeans.cli.doctor import kernels_are_compiled
from closure_kmeans.cli.progress import Progress, clock
from closure_kmeans.vectors import Vectors, open_vectors


class _Remembering(click.Command):
    """A command that knows how it was called."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        context.obj = shlex.join([*context.command_path.split(), *arguments])
        return super().parse_args(context, arguments)


@click.command(
    cls=_Remembering,
    epilog=example(
        "closure-kmeans fit vectors.u8bin -k 100000 -o words.safetensors \\",
        "    --labels labels.npy --max-time 5m --checkpoint ck/ --resume",
    ),
)
@with_vectors
@click.option("-k", "--clusters", "n_clusters", type=click.IntRange(1), required=True, help="Number of clusters.")
@output_option("-o", "--output", suffixes=(".safetensors",), required=True, help="Where to write the model.")
@output_option("--labels", suffixes=(".npy",), standard=True, help="Where to write the cluster of each row.")
@with_seed
@with_threads
@click.option("--max-time", type=duration, metavar="TIME", help="When to stop at the latest: 90, 90s, 5m, 1.5h.")
@click.option(
    "--max-iter", type=click.IntRange(1), default=100, show_default=True, help="Largest number of iterations."
)
@click.option(
    "--tol", type=click.FloatRange(0), default=5e-4, show_default=True, help="Smallest fall of the distortion."
)
@click.option(
    "--accuracy",
    "target_accuracy",
    type=click.FloatRange(0, 1),
    default=0.95,
    show_default=True,
    help="Share of rows at their nearest centre.",
)
@click.option(
    "--leaf-size", type=click.IntRange(1), show_default="256, or 10 with --paper", help="Rows in a leaf of a tree."
)
@click.option("--init", default="tree", show_default=True, help="tree, random, a model, or a file of centres.")
@click.option(
    "--metric",
    type=click.Choice(["euclidean", "cosine"]),
    default="euclidean",
    show_default=True,
    help="cosine: only the directions of rows count.",
)
@click.option("--max-size", type=click.FloatRange(0), help="Rows that the largest cluster should have at most.")
@click.option("--memory-limit", metavar="SIZE", help="Memory to take beyond the centres: 500MB, 1GB.")
@click.option(
    "--scratch",
    type=click.Path(exists=True, file_okay=False, writable=True),
    help="Folder of the temporary file of --memory-limit.",
)
@click.option("--paper", is_flag=True, help="The algorithm exactly as the paper has it.")
@click.option("--checkpoint", type=click.Path(), help="Folder to save the fit to while it runs.")
@click.option(
    "--checkpoint-every",
    type=duration,
    metavar="TIME",
    default="60s",
    show_default=True,
    help="Time between checkpoints.",
)
@click.option("--resume", is_flag=True, help="Go on from the checkpoint, if there is one.")
@with_json
@with_quiet
@click.pass_context
def fit(
    context: click.Context,
    /,
    vectors: str,
    name: str | None,
    output: str,
    labels: str | None,
    paper: bool,
    resume: bool,
    as_json: bool,
    quiet: bool,
    **settings: Any,
) -> None:
    """Cluster the rows of VECTORS.

    VECTORS is a file (.npy, .fvecs, .bvecs, .fbin, .u8bin, .i8bin, .hdf5, .parquet), a folder of such files, or - for
    an .npy file from standard input.

    Ctrl-C saves what there is and says how to go on; the exit code is then 130.
    """
    checkpoint = settings["checkpoint"]
    _check_checkpoint(checkpoint, resume)
    if labels == STANDARD and as_json:
        raise click.UsageError("--json and --labels - cannot both write to standard output")
    rows = read_vectors(vectors, name)
    model = _new_model(paper, **settings)
    if not quiet and not as_json:
        if not kernels_are_compiled():
            click.echo("the kernels are compiled on their first use, which takes some ten seconds", err=True)
        click.echo(f"{rows.shape[0]:,} x {rows.shape[1]} {rows.dtype} into {model.n_clusters:,} clusters", err=True)
    with Progress(model, len(rows), quiet=quiet, as_json=as_json) as progress:
        _run(model.set_params(callback=progress), rows)
    model.save(output)
    if labels is not None:
        write_array(labels, model.labels_)
    if not quiet:
        _summarise(model, len(rows), output, labels, as_json)
    if model.stopped_by_ == "interrupted":
        _say_how_to_go_on(context, output, checkpoint, resume)
        context.exit(INTERRUPTED)


def _new_model(
    paper: bool, *, init: str, seed: int, threads: int | None, leaf_size: int | None, **settings: Any
) -> ClosureKMeans:
    if leaf_size is not None:
        settings["leaf_size"] = leaf_size
    make = ClosureKMeans.paper if paper else ClosureKMeans
    return make(init=_start(init), random_state=seed, n_jobs=threads, **settings)


def _check_checkpoint(checkpoint: str | None, resume: bool) -> None:
    if resume and checkpoint is None:
        raise click.UsageError("--resume needs --checkpoint: where the fit was saved")
    if checkpoint is not None and not resume and checkpoint_file(checkpoint).exists():
        raise click.UsageError(
            f"'{checkpoint_file(checkpoint)}' holds a fit: add --resume to go on with it, or remove the file"
        )


def _start(init: str) -> str | NDArray[Any] | BaseKMeans:
    """A start by its name, a model, or the centres in a file."""
    if init in ("tree", "random"):
        return init
    if Path(init).suffix == ".safetensors":
        return load(init)
    return np.asarray(open_vectors(init))


def _run(model: ClosureKMeans, rows: NDArray[Any] | Vectors) -> None:
    """Fit; that it was interrupted is said at the end, other warnings as they come."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "interrupted", RuntimeWarning)
        warnings.showwarning = lambda message, *_: click.echo(f"Warning: {message}", err=True)
        model.fit(rows)


def _summarise(model: ClosureKMeans, n_rows: int, output: str, labels: str | None, as_json: bool) -> None:
    last = model.history_[-1] if model.history_ else None
    facts: dict[str, Any] = {
        "clusters": len(model.cluster_centers_),
        "distortion": model.inertia_ / n_rows,
        "iterations": model.n_iter_,
        "stopped by": model.stopped_by_,
        "seconds": last.seconds if last else 0.0,
        "accuracy": Share(last.accuracy) if last and last.accuracy is not None else None,
        "rows in a cluster": size_summary(model.labels_, len(model.cluster_centers_)),
        "model": output,
        "labels": labels,
    }
    if as_json:
        click.echo(json.dumps({"event": "done"} | {name.replace(" ", "_"): value for name, value in facts.items()}))
        return
    facts["seconds"] = clock(facts["seconds"]) if facts["seconds"] >= 60 else f"{facts['seconds']:.1f}"
    if labels == STANDARD:
        click.echo(f"{output}: distortion {facts['distortion']:,.6g}", err=True)  # standard output is taken
    else:
        report({name: value for name, value in facts.items() if value is not None}, as_json=False)


def _say_how_to_go_on(context: click.Context, output: str, checkpoint: str | None, resume: bool) -> None:
    if checkpoint is None:
        advice = f"--init {shlex.quote(output)} begins from these centres; --checkpoint would let the fit itself go on"
    else:
        advice = f"go on with: {context.obj}{'' if resume else ' --resume'}"
    click.echo(f"interrupted, and saved as it stands; {advice}", err=True)
