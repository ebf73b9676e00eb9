"""What the commands about folders of photos share: their features, and what is kept of finished work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from closure_kmeans.cli import Interrupted, options
from closure_kmeans.cli.common import long_work
from closure_kmeans.retrieval import Collection, Extraction
from closure_kmeans.retrieval.experiment import N_EXPANSION
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
    click.option("--n-regions", type=click.IntRange(1), show_default="all", help="Most regions of an image."),
    click.option(
        "--contrast", type=click.FloatRange(0), default=Extraction().contrast, help="Lowest contrast of a region."
    ),
    click.option("--upright", is_flag=True, help="Regions have no angle: for images that are not rotated."),
)
BEST = {"embedding": True, "burstiness": True, "weighted": True, "expansion": N_EXPANSION}
PAPER: dict[str, Any] = {"embedding": False, "burstiness": False, "weighted": False, "expansion": 0}
PROTOCOLS = {"best": BEST, "paper": PAPER}


def _set_protocol(context: click.Context, _: click.Parameter, protocol: str) -> None:
    context.meta["protocol"] = PROTOCOLS[protocol]


def _by_protocol(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """A step that is not asked for is as in the protocol."""
    return context.meta["protocol"][option.name] if value is None else value


# Options of the steps of a search, named as in ``PROTOCOLS``.
STEP_OPTIONS = (
    click.option(
        "--protocol",
        type=click.Choice(list(PROTOCOLS)),
        default="best",
        is_eager=True,
        expose_value=False,
        callback=_set_protocol,
        help="best: all steps below. paper: none of them, tf-idf and plain verification.",
    ),
    click.option(
        "--embedding/--no-embedding",
        default=None,
        callback=_by_protocol,
        show_default="by protocol",
        help="Hamming embedding in place of tf-idf.",
    ),
    click.option(
        "--burstiness/--no-burstiness",
        default=None,
        callback=_by_protocol,
        show_default="by protocol",
        help="With it: lower weights of repeated matches.",
    ),
    click.option(
        "--weighted/--no-weighted",
        default=None,
        callback=_by_protocol,
        show_default="by protocol",
        help="Verify by weighted inliers and local refits.",
    ),
    click.option(
        "--expansion",
        type=click.IntRange(0),
        callback=_by_protocol,
        show_default=f"{N_EXPANSION}, or 0 by protocol",
        help="Verified images that search again, with --rerank.",
    ),
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
