"""``closure-kmeans retrieval evaluate``."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from closure_kmeans.cli import options
from closure_kmeans.cli.photos import (
    STEP_OPTIONS,
    Collecting,
    check_steps_need_rerank,
    collect_photos,
    with_collecting,
    with_extraction,
    with_nearest,
    with_root,
)
from closure_kmeans.retrieval import METHODS, Extraction, read_oxford
from closure_kmeans.retrieval.collection import image_names
from closure_kmeans.retrieval.experiment import Plan, Row, check_plan, compare


def some_of(allowed: Collection[str], *names: str, **settings: Any) -> Callable[[Any], Any]:
    """An option: a comma-separated list of allowed words."""

    def choose(text: str) -> list[str]:
        for one in text.split(","):
            if one not in allowed:
                raise click.BadParameter(f"'{one}' must be one of {', '.join(allowed)}")
        return text.split(",")

    return click.option(*names, type=choose, metavar="A,B,...", **settings)


with_plan = options.together(
    "plan",
    Plan,
    options.numbers("--n-words", "words", default="10000,100000", help="Codebook sizes."),
    some_of(METHODS, "--methods", default="closure", help="Clustering methods to compare."),
    some_of(("l1", "l2"), "--norms", default="l1", help="Norms to compare."),
    options.numbers("--seeds", default="0", help="Random seeds to repeat each run with."),
    options.numbers("--levels", default="1", help="Tree levels that are scored, for hkm among --methods."),
    with_nearest,
    options.numbers(
        "--subsets",
        "images",
        callback=lambda _context, _option, sizes: sizes or (None,),
        show_default="all images",
        help="Collection sizes, in images.",
    ),
    click.option(
        "--rerank", is_flag=True, help="Also score with verification of the best 200 and with query expansion."
    ),
    with_root,
    *STEP_OPTIONS,
)


@click.command(
    epilog=options.example(
        "closure-kmeans retrieval evaluate ukbench IMAGES/ --n-words 10000,100000 --methods closure,hkm,akm",
        "closure-kmeans retrieval evaluate oxford IMAGES/ GROUND_TRUTH/ --n-words 1000000 --rerank --json",
    )
)
@click.argument("benchmark", type=click.Choice(["ukbench", "oxford"]))
@click.argument("photos", metavar="IMAGES", type=options.EXISTING_FOLDER)
@click.argument("ground_truth", type=options.EXISTING_FOLDER, required=False)
@with_plan
@with_extraction
@with_collecting
@options.manner
def evaluate(
    benchmark: str,
    photos: Path,
    ground_truth: Path | None,
    plan: Plan,
    extraction: Extraction,
    collecting: Collecting,
    manner: options.Manner,
) -> None:
    """Compare codebooks on IMAGES, with all other settings equal.

    ukbench: every image is a query; sorted by name, each group of four images shows one object. The score is the mean
    number of images of the group among the first four results. oxford: queries are read from GROUND_TRUTH; the score is
    the mean average precision.
    """
    if (benchmark == "oxford") != (ground_truth is not None):
        raise click.UsageError("oxford needs the folder GROUND_TRUTH, ukbench does not take it")
    queries = None if ground_truth is None else read_oxford(ground_truth)
    if benchmark == "ukbench" and collecting.skip:
        raise click.UsageError("--skip cannot be used with ukbench: its images form groups of four")
    if plan.levels != [1] and "hkm" not in plan.methods:
        raise click.UsageError("--levels needs hkm among --methods")
    if plan.embedding and "l2" in plan.norms and plan.levels == [1] and plan.n_nearest == 1:
        raise click.UsageError("--norms l2 needs tf-idf: add --protocol paper or --no-embedding")
    if not plan.rerank:
        check_steps_need_rerank()
    names = image_names(photos)
    check_plan(plan, names, queries)  # before the long work
    with collecting.saying_what_is_kept():
        collection, key = collect_photos(photos, names, extraction, collecting, manner)
        rows = compare(
            collection,
            plan,
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
        *([", signatures"] if row.embedding else []),
        *([", re-ranked"] if row.reranked else []),
        *([", expanded"] if row.expansion else []),
        *([f", {row.nearest} nearest"] if row.nearest > 1 else []),
        *([", plain SIFT"] if not row.root else []),
    ]
    return (
        f"{row.method + levels:16} {row.words:>9,} words  {row.norm}  {row.images:>6,} images  seed {row.seed}  "
        f"score {row.score:.3f}{''.join(notes)}  learned in {row.seconds:.1f} s, query {row.search_ms:.1f} ms"
    )
