"""Summary of a cluster in a list, on a page and in a report."""

from __future__ import annotations

from typing import NamedTuple

from closure_kmeans.explorer.catalog import Catalog, Neighbor
from closure_kmeans.explorer.metadata import Frequent


class Card(NamedTuple):
    """Summary of one cluster."""

    cluster: int
    size: float
    spread: float | None  # None if distances are unknown
    share: float | None
    next: Neighbor | None  # None if there is one cluster
    items: list[int]
    frequent: list[Frequent]
    typical: str | None


def make_cards(catalog: Catalog, clusters: list[int], show: str, n_items: int) -> list[Card]:
    """Cards of some clusters, each with some of its items in one of the ways of ``catalog.shows``."""
    cards = []
    for cluster, neighbors in zip(clusters, catalog.neighbors(clusters, 1), strict=True):
        members = catalog.members(cluster)
        cards.append(
            Card(
                cluster,
                size=float(catalog.sizes[cluster]),
                spread=None if catalog.spreads is None else float(catalog.spreads[cluster]),
                share=None if catalog.shares is None else float(catalog.shares[cluster]),
                next=next(iter(neighbors), None),
                items=catalog.choose(cluster, show, 0, n_items).tolist(),
                frequent=[] if catalog.metadata is None else catalog.metadata.frequent(members),
                typical=None if catalog.metadata is None else catalog.metadata.typical(members),
            )
        )
    return cards
