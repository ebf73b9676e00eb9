"""``closure-kmeans retrieval``: index, query, add, remove and evaluate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import click

from closure_kmeans.cli import options
from closure_kmeans.cli.codebooks import evaluate
from closure_kmeans.cli.common import keep_apart, report, underscored
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
from closure_kmeans.retrieval import (
    METHODS,
    Collection,
    Extraction,
    ImageIndex,
    Result,
    Steps,
    Verification,
    Vocabulary,
    tree_shape,
)
from closure_kmeans.retrieval.collection import image_names
from closure_kmeans.retrieval.evaluation import Box
from closure_kmeans.retrieval.experiment import N_RERANK
from closure_kmeans.retrieval.stages import resume_learning

INDEX = (".index", ".safetensors")
PICTURES = (".jpg", ".png")

with_index = click.argument("index_file", metavar="INDEX", type=options.EXISTING_FILE)


def corners(text: str) -> Box:
    """Parse a box: left, top, right, bottom."""
    try:
        left, top, right, bottom = map(float, text.split(","))
    except ValueError:
        raise click.BadParameter(f"'{text}' must be four numbers x1,y1,x2,y2") from None
    if not (left < right and top < bottom):
        raise click.BadParameter(f"'{text}' must be x1,y1,x2,y2 with x1 < x2 and y1 < y2")
    return left, top, right, bottom


@click.group(
    cls=options.InOrder,
    epilog=options.example(
        "closure-kmeans retrieval index PHOTOS/ --n-words 100000 -o photos.index",
        "closure-kmeans retrieval query photos.index some.jpg --rerank",
    ),
)
def retrieval() -> None:
    """Build an index of a folder of images with index, search it with query, update it with add and remove.

    evaluate scores codebooks by the UKBench and Oxford Buildings protocols.
    """


@retrieval.command(epilog=options.example("closure-kmeans retrieval index PHOTOS/ --n-words 100000 -o photos.index"))
@click.argument("photos", type=options.EXISTING_FOLDER)
@options.output("-o", "--output", suffixes=INDEX, required=True, help="Write the index to this file.")
@click.option("--n-words", "words", type=click.IntRange(2), default=100_000, help="Number of visual words.")
@click.option(
    "--method", type=click.Choice(list(METHODS)), default="closure", help="Clustering method that trains the words."
)
@click.option(
    "--sample", type=click.IntRange(1), show_default="all", help="Number of descriptors to train the words on."
)
@with_root
@options.seed
@click.option("--levels", type=click.IntRange(1), default=1, help="Tree levels that are scored, for --method hkm.")
@with_nearest
@click.option(
    "--embedding/--no-embedding", default=True, help="Store Hamming embedding signatures (needs one word per region)."
)
@with_extraction
@with_collecting
@options.manner
def index(
    photos: Path,
    output: str,
    words: int,
    method: str,
    sample: int | None,
    root: bool,
    random_state: int,
    levels: int,
    n_nearest: int,
    embedding: bool,
    extraction: Extraction,
    collecting: Collecting,
    manner: options.Manner,
) -> None:
    """Build an index of the images in PHOTOS.

    The visual words are trained on these images.
    """
    depth = tree_shape(words)[1]
    if levels > 1 and method != "hkm":
        raise click.UsageError(f"--levels above 1 needs --method hkm, got {levels} with '{method}'")
    if levels > depth:
        raise click.UsageError(
            f"--levels must be at most {depth}, the depth of a tree of {words:,} words, got {levels}"
        )
    if n_nearest > words:
        raise click.UsageError(f"--n-nearest must be at most --n-words, {words:,}, got {n_nearest:,}")
    with collecting.saying_what_is_kept():
        collection, key = collect_photos(photos, image_names(photos), extraction, collecting, manner)
        learned = resume_learning(
            collecting.work,
            key,
            collection.descriptors,
            words,
            method=method,
            root=root,
            random_state=random_state,
            sample=sample,
            n_threads=manner.n_threads,
            verbose=manner.shows_progress,
        )
        signed = embedding and levels == 1 and n_nearest == 1
        model = learned.vocabulary.model
        vocabulary = Vocabulary(model, root=root, levels=levels, n_nearest=n_nearest, embedding=signed)
        made = ImageIndex(vocabulary, extraction)
        made.add(collection, vocabulary.words_of_fit(collection.descriptors, verbose=manner.shows_progress))
        made.save(output)
    _summarise(made, _added(collection), output, manner)


class Reranking(NamedTuple):
    """How results are ranked and verified."""

    rerank: bool
    verify: int | None
    dof: int | None
    verifier: str | None
    embedding: bool
    burstiness: bool
    assignment: int
    weighted: bool
    expansion: int

    @property
    def steps(self) -> Steps:
        """Steps of the search."""
        return Steps(self.embedding, self.burstiness, self.assignment, self.expansion)

    def check(self, *, draws_matches: bool) -> None:
        """Raise if an option would have no effect."""
        unused = () if self.rerank else ("verify",) if draws_matches else ("verify", "dof", "verifier")
        for option in unused:
            if getattr(self, option) is not None:
                raise click.UsageError(f"--{option} needs --rerank")
        if not self.rerank:
            check_steps_need_rerank(*["weighted"] if draws_matches else [])
        if self.verifier == "opencv" and self.dof is not None:
            raise click.UsageError(f"--dof needs --verifier matches: opencv always uses 4, got {self.dof}")


with_reranking = options.together(
    "reranking",
    Reranking,
    click.option("--rerank", is_flag=True, help="Verify the best 200 geometrically, then expand the query."),
    click.option(
        "--verify", type=click.IntRange(1), show_default="200", help="Number of results that --rerank verifies."
    ),
    click.option(
        "--dof",
        type=click.IntRange(3, 4),
        show_default="4",
        help="Degrees of freedom: 3 without rotation, 4 with rotation.",
    ),
    click.option(
        "--verifier", type=click.Choice(["matches", "opencv"]), show_default="matches", help="Verification method."
    ),
    *STEP_OPTIONS,
)


@retrieval.command(
    epilog=options.example(
        "closure-kmeans retrieval query photos.index some.jpg",
        "closure-kmeans retrieval query photos.index some.jpg --box 10,20,200,300 --rerank --montage out.png",
    )
)
@with_index
@click.argument("image", type=options.FileOrFolder(exists=True, dir_okay=False, path_type=Path))
@click.option("--box", type=corners, metavar="x1,y1,x2,y2", help="Search only for this region of the image, in pixels.")
@click.option("--n-results", "results", type=click.IntRange(1), default=10, help="Number of results.")
@click.option("--norm", type=click.Choice(["l1", "l2"]), default="l1", help="Norm of the tf-idf vectors.")
@click.option(
    "--n-nearest",
    type=click.IntRange(1),
    show_default="as in the index",
    help="Soft assignment: number of nearest words per region.",
)
@with_reranking
@options.output("--montage", suffixes=PICTURES, help="Draw the query and its results to this file.")
@options.output(
    "--matches", suffixes=PICTURES, help="Draw the matches between the query and the best other image to this file."
)
@options.threads
@options.json
def query(
    index_file: str,
    image: Path,
    box: Box | None,
    results: int,
    norm: str,
    n_nearest: int | None,
    reranking: Reranking,
    montage: str | None,
    matches: str | None,
    n_threads: int | None,
    as_json: bool,
) -> None:
    """Find images in INDEX that show the same object as IMAGE."""
    from closure_kmeans.retrieval.pictures import draw_matches, draw_results, save_picture

    reranking.check(draws_matches=matches is not None)
    keep_apart([index_file, str(image)], [montage, matches])
    opened = _open(index_file, n_threads)
    for picture in (montage, matches):
        if picture is not None and opened.holds(picture):
            raise click.UsageError(f"'{picture}' would be overwritten: it is an image of the index")
    asked = opened.read_query(image, box=box, n_nearest=n_nearest, assignment=reranking.assignment)
    if norm != "l1" and reranking.embedding and asked.places.signatures is not None:
        raise click.UsageError(f"--norm {norm} needs tf-idf: add --protocol paper or --no-embedding")
    verification = Verification(
        dof=reranking.dof, verifier=reranking.verifier or "matches", weighted=reranking.weighted
    )
    found = opened.search(
        asked,
        norm=norm,
        n_results=results if matches is None else max(results, N_RERANK),  # the first may be the query, or gone
        n_rerank=(reranking.verify or N_RERANK) if reranking.rerank else 0,
        steps=reranking.steps,
        verification=verification,
        n_threads=n_threads,
    )
    _show(found[:results], as_json)
    gone = [result.name for result in found[:results] if not opened.path_of(result.image).exists()]
    if gone and (montage or matches):
        click.echo(f"Warning: {len(gone)} of the images found no longer exist, the first is '{gone[0]}'", err=True)
    if montage is not None:
        save_picture(montage, draw_results(opened, image, found[:results], box))
    if matches is not None:
        paths = {result: opened.path_of(result.image) for result in found}
        other = next((result for result, path in paths.items() if path.exists() and path != image.resolve()), None)
        if other is None:
            raise click.ClickException(f"'{matches}' was not written: no other image was found")
        save_picture(matches, draw_matches(opened, image, asked, other, verification, box))


@retrieval.command(epilog=options.example("closure-kmeans retrieval add photos.index MORE/"))
@with_index
@click.argument("photos", type=options.EXISTING_FOLDER)
@click.option("--new", is_flag=True, help="Skip images whose names are already in INDEX.")
@with_collecting
@options.manner
def add(index_file: str, photos: Path, new: bool, collecting: Collecting, manner: options.Manner) -> None:
    """Add the images in PHOTOS to INDEX.

    The visual words of INDEX do not change.
    """
    names = image_names(photos)
    opened = ImageIndex.load(index_file)
    known, extraction = set(opened.names).intersection(names), opened.extraction
    del opened  # it may be changed while features are taken, also on Windows, where no file is replaced that is mapped
    if known and not new:
        raise click.ClickException(
            f"{len(known)} of the {len(names)} images of '{photos}' are already in the index, such as '{min(known)}': "
            "--new skips them"
        )
    others = [name for name in names if name not in known]
    with collecting.saying_what_is_kept():
        collection, _ = collect_photos(photos, others, extraction, collecting, manner, may_be_none=bool(known))
        opened = _open(index_file, manner.n_threads)
        if collection.names:
            opened.add(collection, verbose=manner.shows_progress)
            opened.save(index_file)
    _summarise(opened, _added(collection) | {"already there": len(known)}, index_file, manner)


@retrieval.command(epilog=options.example("closure-kmeans retrieval remove photos.index holiday/IMG_0001.jpg"))
@with_index
@click.argument("names", nargs=-1, required=True)
@options.json
@options.quiet
def remove(index_file: str, names: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Remove images from INDEX by name, as printed by query."""
    opened = ImageIndex.load(index_file)
    n_before = len(opened)
    opened.remove(names)
    opened.save(index_file)
    _summarise(opened, {"removed": n_before - len(opened)}, index_file, options.Manner(None, as_json, quiet))


