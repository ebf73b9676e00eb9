"""HTML as a person sees it: visible text, and elements by their roles and accessible names.

It knows as much of HTML-ARIA (https://www.w3.org/TR/html-aria/) as the pages of the explorer use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bs4 import BeautifulSoup, NavigableString, Tag
from bs4.element import PreformattedString

# Elements that have a role without an attribute that says so; an empty alt marks a picture as decoration.
ROLES = {
    "article": "article",
    "button": "button",
    "cell": "td",
    "code": "code",
    "figure": "figure",
    "heading": "h1, h2, h3",
    "img": "img:not([alt=''])",
    "link": "a[href]",
    "listitem": "li",
    "region": "section[aria-label], section[aria-labelledby]",
    "row": "tr",
}
HIDDEN = "head, style, script, template, noscript, svg title, dialog:not([open]), [hidden], [aria-hidden=true]"
INLINE = {"a", "b", "code", "i", "kbd", "output", "q", "small", "span"}


class Page:
    """A page, or an element of one."""

    def __init__(self, html: str | Tag) -> None:
        self.tag = BeautifulSoup(html, "html.parser") if isinstance(html, str) else html

    def __repr__(self) -> str:
        return f"<{self.tag.name} {self.name!r}>"

    def all(self, role: str, name: str | re.Pattern[str] | None = None) -> list[Page]:
        """The visible elements of a role, with this accessible name or with any, in the order of the page."""
        selector = f"[role={role}], {ROLES[role]}" if role in ROLES else f"[role={role}]"
        found = [Page(tag) for tag in self._visible(selector) if tag.get("role", role) == role]
        if isinstance(name, re.Pattern):
            return [element for element in found if name.fullmatch(element.name)]
        return [element for element in found if name in (None, element.name)]

    def only(self, role: str, name: str | re.Pattern[str] | None = None) -> Page:
        """The one visible element of a role and a name."""
        found = self.all(role, name)
        assert len(found) == 1, f"there must be one {role} of the name {name}, but there are {found}"
        return found[0]

    def titled(self, title: str) -> list[Page]:
        """The elements that show this title when the pointer rests on them."""
        return [Page(tag) for tag in self._visible("[title]") if tag["title"] == title]

    @property
    def text(self) -> str:
        """The visible text, a line for each block."""
        lines = (" ".join(line.split()) for line in "".join(_strings(self.tag)).split("\n"))
        return "\n".join(filter(None, lines))

    @property
    def name(self) -> str:
        """The accessible name: the label, or else the text and the alternative texts of pictures."""
        if "aria-label" in self.tag.attrs:
            return str(self.tag["aria-label"])
        if "aria-labelledby" in self.tag.attrs:
            (label,) = self.tag.find_parents()[-1].select(f"#{self.tag['aria-labelledby']}")
            return Page(label).text
        if self.tag.name == "img":
            return str(self.tag["alt"])
        return " ".join([*self.text.split(), *(image.name for image in self.all("img"))])

    @property
    def address(self) -> str:
        """Where a link leads, or a picture comes from."""
        return str(self.tag["href"] if "href" in self.tag.attrs else self.tag["src"])

    @property
    def pictures(self) -> list[str]:
        """Where the visible pictures come from, decoration included."""
        return [str(tag["src"]) for tag in self._visible("img")]

    @property
    def facts(self) -> dict[str, str]:
        """The terms of description lists, and their descriptions."""
        return {Page(term).text: Page(term.find_next_sibling("dd")).text for term in self._visible("dt")}

    @property
    def notes(self) -> list[str]:
        """The texts that the shapes of drawings show when the pointer rests on them."""
        return [title.get_text() for title in self.tag.select("svg title")]

    @property
    def references(self) -> list[str]:
        """The addresses that anything of the page leads to or is loaded from, the page's own parts aside."""
        tags = self.tag.select("[href], [src], [action]")
        found = [str(tag[name]) for tag in tags for name in ("href", "src", "action") if name in tag.attrs]
        return [address for address in found if not address.startswith("#")]

    @property
    def inline(self) -> list[str]:
        """The scripts and styles that are in the page itself."""
        handlers = [tag for tag in self.tag.select("*") if any(name.startswith("on") for name in tag.attrs)]
        return [str(tag) for tag in [*self.tag.select("style, script:not([src]), [style]"), *handlers]]

    def _visible(self, selector: str) -> list[Tag]:
        return [tag for tag in self.tag.select(selector) if not any(map(_is_hidden, [tag, *tag.parents]))]


def _strings(tag: Tag) -> Iterator[str]:
    """The visible strings below an element, with line ends around blocks."""
    for child in tag.children:
        if isinstance(child, Tag):
            if not _is_hidden(child):
                edge = "" if child.name in INLINE else "\n"
                yield edge
                yield from _strings(child)
                yield edge
        elif isinstance(child, NavigableString) and not isinstance(child, PreformattedString):
            yield re.sub(r"\s+", " ", child)


def _is_hidden(tag: Tag) -> bool:
    return not isinstance(tag, BeautifulSoup) and tag.css.match(HIDDEN)
