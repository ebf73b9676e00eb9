"""``closure-kmeans fit``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.core import ParameterSource
from numpy.typing import NDArray

from closure_kmeans import PAPER, ClosureKMeans, Method, load
from closure_kmeans.checkpoint import checkpoint_file, describe_checkpoint, read_centers
from closure_kmeans.cli.common import (
    INTERRUPTED,
    LABEL,
    STANDARD,
    FileOrFolder,
    Share,
    check_outputs,
    duration,
    example,
    keep_apart,
    long_work,
    output_option,
    read_vectors,
    report,
    size_summary,
    with_json,
    with_quiet,
    with_seed,
    with_threads,
    with_vectors_anywhere,
    write_array,
)
from closure_kmeans.cli.progress import Progress, clock
from closure_kmeans.distributed import DistributedClosureKMeans
from closure_kmeans.distributed.files import fit_folder
from closure_kmeans.distributed.sources import describe_file, list_files
from closure_kmeans.storage import model_size
from closure_kmeans.vectors import open_vectors

# Options of a fit on one machine.
ON_ONE_MACHINE = ("max_size", "memory_limit", "checkpoint", "checkpoint_every")


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
@with_vectors_anywhere
@click.option("-k", "--n-clusters", type=click.IntRange(1), required=True, help="Number of clusters.")
@output_option("-o", "--output", suffixes=(".safetensors",), required=True, help="Where to write the model.")
@output_option(
    "--labels", suffixes=(".npy",), standard=True, help="Where to write the cluster of each row; - is standard output."
)
@click.option("--training", is_flag=True, help="Keep the labels and the history in the model, to look at them later.")
@with_seed
@with_threads
@click.option("--max-time", type=duration, metavar="TIME", help="When to stop at the latest: 90, 90s, 5m, 1.5h.")
@click.option(
    "--max-iter", type=click.IntRange(1), default=100, show_default=True, help="Largest number of iterations."
)
@click.option(
    "--tol", type=click.FloatRange(0), default=5e-4, show_default=True, help="Smallest change of the distortion."
)
@click.option(
    "--target-accuracy",
    type=click.FloatRange(0, 1),
    default=0.95,
    show_default=True,
    help="Share of rows at their nearest centre.",
)
@click.option(
    "--leaf-size",
    type=click.IntRange(1),
    show_default="by rows and clusters, or 10 with --paper",
    help="Rows in a leaf of a tree.",
)
@click.option(
    "--init",
    default="tree",
    show_default=True,
    help="tree, random, or the centres of a model, a file, or the folder of a checkpoint.",
)
@click.option(
    "--metric",
    type=click.Choice(["euclidean", "cosine"]),
    default="euclidean",
    show_default=True,
    help="cosine: only the directions of rows count.",
)
@click.option("--max-size", type=click.FloatRange(0), help="Upper bound on the cluster size, in rows.")
@click.option(
    "--memory-limit",
    metavar="SIZE",
    help="Memory beyond the centres: 500MB, 1GB.",
)
@click.option("--paper", is_flag=True, help="The algorithm exactly as the paper has it.")
@click.option("--checkpoint", type=FileOrFolder(), help="Folder to save the fit to while it runs.")
@click.option(
    "--checkpoint-every",
    type=duration,
    metavar="TIME",
    default="60s",
    show_default=True,
    help="Time between checkpoints.",
)
@click.option("--resume", is_flag=True, help="Go on from the checkpoint or the storage, if there is one.")
@click.option("--client", metavar="ADDRESS", help="Fit on Dask: address of a scheduler, or local.")
@click.option("--storage", metavar="URL", help="With --client: folder or URL that all workers share.")
@click.option("--n-partitions", type=click.IntRange(1), help="With --client: parts that the rows are laid out in.")
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
    training: bool,
    paper: bool,
    resume: bool,
    client: str | None,
    storage: str | None,
    n_partitions: int | None,
    as_json: bool,
    quiet: bool,
    **settings: Any,
) -> None:
    """Cluster the rows of VECTORS.

    VECTORS is a file (.npy, .fvecs, .bvecs, .fbin, .u8bin, .i8bin, .hdf5, .parquet), a folder of such files, or - for
    an .npy file from standard input. With --client it is a path or URL that all workers can read, of a .zarr array too.

    Ctrl-C saves what there is and says how to go on; the exit code is then 130.
    """
    checkpoint = settings["checkpoint"]
    keep_apart([vectors, settings["init"], checkpoint and str(checkpoint_file(checkpoint))], [output, labels])
    if client is None:
        _check_checkpoint(checkpoint, resume)
        if storage is not None or n_partitions is not None:
            raise click.UsageError("--storage and --n-partitions need --client: the address of a scheduler, or local")
        if "://" in vectors:
            raise click.UsageError(f"vectors at a URL need --client, got '{vectors}'")
    else:
        _check_distributed(context, paper, storage, resume)
    if labels == STANDARD and as_json:
        raise click.UsageError("--json and --labels - cannot both write to standard output")
    if client is None:
        rows: Any = read_vectors(vectors, name)
        (n_rows, width), dtype = rows.shape, rows.dtype
        model = _new_model(paper, **settings)
    else:
        rows = vectors
        model = _new_distributed(client, storage=storage, n_partitions=n_partitions, name=name, **settings)
        n_rows, width, dtype = _describe_rows(vectors, name)
    model_bytes = model_size(model.n_clusters, width, dtype, n_labels=n_rows if training else 0)
    check_outputs({output: model_bytes, labels: n_rows * LABEL})
    if not quiet and not as_json:
        click.echo(f"{n_rows:,} x {width} {dtype} into {model.n_clusters:,} clusters", err=True)
        if checkpoint is not None and checkpoint_file(checkpoint).exists():
            found = describe_checkpoint(checkpoint)
            state = "the fit had converged" if found["converged"] else "going on"
            click.echo(f"{state} after iteration {found['iterations']} of '{checkpoint_file(checkpoint)}'", err=True)
    kept, option = (checkpoint, "--checkpoint") if client is None else (storage, "--storage")
    interrupted = False
    try:
        with Progress(model, n_rows, quiet=quiet, as_json=as_json) as progress, long_work():
            model.set_params(callback=progress).fit(rows, resume=resume)
    except KeyboardInterrupt:
        interrupted = hasattr(model, "cluster_centers_")
        if not interrupted:  # before an iteration was done
            if kept is None or client is not None or not checkpoint_file(kept).exists():
                raise
            _say_how_to_go_on(context, "interrupted, and the checkpoint is as it was", output, kept, option)
            context.exit(INTERRUPTED)
    model.save(output, training=training)
    if labels is not None:
        write_array(labels, model.labels_)
    if as_json or not quiet:
        _summarise(model, n_rows, output, labels, as_json)
    if interrupted:
        _say_how_to_go_on(context, "interrupted, and saved as it stands", output, kept, option)
        context.exit(INTERRUPTED)


def _new_model(paper: bool, *, init: str, leaf_size: int | None, **settings: Any) -> ClosureKMeans:
    return ClosureKMeans(init=_start(init), method=_method(paper, leaf_size), **settings)


def _new_distributed(address: str, *, init: str, leaf_size: int | None, **settings: Any) -> DistributedClosureKMeans:
    for name in ON_ONE_MACHINE:
        del settings[name]
    client = None if address == "local" else address
    return DistributedClosureKMeans(init=_start(init), method=_method(False, leaf_size), client=client, **settings)


def _method(paper: bool, leaf_size: int | None) -> Method:
    method = PAPER if paper else Method()
    return method if leaf_size is None else method._replace(leaf_size=leaf_size)


def _check_distributed(context: click.Context, paper: bool, storage: str | None, resume: bool) -> None:
    given = [name for name in ON_ONE_MACHINE if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if paper or given:
        option = "paper" if paper else given[0].replace("_", "-")
        raise click.UsageError(f"--{option} is for fits on one machine, without --client")
    if resume and storage is None:
        raise click.UsageError("--resume needs --storage: where the fit is")
    if storage is not None and not resume and fit_folder(storage).list("centers"):
        raise click.UsageError(f"'{storage}' holds a fit: add --resume to go on with it, or remove the folder")


def _describe_rows(vectors: str, name: str | None) -> tuple[int, int, np.dtype[Any]]:
    """The number of rows, their width and their dtype; of files, only the beginnings are read."""
    found = []
    for file in list_files(vectors, name, {}):
        found.append(describe_file(file))
        file.folder.drop_copy(file.name)
    return sum(file.n_rows for file in found), found[0].width, np.dtype(found[0].dtype)


def _check_checkpoint(checkpoint: str | None, resume: bool) -> None:
    if resume and checkpoint is None:
        raise click.UsageError("--resume needs --checkpoint: where the fit was saved")
    if checkpoint is not None and Path(checkpoint).is_file() and Path(checkpoint).suffix != ".safetensors":
        raise click.BadParameter(f"'{checkpoint}' must be a folder, but is a file", param_hint="--checkpoint")
    if checkpoint is not None and not resume and checkpoint_file(checkpoint).exists():
        raise click.UsageError(
            f"'{checkpoint_file(checkpoint)}' holds a fit: add --resume to go on with it, or remove the file"
        )


def _start(init: str) -> str | NDArray[Any]:
    """A start by its name, or the centres of a model, in a file, or in the folder of a checkpoint."""
    if init in ("tree", "random"):
        return init
    if not Path(init).exists():
        raise click.BadParameter(
            f"'{init}' must be tree, random, a model, a file of centres, or a checkpoint's folder", param_hint="--init"
        )
    if Path(init).is_dir() and checkpoint_file(init).exists():
        return read_centers(init)
    if Path(init).suffix == ".safetensors":
        return load(init).cluster_centers_
    return np.asarray(open_vectors(init))


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


def _say_how_to_go_on(context: click.Context, news: str, output: str, kept: str | None, option: str) -> None:
    """``kept`` is where the fit is, as ``option`` says."""
    if kept is None:
        advice = f"--init {shlex.quote(output)} begins from these centres; {option} would let the fit itself go on"
    else:
        advice = f"go on with: {context.obj}{'' if context.params['resume'] else ' --resume'}"
    click.echo(f"{news}; {advice}", err=True)
