"""What the commands about folders of photos share: the features of the photos, and how codebooks are learned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from closure_kmeans._files import library
from closure_kmeans.cli.common import Manner, together

if TYPE_CHECKING:
    from closure_kmeans.retrieval import Collection, Extraction

METHODS = ("closure", "paper", "hkm", "akm", "rakm", "lloyd", "canopy")


class Features(NamedTuple):
    """Which features photos have, and where they are kept."""

    detector: str
    max_side: int
    skip: bool
    work: Path | None

    @property
    def extraction(self) -> Extraction:
        """The features alone."""
        from closure_kmeans.retrieval import Extraction

        return Extraction(self.detector, self.max_side)

    @contextmanager
    def saying_what_is_kept(self) -> Iterator[None]:
        """When it is interrupted."""
        try:
            yield
        except KeyboardInterrupt:
            if self.work is None:
                raise KeyboardInterrupt("--work FOLDER would have kept what was finished") from None
            raise KeyboardInterrupt(f"what is finished is in '{self.work}': the same command goes on") from None


with_skip = click.option("--skip", is_flag=True, help="Leave out images that cannot be read, and say which.")
with_sift = click.option("--sift", is_flag=True, help="Compare plain SIFT and not RootSIFT.")
with_nearest = click.option(
    "--nearest", type=click.IntRange(1), default=1, show_default=True, help="Words of a region that count."
)
with_features = together(
    "features",
    Features,
    click.option(
        "--work",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder to keep finished work in; what is there is not done again.",
    ),
    click.option(
        "--detector", type=click.Choice(["dog", "mser"]), default="dog", show_default=True, help="Kind of regions."
    ),
    click.option(
        "--max-side", type=click.IntRange(16), default=1024, show_default=True, help="Shrink larger images to this."
    ),
    with_skip,
)


def image_names(photos: Path) -> list[str]:
    """What the images of a folder are known by."""
    from closure_kmeans.features import list_images

    return [path.relative_to(photos).as_posix() for path in list_images(photos)]


def collect_photos(
    photos: Path,
    extraction: Extraction,
    manner: Manner,
    *,
    names: list[str] | None = None,
    skip: bool,
    work: Path | None = None,
) -> tuple[Collection, str]:
    """The features of a folder, be it those that were kept; and a key that tells of what they were made."""
    cv2 = library("cv2", "images", "retrieval")
    from closure_kmeans.retrieval import collect
    from closure_kmeans.retrieval.stages import FEATURES, key_of, resume

    def extract() -> Collection:
        on_error = "skip" if skip else "raise"
        progress = manner.shows_progress
        return collect(photos, extraction, names=names, on_error=on_error, n_jobs=manner.threads, verbose=progress)

    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
    stats = {name: (photos / name).stat() for name in (image_names(photos) if names is None else names)}
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()]
    key = key_of(str(photos.resolve()), files, extraction, skip, cv2.__version__)
    collection = resume(FEATURES, work, key, extract)
    for reason in collection.skipped:
        click.echo(f"Warning: left out: {reason}", err=True)
    return collection, key
