"""The command ``closure-kmeans``: parse, call the library, write."""

from __future__ import annotations

import errno
from functools import cached_property
from importlib import import_module
from inspect import cleandoc
from typing import Any

import click

from closure_kmeans import __version__
from closure_kmeans.cli.options import InOrder, example

# The commands: the module, and the first line of the help, which the docstring in the module continues.
COMMANDS = {
    "fit": ("fit", "Cluster the rows of VECTORS."),
    "predict": ("predict", "Assign each row of VECTORS to its nearest centre."),
    "evaluate": ("predict", "Measure the distortion and accuracy of MODEL on VECTORS."),
    "info": ("info", "Describe a model, checkpoint, index or file of vectors."),
    "export": ("export", "Export centres, cluster members or a FAISS index."),
    "codes": ("codes", "Compute semantic ids by residual k-means."),
    "retrieval": ("retrieval", "Search a collection of images by an example image."),
    "explore": ("explore", "Browse clusters, a running fit or an image index."),
    "report": ("explore", "Write a summary of the clusters as one HTML file."),
    "demo": ("demo", "Compare with exact Lloyd on the bundled data."),
    "doctor": ("doctor", "Show versions, hardware and the state of the kernel cache."),
    "warmup": ("doctor", "Compile the kernels ahead of first use."),
}
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
# The exit code that shells have for an interrupt.
INTERRUPTED = 130


class Interrupted(KeyboardInterrupt):
    """An interrupt with a message that says how to go on."""


class LazyCommand(click.Command):
    """A command whose module is imported when it is used."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._module = module

    @cached_property
    def _command(self) -> click.Command:
        module = import_module(f"closure_kmeans.cli.{self._module}")
        command: click.Command = getattr(module, str(self.name))
        command.help = f"{self.help}\n\n{cleandoc(command.help or '')}"
        return command

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        """Parse the arguments of the command itself."""
        return self._command.make_context(*arguments, **settings)


class Main(InOrder):
    """Commands whose errors are one line, without a traceback."""

    def invoke(self, context: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(context)
        except click.NoSuchOption as error:
            if error.option_name not in RENAMED_OPTIONS:
                raise
            new = RENAMED_OPTIONS[error.option_name]
            raise click.UsageError(f"{error.option_name} was renamed in version 0.2: use {new}", error.ctx) from error
        except KeyboardInterrupt as interrupt:
            said = str(interrupt) if isinstance(interrupt, Interrupted) else "no output was written"
            click.echo(f"interrupted; {said}", err=True)
            context.exit(INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader closed the pipe: handled by click
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
                f"{arguments[0]} was removed in version 0.2: in a clone of the repository, use "
                f"{REMOVED_COMMANDS[arguments[0]]}"
            )
        return super().resolve_command(context, arguments)


@click.group(
    cls=Main,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog=example(
        "closure-kmeans fit vectors.u8bin -k 10000 -o words.safetensors",
        "closure-kmeans predict words.safetensors new.u8bin -o labels.npy",
    ),
)
@click.version_option(__version__, prog_name="closure-kmeans")
def main() -> None:
    """Fast approximate k-means for thousands to millions of clusters."""


for _name, (_module, _summary) in COMMANDS.items():
    main.add_command(LazyCommand(_name, _module, _summary))
