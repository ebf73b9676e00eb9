"""What the driver of a distributed fit does: it has tasks assign the points, adds up their sums, writes the centres.

The file of centres that it writes after every iteration is all that there is to know: tasks read it, and a fit that was
killed goes on from the last one. In memory are some times the centres of all clusters, and nothing of the points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans import kernels
from closure_kmeans.arrays import largest
from closure_kmeans.checkpoint import check_environment, check_identity
from closure_kmeans.closure import PLAIN, Reassigned, Rule, count_many, take_step
from closure_kmeans.clusters import Clusters, are_copies, move_onto_sphere
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
from closure_kmeans.iteration import Clustering, Iteration, Step
from closure_kmeans.layout import along, forget, on_disk
from closure_kmeans.neighborhoods import Neighborhoods
from closure_kmeans.parallel import Threads
from closure_kmeans.points import Points, hash_rows
from closure_kmeans.quantizer import sample_accuracy
from closure_kmeans.slabs import Totals, means_of, no_totals

# Times that a random plane may fail to split a cluster.
MOST_SPLITS = 50
# Tasks merge sums until so many are left for the driver, or more if these would have more bytes: a worker then never
# holds more than a small part of the sums of all clusters.
FEWEST_MERGED, MERGED_BYTES = 16, 1 << 26


class StoredLabels(NamedTuple):
    """What stands for the labels of all points, which are in files."""

    version: int
    watched: NDArray[np.int32]  # those of the points that are watched


class FreshLeaves(NamedTuple):
    """A random partition that tasks have yet to grow, always in the same way."""

    leaf_size: int
    seed: int
    open_to_all: bool = False


class Driver:
    """A fit in a shared folder.

    Parameters
    ----------
    folder : SharedFolder
        Where all files are.
    cluster : Cluster
        What runs the tasks.
    n_clusters : int
        Number of clusters.
    identity : dict
        What a fit must have in common with one that is found in the folder.
    rng : Generator
        Becomes that of the saved fit, if there is one.
    threads : Threads
        Of the driver.

    Attributes
    ----------
    history : list of Iteration
        The iterations that were found in the folder.
    saved : str or None
        The last file of centres that was found there.
    """

    layout: Layout
    neighborhoods: Neighborhoods

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
        self.history: list[Iteration] = []
        self.saved = max(folder.list("centers"), default=None)

    # -- the state -----------------------------------------------------------------------------------------------------

    def restore(self, saved: str) -> tuple[Clustering, bool]:
        """The fit as of a file of centres, and whether it was at its end."""
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
            self.neighborhoods.restore({"leaf_size": loaded["leaf_size"]})
        clusters = Clusters(*(loaded[name] for name in Clusters._fields))
        return Clustering(StoredLabels(facts["labels"], loaded["watched"]), clusters), facts["converged"]

    def begin(self, sums: Iterable[Sums], version: int = 0) -> Clustering:
        """The first state, from the sums of the start."""
        added = self._add_up(sums)
        clusters = means_of(self._points, self._totals_of_all(), self._threads)
        labels, _ = self._fill(clusters, StoredLabels(version, added.watched))
        state = Clustering(labels, clusters)
        self.note(state, [], converged=False)
        return state

    def begin_from(self, centers: NDArray[Any]) -> Clustering:
        """The first state, from given centres, of which there may be fewer than clusters."""
        found = (centers - self.layout.mean).astype(self.layout.mean.dtype)
        self._folder.save_tensors(START, "start", {"centers": found, **self._find_near(found)}, {})
        return self.begin(self._pass(start_partition, 0), self._n_passes)

    def note(self, state: Clustering, history: list[Iteration], converged: bool) -> None:
        """Write the centres after an iteration; what only earlier ones needed is removed."""
        labels: StoredLabels = state.labels
        self._iteration = len(history)
        arrays = {
            **state.clusters._asdict(),
            **self.neighborhoods.state(),
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
        """Everything is written already."""

    # -- an iteration --------------------------------------------------------------------------------------------------

    def step(
        self, extrapolate_from: float, hartigan: bool, tol: float, spare: list[NDArray[Any]], state: Clustering
    ) -> Step:
        """One assignment and one update; the distortion does not rise (theorem 1).

        Centres are extrapolated after so many iterations.
        """
        ahead = None if self._iteration >= extrapolate_from else state.clusters
        return take_step(
            self._points,
            state,
            lambda: ahead,
            self.neighborhoods.partitions(),
            Rule(hartigan, seed=self._iteration + 1),
            self._threads,
            spare,
            reassign=self._reassign,
            many=count_many(int(self.layout.starts[-1]), self._n_clusters),
            tol=tol,
        )

    def _reassign(
        self,
        points: Points,
        state: Clustering,
        clusters: Clusters | None,
        partitions: list[FreshLeaves],
        rule: Rule,
        threads: Threads,
        spare: list[NDArray[Any]],
        last_use: bool,
    ) -> Reassigned:
        """What ``closure.assign_and_update`` does, by tasks; they look ahead where no clusters are given."""
        (leaves,) = partitions
        added = self._add_up(
            self._pass(
                assign_partition,
                state.labels.version,
                ahead=clusters is None,
                rule=rule,
                leaf_size=leaves.leaf_size,
                seed=leaves.seed,
            )
        )
        updated = means_of(points, self._totals_of_all(), threads, spare)
        filled, n_moved = self._fill(updated, StoredLabels(self._n_passes, added.watched))
        return Reassigned(filled, added.n_active + n_moved, added.n_pairs, updated)

    def draw(self, leaf_size: int) -> Any:
        """A random partition of the points."""
        return FreshLeaves(leaf_size, int(self._rng.integers(2**63)))

    def accuracy(self, state: Clustering) -> float:
        """The share of the points that are watched whose cluster has the nearest of all centres."""
        return sample_accuracy(self._points, self._threads, state._replace(labels=state.labels.watched))

    def _pass(
        self,
        task: Callable[..., Sums],
        old_labels: int,
        *,
        ahead: bool = False,
        rule: Rule = PLAIN,
        leaf_size: int = 0,
        seed: int = 0,
    ) -> Iterable[Sums]:
        """Run a task over all partitions; their sums, merged, in fixed order."""
        self._n_passes += 1
        this_pass = Pass(old_labels, self._n_passes, self._iteration, ahead, rule, leaf_size, seed)
        arguments = [(partition, this_pass) for partition in self._partitions()]
        n_left = count_merged(self._n_clusters, len(self.layout.mean))
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
            self._totals = no_totals(self._n_clusters, len(self.layout.mean))
        return self._totals

    @property
    def _points(self) -> Points:
        """The points that are watched."""
        layout = self.layout
        return Points(layout.sample, layout.mean, np.ones(1), layout.sample, layout.mean, layout.spherical)

    def _find_near(self, centers: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """The centres near each partition, as tasks find them, partition after partition; and the nearest of cells."""
        name = f"coordinates/{self._n_passes:06}.npy"
        self._folder.save(name, along(centers, self.layout.axes))
        arguments = [(partition, name, len(centers)) for partition in self._partitions()]
        found = list(self._cluster.run("entering the centres", find_near, arguments))
        self._folder.remove("coordinates")
        ids, partitions, nearest = (np.concatenate(parts) for parts in zip(*found, strict=True))
        members, starts = kernels.group_by_label(partitions, len(arguments))
        return {"near": ids[members], "near_starts": starts, "nearest": nearest}

    # -- empty clusters ------------------------------------------------------------------------------------------------

    def _fill(self, clusters: Clusters, labels: StoredLabels) -> tuple[StoredLabels, int]:
        """Give points to clusters that have none, or only copies of a row that others have too; how many moved.

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
            kernels.finish_clusters(self._totals_of_all(), clusters, cluster, cluster + 1)
            if self.layout.spherical:
                move_onto_sphere(clusters, self.layout.mean, np.array([cluster]))

    # -- the end -------------------------------------------------------------------------------------------------------

    def labels(self, state: Clustering) -> NDArray[np.int32]:
        """The labels of all rows in the order of the user, in a temporary file that is mapped into memory."""
        labels = on_disk((int(self.layout.starts[-1]),), np.int32, None)
        for partition in self._partitions():
            name = order_name(partition.number)
            labels[self._folder.map(name)[:, 0]] = load_labels(partition, state.labels.version)
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
