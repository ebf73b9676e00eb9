"""The command ``closure-kmeans``: parse, call the library, write."""

from __future__ import annotations

import errno
from typing import Any

import click

from closure_kmeans import __version__
from closure_kmeans.cli import demo, doctor, explore, export, fit, info, predict, repository, retrieval
from closure_kmeans.cli.common import INTERRUPTED, example


class Commands(click.Group):
    """Commands that end in one line, not in a trace, when the input is to blame."""

    def invoke(self, context: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(context)
        except KeyboardInterrupt as interrupt:
            click.echo(f"interrupted; {str(interrupt) or 'what was not finished is not written'}", err=True)
            context.exit(INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever reads the output has had enough: click knows what to do
                raise
            named = f": '{error.filename}'" if error.filename is not None else ""
            raise click.ClickException(f"{error.strerror or error}{named}") from error
        except (ValueError, TypeError, ImportError, MemoryError) as error:
            raise click.ClickException(str(error)) from error

    def list_commands(self, context: click.Context) -> list[str]:
        """The commands in the order in which a user meets them."""
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
    repository.bench,
    repository.paper,
    demo.demo,
    doctor.doctor,
    doctor.warmup,
):
    main.add_command(_command)
