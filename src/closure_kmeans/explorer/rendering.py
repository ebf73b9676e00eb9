"""Templates, and how numbers are written in them."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

STYLE = "style.css"


def make_environment() -> Environment:
    """The templates of the pages, the report and the notebook. All that is filled in is escaped."""
    environment = Environment(
        loader=PackageLoader("closure_kmeans.explorer"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"count": count, "measure": measure, "percent": percent}
    return environment


def count(value: float) -> str:
    """A number of things."""
    return f"{value:,.0f}"


def measure(value: float) -> str:
    """A distance, or another number that need not be exact: four digits, also where the last ones are zeros."""
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value:#.4g}"


def percent(value: float) -> str:
    """A share; what is left of rounding errors is none."""
    return f"{100 * value:.0f} %" if value >= 0.0995 or value < 1e-9 else f"{100 * value:.2g} %"


def plural(number: float, noun: str) -> Markup:
    """A number of things, with what they are."""
    return Markup("{} {}").format(count(number), noun if number == 1 else noun + "s")


def pages(page: int, n_pages: int) -> list[int | None]:
    """The numbers of the pages to offer: the first, the last and those around this one; None for a gap."""
    shown = sorted({1, n_pages, *range(max(1, page - 2), min(n_pages, page + 2) + 1)})
    offered: list[Any] = []
    for number in shown:
        if offered and number - offered[-1] > 1:
            offered.append(None)
        offered.append(number)
    return offered
