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
from closure_kmeans.arrays import largest
from closure_kmeans.centers import CenterBuffers
from closure_kmeans.checkpoint import check_environment, check_identity
from closure_kmeans.clusters import Clusters, are_copies, group_by_label, move_onto_sphere
from closure_kmeans.distributed.cluster import Cluster
from closure_kmeans.distributed.files import SharedFolder
from closure_kmeans.distributed.layout import order_name
from closure_kmeans.distributed.passes import (
    START,
    Layout,
    Partition,
    Pass,
    Sums,
    add_sums,
    assign_partition,
    centers_name,
    find_near,
    load_labels,
    merge_sums,
    split_name,
    split_partition,
    start_partition,
    sums_bytes,
)
from closure_kmeans.files import reading
from closure_kmeans.iteration import Clustering, Iteration
from closure_kmeans.method import Method
from closure_kmeans.nearest import sample_accuracy
from closure_kmeans.neighborhoods import Neighborhoods, fresh_neighborhoods
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points, as_numbers, hash_rows
from closure_kmeans.stores import Assigned, Rule
from closure_kmeans.stores.layout import along, forget, on_disk
from closure_kmeans.stores.totals import Totals, means_of, no_totals

# Lloyd's rule, which the start follows.
PLAIN = Rule()
# Times that a random plane may fail to split a cluster.
MOST_SPLITS = 50
# Tasks merge sums until this many are left for the driver, or more if they would be larger than MERGED_BYTES: a worker
# then holds only a small part of the sums of all clusters.
FEWEST_MERGED, MERGED_BYTES = 16, 1 << 26


class StoredLabels(NamedTuple):
    """Labels of all points in files."""

    version: int  # of the files
    watched: NDArray[np.int32]  # labels of the sample of points


class FreshLeaves(NamedTuple):
    """A random partition that is grown by tasks, always in the same way."""

    leaf_size: int
    seed: int
    open_to_all: bool = False


StoredState: TypeAlias = Clustering[StoredLabels]


