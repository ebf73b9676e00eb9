"""Parameters in page addresses; invalid ones are answered with status 400."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from closure_kmeans.explorer.rendering import whole_number
from closure_kmeans.retrieval.evaluation import Box

MOST_LETTERS = 200


class Page(NamedTuple):
    """Page of a long list."""

    number: int
    n_pages: int
    items: slice  # of the list


class Params:
    """Validated query parameters.

    Examples
    --------
    >>> params = Params(QueryParams("page=3&sort=size"))
    >>> params.integer("page", 1, least=1, most=10), params.choice("sort", ["number", "size"]), params.text("q")
    (3, 'size', '')
    """

    def __init__(self, given: QueryParams) -> None:
        self._given = given

    def has(self, name: str) -> bool:
        """Whether a parameter is given and not empty."""
        return bool(self._given.get(name))

    def integer(self, name: str, default: int, *, least: int, most: int) -> int:
        """Integer within limits."""
        number = whole_number(self._given.get(name) or str(default))
        if number is None or not least <= number <= most:
            raise HTTPException(400, f"{name} must be a whole number from {least} to {most}")
        return number

    def page(self, n_items: int, per_page: int) -> Page:
        """Page of a list of ``n_items``, by default the first."""
        n_pages = max(1, -(-n_items // per_page))
        number = self.integer("page", 1, least=1, most=n_pages)
        return Page(number, n_pages, slice((number - 1) * per_page, number * per_page))

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of some words, by default the first."""
        text = self._given.get(name) or choices[0]
        if text not in choices:
            raise HTTPException(400, f"{name} must be one of {', '.join(choices)}")
        return text

    def text(self, name: str) -> str:
        """Short text."""
        text = self._given.get(name, "").strip()
        if len(text) > MOST_LETTERS:
            raise HTTPException(400, f"{name} must have at most {MOST_LETTERS} letters, got {len(text)}")
        return text

    def box(self, name: str) -> Box | None:
        """Box x1,y1,x2,y2, or None."""
        if not self.has(name):
            return None
        try:
            left, top, right, bottom = map(float, self._given[name].split(","))
        except ValueError:
            raise HTTPException(400, f"{name} must be four numbers x1,y1,x2,y2") from None
        if not (all(map(math.isfinite, (left, top, right, bottom))) and left < right and top < bottom):
            raise HTTPException(400, f"{name} must be x1,y1,x2,y2 with x1 < x2 and y1 < y2")
        return left, top, right, bottom
