"""``closure-kmeans retrieval``: index, query, add, remove and evaluate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from closure_kmeans._files import library
from closure_kmeans.cli.common import example, output_option, report, with_json, with_quiet, with_seed, with_threads

if TYPE_CHECKING:
    from closure_kmeans.retrieval import Collection, ImageIndex, Query, Result
    from closure_kmeans.retrieval.experiment import Row

METHODS = ("closure", "paper", "hkm", "akm", "rakm", "lloyd", "canopy")
INDEX = (".index", ".safetensors")
PICTURES = (".jpg", ".png")


def numbers(text: str) -> list[int]:
    """Whole numbers, separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"'{text}' must be whole numbers separated by commas") from None


def some_of(allowed: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Some of several words, separated by commas."""

    def choose(text: str) -> list[str]:
        for one in text.split(","):
            if one not in allowed:
                raise click.BadParameter(f"'{one}' must be one of {', '.join(allowed)}")
        return text.split(",")

    return choose


def corners(text: str) -> tuple[float, float, float, float]:
    """A box: left, top, right, bottom."""
    try:
        left, top, right, bottom = map(float, text.split(","))
    except ValueError:
        raise click.BadParameter(f"'{text}' must be four numbers x1,y1,x2,y2") from None
    if not (left < right and top < bottom):
        raise click.BadParameter(f"'{text}' must be x1,y1,x2,y2 with x1 < x2 and y1 < y2")
    return left, top, right, bottom


def _folder() -> Any:
    return click.Path(exists=True, file_okay=False, path_type=Path)


def _features_options(command: Any) -> Any:
    command = click.option("--skip", is_flag=True, help="Leave out images that cannot be read, and say which.")(command)
    command = click.option(
        "--max-side",
        type=click.IntRange(16),
        default=1024,
        show_default=True,
        help="Shrink larger images to this.",
    )(command)
    return click.option(
        "--detector", type=click.Choice(["dog", "mser"]), default="dog", show_default=True, help="Kind of regions."
    )(command)


class InOrder(click.Group):
    """Commands in the order in which a user meets them."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Their names."""
        return list(self.commands)


@click.group(
    cls=InOrder,
    epilog=example(
        "closure-kmeans retrieval index PHOTOS/ --words 100000 -o photos.index",
        "closure-kmeans retrieval query photos.index some.jpg --rerank",
    ),
)
def retrieval() -> None:
    """Find images by an image.

    index makes an index of a folder of photos, query searches it, add and remove change it, and evaluate scores
    codebooks by the protocols of UKBench and Oxford Buildings.
    """


@retrieval.command(epilog=example("closure-kmeans retrieval index PHOTOS/ --words 100000 -o photos.index"))
@click.argument("photos", type=_folder())
@output_option("-o", "--output", suffixes=INDEX, required=True, help="Where to write the index.")
@click.option("--words", type=click.IntRange(2), default=100_000, show_default=True, help="Number of visual words.")
@click.option(
    "--method", type=click.Choice(METHODS), default="closure", show_default=True, help="How words are learned."
)
@click.option("--levels", type=click.IntRange(1), default=1, show_default=True, help="Scoring levels of hkm.")
@click.option("--nearest", type=click.IntRange(1), default=1, show_default=True, help="Words of a region that count.")
@click.option("--sample", type=click.IntRange(1), show_default="all", help="Descriptors to learn the words from.")
@click.option("--sift", is_flag=True, help="Compare plain SIFT and not RootSIFT.")
@click.option("--work", type=_folder(), help="Folder to keep finished stages in; what is there is not done again.")
@_features_options
@with_seed
@with_threads
@with_json
@with_quiet
def index(
    photos: Path,
    output: str,
    words: int,
    method: str,
    levels: int,
    nearest: int,
    sample: int | None,
    sift: bool,
    work: Path | None,
    detector: str,
    max_side: int,
    skip: bool,
    seed: int,
    threads: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make an index of the images in PHOTOS.

    The words are learned from the images themselves.
    """
    from closure_kmeans.retrieval import Extraction, ImageIndex, Vocabulary, learn_vocabulary, tree_shape
    from closure_kmeans.retrieval.stages import WORDS, key_of, resume

    depth = tree_shape(words)[1] if method == "hkm" else 1
    if levels > depth:
        raise click.UsageError(f"--levels must be at most {depth}, the depth of '{method}' here, got {levels}")
    quiet = quiet or as_json
    extraction = Extraction(detector, max_side)
    collection, key = _collect(photos, extraction, skip, threads, quiet, work)
    settings: dict[str, Any] = {"method": method, "root": not sift, "sample": sample, "random_state": seed}

    def learn() -> Vocabulary:
        return learn_vocabulary(collection.descriptors, words, n_jobs=threads, verbose=not quiet, **settings)

    learned = resume(WORDS, work, key_of(key, words, settings), learn)
    vocabulary = Vocabulary(learned.model, root=not sift, levels=levels, n_nearest=nearest)
    made = ImageIndex(vocabulary, extraction)
    made.add(collection)
    made.save(output)
    _summarise(made, _added(collection), output, as_json, quiet)


@retrieval.command(
    epilog=example(
        "closure-kmeans retrieval query photos.index some.jpg",
        "closure-kmeans retrieval query photos.index some.jpg --box 10,20,200,300 --rerank --montage out.png",
    )
)
@click.argument("index_file", metavar="INDEX", type=click.Path(exists=True, dir_okay=False))
@click.argument("image", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--box", type=corners, metavar="x1,y1,x2,y2", help="Search for what is inside the box, in pixels of the image."
)
@click.option("--results", type=click.IntRange(1), default=10, show_default=True, help="How many images to list.")
@click.option("--norm", type=click.Choice(["l1", "l2"]), default="l1", show_default=True, help="Norm of the vectors.")
@click.option("--nearest", type=click.IntRange(1), show_default="as in the index", help="Words of a region that count.")
@click.option("--rerank", is_flag=True, help="Verify the best 200 by where their words are.")
@click.option("--verify", type=click.IntRange(1), default=200, show_default=True, help="How many --rerank verifies.")
@click.option(
    "--dof",
    type=click.IntRange(3, 5),
    show_default="as the regions need",
    help="3: without rotation; 4: with rotation; 5: by the ellipses of regions.",
)
@click.option(
    "--verifier", type=click.Choice(["matches", "opencv"]), default="matches", show_default=True, help="Who verifies."
)
@output_option("--montage", suffixes=PICTURES, help="Draw the query and its results.")
@output_option("--matches", suffixes=PICTURES, help="Draw lines between the query and the best other photo.")
@with_threads
@with_json
def query(
    index_file: str,
    image: Path,
    box: tuple[float, float, float, float] | None,
    results: int,
    norm: str,
    nearest: int | None,
    rerank: bool,
    verify: int,
    dof: int | None,
    verifier: str,
    montage: str | None,
    matches: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Find images in INDEX that show what IMAGE shows."""
    from closure_kmeans.retrieval import ImageIndex, Verification

    library("cv2", "images", "a query")
    opened = ImageIndex.load(index_file)
    asked = opened.read_query(image, box=box, n_nearest=nearest)
    verification = Verification(dof=dof, verifier=verifier)
    found = opened.search(
        asked,
        norm=norm,
        n_results=results,
        n_rerank=verify if rerank else 0,
        verification=verification,
        n_jobs=threads,
    )
    _show(found, as_json)
    _draw(opened, image, asked, found, box, montage, matches, verification)


@retrieval.command(epilog=example("closure-kmeans retrieval add photos.index MORE/"))
@click.argument("index_file", metavar="INDEX", type=click.Path(exists=True, dir_okay=False))
@click.argument("photos", type=_folder())
@click.option("--skip", is_flag=True, help="Leave out images that cannot be read, and say which.")
@with_threads
@with_json
@with_quiet
def add(index_file: str, photos: Path, skip: bool, threads: int | None, as_json: bool, quiet: bool) -> None:
    """Add the images in PHOTOS to INDEX, whose words stay as they are."""
    from closure_kmeans.retrieval import ImageIndex

    quiet = quiet or as_json
    opened = ImageIndex.load(index_file)
    collection, _ = _collect(photos, opened.extraction, skip, threads, quiet, None)
    opened.add(collection)
    opened.save(index_file)
    _summarise(opened, _added(collection), index_file, as_json, quiet)


@retrieval.command(epilog=example("closure-kmeans retrieval remove photos.index holiday/IMG_0001.jpg"))
@click.argument("index_file", metavar="INDEX", type=click.Path(exists=True, dir_okay=False))
@click.argument("names", nargs=-1, required=True)
@with_json
@with_quiet
def remove(index_file: str, names: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Remove images from INDEX, by the names that query shows."""
    from closure_kmeans.retrieval import ImageIndex

    opened = ImageIndex.load(index_file)
    opened.remove(names)
    opened.save(index_file)
    _summarise(opened, {"removed": len(names)}, index_file, as_json, quiet)


@retrieval.command(
    epilog=example(
        "closure-kmeans retrieval evaluate ukbench IMAGES/ --words 10000,100000 --methods closure,hkm,akm",
        "closure-kmeans retrieval evaluate oxford IMAGES/ GROUND_TRUTH/ --words 1000000 --rerank --json",
    )
)
@click.argument("protocol", type=click.Choice(["ukbench", "oxford"]))
@click.argument("images", type=_folder())
@click.argument("ground_truth", type=_folder(), required=False)
@click.option(
    "--words", type=numbers, metavar="N,N,...", default="10000,100000", show_default=True, help="Sizes of codebooks."
)
@click.option(
    "--methods",
    type=some_of(METHODS),
    metavar="A,B,...",
    default="closure",
    show_default=True,
    help="Methods to compare.",
)
@click.option(
    "--norms", type=some_of(("l1", "l2")), metavar="A,B,...", default="l1", show_default=True, help="Norms to compare."
)
@click.option(
    "--seeds", type=numbers, metavar="N,N,...", default="0", show_default=True, help="Seeds to repeat it with."
)
@click.option(
    "--levels", type=numbers, metavar="N,N,...", default="1", show_default=True, help="Scoring levels of hkm."
)
@click.option("--nearest", type=click.IntRange(1), default=1, show_default=True, help="Words of a region that count.")
@click.option("--subsets", type=numbers, metavar="N,N,...", show_default="all images", help="Numbers of images.")
@click.option("--rerank", is_flag=True, help="Also with the best 200 verified.")
@click.option("--sift", is_flag=True, help="Compare plain SIFT and not RootSIFT.")
@click.option("--work", type=_folder(), help="Folder to keep finished work in; what is there is not done again.")
@_features_options
@with_threads
@with_json
@with_quiet
def evaluate(
    protocol: str,
    images: Path,
    ground_truth: Path | None,
    words: list[int],
    methods: list[str],
    norms: list[str],
    seeds: list[int],
    levels: list[int],
    nearest: int,
    subsets: list[int] | None,
    rerank: bool,
    sift: bool,
    work: Path | None,
    detector: str,
    max_side: int,
    skip: bool,
    threads: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Score codebooks on IMAGES, all else the same.

    ukbench: every image is a query, and four in a row show the same object, by name; the score is the mean number of
    them among the first four. oxford: the queries are those of GROUND_TRUTH, and the score is the mean average
    precision.
    """
    from closure_kmeans.retrieval import Extraction, read_oxford
    from closure_kmeans.retrieval.experiment import Plan, compare

    if (protocol == "oxford") != (ground_truth is not None):
        raise click.UsageError("oxford needs the folder GROUND_TRUTH, and ukbench takes none")
    queries = None if ground_truth is None else read_oxford(ground_truth)
    quiet = quiet or as_json
    if protocol == "ukbench" and skip:
        raise click.UsageError("--skip would break the groups of four of ukbench")
    collection, key = _collect(images, Extraction(detector, max_side), skip, threads, quiet, work)
    plan = Plan(words, methods, norms, seeds, levels, nearest, subsets or (None,), rerank, not sift)
    for row in compare(collection, plan, queries, folder=work, key=key, n_jobs=threads, verbose=not quiet):
        click.echo(json.dumps(row._asdict()) if as_json else _line(row))


def _line(row: Row) -> str:
    reranked = ", re-ranked" if row.reranked else ""
    levels = f" ({row.levels} levels)" if row.levels > 1 else ""
    return (
        f"{row.method + levels:16} {row.words:>9,} words  {row.norm}  {row.images:>6,} images  seed {row.seed}  "
        f"score {row.score:.3f}{reranked}  learned in {row.seconds:.1f} s, query {row.search_ms:.1f} ms"
    )


def _collect(
    photos: Path, extraction: Any, skip: bool, threads: int | None, quiet: bool, work: Path | None
) -> tuple[Collection, str]:
    """The features of a folder, or those of the last time; and a key that tells of what they were made."""
    library("cv2", "images", "retrieval")
    from closure_kmeans.features import list_images
    from closure_kmeans.retrieval import collect
    from closure_kmeans.retrieval.stages import FEATURES, key_of, resume

    def extract() -> Collection:
        on_error = "skip" if skip else "raise"
        collection = collect(photos, extraction, on_error=on_error, n_jobs=threads, verbose=not quiet)
        for reason in collection.skipped:
            click.echo(f"Warning: left out: {reason}", err=True)
        return collection

    paths = list_images(photos)
    files = [(path.relative_to(photos).as_posix(), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    key = key_of(str(photos.resolve()), files, extraction, skip)
    return resume(FEATURES, work, key, extract), key


def _added(collection: Collection) -> dict[str, Any]:
    counts = collection.offsets[1:] - collection.offsets[:-1]
    return {
        "added": len(collection.names),
        "left out": len(collection.skipped),
        "without features": int((counts == 0).sum()),
        "features of an image": float(counts.mean()) if len(counts) else 0.0,
    }


def _summarise(index: ImageIndex, changes: dict[str, Any], output: str, as_json: bool, quiet: bool) -> None:
    if quiet and not as_json:
        return
    facts = {"images": len(index), "words": index.vocabulary.n_words, **changes}
    facts |= {"index": output, "bytes": Path(output).stat().st_size}
    report({name.replace(" ", "_"): value for name, value in facts.items()} if as_json else facts, as_json=as_json)


def _show(results: list[Result], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([result._asdict() | {"verified": result.verified} for result in results]))
        return
    if not results:
        click.echo("nothing found")
    for result in results:
        inliers = "" if result.inliers is None else f"  {result.inliers:>5} inliers{' *' if result.verified else ''}"
        click.echo(f"{result.score:.4f}  {result.name}{inliers}")


def _draw(
    index: ImageIndex,
    image: Path,
    asked: Query,
    results: list[Result],
    box: Any,
    montage: str | None,
    matches: str | None,
    verification: Any,
) -> None:
    if montage is None and matches is None:
        return
    from closure_kmeans.retrieval.pictures import draw_matches, draw_results, save_picture

    if montage is not None:
        save_picture(montage, draw_results(index, image, results, box))
    others = [result for result in results if index.path_of(result.image) != image.resolve()]
    if matches is None:
        return
    if others:
        save_picture(matches, draw_matches(index, image, asked, others[0], verification))
    else:
        click.echo("Warning: there is no other photo to draw lines to", err=True)
