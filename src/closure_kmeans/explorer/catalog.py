"""Catalog: the clusters of a model and their items, as the pages need them.

Arrays over clusters or items are computed once; a page reads a few of their rows. Missing data (vectors, labels,
pictures) is ``None``, and the pages omit it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.arrays import squares_to
from closure_kmeans.explorer.rendering import whole_number
from closure_kmeans.export import list_members
from closure_kmeans.points import check_uncut, largest
from closure_kmeans.spherical import unit_rows
from closure_kmeans.trees import DATA_SAMPLE, principal_axes

if TYPE_CHECKING:
    from closure_kmeans.estimator import BaseKMeans
    from closure_kmeans.explorer.metadata import Metadata
    from closure_kmeans.explorer.pictures import Pictures
    from closure_kmeans.vectors import Vectors

# Limits of ``similar``: candidate items, and clusters that they come from.
MOST_CANDIDATES, CANDIDATE_CLUSTERS = 4000, 8
# Fraction of the centres outside each edge of the map, so that outliers do not shrink the rest.
BEYOND = 0.002


class Measure(NamedTuple):
    """Quantity by which clusters are sorted, with names for its ends."""

    name: str
    values: str  # attribute of Catalog
    most: str = "largest"
    least: str = "smallest"
    needs_distances: bool = False

    def first(self, *, descending: bool) -> str:
        """Description of the end that comes first."""
        return f"{self.most if descending else self.least} first"


MEASURES = {
    "size": Measure("Size", "sizes"),
    "spread": Measure("Tightness", "spreads", "loosest", "tightest", needs_distances=True),
    "share": Measure("Distortion", "shares", needs_distances=True),
    "neighbor": Measure("Neighbour", "separations", "farthest", "nearest"),
    "number": Measure("Number", "numbers", "last", "first"),
}


class Neighbor(NamedTuple):
    """Neighbouring cluster and its distance."""

    cluster: int
    distance: float


class Standing(NamedTuple):
    """Distances of an item to the centre of its own cluster and to the nearest other centre."""

    own: Neighbor
    second: Neighbor | None  # None if there is one cluster

    @property
    def ratio(self) -> float | None:
        """Distance ratio (section 3.1): 0 on the border to the second cluster, 1 at the own centre."""
        if self.second is None or self.second.distance == 0:
            return None
        return 1 - self.own.distance / self.second.distance


class Catalog:
    """Clusters of a model and their items.

    Parameters
    ----------
    model : fitted estimator
        Model whose clusters are shown.
    rows : (n, d) array or Vectors, optional
        Vectors of the items.
    labels : (n,) array, optional
        Cluster of each item.
    squares : (n,) array, optional
        Squared distance of each item to its centre.
    pictures : Pictures, optional
        Pictures of the items.
    metadata : Metadata, optional
        Texts about the items.
    """

    def __init__(
        self,
        model: BaseKMeans,
        rows: NDArray[Any] | Vectors | None = None,
        *,
        labels: NDArray[np.int32] | None = None,
        squares: NDArray[np.float64] | None = None,
        pictures: Pictures | None = None,
        metadata: Metadata | None = None,
    ) -> None:
        self.model = model
        self.centers = np.asarray(model.cluster_centers_)
        self.rows, self.labels, self.squares = rows, labels, squares
        self.pictures, self.metadata = pictures, metadata
        self.n_clusters, self.n_features = self.centers.shape
        self.n_items = 0 if labels is None else len(labels)
        for name, part in (("vectors", rows), ("distances", squares), ("pictures", pictures), ("metadata", metadata)):
            if part is not None and len(part) != self.n_items:
                raise ValueError(f"{name} must have one entry for each of {self.n_items} items, got {len(part)}")
        self.numbers = np.arange(self.n_clusters)
        self.sizes = np.asarray(model.cluster_sizes_)
        self.spreads: NDArray[np.float64] | None = None  # RMS distance to the centre
        self.shares: NDArray[np.float64] | None = None  # fraction of the distortion
        if labels is not None:
            members, self._starts = list_members(labels, self.n_clusters)
            self._members = members.astype(np.int64)
            self.sizes = np.diff(self._starts)
        if labels is not None and squares is not None:
            self._members = np.lexsort((squares, labels))  # nearest first
            errors = np.bincount(labels, squares, self.n_clusters)
            self.shares = errors / max(errors.sum(), np.finfo(float).tiny)
            self.spreads = np.sqrt(errors / np.maximum(self.sizes, 1))
        self._ascending: dict[str, NDArray[np.int64]] = {}

    def prepare(self) -> None:
        """Precompute everything that the first request would wait for."""
        for measure in self.measures:
            self._sorted(measure)
        self.model.center_index_.prepare()
        _ = self.positions

    # -- clusters ------------------------------------------------------------------------------------------------------

    @cached_property
    def separations(self) -> NDArray[np.float64]:
        """(k,) Distance from each centre to the nearest other centre; approximate for many centres."""
        return self.model.center_index_.separations()

    @cached_property
    def positions(self) -> NDArray[np.float32]:
        """(k, 2) Positions of the centres on the map, from 0 to 1."""
        return map_positions(self.centers)

    @property
    def measures(self) -> list[str]:
        """Measures that are known."""
        return [name for name, measure in MEASURES.items() if not (measure.needs_distances and self.squares is None)]

    def _sorted(self, measure: str) -> NDArray[np.int64]:
        """All clusters by a measure, ascending."""
        if measure not in self._ascending:
            self._ascending[measure] = np.argsort(getattr(self, MEASURES[measure].values), kind="stable")
        return self._ascending[measure]

    def find(
        self, measure: str, *, descending: bool, least: int = 0, most: int | None = None, text: str = ""
    ) -> NDArray[np.int64]:
        """Clusters within a range of sizes that match a text, sorted by a measure.

        The text is a cluster number, or occurs in the metadata of an item.
        """
        clusters = self._sorted(measure)
        sizes = np.rint(self.sizes)  # weights may be fractions; rounded as in the histogram
        keep = sizes >= least
        if most is not None:
            keep &= sizes <= most
        if text:
            keep &= self._matching(text)
        found: NDArray[np.int64] = clusters[keep[clusters]]
        return found[::-1] if descending else found

    def _matching(self, text: str) -> NDArray[np.bool_]:
        matching = np.zeros(self.n_clusters, bool)
        number = whole_number(text.removeprefix("#"))
        if number is not None and number < self.n_clusters:
            matching[number] = True
        if self.metadata is not None and self.labels is not None:
            matching[self.labels[self.metadata.search(text)]] = True
        return matching

    def neighbors(self, clusters: list[int], n_neighbors: int) -> list[list[Neighbor]]:
        """Nearest other clusters of each of ``clusters``, by the distance of centres."""
        if not clusters:
            return []
        return self._nearest_others(self.centers[clusters], clusters, n_neighbors)

    def _nearest_others(self, rows: NDArray[Any], own: list[int], n_others: int) -> list[list[Neighbor]]:
        """Clusters whose centres are nearest to each row, except the row's own cluster."""
        labels, squares = self.model.several_nearest(rows, n_others + 1)
        distances = np.sqrt(squares)
        return [
            [Neighbor(*pair) for pair in zip(*near, strict=True) if pair[0] != cluster][:n_others]
            for cluster, *near in zip(own, labels.tolist(), distances.tolist(), strict=True)
        ]

    # -- items ---------------------------------------------------------------------------------------------------------

    @property
    def shows(self) -> list[str]:
        """Available ways to choose items, the best first."""
        if self.labels is None:
            return []
        return ["random", "nearest", "farthest"] if self.squares is not None else ["random", "first"]

    def members(self, cluster: int) -> NDArray[np.int64]:
        """Items of a cluster, nearest first if distances are known."""
        if self.labels is None:
            return np.empty(0, np.int64)
        return self._members[self._starts[cluster] : self._starts[cluster + 1]]

    def choose(self, cluster: int, show: str, first: int, n_items: int) -> NDArray[np.int64]:
        """Some items of a cluster, in one of the ways of ``shows``; deterministic."""
        members = self.members(cluster)
        if show == "farthest":
            members = members[::-1]
        if show == "random":
            members = np.random.default_rng(cluster).permutation(members)
        return members[first : first + n_items]

    @property
    def by_title(self) -> bool:
        """Whether items are shown by their titles: they have texts and no pictures."""
        return self.metadata is not None and self.pictures is None

    def title(self, item: int) -> str:
        """Name of an item."""
        return f"item {item}" if self.metadata is None else self.metadata.title(item)

    def cluster_of(self, item: int) -> int:
        """Cluster of an item."""
        labels: Any = self.labels  # items imply labels
        return int(labels[item])

    def row(self, item: int) -> NDArray[Any] | None:
        """Vector of an item."""
        return None if self.rows is None else self._rows_of([item])[0]

    def standing(self, item: int) -> Standing | None:
        """Standing of an item, if its vector is known."""
        if self.rows is None or self.labels is None:
            return None
        row, own = self._rows_of([item]), int(self.labels[item])
        own_distance = float(np.sqrt(self.model.squared_distances(row, [own])[0]))
        others = self._nearest_others(row, [own], 1)[0]
        return Standing(Neighbor(own, own_distance), others[0] if others else None)

    def similar(self, item: int, n_items: int) -> list[tuple[int, float]]:
        """Most similar items and their distances, among up to ``MOST_CANDIDATES`` items of the nearest clusters."""
        if self.rows is None or self.labels is None:
            return []
        row = self._rows_of([item])
        clusters, _ = self.model.several_nearest(row, CANDIDATE_CLUSTERS)
        near = dict.fromkeys([int(self.labels[item]), *clusters[0].tolist()])
        candidates = np.sort(np.concatenate(list(map(self.members, near)))[:MOST_CANDIDATES])
        candidates = candidates[candidates != item]
        rows = np.concatenate([row, self._rows_of(candidates)])
        if self.model.metric == "cosine":
            rows = unit_rows(rows)
        apart = squares_to(rows[1:], rows[0])
        nearest = largest(-apart, n_items)
        return [(int(candidates[i]), float(np.sqrt(apart[i]))) for i in nearest if np.isfinite(apart[i])]

    def _rows_of(self, items: NDArray[np.int64] | list[int]) -> NDArray[Any]:
        """Rows of some items."""
        rows: Any = self.rows
        check_uncut(rows)
        if isinstance(rows, np.ndarray):
            return np.ascontiguousarray(rows[items])
        return np.concatenate([np.asarray(rows[:0]), *(rows[item : item + 1] for item in map(int, items))])


def map_positions(centers: NDArray[Any]) -> NDArray[np.float32]:
    """Project the centres onto their first two principal components, scaled to 0 to 1; outliers may exceed it."""
    sample = centers[:: -(-len(centers) // DATA_SAMPLE)]
    mean = sample.mean(axis=0)
    n_axes = min(2, *sample.shape)
    positions = np.zeros((len(centers), 2), np.float32)
    positions[:, :n_axes] = (centers - mean) @ principal_axes(sample - mean, n_axes, seed=0)
    low, high = np.quantile(positions, [BEYOND, 1 - BEYOND], axis=0)
    extent = float((high - low).max()) or 1.0
    scaled: NDArray[np.float32] = ((positions - (low + high) / 2) / extent + 0.5).astype(np.float32)
    return scaled
