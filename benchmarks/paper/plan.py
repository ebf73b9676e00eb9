"""An experiment is data: a file of parameters, with a profile for each of its sizes.

A file names the curves, each a method with settings, and for every profile the panels, each a data set and a number
of clusters. Every pair of panel and curve is a run.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.job import Job, identity
from benchmarks.results import Row

Group = dict[str, Row]  # the rows of a panel, by the label of the curve

FOLDER = Path(__file__).parent / "parameters"
# In the order of the paper.
NAMES = (
    "distance-ratio",
    "coverage",
    "adaptive",
    "threads",
    "distortion",
    "nmi",
    "clusters",
    "candidates",
    "buckets",
)
PROFILES = ("quick", "full", "tiny")
# Rows on which fits are scored, the same for all: of a million, a sample shows the distortion to about 0.1 %.
SCORED_ROWS = 200_000


@dataclass(frozen=True)
class Measurement(Job):
    """A run that is more than a fit: what is measured has settings of its own."""

    settings: dict[str, Any] = field(default_factory=dict)


def measurement_identity(row: Row) -> list[Any]:
    return [*identity(row), row.get("settings")]


@dataclass(frozen=True)
class Curve:
    label: str
    method: str
    color: str
    parameters: dict[str, Any] = field(default_factory=dict)  # of the method
    settings: dict[str, Any] = field(default_factory=dict)  # of the measurement
    threads: int | None = None


@dataclass(frozen=True)
class Panel:
    data: str
    n_rows: int
    n_clusters: int

    def on_available_rows(self, source: str | None) -> Panel:
        """As many rows as there are, and clusters to keep n/k."""
        available = data.DATA_SETS[self.data].largest(source)
        if available is None or available >= self.n_rows:
            return self
        return Panel(self.data, available, max(2, self.n_clusters * available // self.n_rows))


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    section: str
    claim: str  # the paper's
    kind: str  # what is measured of each run
    curves: list[Curve]
    panels: list[Panel]
    parameters: dict[str, Any]  # of all methods
    settings: dict[str, Any]  # of all measurements
    x: list[str]  # what fits are drawn against: seconds, iterations
    source: str | None  # where the real data is

    @property
    def file_name(self) -> str:
        """The name of the results, which says where real data was missing."""
        missing = any(data.is_stand_in(panel.data, self.source) for panel in self.panels)
        return f"{self.name}-stand-in" if missing else self.name

    def curves_in(self, group: Group) -> list[Curve]:
        """The curves that have a row; a run may have failed."""
        return [curve for curve in self.curves if curve.label in group]

    def jobs(self, threads: int) -> list[Job]:
        """All runs, panel after panel."""
        return [self.job(panel, curve, threads) for panel in self.panels for curve in self.curves]

    def job(self, panel: Panel, curve: Curve, threads: int) -> Job:
        fields: dict[str, Any] = {
            "method": curve.method,
            "data": panel.data,
            "n_rows": panel.n_rows,
            "n_clusters": panel.n_clusters,
            "threads": curve.threads or threads,
            "source": self.source,
            "parameters": self.parameters | curve.parameters,
            "label": curve.label,
        }
        if self.kind in ("distortion", "nmi"):
            return Job(**fields, score_rows=SCORED_ROWS, nmi=self.kind == "nmi")
        return Measurement(**fields, settings=self.settings | curve.settings)


def read_experiment(name: str, profile: str, source: str | None) -> Experiment:
    content = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    sizes = content[profile]
    return Experiment(
        name=name,
        title=content["title"],
        section=content["section"],
        claim=content["claim"],
        kind=content["kind"],
        curves=[Curve(**curve) for curve in content["curves"]],
        panels=[Panel(**panel).on_available_rows(source) for panel in sizes["panels"]],
        parameters=content.get("parameters", {}) | sizes.get("parameters", {}),
        settings=content.get("settings", {}) | sizes.get("settings", {}),
        x=content.get("x", ["seconds"]),
        source=source,
    )
