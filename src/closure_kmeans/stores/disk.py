"""Rows on disk: larger than memory, read in slabs.

A pass reads slabs that fit in memory, one after the other, and grows its trees inside a slab. A slab is some
neighbouring pieces of the file: a fresh tree over the pieces, cut at as many leaves as there are slabs, is the upper
part of the trees of the pass, so that the borders differ from pass to pass. Clusters reach across borders: the centres
near a slab are entered into its trees as points, and are candidates in the leaves that they fall into.

In memory are the labels, the centres and one slab. Sums run over the slabs in their order, and over the points of a
slab in theirs: the result is the same on any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.balance import admit
from closure_kmeans.clusters import Clusters, group_by_label
from closure_kmeans.iteration import Clustering
from closure_kmeans.method import Method
from closure_kmeans.nearest import SAMPLE_ROWS
from closure_kmeans.parallel import Threads
from closure_kmeans.points import as_numbers, forget, rows_per_block
from closure_kmeans.refill import refill_empty
from closure_kmeans.stores import Assigned, Rule
from closure_kmeans.stores.layout import (
    WIDENED_VALUES,
    SlabReader,
    along,
    blocks_of,
    count_pieces,
    count_slab_points,
    cut_into_pieces,
    lay_out,
    look_at_sample,
    nearest_pieces,
    on_disk,
    places_of,
    sample_of,
)
from closure_kmeans.stores.memory import LocalState, LocalStore, assign_by_closures
from closure_kmeans.stores.totals import Totals, add_points, means_of, no_totals
from closure_kmeans.trees import (
    Neighborhoods,
    RandomPartition,
    cut_evenly,
    fresh_neighborhoods,
    grow_leaves,
    grow_partition,
)
from closure_kmeans.vectors.rows import Rows


class SlabPartition(NamedTuple):
    """A random partition that is grown slab by slab, deterministically from its seed."""

    slabs: RandomPartition  # of the pieces
    leaf_size: int
    seed: int
    open_to_all: bool = False


class Slab(NamedTuple):
    """Pieces that are in memory together."""

    pieces: list[slice]  # of the file
    entered: NDArray[np.int32]  # the clusters whose centres are near

    @property
    def n_points(self) -> int:
        """The points in the pieces."""
        return sum(piece.stop - piece.start for piece in self.pieces)


class DiskStore(LocalStore[SlabPartition]):
    """Rows on disk: ``X`` is laid out in a temporary file; a fit takes ``memory`` bytes beyond the centres."""

    def __init__(
        self,
        X: Rows,
        weights: NDArray[Any],
        n_clusters: int,
        *,
        memory: int,
        tree_dims: int | None,
        spherical: bool,
        look_back: bool,
        rng: np.random.Generator,
        threads: Threads,
    ) -> None:
        weighted = len(weights) > 1
        self.slab_size = count_slab_points(X, memory, tree_dims, spherical=spherical, weighted=weighted)
        plan = look_at_sample(X, self.slab_size, tree_dims, spherical, rng, threads)
        points, order = lay_out(X, weights, plan, self.slab_size, threads)
        super().__init__(points, order, n_clusters, look_back=look_back, rng=rng, threads=threads)
        self.axes = plan.axes
        self._tree_labels = self._refine()
        if weighted:
            stored = on_disk((self.n_points,), np.float64)
            for slab in blocks_of(self.n_points, self.slab_size):
                stored[slab] = weights[order[slab]]
            self.points = points._replace(weights=stored)
        self.sample = sample_of(X, SAMPLE_ROWS, spherical)  # X is not read again

    def _refine(self) -> NDArray[np.int32]:
        """Order each slab by a tree of its own, whose leaves are the first clusters, and cut the file into pieces."""
        rows = self.points.rows
        n_slabs = -(-self.n_points // self.slab_size)
        borders, first_labels = cut_evenly(self.n_points, n_slabs), cut_evenly(self.n_clusters, n_slabs)
        labels = np.empty(self.n_points, np.int32)
        reader = SlabReader(self.points, self.axes, self.slab_size, self.threads)
        middles, starts = [], [np.zeros(1, np.int64)]
        for i, (first, last) in enumerate(pairwise(borders.tolist())):
            label, next_label = first_labels[i : i + 2].tolist()
            slab = reader.read([slice(first, last)])
            n_leaves = min(max(1, next_label - label), last - first)
            tree = grow_partition(slab.coordinates, slab.origin, n_leaves, self.rng, self.threads)
            labels[first:last] = label + np.repeat(np.arange(n_leaves, dtype=np.int32), np.diff(tree.starts))
            for block in blocks_of(last - first, rows_per_block(rows, WIDENED_VALUES)):
                rows[first + block.start : first + block.stop] = slab.rows[tree.members[block]]
            self.order[first:last] = self.order[first:last][tree.members]
            cuts, found = cut_into_pieces(slab.coordinates, tree.members, count_pieces(n_slabs))
            middles.append(found)
            starts.append(first + cuts[1:])
            forget(rows)
        self.pieces, self.piece_starts = np.concatenate(middles), np.concatenate(starts)
        return labels

    def tree_labels(self) -> NDArray[np.int32]:
        """The leaves of the first tree as clusters (section 4.3)."""
        return self._tree_labels

    def blocks(self) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield slices of points, and their rows, slab by slab."""
        for slab in blocks_of(self.n_points, self.slab_size):
            yield slab, as_numbers(self.points.rows[slab])
            forget(self.points.rows)

    def begin(self, labels: NDArray[np.int32]) -> LocalState:
        """The state of given labels, which change where a cluster has no points."""
        totals = no_totals(self.n_clusters, self.points.rows.shape[1])
        reader = SlabReader(self.points, self.axes, self.slab_size, self.threads)
        for slab in blocks_of(self.n_points, self.slab_size):
            points = reader.read([slab])
            add_points(points, labels[slab], totals, self.threads)
        del reader, points
        return Clustering(labels, self._clusters_of(labels, totals, None))

    def neighborhoods(self, method: Method, target_accuracy: float, *, from_tree: bool) -> Neighborhoods[SlabPartition]:
        """One new partition in every iteration, with leaves within a slab."""
        return fresh_neighborhoods(
            self.grow, self.n_points, self.n_clusters, method, target_accuracy, largest=self.slab_size
        )

    def grow(self, leaf_size: int) -> SlabPartition:
        """A random partition of the points: first of the pieces into slabs."""
        pieces_per_slab = max(1, self.slab_size // int(np.diff(self.piece_starts).max()))
        n_slabs = -(-len(self.pieces) // pieces_per_slab)
        tree = grow_partition(self.pieces, np.zeros_like(self.pieces[0]), n_slabs, self.rng, self.threads)
        return SlabPartition(tree, leaf_size, int(self.rng.integers(2**63)))

    def assign(self, state: LocalState, leaves: list[SlabPartition], rule: Rule) -> Assigned[NDArray[np.int32]]:
        """Assign and sum up the points slab by slab, then update the clusters."""
        (partition,) = leaves
        clusters, labels = self.target(state, rule), state.labels
        center_coordinates = along(clusters.centers, self.axes)
        near = nearest_pieces(self.pieces, center_coordinates, self.threads)
        slabs = list_slabs(self.piece_starts, partition.slabs, near)
        largest = max(slab.n_points + len(slab.entered) for slab in slabs)
        reader = SlabReader(self.points, self.axes, largest, self.threads)
        new_labels = np.empty_like(labels)
        totals = no_totals(*clusters.centers.shape)
        sizes = clusters.sizes.copy()
        n_pairs = 0
        for number, slab in enumerate(slabs):
            size = slab.n_points
            points = reader.read(slab.pieces, len(slab.entered))
            points.coordinates[size:] = center_coordinates[slab.entered]
            rng = np.random.default_rng([partition.seed, number])
            grown = grow_leaves(points.coordinates, points.origin, partition.leaf_size, rng, self.threads)
            old = np.concatenate([*(labels[piece] for piece in slab.pieces), slab.entered])
            new, n_tested = assign_by_closures(points, clusters, old, [grown], rule, self.threads)
            if rule.max_size < np.inf:
                admit(old[:size], new[:size], points.weights[:size], sizes, rule.max_size)
            for piece, place in places_of(slab.pieces):
                new_labels[piece] = new[place]
            n_pairs += n_tested
            add_points(points, new[:size], totals, self.threads)
        del reader, points
        updated = self._clusters_of(new_labels, totals, self.buffers.next)
        return Assigned(new_labels, int(np.count_nonzero(new_labels != labels)), n_pairs, updated)

    def _clusters_of(self, labels: NDArray[np.int32], totals: Totals, out: NDArray[Any] | None) -> Clusters:
        """The clusters of given sums, none of them empty; ``labels`` change accordingly."""
        clusters = means_of(self.points, totals, self.threads, out)
        refill_empty(self.points, labels, clusters, group_by_label(labels, self.n_clusters))
        forget(self.points.rows)
        return clusters


def list_slabs(piece_starts: NDArray[np.int64], slabs: RandomPartition, near: NDArray[np.int32]) -> list[Slab]:
    """The slabs of a pass, given the pieces that each centre is near."""
    listed = []
    for first, last in pairwise(slabs.starts.tolist()):
        pieces = np.sort(slabs.members[first:last])
        places = [slice(*piece_starts[piece : piece + 2].tolist()) for piece in pieces]
        listed.append(Slab(places, np.flatnonzero(np.isin(near, pieces).any(axis=1)).astype(np.int32)))
    return listed