retrieval.add_command(evaluate)


def _open(index_file: str, n_threads: int | None) -> ImageIndex:
    """Open an index, and set its number of threads."""
    opened = ImageIndex.load(index_file)
    opened.vocabulary.model.n_threads = n_threads
    return opened


def _added(collection: Collection) -> dict[str, Any]:
    counts = collection.offsets[1:] - collection.offsets[:-1]
    return {
        "added": len(collection.names),
        "left out": len(collection.skipped),
        "without features": int((counts == 0).sum()),
        "features of an image": float(counts.mean()) if len(counts) else 0.0,
    }


def _summarise(index: ImageIndex, changes: dict[str, Any], output: str, manner: options.Manner) -> None:
    if manner.quiet and not manner.as_json:
        return
    facts = {"images": len(index), "words": index.vocabulary.n_words, **changes}
    facts |= {"index": output, "bytes": Path(output).stat().st_size}
    report(underscored(facts) if manner.as_json else facts, as_json=manner.as_json)


def _show(results: list[Result], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([result._asdict() for result in results]))
        return
    if not results:
        click.echo("nothing found")
    longest = max((len(result.name) for result in results), default=0)
    for result in results:
        inliers = "" if result.inliers is None else f"  {result.inliers:>5} inliers{' *' if result.verified else ''}"
        click.echo(f"{result.score:.4f}  {result.name:<{longest}}{inliers}".rstrip())
