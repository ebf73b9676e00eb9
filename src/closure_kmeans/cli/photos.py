"""What the commands about folders of photos share: the features of the photos, and how codebooks are learned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from closure_kmeans.cli.common import Manner, together

if TYPE_CHECKING:
    from closure_kmeans.retrieval import Collection, Extraction

METHODS = ("closure", "paper", "hkm", "akm", "rakm", "lloyd", "canopy")


class Features(NamedTuple):
    """Which features photos have."""

    detector: str
    max_side: int

    @property
    def extraction(self) -> Extraction:
        """The same, for the library."""
        from closure_kmeans.retrieval import Extraction

        return Extraction(*self)


class Keeping(NamedTuple):
    """Where finished work is kept, and what is left out of it."""

    work: Path | None
    skip: bool

    @contextmanager
    def saying_what_is_kept(self) -> Iterator[None]:
        """When it is interrupted."""
        try:
            yield
        except KeyboardInterrupt:
            if self.work is None:
                raise KeyboardInterrupt("--work FOLDER would have kept what was finished") from None
            raise KeyboardInterrupt(f"what is finished is in '{self.work}': the same command goes on") from None


with_sift = click.option("--sift", is_flag=True, help="Compare plain SIFT and not RootSIFT.")
with_nearest = click.option(
    "--nearest", type=click.IntRange(1), default=1, show_default=True, help="Words of a region that count."
)
with_features = together(
    "features",
    Features,
    click.option(
        "--detector", type=click.Choice(["dog", "mser"]), default="dog", show_default=True, help="Kind of regions."
    ),
    click.option(
        "--max-side", type=click.IntRange(16), default=1024, show_default=True, help="Shrink larger images to this."
    ),
)
with_keeping = together(
    "keeping",
    Keeping,
    click.option(
        "--work",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder to keep finished work in; what is there is not done again.",
    ),
    click.option("--skip", is_flag=True, help="Leave out images that cannot be read, and say which."),
)


def collect_photos(
    photos: Path, names: list[str], extraction: Extraction, keeping: Keeping, manner: Manner
) -> tuple[Collection, str]:
    """The features of photos, be it those that were kept; and a key that tells of what they were made."""
    from closure_kmeans.retrieval.stages import resume_features

    if keeping.work is not None:
        keeping.work.mkdir(parents=True, exist_ok=True)
    collection, key = resume_features(
        keeping.work,
        photos,
        names,
        extraction,
        on_error="skip" if keeping.skip else "raise",
        n_jobs=manner.threads,
        verbose=manner.shows_progress,
    )
    for reason in collection.skipped:
        click.echo(f"Warning: left out: {reason}", err=True)
    return collection, key
