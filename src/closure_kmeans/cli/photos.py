"""What the commands about folders of photos share: their features, and what is kept of finished work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from closure_kmeans.cli import Interrupted, options
from closure_kmeans.cli.common import long_work
from closure_kmeans.retrieval import Collection, Extraction
from closure_kmeans.retrieval.stages import resume_features


class Collecting(NamedTuple):
    """How photos are collected: where what is finished is kept, and whether those that cannot be read are left out."""

    work: Path | None
    skip: bool

    @contextmanager
    def saying_what_is_kept(self) -> Iterator[None]:
        """When it is interrupted."""
        try:
            with long_work():
                yield
        except KeyboardInterrupt:
            if self.work is None:
                raise Interrupted("--work FOLDER would have kept what was finished") from None
            raise Interrupted(f"what is finished is in '{self.work}': the same command goes on") from None


with_root = click.option(
    "--sift",
    "root",
    is_flag=True,
    callback=lambda _context, _option, sift: not sift,
    help="Compare plain SIFT and not RootSIFT.",
)
with_nearest = click.option("--n-nearest", type=click.IntRange(1), default=1, help="Words of a region that count.")
with_extraction = options.together(
    "extraction",
    Extraction,
    click.option("--detector", type=click.Choice(["dog", "mser"]), default="dog", help="Kind of regions."),
    click.option("--max-side", type=click.IntRange(16), default=1024, help="Shrink larger images to this."),
)
with_collecting = options.together(
    "collecting",
    Collecting,
    click.option(
        "--work",
        type=options.FileOrFolder(file_okay=False, path_type=Path),
        help="Folder to keep finished work in; what is there is not done again.",
    ),
    click.option("--skip", is_flag=True, help="Leave out images that cannot be read, and say which."),
)


def collect_photos(
    photos: Path,
    names: list[str],
    extraction: Extraction,
    collecting: Collecting,
    manner: options.Manner,
    *,
    may_be_none: bool = False,
) -> tuple[Collection, str]:
    """The features of photos, from the work folder if they are there; and a key of their origin.

    At least one of them must be an image that can be read, unless ``may_be_none``.
    """
    collection, key = resume_features(
        collecting.work,
        photos,
        names,
        extraction,
        on_error="skip" if collecting.skip else "raise",
        n_threads=manner.n_threads,
        verbose=manner.shows_progress,
    )
    for reason in collection.skipped:
        click.echo(f"Warning: left out: {reason}", err=True)
    if not collection.names and not may_be_none:
        raise click.ClickException(f"'{photos}' must hold images that can be read, but of {len(names)} none can be")
    return collection, key
