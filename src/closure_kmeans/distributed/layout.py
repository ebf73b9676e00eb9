"""The layout: rows that are neighbours come into the same partition, and lie there in the order of a tree.

The upper part of the tree is learned on a sample of the rows: pieces, into which tasks sort the rows of each shard. All
rows, piece after piece, are cut into partitions of equal size, whatever pieces they end in. Each partition then has a
tree of its own, whose leaves are the first clusters. The rows go through the shared folder on their way from shards to
partitions; only counts, pieces and a few rows come to the driver.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.clusters import group_by_label
from closure_kmeans.distributed.cluster import Cluster
from closure_kmeans.distributed.files import SharedFolder
from closure_kmeans.distributed.passes import (
    LAYOUT,
    ORDER,
    ROWS,
    Layout,
    Partition,
    Sums,
    load_points,
    save_labels,
    spread,
    sum_up,
)
from closure_kmeans.distributed.sources import INPUT, Shard, Source
from closure_kmeans.nearest import SAMPLE_ROWS
from closure_kmeans.parallel import Threads
from closure_kmeans.points import precision
from closure_kmeans.spherical import unit_rows
from closure_kmeans.stores.layout import (
    N_PIECES,
    PIECES_PER_SLAB,
    Plan,
    cut_into_pieces,
    learn_plan,
    sort_into_pieces,
)
from closure_kmeans.trees import cut_evenly, grow_partition

PLAN = "sorted/plan.safetensors"
# Rows of a sample that show one piece, and pieces at most: the driver holds that sample, however many rows there are.
ROWS_PER_PIECE, MOST_PIECES = 32, 1 << 16
# Pieces of a partition whose middles tell which centres are near it.
PIECES_PER_PARTITION = 32
# By default a partition has so many bytes of rows, but there are at least so many partitions, of so many rows.
PARTITION_BYTES, MANY_PARTITIONS, SMALLEST_PARTITION = 1 << 28, 16, 1024

Cut: TypeAlias = tuple[int, int]  # a place among all sorted rows: a piece, and how many of its rows come before


class Recipe(NamedTuple):
    """Ingredients of one partition."""

    n_shards: int
    begin: Cut
    end: Cut
    dtype: str  # that the rows are held in
    first_label: int
    n_labels: int
    watched: slice  # of the rows
    seed: int


class Arranged(NamedTuple):
    """Summary of a partition for the driver."""

    pieces: NDArray[Any]
    sample: NDArray[Any]  # the rows that are watched
    sums: Sums


def count_partitions(n_points: int, row_bytes: int) -> int:
    """How many partitions, where the user does not say: it depends on the rows alone, and so does the result."""
    wanted = max(MANY_PARTITIONS, -(-n_points * row_bytes // PARTITION_BYTES))
    return max(1, min(wanted, n_points // SMALLEST_PARTITION))


def lay_out(
    source: Source,
    folder: SharedFolder,
    cluster: Cluster,
    n_clusters: int,
    n_partitions: int | None,
    tree_dims: int | None,
    spherical: bool,
    *,
    rng: np.random.Generator,
    threads: Threads,
) -> tuple[Layout, list[Sums]]:
    """Write the rows into partitions; also the sums of the first clusters."""
    shards = source.shards()
    n_points = shards[-1].start + shards[-1].last - shards[-1].first
    if n_clusters > n_points:
        raise ValueError(
            f"n_clusters must be at most the number of rows, got n_clusters={n_clusters}, n_samples={n_points}"
        )
    held = np.dtype(precision(source.dtype)) if spherical else source.dtype
    n_partitions = n_partitions or count_partitions(n_points, source.width * held.itemsize)
    if n_partitions > n_points:
        raise ValueError(f"n_partitions must be at most the number of rows, {n_points}, got {n_partitions}")
    n_pieces = min(max(N_PIECES, PIECES_PER_SLAB * n_partitions), MOST_PIECES)
    stride = -(-n_points // (ROWS_PER_PIECE * n_pieces))
    sampled = cluster.run("drawing a sample", sample_shard, [(shard, stride, spherical) for shard in shards])
    sample = np.concatenate(list(sampled))
    plan = learn_plan(sample, n_pieces, tree_dims, spherical, rng, threads)
    dtype = sample.dtype
    del sample
    folder.remove("sorted")
    folder.save_record(PLAN, plan)
    sizes, in_bytes = np.zeros(len(plan.pieces), np.int64), plan.may_be_bytes
    to_sort = [(shard, i, folder) for i, shard in enumerate(shards)]
    for counts, shard_in_bytes in cluster.run("sorting the rows", sort_shard, to_sort):
        sizes += counts
        in_bytes &= shard_in_bytes
    starts = cut_evenly(n_points, n_partitions)
    label_starts = n_clusters * starts // n_points
    cuts = cut_pieces(sizes, starts)
    stride = -(-n_points // SAMPLE_ROWS)
    recipes = [
        Recipe(
            n_shards=len(shards),
            begin=cuts[i],
            end=cuts[i + 1],
            dtype=np.dtype(np.uint8 if in_bytes else dtype).str,
            first_label=int(label_starts[i]),
            n_labels=int(label_starts[i + 1] - label_starts[i]),
            watched=spread(int(starts[i]), stride),
            seed=int(rng.integers(2**63)),
        )
        for i in range(n_partitions)
    ]
    arguments = [(Partition(folder, i), recipe) for i, recipe in enumerate(recipes)]
    arranged: list[Arranged] = list(cluster.run("arranging the partitions", arrange_partition, arguments))
    folder.remove("sorted")
    folder.remove(INPUT)
    layout = Layout(
        offset=plan.offset,
        axes=plan.axes,
        pieces=np.concatenate([part.pieces for part in arranged]),
        partition_of=np.repeat(np.arange(n_partitions, dtype=np.int32), [len(part.pieces) for part in arranged]),
        starts=starts,
        sample=np.concatenate([part.sample for part in arranged]),
        stride=stride,
        spherical=spherical,
    )
    folder.save_record(LAYOUT, layout)
    return layout, [part.sums for part in arranged]


def cut_pieces(sizes: NDArray[np.int64], starts: NDArray[np.int64]) -> list[Cut]:
    """Where partitions begin, given how many rows there are in each piece.

    All rows have an order: by piece, then by shard, then as they lie there. A partition is a range of it, and so is
    what it takes of a shard.
    """
    before = np.cumsum(sizes) - sizes
    pieces = np.searchsorted(before, starts, side="right") - 1
    return list(zip(pieces.tolist(), (starts - before[pieces]).tolist(), strict=True))


def cut_shards(piece: NDArray[np.int64], rank: int) -> list[int]:
    """Offset of a cut in each shard, given the range of its piece's rows there."""
    sizes = piece[1] - piece[0]
    places: list[int] = (piece[0] + np.clip(rank - np.cumsum(sizes) + sizes, 0, sizes)).tolist()
    return places


