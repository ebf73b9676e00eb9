"""``closure-kmeans retrieval evaluate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from tqdm import tqdm

from closure_kmeans.cli.common import EXISTING_FOLDER, Manner, example, numbers, some_of, together, with_manner
from closure_kmeans.cli.photos import (
    METHODS,
    Collecting,
    Features,
    collect_photos,
    with_collecting,
    with_features,
    with_nearest,
    with_sift,
)

if TYPE_CHECKING:
    from closure_kmeans.retrieval.experiment import Plan, Row


class Compared(NamedTuple):
    """What is compared."""

    words: list[int]
    methods: list[str]
    norms: list[str]
    seeds: list[int]
    levels: list[int]
    nearest: int
    subsets: list[int] | None
    rerank: bool
    sift: bool

    @property
    def plan(self) -> Plan:
        """The same, for the library."""
        from closure_kmeans.retrieval.experiment import Plan

        images = self.subsets or (None,)
        codebooks = self.words, self.methods, self.norms, self.seeds, self.levels, self.nearest
        return Plan(*codebooks, images, self.rerank, not self.sift)


with_compared = together(
    "compared",
    Compared,
    click.option(
        "--n-words",
        "words",
        type=numbers,
        metavar="N,N,...",
        default="10000,100000",
        show_default=True,
        help="Sizes of codebooks.",
    ),
    click.option(
        "--methods",
        type=some_of(METHODS),
        metavar="A,B,...",
        default="closure",
        show_default=True,
        help="Methods to compare.",
    ),
    click.option(
        "--norms",
        type=some_of(("l1", "l2")),
        metavar="A,B,...",
        default="l1",
        show_default=True,
        help="Norms to compare.",
    ),
    click.option(
        "--seeds", type=numbers, metavar="N,N,...", default="0", show_default=True, help="Seeds to repeat it with."
    ),
    click.option(
        "--levels", type=numbers, metavar="N,N,...", default="1", show_default=True, help="Scoring levels of hkm."
    ),
    with_nearest,
    click.option("--subsets", type=numbers, metavar="N,N,...", show_default="all images", help="Numbers of images."),
    click.option("--rerank", is_flag=True, help="Also with the best 200 verified."),
    with_sift,
)


@click.command(
    epilog=example(
        "closure-kmeans retrieval evaluate ukbench IMAGES/ --n-words 10000,100000 --methods closure,hkm,akm",
        "closure-kmeans retrieval evaluate oxford IMAGES/ GROUND_TRUTH/ --n-words 1000000 --rerank --json",
    )
)
@click.argument("protocol", type=click.Choice(["ukbench", "oxford"]))
@click.argument("images", type=EXISTING_FOLDER)
@click.argument("ground_truth", type=EXISTING_FOLDER, required=False)
@with_compared
@with_features
@with_collecting
@with_manner
def evaluate(
    protocol: str,
    images: Path,
    ground_truth: Path | None,
    compared: Compared,
    features: Features,
    collecting: Collecting,
    manner: Manner,
) -> None:
    """Score codebooks on IMAGES, all else the same.

    ukbench: every image is a query, and four in a row show the same object, by name; the score is the mean number of
    them among the first four. oxford: the queries are those of GROUND_TRUTH, and the score is the mean average
    precision.
    """
    from closure_kmeans.retrieval import read_oxford
    from closure_kmeans.retrieval.collection import image_names
    from closure_kmeans.retrieval.experiment import check_plan, compare

    if (protocol == "oxford") != (ground_truth is not None):
        raise click.UsageError("oxford needs the folder GROUND_TRUTH, and ukbench takes none")
    queries = None if ground_truth is None else read_oxford(ground_truth)
    if protocol == "ukbench" and collecting.skip:
        raise click.UsageError("--skip would break the groups of four of ukbench")
    if compared.levels != [1] and "hkm" not in compared.methods:
        raise click.UsageError("--levels is of hkm, which is not among --methods")
    names = image_names(images)
    check_plan(compared.plan, names, queries)  # before the long work
    with collecting.saying_what_is_kept():
        collection, key = collect_photos(images, names, features.extraction, collecting, manner)
        rows = compare(
            collection,
            compared.plan,
            queries,
            folder=collecting.work,
            key=key,
            n_threads=manner.n_threads,
            verbose=manner.shows_progress,
        )
        for row in rows:
            with tqdm.external_write_mode():  # above the progress bar
                click.echo(json.dumps(row._asdict()) if manner.as_json else _line(row))


def _line(row: Row) -> str:
    levels = f" ({row.levels} levels)" if row.levels > 1 else ""
    notes = [
        *([", re-ranked"] if row.reranked else []),
        *([f", {row.nearest} nearest"] if row.nearest > 1 else []),
        *([", plain SIFT"] if not row.root else []),
    ]
    return (
        f"{row.method + levels:16} {row.words:>9,} words  {row.norm}  {row.images:>6,} images  seed {row.seed}  "
        f"score {row.score:.3f}{''.join(notes)}  learned in {row.seconds:.1f} s, query {row.search_ms:.1f} ms"
    )
