"""Jinja templates, and numbers as texts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

# Numbers that are read have fewer digits than this.
MOST_DIGITS = 19


def render(template: str, /, **context: Any) -> Markup:
    """Render a template of pages, reports, notebooks or charts; all values are escaped."""
    return Markup(ENVIRONMENT.get_template(template).render(context))


def count(value: float) -> str:
    """Format a count."""
    return f"{value:,.0f}"


def rounded(value: float) -> str:
    """Format a distance or another approximate number with four significant digits, keeping trailing zeros."""
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value:#.4g}"


def percent(value: float) -> str:
    """Format a fraction; rounding errors become 0."""
    return f"{100 * value:.0f} %" if value >= 0.0995 or value < 1e-9 else f"{100 * value:.2g} %"


def compact(value: float) -> str:
    """Format a number briefly."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def whole_number(text: str) -> int | None:
    """Read a number in ASCII digits; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < MOST_DIGITS else None


def plural(number: float, noun: str) -> str:
    """Format a count with its noun."""
    return f"{count(number)} {noun if number == 1 else noun + 's'}"


def pages(page: int, n_pages: int) -> list[int | None]:
    """Page numbers to link: the first, the last and the neighbours of this one; None for a gap."""
    shown = sorted({1, n_pages, *range(max(1, page - 2), min(n_pages, page + 2) + 1)})
    offered: list[int | None] = []
    for before, number in pairwise([0, *shown]):
        offered += [number] if number == before + 1 else [None, number]
    return offered


ENVIRONMENT = Environment(
    loader=PackageLoader("closure_kmeans.explorer"), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
ENVIRONMENT.filters |= {"count": count, "rounded": rounded, "percent": percent, "compact": compact}
ENVIRONMENT.globals |= {"plural": plural, "pages": pages, "zip": zip}
