"""``closure-kmeans fit``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, NoReturn

import click
import numpy as np
from click.core import ParameterSource
from numpy.typing import NDArray

from closure_kmeans import PAPER, ClosureKMeans, Method, load
from closure_kmeans.checkpoint import Resume, checkpoint_file, read_centers
from closure_kmeans.cli import INTERRUPTED, options
from closure_kmeans.cli.common import (
    LABEL,
    Share,
    check_outputs,
    keep_apart,
    long_work,
    read_vectors,
    report,
    size_summary,
    underscored,
    write_array,
)
from closure_kmeans.cli.progress import Progress, clock
from closure_kmeans.distributed import DistributedClosureKMeans
from closure_kmeans.distributed.files import fit_folder
from closure_kmeans.distributed.sources import describe_file, list_files
from closure_kmeans.storage import model_size
from closure_kmeans.vectors import open_vectors

# Options of a fit on one machine.
ON_ONE_MACHINE = ("paper", "max_size", "memory_limit", "checkpoint", "checkpoint_every")


class _Remembering(click.Command):
    """A command that remembers its arguments, to print how to resume."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        context.obj = shlex.join([*context.command_path.split(), *arguments])
        return super().parse_args(context, arguments)


@click.command(
    cls=_Remembering,
    epilog=options.example(
        "closure-kmeans fit vectors.u8bin -k 100000 -o words.safetensors \\",
        "    --labels labels.npy --max-time 5m --checkpoint ck/ --resume",
    ),
)
@click.argument("vectors", type=options.PathOrUrl(exists=True, allow_dash=True))
@options.name
@click.option("-k", "--n-clusters", type=click.IntRange(1), required=True, help="Number of clusters.")
@options.output("-o", "--output", suffixes=(".safetensors",), required=True, help="Write the model to this file.")
@options.output(
    "--labels",
    suffixes=(".npy",),
    standard=True,
    help="Write the label of each row to this file; - for standard output.",
)
@click.option("--training", is_flag=True, help="Store labels and history in the model file, too.")
@options.seed
@options.threads
@click.option("--max-time", type=options.duration, metavar="TIME", help="Time limit: 90, 90s, 5m, 1.5h.")
@click.option("--max-iter", type=click.IntRange(1), default=100, help="Maximum number of iterations.")
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
@click.option(
    "--leaf-size",
    type=click.IntRange(1),
    show_default="from rows and clusters; 10 with --paper",
    help="Maximum number of rows in a leaf of a tree.",
)
@click.option(
    "--init", default="tree", help="tree, random, or a model, file of centres or checkpoint folder to start from."
)
@click.option(
    "--metric",
    type=click.Choice(["euclidean", "cosine"]),
    default="euclidean",
    help="Distance; cosine L2-normalises the rows (spherical k-means).",
)
@click.option("--max-size", type=click.FloatRange(0), help="Upper bound on the cluster size, in rows.")
@click.option("--memory-limit", metavar="SIZE", help="Memory for rows and buffers, without the centres: 500MB, 1GB.")
@click.option("--paper", is_flag=True, help="Run the algorithm exactly as in the paper.")
@click.option("--checkpoint", type=options.FileOrFolder(), help="Folder for checkpoints of the running fit.")
@click.option(
    "--checkpoint-every", type=options.duration, metavar="TIME", default="60s", help="Interval between checkpoints."
)
@click.option("--resume", is_flag=True, help="Resume from --checkpoint or --storage if it holds a fit.")
@click.option(
    "--resume-anyway",
    is_flag=True,
    help="Like --resume, even if processor, BLAS or versions differ; results may differ in the last bits.",
)
@click.option("--client", metavar="ADDRESS", help="Fit on a Dask cluster: scheduler address, or local.")
@click.option(
    "--storage", metavar="URL", help="With --client: folder or URL for the files of the fit, shared by all workers."
)
@click.option("--n-partitions", type=click.IntRange(1), help="With --client: number of partitions of the rows.")
@options.json
@options.quiet
@click.pass_context
def fit(
    context: click.Context,
    /,
    vectors: str,
    name: str | None,
    output: str,
    labels: str | None,
    training: bool,
    resume: bool,
    resume_anyway: bool,
    client: str | None,
    storage: str | None,
    n_partitions: int | None,
    as_json: bool,
    quiet: bool,
    **settings: Any,
) -> None:
    """VECTORS is a file, a folder of files, or - for an .npy file on standard input.

    Formats: .npy, .fvecs, .bvecs, .fbin, .u8bin, .i8bin, .hdf5, .parquet. With --client, VECTORS is a path or URL that
    all workers can read; .zarr arrays are supported, too.

    Ctrl-C writes the model of the last complete iteration, prints how to continue, and exits with code 130.
    """
    checkpoint = settings["checkpoint"]
    go_on: Resume = "anyway" if resume_anyway else resume
    keep_apart([vectors, settings["init"], checkpoint and str(checkpoint_file(checkpoint))], [output, labels])
    if labels == options.STANDARD and as_json:
        raise click.UsageError("--json and --labels - cannot both write to standard output")
    if client is None:
        _check_checkpoint(checkpoint, bool(go_on))
        if storage is not None or n_partitions is not None:
            raise click.UsageError("--storage and --n-partitions need --client")
        if "://" in vectors:
            raise click.UsageError(f"vectors at a URL need --client, got '{vectors}'")
        rows: Any = read_vectors(vectors, name)
        (n_rows, width), dtype = rows.shape, rows.dtype
        model = ClosureKMeans(**_parameters(**settings))
    else:
        _check_distributed(context, storage, bool(go_on))
        rows = vectors
        for option in ON_ONE_MACHINE:
            del settings[option]
        model = DistributedClosureKMeans(
            client=None if client == "local" else client,
            storage=storage,
            n_partitions=n_partitions,
            name=name,
            **_parameters(**settings),
        )
        n_rows, width, dtype = _describe_rows(vectors, name)
    model_bytes = model_size(model.n_clusters, width, dtype, n_labels=n_rows if training else 0)
    check_outputs({output: model_bytes, labels: n_rows * LABEL})
    if not quiet and not as_json:
        click.echo(f"{n_rows:,} x {width} {dtype} into {model.n_clusters:,} clusters", err=True)
    saved = storage if checkpoint is None else checkpoint_file(checkpoint)
    interrupted = False
    try:
        with Progress(model, n_rows, quiet=quiet, as_json=as_json, saved=saved) as progress, long_work():
            model.set_params(callback=progress).fit(rows, resume=go_on)
        progress.finish()
    except KeyboardInterrupt:
        if not hasattr(model, "cluster_centers_"):  # before an iteration was done
            if checkpoint is not None and checkpoint_file(checkpoint).exists():
                _end_interrupted(context, "interrupted before the first iteration; the checkpoint is unchanged")
            raise
        interrupted = True
    model.save(output, training=training)
    if labels is not None:
        write_array(labels, model.labels_)
    if as_json or not quiet:
        _summarise(model, n_rows, output, labels, as_json)
    if interrupted:
        _end_interrupted(context, "interrupted; the model of the last iteration was written")


