"""Tasks of an iteration, over one partition each: they read files, write a file and return sums.

A partition is a file of rows that are neighbours, in the order of a tree; its labels are a file for each pass. A task
reads the centres that it may need from the mapped file of centres: those of the clusters that its points are in, and
those near the partition, which are entered into its tree as points, so that a border between partitions is none for
clusters. All that it allocates is in proportion to its points and to those clusters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.clusters import Clusters, extrapolate
from closure_kmeans.distributed.files import SharedFolder
from closure_kmeans.nearest import nearest_centers
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points, as_numbers, heights, rows_per_block, shifted
from closure_kmeans.stores import Rule
from closure_kmeans.stores.layout import BLOCK_CENTERS, Plan, SlabReader, along, blocks_of, nearest_pieces
from closure_kmeans.stores.memory import assign_by_closures
from closure_kmeans.stores.totals import Totals, add_points, no_totals
from closure_kmeans.trees import grow_leaves

# Files of a fit, by the number of the pass, of the iteration or of the partition.
LAYOUT = "layout.safetensors"
START = "start.safetensors"  # the centres that a user gave
CENTERS = "centers/{:06}.safetensors"
SPLIT = "splits/{:06}.safetensors"  # which clusters are split in a pass
ROWS = "rows/{:06}.npy"
ORDER = "order/{:06}.npy"  # which of the user's rows the points of a partition are
# How many of the nearest pieces a centre is entered into: those of several partitions, so that points at a border meet
# the clusters beyond it.
PIECES_ENTERED = 64
# Centres whose coordinates a task has in memory at a time.
CENTERS_READ = 1 << 16


class Partition(NamedTuple):
    """A partition by its number, of the fit in a shared folder."""

    folder: SharedFolder
    number: int

    def __str__(self) -> str:
        return f"partition {self.number} in '{self.folder}'"


class Pass(NamedTuple):
    """Parameters of a pass. Versions are the numbers of files."""

    old_labels: int
    new_labels: int
    centers: int
    rule: Rule = Rule()  # with ``ahead`` the centres of the version before are read, too
    leaf_size: int = 0
    seed: int = 0


class Layout(NamedTuple):
    """Metadata shared by all partitions."""

    offset: NDArray[Any]  # (d,)
    axes: NDArray[Any] | None  # (d, d') what coordinates are taken along
    pieces: NDArray[Any]  # (n_pieces, d') the middles of consecutive pieces of the partitions
    partition_of: NDArray[np.int32]  # (n_pieces,) where these are
    starts: NDArray[np.int64]  # (n_partitions + 1,) how many points come before those of each partition
    sample: NDArray[Any]  # (n_sample, d) rows that are watched: every ``stride``-th point
    stride: int
    spherical: bool


class Sums(NamedTuple):
    """Sums of some clusters over some of the points."""

    ids: NDArray[np.int32]  # (m,) the clusters, in ascending order
    totals: Totals  # of m clusters
    watched: NDArray[np.int32]  # labels of the points that are watched
    n_active: int
    n_pairs: int


class Near(NamedTuple):
    """Pairs of centre and nearby partition, found by one task."""

    centers: NDArray[np.int32]  # some consecutive centres in ascending order, each as often as it is near a partition
    partitions: NDArray[np.int32]  # these partitions
    nearest: NDArray[np.int32]  # the nearest of all centres of each piece of one partition


# -- files -------------------------------------------------------------------------------------------------------------


def labels_name(version: int, number: int) -> str:
    """The file of the labels of a partition."""
    return f"labels/{version:06}/{number:06}.npy"


def read_layout(folder: SharedFolder) -> Layout:
    """Read the layout."""
    return folder.load_record(LAYOUT, Layout)


def load_partition(partition: Partition, layout: Layout, threads: Threads, n_entered: int = 0) -> Points:
    """The points of a partition in memory, with places for the centres that are entered."""
    return load_points(partition.folder.map(ROWS.format(partition.number)), layout, threads, n_entered)


def load_points(rows: NDArray[Any], layout: Layout | Plan, threads: Threads, n_entered: int = 0) -> Points:
    """Rows as points in memory, with their coordinates and places for the centres that are entered."""
    points = Points(rows, layout.offset, np.ones(1), rows, layout.offset, layout.spherical)
    reader = SlabReader(points, layout.axes, len(rows) + n_entered, threads)
    return reader.read([slice(0, len(rows))], n_entered)


def load_labels(partition: Partition, version: int) -> NDArray[np.int32]:
    """The labels of a partition after a pass."""
    name = labels_name(version, partition.number)
    labels = np.array(partition.folder.map(name)[:, 0])
    partition.folder.drop_copy(name)
    return labels


def save_labels(partition: Partition, version: int, labels: NDArray[np.int32]) -> None:
    """Write the labels of a partition after a pass."""
    partition.folder.save(labels_name(version, partition.number), labels[:, np.newaxis])


# -- tasks -------------------------------------------------------------------------------------------------------------


def assign_partition(partition: Partition, this_pass: Pass) -> Sums:
    """Assign the points of a partition to the best of the clusters of their neighbours, and sum them up."""
    layout = read_layout(partition.folder)
    labels = load_labels(partition, this_pass.old_labels)
    arrays, _ = partition.folder.map_tensors(CENTERS.format(this_pass.centers), "centers")
    entered = centers_near(arrays, layout, partition.number)
    touched, places = find_touched(labels, entered, len(arrays["sizes"]))
    with Threads(1) as threads:
        clusters = read_clusters(partition.folder, arrays, touched, this_pass, threads)
        slab = load_partition(partition, layout, threads, len(entered))
        slab.coordinates[len(labels) :] = along(arrays["centers"][entered], layout.axes)
        rng = np.random.default_rng([this_pass.seed, partition.number])
        leaves = grow_leaves(slab.coordinates, slab.origin, this_pass.leaf_size, rng, threads)
        old = places[np.concatenate([labels, entered])]
        new, n_pairs = assign_by_closures(slab, clusters, old, [leaves], this_pass.rule, threads)
        new = new[: len(labels)]
        found = sum_up(slab, new, touched, threads)
    n_active = int(np.count_nonzero(new != old[: len(labels)]))
    labels = touched[new]
    save_labels(partition, this_pass.new_labels, labels)
    return Sums(*found, watched(labels, layout, partition.number), n_active, n_pairs)


def start_partition(partition: Partition, this_pass: Pass) -> Sums:
    """Assign the points of a partition to the nearest of the centres near it, and sum them up."""
    layout = read_layout(partition.folder)
    arrays, _ = partition.folder.map_tensors(START, "start")
    near = centers_near(arrays, layout, partition.number)
    with Threads(1) as threads:
        slab = load_partition(partition, layout, threads)
        new, _ = nearest_centers(as_numbers(slab.rows), arrays["centers"][near], layout.offset, threads)
        found = sum_up(slab, new, near, threads)
    labels = near[new]
    save_labels(partition, this_pass.new_labels, labels)
    return Sums(*found, watched(labels, layout, partition.number), len(labels), 0)


def split_partition(partition: Partition, this_pass: Pass) -> Sums:
    """Give points to clusters that have none: clusters are joined with others, or split by a plane through the centre.

    The plane is that of a random direction, so that all partitions agree on it. Returns the sums of the clusters that
    were split and of those that got points.
    """
    layout = read_layout(partition.folder)
    labels = load_labels(partition, this_pass.old_labels)
    arrays, facts = partition.folder.map_tensors(SPLIT.format(this_pass.new_labels), "split")
    joined = np.arange(facts["n_clusters"], dtype=np.int32)
    joined[arrays["joined"]] = arrays["join_to"]
    place_of = np.full(facts["n_clusters"], -1, np.int32)
    place_of[arrays["donors"]] = np.arange(len(arrays["donors"]), dtype=np.int32)
    new = joined[labels]
    direction = np.random.default_rng(this_pass.seed).normal(size=len(layout.offset))
    with Threads(1) as threads:
        slab = load_partition(partition, layout, threads)
        center_heights = heights(arrays["centers"].astype(np.float64), direction)
        for some in blocks_of(len(new), rows_per_block(slab.rows)):
            donors = place_of[new[some]]
            rows = shifted(as_numbers(slab.rows[some]), layout.offset).astype(np.float64)
            above = heights(rows, direction) > center_heights[donors]
            new[some] = np.where((donors >= 0) & above, arrays["empty"][donors], new[some])
        changed = np.union1d(arrays["donors"], arrays["empty"]).astype(np.int32)
        members = np.flatnonzero(np.isin(new, changed))
        part = slab._replace(rows=slab.rows[members], coordinates=slab.coordinates[members])
        found = sum_up(part, np.searchsorted(changed, new[members]).astype(np.int32), changed, threads)
    save_labels(partition, this_pass.new_labels, new)
    n_active = int(np.count_nonzero(new != labels))
    return Sums(*found, watched(new, layout, partition.number), n_active, 0)


def find_near(partition: Partition, name: str, n_centers: int) -> Near:
    """Which centres are near which partitions, given a file of the centres' coordinates.

    A centre is near the partitions of the pieces that are nearest to it, and so is the nearest centre of a piece. Each
    task looks at an equal part of the centres, and at the pieces of its own partition; of all centres only a block is
    in memory.
    """
    folder, number = partition
    layout = read_layout(folder)
    size = BLOCK_CENTERS * -(-n_centers // (BLOCK_CENTERS * (len(layout.starts) - 1)))
    first, last = (min(place * size, n_centers) for place in (number, number + 1))
    own_pieces = layout.pieces[layout.partition_of == number]
    nearest, distances = np.zeros(len(own_pieces), np.int32), np.full(len(own_pieces), np.inf)
    with Threads(1) as threads:
        pieces = nearest_pieces(layout.pieces, np.array(folder.read(name, first, last)), threads, PIECES_ENTERED)
        for block in blocks_of(n_centers, CENTERS_READ):
            some = np.array(folder.read(name, block.start, block.stop))
            found, to_found = nearest_centers(own_pieces, some, np.zeros_like(some[0]), threads)
            nearest = np.where(to_found < distances, block.start + found, nearest)
            distances = np.minimum(to_found, distances)
    partitions = np.sort(layout.partition_of[pieces], axis=1)
    is_new = np.diff(partitions, axis=1, prepend=-1) != 0
    centers = first + np.nonzero(is_new)[0]
    return Near(centers.astype(np.int32), partitions[is_new], nearest.astype(np.int32))


def sums_bytes(n_clusters: float, width: int) -> float:
    """Bytes of the sums of so many clusters: of the rows, of their weights and of their squares; and their ids."""
    return n_clusters * (8 * width + 8 + 8 + 4)


def merge_sums(several: list[Sums]) -> Sums:
    """The sums of several partitions, added in their order."""
    ids = np.unique(np.concatenate([sums.ids for sums in several]))
    totals = no_totals(len(ids), several[0].totals.sums.shape[1])
    for sums in several:
        add_sums(totals, sums, np.searchsorted(ids, sums.ids))
    return Sums(
        ids,
        totals,
        np.concatenate([sums.watched for sums in several]),
        sum(sums.n_active for sums in several),
        sum(sums.n_pairs for sums in several),
    )


def add_sums(totals: Totals, sums: Sums, places: NDArray[Any]) -> None:
    """Add the sums of some clusters, which are all different, at their places."""
    for total, part in zip(totals, sums.totals, strict=True):
        total[places] += part


# -- what tasks share --------------------------------------------------------------------------------------------------


def centers_near(arrays: dict[str, NDArray[Any]], layout: Layout, number: int) -> NDArray[np.int32]:
    """The centres that are near a partition, in ascending order."""
    first, last = arrays["near_starts"][number : number + 2].tolist()
    return np.union1d(arrays["near"][first:last], arrays["nearest"][layout.partition_of == number])


def find_touched(
    labels: NDArray[np.int32], entered: NDArray[np.int32], n_clusters: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Clusters with points in or centres near a partition, ascending, and the index of every cluster among them."""
    is_touched = np.zeros(n_clusters, np.bool_)
    is_touched[labels] = is_touched[entered] = True
    touched = np.flatnonzero(is_touched).astype(np.int32)
    places = np.empty(n_clusters, np.int32)
    places[touched] = np.arange(len(touched), dtype=np.int32)
    return touched, places


