"""Convert links between notebooks to links between pages."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from authoring.markdown import DISPLAY, INLINE
from authoring.site.fault import Faults
from authoring.site.pages import Course, Page

CELL = "cell-id="  # JupyterLab's prefix for links to a cell
TOP = "navigation-top"  # id of the navigation cell at the top of every lesson; pages omit this cell
_CODE = r"^(?P<fence>```+|~~~+)[^\n]*\n.*?^(?P=fence)[ \t]*$|(?<!`)(?P<tick>`+)(?!`).+?(?<!`)(?P=tick)(?!`)"
_LINK = r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<href>[^()\s]+)\)"
_ANCHOR = r'(?P<fold><summary>[^<\n]*)?<a href="(?P<to>[^"]+)">(?P<says>.*?)</a>'
_PROSE = re.compile(f"{_CODE}|{DISPLAY.pattern}|{INLINE.pattern}|{_LINK}|{_ANCHOR}", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Links:
    """Converter from links in notebooks to links on pages.

    Attributes:
        course: The pages of the course.
        modules: The address of each module in the reference, by its file, such as "companion/layers/attention.py".
        repository: Address for files that have no page; empty if the project has none.
        faults: Collection to which broken links are added.
    """

    course: Course
    modules: dict[str, str]
    repository: str
    faults: Faults

    def leads(self, href: str, page: Page, place: str) -> str | None:
        """Return a link's target on the site, or `None` if the link is broken or its file has no address."""
        if re.match(r"[a-z]+:", href) or href.startswith("//"):
            return href
        target, _, fragment = href.partition("#")
        if not target:
            return f"#{self._fragment(page, fragment, href, place)}" if fragment else "#"
        folder = posixpath.dirname(page.source.relative_to(self.course.folder).as_posix())
        file = posixpath.normpath(posixpath.join(folder, unquote(target)))
        if found := self.course.pages.get(file):
            fragment = self._fragment(found, fragment, href, place)
            return f"{page.up}{found.name}.html" + (f"#{fragment}" if fragment else "")
        inside = posixpath.normpath(posixpath.join(self.course.folder.name, file))
        if inside in self.modules:
            return page.up + self.modules[inside]
        if inside.startswith("..") or not (self.course.root / inside).exists():
            self.faults.add(place, f"the link {href!r} leads nowhere")
            return None
        return f"{self.repository}/blob/main/{inside}" if self.repository else None

    def _fragment(self, page: Page, fragment: str, href: str, place: str) -> str:
        if not fragment.startswith(CELL):
            return fragment  # a heading; finish.py checks it on the rendered page
        id = fragment.removeprefix(CELL)
        if page.source.suffix != ".ipynb" or id not in {cell.id for cell in page.notebook.cells}:
            self.faults.add(place, f"the link {href!r} leads nowhere: no such cell")
        return "" if id == TOP else f"cell-{id}"

    def in_prose(self, text: str, page: Page, place: str, picture: Callable[[Path], str]) -> str:
        """Convert the links in a Markdown text.

        Args:
            text: The Markdown.
            page: The page to which the text belongs.
            place: Location that messages should name.
            picture: Function that returns a picture file's address on the site.
        """

        def turned(found: re.Match[str]) -> str:
            if found["fold"] is not None:  # clicking on a summary opens the fold, so it must not contain a link
                return found["fold"] + found["says"]
            if found["to"] is not None:
                there = self.leads(found["to"], page, place)
                return f'<a href="{there}">{found["says"]}</a>' if there else found["says"]
            if found["href"] is None:
                return found[0]
            if found["image"]:
                file = page.source.parent / unquote(found["href"])
                if not file.is_file():
                    self.faults.add(place, f"the picture {found['href']!r} is not there")
                    return ""
                return f"![{found['text']}]({picture(file)})"
            where = self.leads(found["href"], page, place)
            return f"[{found['text']}]({where})" if where else found["text"]

        return _PROSE.sub(turned, text)
