"""``closure-kmeans bench`` and ``closure-kmeans paper``: the benchmarks, which are a part of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

import closure_kmeans
from closure_kmeans.cli.common import example

# All that is behind the name of the command belongs to the benchmark, but for --help.
_HANDED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}
# Where the package lies in a clone that it is used from, and where the user is.
_CLONES = (Path(closure_kmeans.__file__).parents[2], Path())


def _run(context: click.Context, module: str, arguments: tuple[str, ...]) -> None:
    """Run a module of the benchmarks as a command, with its own options and its own exit code."""
    for clone in _CLONES:
        if (clone / "benchmarks" / "rivals").is_dir():
            break
    else:
        raise click.ClickException(
            "the benchmarks are a part of the repository, not of the package: call this from within a clone of it, "
            "in an environment with the extra 'bench'"
        )
    search = os.pathsep.join(filter(None, [str(clone.absolute()), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", module, *arguments]
    context.exit(subprocess.run(command, env=os.environ | {"PYTHONPATH": search}, check=False).returncode)


@click.command(
    context_settings=_HANDED_ON,
    epilog=example("closure-kmeans bench own --data vectors.npy --clusters 1000 --methods ours,faiss"),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bench(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Compare with other libraries, in a clone of the repository.

    ARGUMENTS are an experiment, such as sift-10k, or own for a file of your own, and its options; "bench -- --help"
    lists them. The table and the picture are also written to benchmarks/results.
    """
    _run(context, "benchmarks.rivals", arguments)


@click.command(
    context_settings=_HANDED_ON, epilog=example("closure-kmeans paper distortion --profile quick --data FOLDER")
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def paper(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Repeat the figures of the paper, in a clone of the repository.

    ARGUMENTS are some experiments, or none for all, and their options; "paper -- --help" lists them. The tables and
    pictures are also written to benchmarks/results/paper.
    """
    _run(context, "benchmarks.paper", arguments)