def read_clusters(
    folder: SharedFolder, arrays: dict[str, NDArray[Any]], touched: NDArray[np.int32], this_pass: Pass, threads: Threads
) -> Clusters:
    """Some clusters, with their present or with extrapolated centres."""
    clusters = Clusters(*(arrays[name][touched] for name in Clusters._fields))
    if this_pass.rule.ahead:
        before, _ = folder.map_tensors(CENTERS.format(this_pass.centers - 1), "centers")
        n_points = clusters.sizes.sum()  # all rows weigh the same
        clusters = extrapolate(clusters, before["centers"][touched], n_points, np.empty_like(clusters.centers), threads)
    folder.drop_copy(CENTERS.format(this_pass.centers - 2))
    return clusters


def sum_up(
    points: Points, places: NDArray[np.int32], ids: NDArray[np.int32], threads: Threads
) -> tuple[NDArray[np.int32], Totals]:
    """The clusters that have points, and their sums; ``places`` says which of ``ids`` the cluster of a point is."""
    totals = no_totals(len(ids), len(points.offset))
    add_points(points, places, totals, threads)
    some = totals.sizes > 0
    return ids[some], Totals(*(total[some] for total in totals))


def watched(labels: NDArray[np.int32], layout: Layout, number: int) -> NDArray[np.int32]:
    """The labels of the points that are watched."""
    return labels[spread(int(layout.starts[number]), layout.stride)]


def spread(start: int, stride: int) -> slice:
    """Indices, among rows from ``start`` on, of those whose numbers are multiples of ``stride``."""
    return slice(-start % stride, None, stride)
