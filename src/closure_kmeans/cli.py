"""The command ``closure-kmeans``: parse, call the library, write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from tqdm import tqdm

from closure_kmeans import ClosureKMeans, __version__
from closure_kmeans.datasets import load_sift
from closure_kmeans.demo import (
    LLOYD_ITERATIONS,
    draw_runs,
    format_table,
    prepare_kernels,
    run_closures,
    run_lloyd,
)

PICTURES = (".pdf", ".png", ".svg")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="closure-kmeans")
def main() -> None:
    """K-means for very many clusters, by cluster closures."""


@contextmanager
def _progress(description: str, total: int) -> Iterator[Callable[[float], None]]:
    """Show a bar; yield what moves it on by one iteration, given the distortion."""
    with tqdm(desc=description, total=total) as bar:

        def advance(distortion: float) -> None:
            bar.set_postfix_str(f"distortion {distortion:,.0f}", refresh=False)
            bar.update()

        yield advance
        bar.total = bar.n  # done, be it before the last iteration allowed
        bar.refresh()


def _check_picture(context: click.Context, option: click.Parameter, path: Path) -> Path:
    if path.suffix.lower() not in PICTURES:
        raise click.BadParameter(f"the name must end in one of {', '.join(PICTURES)}, got '{path.name}'")
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"the folder '{path.parent}' does not exist")
    return path


@main.command()
@click.option("--clusters", type=click.IntRange(1), default=2000, show_default=True, help="Number of clusters.")
@click.option("--threads", type=click.IntRange(1), show_default="all cores", help="Number of threads.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of the randomness.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default="closure-kmeans-demo.png",
    show_default=True,
    callback=_check_picture,
    help="Where to write the picture.",
)
def demo(clusters: int, threads: int | None, seed: int, output: Path) -> None:
    """Cluster real SIFT descriptors, and compare time and distortion with exact Lloyd."""
    X = load_sift()
    title = f"{len(X):,} SIFT descriptors into {clusters:,} clusters"
    click.echo(title)
    try:
        seconds = prepare_kernels(X, clusters, seed=seed, n_threads=threads)
        click.echo(f"kernels ready in {seconds:.1f} s (compiled on the first run, cached after that)")
        with _progress("cluster closures", ClosureKMeans().max_iter) as advance:
            closures = run_closures(X, clusters, seed=seed, n_threads=threads, on_iteration=advance)
        click.echo("exact Lloyd runs twice: once on the clock, and once more to record its curve")
        with _progress("exact Lloyd", LLOYD_ITERATIONS) as advance:
            lloyd = run_lloyd(X, clusters, seed=seed, n_threads=threads, on_iteration=advance)
    except ValueError as error:
        raise click.ClickException(str(error)) from error

    click.echo(f"\n{format_table([closures, lloyd])}\n")
    try:
        draw_runs([closures, lloyd], title, output)
    except ImportError as error:
        click.echo(f"no picture: {error}")
    else:
        click.echo(f"distortion against time: {output}")
