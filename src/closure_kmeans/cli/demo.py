"""``closure-kmeans demo``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from tqdm import tqdm

from closure_kmeans import ClosureKMeans
from closure_kmeans.cli import options
from closure_kmeans.datasets import load_sift
from closure_kmeans.demo import LLOYD_ITERATIONS, draw_runs, format_table, prepare_kernels, run_closures, run_lloyd


@click.command(epilog=options.example("closure-kmeans demo --n-clusters 2000 --output curves.png"))
@click.option("--n-clusters", type=click.IntRange(1), default=2000, help="Number of clusters.")
@options.threads
@options.seed
@options.output(
    "--output",
    suffixes=(".pdf", ".png", ".svg"),
    default="closure-kmeans-demo.png",
    help="Write the plot to this file.",
)
def demo(n_clusters: int, n_threads: int | None, random_state: int, output: str) -> None:
    """Clusters 20,000 SIFT descriptors; prints a table and draws a plot of distortion against time."""
    X = load_sift()
    title = f"{len(X):,} SIFT descriptors into {n_clusters:,} clusters"
    click.echo(title)
    seconds = prepare_kernels(X, n_clusters, seed=random_state, n_threads=n_threads)
    click.echo(f"kernels ready in {seconds:.1f} s (compiled on the first run, then cached)")
    with _progress_bar("cluster closures", ClosureKMeans().max_iter) as advance:
        closures = run_closures(X, n_clusters, seed=random_state, n_threads=n_threads, on_iteration=advance)
    click.echo("exact Lloyd runs twice: once timed, once to record its curve")
    with _progress_bar("exact Lloyd", LLOYD_ITERATIONS) as advance:
        lloyd = run_lloyd(X, n_clusters, seed=random_state, n_threads=n_threads, on_iteration=advance)

    click.echo(f"\n{format_table([closures, lloyd])}\n")
    try:
        draw_runs([closures, lloyd], title, Path(output))
    except ImportError as error:
        click.echo(f"no plot: {error}")
    else:
        click.echo(f"distortion against time: {output}")


@contextmanager
def _progress_bar(description: str, total: int) -> Iterator[Callable[[float], None]]:
    """Show a bar; yield what moves it on by one iteration, given the distortion."""
    with tqdm(desc=description, total=total) as bar:

        def advance(distortion: float) -> None:
            bar.set_postfix_str(f"distortion {distortion:,.0f}", refresh=False)
            bar.update()

        yield advance
        bar.total = bar.n  # done, even if before the last iteration
        bar.refresh()
