"""``closure-kmeans explore`` and ``closure-kmeans report``."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

import closure_kmeans
from closure_kmeans.cli import options
from closure_kmeans.cli.common import assign, read_vectors
from closure_kmeans.datasets import load_sift
from closure_kmeans.demo import prepare_kernels
from closure_kmeans.estimator import BaseKMeans
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.fit import fit_of_checkpoint, fit_of_model
from closure_kmeans.explorer.metadata import FORMATS, Metadata
from closure_kmeans.explorer.pictures import open_pictures
from closure_kmeans.explorer.queries import Searches
from closure_kmeans.files import library
from closure_kmeans.retrieval import ImageIndex
from closure_kmeans.vectors import FileFormatError, Vectors

# Clusters of the embedded data.
N_CLUSTERS = 500
# The column of the metadata that names the image of an item.
IMAGE_COLUMN = "image"


class Items(NamedTuple):
    """Options that describe a model and its items."""

    model: str | None
    vectors: str | None
    labels: str | None
    images: str | None
    metadata: str | None
    name: str | None


with_items = options.together(
    "items",
    Items,
    click.argument("model", required=False, type=options.EXISTING_FILE),
    click.option("--vectors", type=options.EXISTING, help="The clustered vectors."),
    click.option("--labels", type=options.EXISTING_FILE, help="An .npy file with the label of each vector."),
    click.option(
        "--images", type=options.EXISTING, help="A folder with one image per vector, or an .npy array of images."
    ),
    click.option("--metadata", type=options.EXISTING_FILE, help="A CSV or Parquet file with one row per vector."),
    click.option("--name", help="Dataset of an HDF5 file or column of a Parquet file that holds the vectors."),
)


@click.command(
    epilog=options.example(
        "closure-kmeans explore",
        "closure-kmeans explore words.safetensors --vectors vectors.npy --images PHOTOS/",
        "closure-kmeans explore --index photos.index --checkpoint ck/",
    )
)
@with_items
@options.threads
@options.quiet
@click.option(
    "--index", "index_file", type=options.EXISTING_FILE, help="An image index to search, from retrieval index."
)
@click.option(
    "--checkpoint", type=options.FileOrFolder(), help="Checkpoint of a running fit to follow; it may be created later."
)
@click.option(
    "--host", default="127.0.0.1", help="Address to listen on; other addresses than the default require a token."
)
@click.option("--port", type=click.IntRange(1, 65535), show_default="8643, or a free port", help="Port to listen on.")
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
def explore(
    items: Items,
    n_threads: int | None,
    quiet: bool,
    index_file: str | None,
    checkpoint: str | None,
    host: str,
    port: int | None,
    no_browser: bool,
) -> None:
    """MODEL is a file written by fit. Without arguments, the bundled data is clustered and shown.

    The server listens on this machine only, unless --host is given.
    """
    _check_call(items)
    from closure_kmeans.explorer.app import make_app
    from closure_kmeans.explorer.server import access, address, bind, serve

    catalog = None
    if items.model is not None or (index_file is None and checkpoint is None):
        catalog = _open_catalog(items, n_threads, quiet)
    shown = None if catalog is None else fit_of_model(catalog.model)
    listening = bind(host, port)
    allowed = access(host, listening.getsockname()[0])
    with listening, tempfile.TemporaryDirectory(prefix="closure-kmeans-") as folder:
        searches = None if index_file is None else _open_index(index_file, Path(folder))
        fit = (lambda: shown) if checkpoint is None else partial(fit_of_checkpoint, checkpoint)
        app = make_app(catalog, searches, fit, **allowed)
        url = address(listening, allowed["token"])
        click.echo(f"{url}  (Ctrl-C to stop)")
        parts = [part for part in (catalog, searches) if part is not None]
        open_browser = None if no_browser else url
        serve(app, listening, open_browser=open_browser, prepare=lambda: [part.prepare() for part in parts])


@click.command(
    epilog=options.example(
        "closure-kmeans report words.safetensors --vectors vectors.npy --images PHOTOS/ -o clusters.html"
    )
)
@with_items
@options.threads
@options.quiet
@options.output("-o", "--output", suffixes=(".html",), required=True, help="Write the report to this file.")
@click.option("--clusters", type=click.IntRange(1), default=100, help="Number of clusters to show.")
@click.option(
    "--sort",
    type=click.Choice(["size", "spread", "share", "neighbor", "number"]),
    default="size",
    help="Sort clusters by this measure, largest first.",
)
@click.option("--smallest", is_flag=True, help="Sort smallest first.")
@click.option(
    "--show",
    type=click.Choice(["random", "nearest", "farthest"]),
    default="random",
    help="Which items of each cluster to show.",
)
def report(
    items: Items,
    n_threads: int | None,
    quiet: bool,
    output: str,
    clusters: int,
    sort: str,
    smallest: bool,
    show: str,
) -> None:
    """The report is self-contained. Without MODEL, the bundled data is clustered."""
    _check_call(items)
    from closure_kmeans.explorer.report import write_report

    catalog = _open_catalog(items, n_threads, quiet)
    if sort not in catalog.measures:
        raise click.UsageError(f"--sort {sort} needs distances: add --vectors")
    if show not in (catalog.shows or ["random"]):
        raise click.UsageError(f"--show {show} needs distances: add --vectors")
    write_report(output, catalog, n_clusters=clusters, sort=sort, descending=not smallest, show=show)
    if not quiet:
        click.echo(f"written: {output}")


def _check_call(items: Items) -> None:
    for needed in ("starlette", "uvicorn", "jinja2"):
        library(needed, "explore", "the explorer")
    given = [f"--{name}" for name, value in items._asdict().items() if value is not None]
    if items.model is None and given:
        raise click.UsageError(f"{', '.join(given)} need MODEL")


def _open_catalog(items: Items, n_threads: int | None, quiet: bool) -> Catalog:
    """Open the catalog of a model, or of the embedded data."""
    rows: NDArray[Any] | Vectors | None
    if items.model is None:
        fitted, rows = _fit_embedded(n_threads, quiet)
    else:
        fitted = closure_kmeans.load(items.model).set_params(n_threads=n_threads)
        rows = None if items.vectors is None else read_vectors(items.vectors, items.name)
    labels = _labels_of(fitted, items.labels, None if rows is None else len(rows))
    for option in ("images", "metadata"):
        if rows is None and labels is None and getattr(items, option) is not None:
            raise click.UsageError(f"--{option} needs --vectors, --labels, or a model written by fit --training")
    squares = None
    if rows is not None:
        labels, squares = assign(fitted, rows, labels=labels, quiet=quiet)
    about = _open_metadata(items.metadata, items.vectors)
    pictures = None
    if items.images is not None:
        pictures = open_pictures(items.images, None if about is None else about.column(IMAGE_COLUMN))
    return Catalog(fitted, rows, labels=labels, squares=squares, pictures=pictures, metadata=about)


def _fit_embedded(n_threads: int | None, quiet: bool) -> tuple[BaseKMeans, NDArray[np.uint8]]:
    X = load_sift()
    if not quiet:
        click.echo(f"{len(X):,} bundled SIFT descriptors into {N_CLUSTERS} clusters", err=True)
    prepare_kernels(X, N_CLUSTERS, seed=0, n_threads=n_threads)  # so that the fit's times are its own
    return closure_kmeans.ClosureKMeans(n_clusters=N_CLUSTERS, random_state=0, n_threads=n_threads).fit(X), X


def _labels_of(fitted: BaseKMeans, path: str | None, n_rows: int | None) -> NDArray[np.int32] | None:
    """Labels of the items, from a file or the model, or None."""
    if path is not None:
        labels: NDArray[Any] = np.load(path, allow_pickle=False)
        n_clusters = len(fitted.cluster_centers_)
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= n_clusters:
            raise FileFormatError(f"'{path}' must hold labels from 0 to {n_clusters - 1}, one per vector")
        if n_rows is not None and len(labels) != n_rows:
            raise FileFormatError(f"'{path}' must hold one label for each of {n_rows} vectors, but has {len(labels)}")
        return labels.astype(np.int32)
    own: NDArray[np.int32] | None = getattr(fitted, "labels_", None)
    return own if own is not None and (n_rows is None or len(own) == n_rows) else None


def _open_metadata(path: str | None, vectors: str | None) -> Metadata | None:
    """Metadata of the items: a given file, one beside the vectors, or columns in the file of the vectors."""
    if path is not None:
        return Metadata.open(path)
    if vectors is None:
        return None
    beside = [Path(vectors).with_suffix(ending) for ending in FORMATS]
    found = next((file for file in beside if file.is_file()), None)
    if found is None or (found == Path(vectors) and not Metadata.has_columns(found)):
        return None
    return Metadata.open(found)


def _open_index(path: str, uploads: Path) -> Searches:
    library("cv2", "explore", "an index")
    index = ImageIndex.load(path)
    if len(index) == 0:
        raise FileFormatError(f"'{path}' must hold images, but is empty")
    return Searches(index, path, uploads)