class DaskStore:
    """Rows on a Dask cluster, and the files of a fit in a shared folder.

    Parameters
    ----------
    folder : SharedFolder
        The folder of all files.
    cluster : Cluster
        Runs the tasks.
    n_clusters : int
        Number of clusters.
    identity : dict
        Must be equal in this fit and one that is found in the folder.
    rng : Generator
        Takes the state of the saved fit, if there is one.
    threads : Threads
        Of the driver.

    Attributes
    ----------
    layout : Layout
        The partitions; given by ``lay_out``, or read from the folder.
    history : list of Iteration
        The iterations that were found in the folder.
    saved : str or None
        The last file of centres that was found there.
    """

    layout: Layout
    leaves: Neighborhoods[FreshLeaves]  # of this fit, whose state is saved

    def __init__(
        self,
        folder: SharedFolder,
        cluster: Cluster,
        n_clusters: int,
        identity: dict[str, Any],
        rng: np.random.Generator,
        threads: Threads,
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._n_clusters = n_clusters
        self._identity = identity
        self._environment = cluster.environment()
        self._rng = rng
        self._threads = threads
        self._iteration = 0
        self._n_passes = 0
        self._totals: Totals | None = None
        self._buffers: CenterBuffers | None = None
        self.history: list[Iteration] = []
        self.saved = max(folder.list("centers"), default=None)

    @property
    def n_points(self) -> int:
        """Number of points in all partitions."""
        return int(self.layout.starts[-1])

    @property
    def offset(self) -> NDArray[Any]:
        """The point that the centres are relative to."""
        return self.layout.offset

    @property
    def sample(self) -> NDArray[Any]:
        """Some rows, spread over the data."""
        return as_numbers(self.layout.sample)

    # -- the state -----------------------------------------------------------------------------------------------------

    def restore(self, saved: str) -> tuple[StoredState, bool]:
        """The state in a file of centres, and whether the fit had converged."""
        with reading(self._folder.fetch(saved), "centres"):
            arrays, facts = self._folder.map_tensors(saved, "centers")
            check_identity(f"'{self._folder}'", facts["identity"], self._identity)
            check_environment(
                f"the fit in '{self._folder}'", facts["environment"], self._environment, "remove it to start over"
            )
            loaded = {name: np.array(array) for name, array in arrays.items()}
            self.history = [Iteration(*record) for record in facts["history"]]
            self._rng.bit_generator.state = facts["generator"]
            self._iteration, self._n_passes = len(self.history), facts["n_passes"]
            self.leaves.restore({"leaf_size": loaded["leaf_size"]})
        clusters = Clusters(*(loaded[name] for name in Clusters._fields))
        return Clustering(StoredLabels(facts["labels"], loaded["watched"]), clusters), facts["converged"]

    def begin(self, sums: Iterable[Sums], version: int = 0) -> StoredState:
        """The first state, from the sums of the start."""
        added = self._add_up(sums)
        clusters = means_of(self._points, self._totals_of_all(), self._threads)
        labels, _ = self._fill(clusters, StoredLabels(version, added.watched))
        state = Clustering(labels, clusters)
        self.note(state, [], converged=False)
        return state

    def begin_from(self, centers: NDArray[Any]) -> StoredState:
        """The first state, from given centres; there may be fewer than clusters."""
        found = (centers - self.layout.offset).astype(self.layout.offset.dtype)
        self._folder.save_tensors(START, "start", {"centers": found, **self._find_near(found)}, {})
        return self.begin(self._pass(start_partition, 0), self._n_passes)

    def note(self, state: StoredState, history: list[Iteration], converged: bool) -> None:
        """Write the centres after an iteration, and remove files of earlier iterations that are no longer needed."""
        labels = state.labels
        self._iteration = len(history)
        arrays = {
            **state.clusters._asdict(),
            **self.leaves.state(),
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
        self._folder.save_tensors(centers_name(self._iteration), "centers", arrays, facts)
        needed = {f"labels/{labels.version:06}", centers_name(self._iteration - 1), centers_name(self._iteration)}
        for kind in ("labels", "splits", "centers"):
            for name in self._folder.list(kind):
                if name not in needed:
                    self._folder.remove(name)

    def finish(self) -> None:
        """Nothing: every iteration is written at once."""

    # -- an iteration --------------------------------------------------------------------------------------------------

    def neighborhoods(
        self, method: Method, target_accuracy: float, *, from_tree: bool = False
    ) -> Neighborhoods[FreshLeaves]:
        """One new partition in every iteration."""
        return fresh_neighborhoods(self.grow, self.n_points, self._n_clusters, method, target_accuracy)

    def grow(self, leaf_size: int) -> FreshLeaves:
        """A random partition of the points into leaves of at most ``leaf_size``."""
        return FreshLeaves(leaf_size, int(self._rng.integers(2**63)))

    def assign(self, state: StoredState, leaves: list[FreshLeaves], rule: Rule) -> Assigned[StoredLabels]:
        """Have tasks assign and sum up the points, then update the clusters."""
        (partition,) = leaves
        added = self._add_up(
            self._pass(
                assign_partition, state.labels.version, rule=rule, leaf_size=partition.leaf_size, seed=partition.seed
            )
        )
        updated = means_of(self._points, self._totals_of_all(), self._threads, self._centers.next)
        filled, n_moved = self._fill(updated, StoredLabels(self._n_passes, added.watched))
        return Assigned(filled, added.n_active + n_moved, added.n_pairs, updated)

    def accept(self, state: StoredState, labels: StoredLabels, clusters: Clusters) -> StoredState:
        """The state after ``state``, from the outcome of the last assignment."""
        return self._centers.rotate(state, labels, clusters)

    @property
    def _centers(self) -> CenterBuffers:
        """Memory for the centres. Tasks read the previous ones from a file, so that no state keeps them."""
        if self._buffers is None:
            shape = self._n_clusters, len(self.offset)
            self._buffers = CenterBuffers(shape, self.offset.dtype, keep_previous=False)
        return self._buffers

    def accuracy(self, state: StoredState) -> float:
        """The share of the sample of points that are assigned to the nearest of all centres."""
        return sample_accuracy(self._points, state.clusters.centers, state.labels.watched, self._threads)

    def _pass(
        self,
        task: Callable[..., Sums],
        old_labels: int,
        *,
        rule: Rule = PLAIN,
        leaf_size: int = 0,
        seed: int = 0,
    ) -> Iterable[Sums]:
        """Run a task over all partitions; their sums, merged, in fixed order."""
        self._n_passes += 1
        this_pass = Pass(old_labels, self._n_passes, self._iteration, rule, leaf_size, seed)
        arguments = [(partition, this_pass) for partition in self._partitions()]
        n_left = count_merged(self._n_clusters, len(self.layout.offset))
        return self._cluster.merge(f"iteration {self._iteration + 1}", task, arguments, merge_sums, n_left)

    def _partitions(self) -> list[Partition]:
        return [Partition(self._folder, number) for number in range(len(self.layout.starts) - 1)]

    def _add_up(self, several: Iterable[Sums]) -> Sums:
        """Add sums to those of all clusters, which begin at zero; what else they say, without the sums."""
        totals = self._totals_of_all()
        for total in totals:
            total[:] = 0
        watched, n_active, n_pairs = [], 0, 0
        for sums in several:
            add_sums(totals, sums, sums.ids)
            watched.append(sums.watched)
            n_active += sums.n_active
            n_pairs += sums.n_pairs
        return Sums(np.empty(0, np.int32), totals, np.concatenate(watched), n_active, n_pairs)

    def _totals_of_all(self) -> Totals:
        if self._totals is None:
            self._totals = no_totals(self._n_clusters, len(self.layout.offset))
        return self._totals

    @property
    def _points(self) -> Points:
        """The sample of points."""
        layout = self.layout
        return Points(layout.sample, layout.offset, np.ones(1), layout.sample, layout.offset, layout.spherical)

    def _find_near(self, centers: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """The centres near each partition, as tasks find them, partition after partition; and the nearest of pieces."""
        name = f"coordinates/{self._n_passes:06}.npy"
        self._folder.save(name, along(centers, self.layout.axes))
        arguments = [(partition, name, len(centers)) for partition in self._partitions()]
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
        totals = self._totals_of_all()
        n_moved = 0
        joined, join_to = find_copies(clusters)
        for _ in range(MOST_SPLITS):
            for total in totals:
                np.add.at(total, join_to, total[joined])
                total[joined] = 0
            self._finish(clusters, np.concatenate([joined, join_to]))
            empty = np.flatnonzero(totals.sizes == 0).astype(np.int32)
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
            self._folder.save_tensors(split_name(self._n_passes + 1), "split", split, facts)
            changed = np.concatenate([donors, empty])
            for total in totals:
                total[changed] = 0
            watched = []
            for sums in self._pass(split_partition, labels.version, seed=int(self._rng.integers(2**63))):
                add_sums(totals, sums, sums.ids)
                watched.append(sums.watched)
                n_moved += sums.n_active
            labels = StoredLabels(self._n_passes, np.concatenate(watched))
            self._finish(clusters, changed)
            joined = join_to = joined[:0]
        raise ValueError(
            "n_clusters must be at most the number of distinct rows of X, "
            f"which is {np.count_nonzero(totals.sizes)}, got {self._n_clusters}"
        )

    def _finish(self, clusters: Clusters, some: NDArray[np.int32]) -> None:
        """Compute some clusters again from their sums."""
        for cluster in np.unique(some).tolist():
            kernels.rows.finish_clusters(self._totals_of_all(), clusters, cluster, cluster + 1)
            if self.layout.spherical:
                move_onto_sphere(clusters, self.layout.offset, np.array([cluster]))

    # -- the end -------------------------------------------------------------------------------------------------------

    def user_centers(self, clusters: Clusters) -> NDArray[Any]:
        """The centres with the offset added back; the memory of the next centres is free before."""
        self._centers.release()
        centers: NDArray[Any] = clusters.centers + self.offset
        return centers

    def user_labels(self, stored: StoredLabels) -> NDArray[np.int32]:
        """The labels of all rows in the order of the user, in a temporary file that is mapped into memory."""
        labels = on_disk((self.n_points,), np.int32)
        for partition in self._partitions():
            name = order_name(partition.number)
            labels[self._folder.map(name)[:, 0]] = load_labels(partition, stored.version)
            self._folder.drop_copy(name)
            forget(labels)
        return labels


def count_merged(n_clusters: int, width: int) -> int:
    """How many sums of some clusters the driver should get, at the least."""
    return max(FEWEST_MERGED, math.ceil(sums_bytes(n_clusters, width) / MERGED_BYTES))


def find_copies(clusters: Clusters) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Clusters of copies of a row that another cluster has too, and the first cluster that has them.

    The mean of copies is the row itself, exactly: sums in double precision hold any number of times a float32.
    """
    pure = np.flatnonzero(are_copies(clusters) & (clusters.sizes > 0)).astype(np.int32)
    _, first, group = np.unique(hash_rows(clusters.centers[pure]), return_index=True, return_inverse=True)
    example = pure[first[group]]
    return pure[example != pure], example[example != pure]
