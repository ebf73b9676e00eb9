"""The command ``closure-kmeans``: parse, call the library, write."""

from __future__ import annotations

import errno
from typing import Any

import click

from closure_kmeans import __version__
from closure_kmeans.cli import demo, doctor, explore, export, fit, info, predict, retrieval
from closure_kmeans.cli.common import INTERRUPTED, Interrupted, example

# Options of version 0.1, and what to write instead.
RENAMED_OPTIONS = {
    "--accuracy": "--target-accuracy",
    "--clusters": "--n-clusters",
    "--dask": "--client",
    "--nearest": "--n-nearest",
    "--partitions": "--n-partitions",
    "--results": "--n-results",
    "--scratch": "the environment variable TMPDIR",
    "--seed": "--random-state",
    "--threads": "--n-threads",
    "--words": "--n-words",
}
# Commands of version 0.1, and what to write instead, in a clone of the repository.
REMOVED_COMMANDS = {"bench": "python -m benchmarks.rivals", "paper": "python -m benchmarks.paper"}


class Commands(click.Group):
    """Commands whose errors are one line, without a traceback."""

    def invoke(self, context: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(context)
        except click.NoSuchOption as error:
            if error.option_name not in RENAMED_OPTIONS:
                raise
            new = RENAMED_OPTIONS[error.option_name]
            raise click.UsageError(f"{error.option_name} is {new} since version 0.2", error.ctx) from error
        except KeyboardInterrupt as interrupt:
            said = str(interrupt) if isinstance(interrupt, Interrupted) else "what was not finished is not written"
            click.echo(f"interrupted; {said}", err=True)
            context.exit(INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever reads the output has had enough: click knows what to do
                raise
            named = f": '{error.filename}'" if error.filename is not None else ""
            raise click.ClickException(f"{error.strerror or error}{named}") from error
        except (ValueError, TypeError, ImportError, MemoryError) as error:
            raise click.ClickException(str(error)) from error

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; name its successor if it was removed."""
        if arguments[0] in REMOVED_COMMANDS:
            raise click.UsageError(
                f"{arguments[0]} is no command since version 0.2: in a clone of the repository, use "
                f"{REMOVED_COMMANDS[arguments[0]]}"
            )
        return super().resolve_command(context, arguments)

    def list_commands(self, context: click.Context) -> list[str]:
        """The commands in the order in which they were added."""
        return list(self.commands)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example(
        "closure-kmeans fit vectors.u8bin -k 10000 -o words.safetensors",
        "closure-kmeans predict words.safetensors new.u8bin -o labels.npy",
    ),
)
@click.version_option(__version__, prog_name="closure-kmeans")
def main() -> None:
    """K-means for very many clusters, by cluster closures."""


for _command in (
    fit.fit,
    predict.predict,
    predict.evaluate,
    info.info,
    export.export,
    retrieval.retrieval,
    explore.explore,
    explore.report,
    demo.demo,
    doctor.doctor,
    doctor.warmup,
):
    main.add_command(_command)