# -- tasks -------------------------------------------------------------------------------------------------------------


def sample_shard(shard: Shard, stride: int, spherical: bool) -> NDArray[Any]:
    """Rows of a shard that belong to the sample of every ``stride``-th row."""
    rows = shard.read(spread(shard.start, stride))
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    return unit_rows(rows[lengths > 0]) if spherical else rows  # those without a direction are found as they are sorted


def sort_shard(shard: Shard, number: int, folder: SharedFolder) -> tuple[NDArray[np.int64], bool]:
    """Write the rows of a shard, and their numbers, in the order of pieces; how many each has, and if all are bytes."""
    plan = folder.load_record(PLAN, Plan)
    rows = shard.read()
    with Threads(1) as threads:
        try:
            rows = unit_rows(rows) if plan.spherical else rows
            # The rows have their lengths already, and would change in the last bits.
            piece_of, _, in_bytes = sort_into_pieces(rows, plan._replace(spherical=False), threads)
        except ValueError as error:
            raise ValueError(f"{shard}: {error}") from error
    order, starts = group_by_label(piece_of, len(plan.pieces))
    folder.save(f"sorted/{number:06}.npy", rows[order])
    folder.save(f"sorted/{number:06}.order.npy", (shard.start + order.astype(np.int64))[:, np.newaxis])
    folder.save(f"sorted/{number:06}.starts.npy", starts[:, np.newaxis])
    return np.diff(starts), in_bytes


def find_ranges(folder: SharedFolder, n_shards: int, begin: Cut, end: Cut) -> list[tuple[int, int, int]]:
    """Ranges of the sorted rows of shards between two cuts."""
    names = [f"sorted/{shard:06}.starts.npy" for shard in range(n_shards)]
    starts = np.hstack([folder.read(name, begin[0], end[0] + 2) for name in names])
    firsts, lasts = cut_shards(starts[:2], begin[1]), cut_shards(starts[-2:], end[1])
    return [found for found in zip(range(n_shards), firsts, lasts, strict=True) if found[1] < found[2]]


def arrange_partition(partition: Partition, recipe: Recipe) -> Arranged:
    """Write the rows of a partition, their numbers and their first labels, in the order of a tree of their own."""
    folder, number = partition
    plan = folder.load_record(PLAN, Plan)
    ranges = find_ranges(folder, recipe.n_shards, recipe.begin, recipe.end)
    rows = np.concatenate([folder.read(f"sorted/{i:06}.npy", a, b) for i, a, b in ranges])
    order = np.concatenate([folder.read(f"sorted/{i:06}.order.npy", a, b) for i, a, b in ranges])
    rows = rows.astype(recipe.dtype, copy=False)
    rows = rows.view(np.uint16) if rows.dtype == np.float16 else rows
    with Threads(1) as threads:
        slab = load_points(rows, plan, threads)
        rng = np.random.default_rng(recipe.seed)
        tree = grow_partition(slab.coordinates, slab.origin, max(1, recipe.n_labels), rng, threads)
        _, pieces = cut_into_pieces(slab.coordinates, tree.members, PIECES_PER_PARTITION)
        rows = rows[tree.members]
        places = np.repeat(np.arange(len(tree.starts) - 1, dtype=np.int32), np.diff(tree.starts))
        ids = recipe.first_label + np.arange(len(tree.starts) - 1, dtype=np.int32)
        found = sum_up(slab._replace(rows=rows), places, ids, threads)
    folder.save(ROWS.format(number), rows)
    folder.save(ORDER.format(number), order[tree.members])
    labels = ids[places]
    save_labels(partition, 0, labels)
    return Arranged(pieces, rows[recipe.watched], Sums(*found, labels[recipe.watched], len(labels), 0))
