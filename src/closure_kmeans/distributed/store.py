"""Rows on a Dask cluster: tasks assign the points, and the driver adds up their sums and writes the centres.

The file of centres that is written after every iteration holds the whole state: tasks read it, and a fit that was
killed resumes from the last one. The driver holds the centres of all clusters a few times, and none of the points but a
sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import kernels
from closure_kmeans.checkpoint import check_environment, check_identity
from closure_kmeans.clusters import Clusters, are_copies, group_by_label, sample_accuracy
from closure_kmeans.distributed.cluster import Cluster
from closure_kmeans.distributed.files import SharedFolder
from closure_kmeans.distributed.layout import lay_out
from closure_kmeans.distributed.passes import (
    CENTERS,
    ORDER,
    SPLIT,
    START,
    Partition,
    Pass,
    Sums,
    add_sums,
    assign_partition,
    find_near,
    load_labels,
    merge_sums,
    read_layout,
    split_partition,
    start_partition,
    sums_bytes,
)
from closure_kmeans.distributed.sources import Source
from closure_kmeans.files import reading
from closure_kmeans.iteration import CenterBuffers, Clustering, Iteration
from closure_kmeans.method import Method
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points, as_numbers, forget, hash_rows, largest
from closure_kmeans.spherical import move_onto_sphere
from closure_kmeans.stores import Assigned, Rule, Store
from closure_kmeans.stores.layout import along, on_disk
from closure_kmeans.stores.totals import means_of, no_totals
from closure_kmeans.trees import Neighborhoods, fresh_neighborhoods

# Rounds of splitting clusters by random planes, which may fail.
MOST_SPLITS = 50
# Tasks merge sums until this many are left for the driver, or more if they would be larger than MERGED_BYTES: a worker
# then holds only a small part of the sums of all clusters.
FEWEST_MERGED, MERGED_BYTES = 16, 1 << 26


class StoredLabels(NamedTuple):
    """Labels of all points in files."""

    version: int  # of the files
    watched: NDArray[np.int32]  # labels of the sample of points


class FreshLeaves(NamedTuple):
    """A random partition that is grown by tasks, deterministically from its seed."""

    leaf_size: int
    seed: int
    open_to_all: bool = False


StoredState: TypeAlias = Clustering[StoredLabels]


class DaskStore(Store[StoredLabels, FreshLeaves]):
    """Rows on a Dask cluster, and the files of a fit in a shared folder.

    Parameters
    ----------
    source : Source
        The rows, which are laid out in the folder, unless there is a fit already: then ``restore`` takes it up.
    folder, cluster
        The folder of all files, and what runs the tasks.
    identity : dict
        Must be equal in this fit and one that is found in the folder.
    n_partitions : int or None
        The number of partitions, if the user gave one.
    n_clusters, tree_dims, spherical, rng, threads
        As in the other stores.
    """

    history: list[Iteration]  # of the fit that was found in the folder
    saved: str | None  # its last file of centres
    _leaves: Neighborhoods[FreshLeaves]  # of this fit, whose state is saved
    _tree_labels: StoredLabels

    def __init__(
        self,
        source: Source,
        n_clusters: int,
        *,
        folder: SharedFolder,
        cluster: Cluster,
        identity: dict[str, Any],
        n_partitions: int | None,
        tree_dims: int | None,
        spherical: bool,
        rng: np.random.Generator,
        threads: Threads,
    ) -> None:
        self._folder, self._cluster, self._n_clusters = folder, cluster, n_clusters
        self._identity, self._environment = identity, cluster.environment()
        self._rng, self._threads = rng, threads
        self._iteration = self._n_passes = 0
        self.history = []
        self.saved = max(folder.list("centers"), default=None)
        sums: list[Sums] = []
        if self.saved is not None:
            layout = read_layout(folder)
        else:
            how = n_partitions, tree_dims, spherical
            layout, sums = lay_out(source, folder, cluster, n_clusters, *how, rng=rng, threads=threads)
        self._axes = layout.axes
        self._partitions = [Partition(folder, number) for number in range(len(layout.starts) - 1)]
        rows = layout.sample
        self._points = Points(rows, layout.offset, np.ones(1), rows, layout.offset, layout.spherical)
        self.n_points, self.offset, self.sample = int(layout.starts[-1]), layout.offset, as_numbers(rows)
        shape = n_clusters, len(layout.offset)
        self._totals = no_totals(*shape)  # of the labels that were written last
        # Tasks read the previous centres from a file, so that no state keeps them.
        self.buffers = CenterBuffers(shape, layout.offset.dtype, keep_previous=False)
        if self.saved is None:
            self._tree_labels, _, _ = self._add_up(sums)

    # -- the state -----------------------------------------------------------------------------------------------------

    def restore(self, saved: str, *, anyway: bool) -> tuple[StoredState, bool]:
        """The state in a file of centres, and whether the fit had converged; ``anyway`` in another environment, too."""
        with reading(self._folder.fetch(saved), "centres"):
            arrays, facts = self._folder.map_tensors(saved, "centers")
            check_identity(f"'{self._folder}'", facts["identity"], self._identity)
            what = f"the fit in '{self._folder}'"
            own = self._environment
            check_environment(what, facts["environment"], own, "remove it to start over", anyway=anyway)
            loaded = {name: np.array(array) for name, array in arrays.items()}
            self.history = [Iteration(*record) for record in facts["history"]]
            self._rng.bit_generator.state = facts["generator"]
            self._iteration, self._n_passes = len(self.history), facts["n_passes"]
            self._leaves.restore({"leaf_size": loaded["leaf_size"]})
        clusters = Clusters(*(loaded[name] for name in Clusters._fields))
        return Clustering(StoredLabels(facts["labels"], loaded["watched"]), clusters), facts["converged"]

    def tree_labels(self) -> StoredLabels:
        """The leaves of the trees of all partitions as clusters, as they were laid out."""
        return self._tree_labels

    def nearest_labels(self, centers: NDArray[Any]) -> StoredLabels:
        """The nearest of given centres, of which there may be fewer than clusters."""
        found = (centers - self.offset).astype(self.offset.dtype)
        self._folder.save_tensors(START, "start", {"centers": found, **self._find_near(found)}, {})
        self._clear(slice(None))
        labels, _, _ = self._pass(start_partition, 0)
        return labels

    def begin(self, labels: StoredLabels) -> StoredState:
        """The state of the labels that were written last; new ones are written if a cluster has no points."""
        clusters = means_of(self._points, self._totals, self._threads)
        labels, _ = self._fill(clusters, labels)
        state = Clustering(labels, clusters)
        self.note(state, [], converged=False)
        return state

    def note(self, state: StoredState, history: list[Iteration], converged: bool) -> None:
        """Write the centres after an iteration, and remove files of earlier iterations that are no longer needed."""
        labels = state.labels
        self._iteration = len(history)
        arrays = {
            **state.clusters._asdict(),
            **self._leaves.state(),
            **self._find_near(state.clusters.centers),
            "watched": labels.watched,
        }
        facts = {
            "identity": self._identity,
            "environment": self._environment,
            "history": history,
            "generator": dict(self._rng.bit_generator.state),
            "labels": labels.version,
            "n_passes": self._n_passes,
            "converged": converged,
        }
        self._folder.save_tensors(CENTERS.format(self._iteration), "centers", arrays, facts)
        needed = {f"labels/{labels.version:06}", CENTERS.format(self._iteration - 1), CENTERS.format(self._iteration)}
        for kind in ("labels", "splits", "centers"):
            for name in self._folder.list(kind):
                if name not in needed:
                    self._folder.remove(name)

    def finish(self) -> None:
        """Do nothing: every iteration has been written."""

    # -- an iteration --------------------------------------------------------------------------------------------------

    def neighborhoods(
        self, method: Method, target_accuracy: float, *, from_tree: bool = False
    ) -> Neighborhoods[FreshLeaves]:
        """One new partition in every iteration."""
        self._leaves = fresh_neighborhoods(self.grow, self.n_points, self._n_clusters, method, target_accuracy)
        return self._leaves

    def grow(self, leaf_size: int) -> FreshLeaves:
        """A random partition of the points into leaves of at most ``leaf_size``."""
        return FreshLeaves(leaf_size, int(self._rng.integers(2**63)))

    def assign(self, state: StoredState, leaves: list[FreshLeaves], rule: Rule) -> Assigned[StoredLabels]:
        """Have tasks assign and sum up the points, then update the clusters."""
        (partition,) = leaves
        self._clear(slice(None))
        labels, n_active, n_pairs = self._pass(
            assign_partition, state.labels.version, rule=rule, leaf_size=partition.leaf_size, seed=partition.seed
        )
        updated = means_of(self._points, self._totals, self._threads, self.buffers.next)
        labels, n_moved = self._fill(updated, labels)
        return Assigned(labels, n_active + n_moved, n_pairs, updated)

    def accuracy(self, state: StoredState) -> float:
        """The share of the sample of points that are assigned to the nearest of all centres."""
        return sample_accuracy(self._points, state.clusters.centers, state.labels.watched, self._threads)

    def _pass(self, task: Callable[..., Sums], old_labels: int, **settings: Any) -> tuple[StoredLabels, int, int]:
        """Run a task over all partitions with the settings of a pass, and add up their sums, merged in fixed order."""
        self._n_passes += 1
        this_pass = Pass(old_labels, self._n_passes, self._iteration, **settings)
        arguments = [(partition, this_pass) for partition in self._partitions]
        n_left = count_merged(self._n_clusters, len(self.offset))
        return self._add_up(
            self._cluster.merge(f"iteration {self._iteration + 1}", task, arguments, merge_sums, n_left)
        )

    def _add_up(self, several: Iterable[Sums]) -> tuple[StoredLabels, int, int]:
        """Add sums to those of all clusters; the labels of the last pass, moved points and tested pairs."""
        watched, n_active, n_pairs = [], 0, 0
        for sums in several:
            add_sums(self._totals, sums, sums.ids)
            watched.append(sums.watched)
            n_active += sums.n_active
            n_pairs += sums.n_pairs
        return StoredLabels(self._n_passes, np.concatenate(watched)), n_active, n_pairs

    def _clear(self, some: slice | NDArray[np.int32]) -> None:
        """Set the sums of some clusters to zero."""
        for total in self._totals:
            total[some] = 0

    def _find_near(self, centers: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """The centres near each partition, as tasks find them, partition after partition; and the nearest of pieces."""
        name = f"coordinates/{self._n_passes:06}.npy"
        self._folder.save(name, along(centers, self._axes))
        arguments = [(partition, name, len(centers)) for partition in self._partitions]
        found = list(self._cluster.run("entering the centres", find_near, arguments))
        self._folder.remove("coordinates")
        ids, partitions, nearest = (np.concatenate(parts) for parts in zip(*found, strict=True))
        members, starts = group_by_label(partitions, len(arguments))
        return {"near": ids[members], "near_starts": starts, "nearest": nearest}

    # -- empty clusters ------------------------------------------------------------------------------------------------

    def _fill(self, clusters: Clusters, labels: StoredLabels) -> tuple[StoredLabels, int]:
        """Refill clusters without points, or with copies of a row that others have too; how many points moved.

        Tasks split the clusters of largest error in two.
        """
        n_moved = 0
        joined, join_to = find_copies(clusters)
        for _ in range(MOST_SPLITS):
            for total in self._totals:
                np.add.at(total, join_to, total[joined])
            self._clear(joined)
            self._finish(clusters, np.concatenate([joined, join_to]))
            empty = np.flatnonzero(self._totals.sizes == 0).astype(np.int32)
            if len(empty) == 0:
                return labels, n_moved
            divisible = np.flatnonzero((clusters.sizes > 1) & ~are_copies(clusters)).astype(np.int32)
            donors = divisible[largest(clusters.errors[divisible], len(empty))]
            if len(donors) == 0:
                break
            empty = empty[: len(donors)]
            split = {"joined": joined, "join_to": join_to, "donors": donors, "empty": empty}
            split["centers"] = clusters.centers[donors]
            facts = {"n_clusters": self._n_clusters}
            self._folder.save_tensors(SPLIT.format(self._n_passes + 1), "split", split, facts)
            changed = np.concatenate([donors, empty])
            self._clear(changed)
            labels, n_active, _ = self._pass(split_partition, labels.version, seed=int(self._rng.integers(2**63)))
            n_moved += n_active
            self._finish(clusters, changed)
            joined = join_to = joined[:0]
        raise ValueError(
            "n_clusters must be at most the number of distinct rows of X, "
            f"which is {np.count_nonzero(self._totals.sizes)}, got {self._n_clusters}"
        )

    def _finish(self, clusters: Clusters, some: NDArray[np.int32]) -> None:
        """Compute some clusters again from their sums."""
        for cluster in np.unique(some).tolist():
            kernels.rows.finish_clusters(self._totals, clusters, cluster, cluster + 1)
            if self._points.spherical:
                move_onto_sphere(clusters, self.offset, np.array([cluster]))

    # -- the end -------------------------------------------------------------------------------------------------------

    def user_labels(self, stored: StoredLabels) -> NDArray[np.int32]:
        """The labels of all rows in the order of the user, in a temporary file that is mapped into memory."""
        labels = on_disk((self.n_points,), np.int32)
        for partition in self._partitions:
            name = ORDER.format(partition.number)
            labels[self._folder.map(name)[:, 0]] = load_labels(partition, stored.version)
            self._folder.drop_copy(name)
            forget(labels)
        return labels


def count_merged(n_clusters: int, width: int) -> int:
    """Number of merged sums that the driver should receive, at least."""
    return max(FEWEST_MERGED, math.ceil(sums_bytes(n_clusters, width) / MERGED_BYTES))


def find_copies(clusters: Clusters) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Clusters of copies of a row that another cluster has too, and the first cluster that has them.

    The mean of copies is the row itself, exactly: sums in double precision hold any number of times a float32.
    """
    pure = np.flatnonzero(are_copies(clusters) & (clusters.sizes > 0)).astype(np.int32)
    _, first, group = np.unique(hash_rows(clusters.centers[pure]), return_index=True, return_inverse=True)
    example = pure[first[group]]
    return pure[example != pure], example[example != pure]
