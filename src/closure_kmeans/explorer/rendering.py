"""Jinja templates and number formats."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

STYLE = "style.css"


def make_environment() -> Environment:
    """Jinja environment for pages and reports; escapes all values."""
    environment = Environment(
        loader=PackageLoader("closure_kmeans.explorer"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"count": count, "measure": measure, "percent": percent}
    return environment


def count(value: float) -> str:
    """Format a count."""
    return f"{value:,.0f}"


def measure(value: float) -> str:
    """Format a distance or another approximate number with four significant digits, keeping trailing zeros."""
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value:#.4g}"


def percent(value: float) -> str:
    """Format a fraction; rounding errors become 0."""
    return f"{100 * value:.0f} %" if value >= 0.0995 or value < 1e-9 else f"{100 * value:.2g} %"


def plural(number: float, noun: str) -> Markup:
    """Format a count with its noun."""
    return Markup("{} {}").format(count(number), noun if number == 1 else noun + "s")


def pages(page: int, n_pages: int) -> list[int | None]:
    """Page numbers to link: the first, the last and the neighbours of this one; None for a gap."""
    shown = sorted({1, n_pages, *range(max(1, page - 2), min(n_pages, page + 2) + 1)})
    offered: list[Any] = []
    for number in shown:
        if offered and number - offered[-1] > 1:
            offered.append(None)
        offered.append(number)
    return offered
