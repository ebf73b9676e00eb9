"""Helpers of the commands for folders of photos: feature extraction and the work folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from closure_kmeans.cli import Interrupted, options
from closure_kmeans.cli.common import long_work
from closure_kmeans.retrieval import PAPER_STEPS, Collection, Extraction, Steps
from closure_kmeans.retrieval.stages import resume_features


class Collecting(NamedTuple):
    """Options of feature extraction: the work folder, and whether to skip unreadable photos."""

    work: Path | None
    skip: bool

    @contextmanager
    def saying_what_is_kept(self) -> Iterator[None]:
        """On an interrupt, print what is kept in the work folder."""
        try:
            with long_work():
                yield
        except KeyboardInterrupt:
            if self.work is None:
                raise Interrupted("no output was written; --work FOLDER would keep intermediate results") from None
            raise Interrupted(f"run the same command again to continue from '{self.work}'") from None


with_root = click.option(
    "--sift",
    "root",
    is_flag=True,
    callback=lambda _context, _option, sift: not sift,
    help="Use plain SIFT instead of RootSIFT.",
)
with_nearest = click.option(
    "--n-nearest", type=click.IntRange(1), default=1, help="Soft assignment: number of nearest words per region."
)
with_extraction = options.together(
    "extraction",
    Extraction,
    click.option(
        "--detector", type=click.Choice(["dog", "mser"]), default="dog", help="Region detector: DoG (SIFT) or MSER."
    ),
    click.option(
        "--max-side",
        type=click.IntRange(16),
        default=1024,
        help="Downscale images to at most this many pixels on the longer side.",
    ),
    click.option(
        "--n-regions", type=click.IntRange(1), show_default="all", help="Maximum number of regions per image."
    ),
    click.option(
        "--contrast",
        type=click.FloatRange(0),
        default=Extraction().contrast,
        help="Contrast threshold of the detector.",
    ),
    click.option("--upright", is_flag=True, help="Do not estimate orientation: for images that are all upright."),
)
BEST = Steps()._asdict() | {"weighted": True}
PAPER = PAPER_STEPS._asdict() | {"weighted": False}
PROTOCOLS = {"best": BEST, "paper": PAPER}


# Steps that follow the verification, and their options.
AFTER_VERIFICATION = {"weighted": "--weighted/--no-weighted", "expansion": "--expansion"}


def _set_protocol(context: click.Context, _: click.Parameter, protocol: str) -> None:
    context.meta["protocol"] = PROTOCOLS[protocol]


def _by_protocol(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Use the protocol's setting for steps that are not given."""
    if value is None:
        return context.meta["protocol"][option.name]
    context.meta.setdefault("steps", []).append(option.name)
    return value


def check_steps_need_rerank(*allowed: str) -> None:
    """Reject the options of steps that follow the verification; called where nothing is verified."""
    given = click.get_current_context().meta.get("steps", ())
    for step, option in AFTER_VERIFICATION.items():
        if step in given and step not in allowed:
            raise click.UsageError(f"{option} needs --rerank")


# Options of the steps of a search, named as in ``PROTOCOLS``.
STEP_OPTIONS = (
    click.option(
        "--protocol",
        type=click.Choice(list(PROTOCOLS)),
        default="best",
        is_eager=True,
        expose_value=False,
        callback=_set_protocol,
        help="best: all steps below. paper: none, only tf-idf and plain verification.",
    ),
    click.option(
        "--embedding/--no-embedding",
        default=None,
        callback=_by_protocol,
        show_default="by protocol",
        help="Score by Hamming embedding instead of tf-idf.",
    ),
    click.option(
        "--burstiness/--no-burstiness",
        default=None,
        callback=_by_protocol,
        show_default="by protocol",
        help="With --embedding: down-weight repeated matches.",
    ),
    click.option(
        "--assignment",
        type=click.IntRange(1),
        callback=_by_protocol,
        show_default=f"{Steps().assignment}, or 1 by protocol",
        help="With --embedding: number of words in which a region of the query is matched.",
    ),
    click.option(
        "--weighted/--no-weighted",
        default=None,
        callback=_by_protocol,
        show_default="by protocol",
        help="Verify by weighted inliers and local refitting.",
    ),
    click.option(
        "--expansion",
        type=click.IntRange(0),
        callback=_by_protocol,
        show_default=f"{Steps().expansion}, or 0 by protocol",
        help="With --rerank: number of verified images for query expansion.",
    ),
)
with_collecting = options.together(
    "collecting",
    Collecting,
    click.option(
        "--work",
        type=options.FileOrFolder(file_okay=False, path_type=Path),
        help="Folder for intermediate results, which are reused.",
    ),
    click.option("--skip", is_flag=True, help="Skip unreadable images with a warning."),
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
        click.echo(f"Warning: skipped: {reason}", err=True)
    if not collection.names and not may_be_none:
        raise click.ClickException(f"'{photos}' must hold readable images, but none of its {len(names)} can be")
    return collection, key