def _parameters(*, init: str, leaf_size: int | None, paper: bool = False, **settings: Any) -> dict[str, Any]:
    """Parameters of the estimator, from options."""
    method = PAPER if paper else Method()
    if leaf_size is not None:
        method = method._replace(leaf_size=leaf_size)
    return {"init": _start(init), "method": method, **settings}


def _check_distributed(context: click.Context, storage: str | None, resume: bool) -> None:
    given = [name for name in ON_ONE_MACHINE if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} cannot be combined with --client")
    if resume and storage is None:
        raise click.UsageError("--resume needs --storage")
    if storage is not None and not resume and fit_folder(storage).list("centers"):
        raise click.UsageError(f"'{storage}' holds a fit: add --resume to continue it, or remove the folder")


def _describe_rows(vectors: str, name: str | None) -> tuple[int, int, np.dtype[Any]]:
    """The number of rows, their width and their dtype; of files, only the beginnings are read."""
    found = []
    for file in list_files(vectors, name, {}):
        found.append(describe_file(file))
        file.folder.drop_copy(file.name)
    return sum(file.n_rows for file in found), found[0].width, np.dtype(found[0].dtype)


def _check_checkpoint(checkpoint: str | None, resume: bool) -> None:
    if resume and checkpoint is None:
        raise click.UsageError("--resume needs --checkpoint")
    if checkpoint is not None and Path(checkpoint).is_file() and Path(checkpoint).suffix != ".safetensors":
        raise click.BadParameter(f"'{checkpoint}' must be a folder, but is a file", param_hint="--checkpoint")
    if checkpoint is not None and not resume and checkpoint_file(checkpoint).exists():
        raise click.UsageError(
            f"'{checkpoint_file(checkpoint)}' holds a fit: add --resume to continue it, or remove the file"
        )


def _start(init: str) -> str | NDArray[Any]:
    """Parse a start: a name, or the file of a model or of centres, or a checkpoint, whose centres are read."""
    if init in ("tree", "random"):
        return init
    if not Path(init).exists():
        raise click.BadParameter(
            f"'{init}' must be tree, random, or an existing model, file of centres or checkpoint folder",
            param_hint="--init",
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
        click.echo(json.dumps({"event": "done"} | underscored(facts)))
        return
    facts["seconds"] = clock(facts["seconds"]) if facts["seconds"] >= 60 else f"{facts['seconds']:.1f}"
    if labels == options.STANDARD:
        click.echo(f"{output}: distortion {facts['distortion']:,.6g}", err=True)  # standard output is taken
    else:
        report({name: value for name, value in facts.items() if value is not None}, as_json=False)


def _end_interrupted(context: click.Context, news: str) -> NoReturn:
    """Print how to resume, and exit with the code of an interrupt."""
    given = context.params
    option = "checkpoint" if given["client"] is None else "storage"
    if given[option] is None:
        start = f"--init {shlex.quote(given['output'])} starts from these centres"
        advice = f"{start}; with --{option}, the fit itself could be resumed"
    else:
        advice = f"continue with: {context.obj}{'' if given['resume'] or given['resume_anyway'] else ' --resume'}"
    click.echo(f"{news}; {advice}", err=True)
    context.exit(INTERRUPTED)
