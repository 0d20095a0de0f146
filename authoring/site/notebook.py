"""Convert a notebook or a Markdown page to the text that Sphinx reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from authoring.markdown import formulas as formulas_in
from authoring.site import output
from authoring.site.fault import Faults
from authoring.site.formula import Formula, Formulas
from authoring.site.links import Links
from authoring.site.output import Assets
from authoring.site.pages import Page
from authoring.source import FOLDED
from companion_school.course.release import navigation_line

FENCE = "`" * 12  # longer than any code fence in a cell
_QUESTION = re.compile(r"# question \d+\.[a-z]$")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Press:
    """The objects that the conversion uses and extends."""

    links: Links
    assets: Assets
    formulas: Formulas
    faults: Faults

    def picture(self, file: Path) -> str:
        """Add a picture file from the notebooks' folder to the assets, and return its address."""
        self.assets.files[f"figures/{file.name}"] = file.read_bytes()
        return f"/figures/{file.name}"


def block(directive: str, content: str, **options: str) -> str:
    """Return a Sphinx directive in MyST syntax."""
    lines = [f"{FENCE}{{{directive.split()[0]}}} {' '.join(directive.split()[1:])}".rstrip()]
    lines += [f":{name}: {value}".rstrip() for name, value in options.items()]
    return "\n".join([*lines, "", content, FENCE])


def raw(html: str) -> str:
    """Return a directive that inserts unchanged HTML into the page."""
    return block("raw html", html)


def text_of(page: Page, press: Press) -> str:
    """Return the text of a page."""
    if page.source.suffix == ".md":
        return prose(page.source.read_text(encoding="utf-8"), page, press, page.place)
    parts = []
    for number, cell in enumerate(page.notebook.cells, 1):
        if navigation_line.TAG in cell.metadata.get("tags", []):
            continue
        place = f"{page.place}, cell {number}"
        if cell.cell_type == "markdown":
            parts.append(raw(f'<span class="place" id="cell-{cell.id}"></span>'))
            parts.append(prose(cell.source, page, press, place))
        elif cell.cell_type == "code":
            parts += code(cell, page, press, place)
    return "\n\n".join(parts) + "\n"


def prose(text: str, page: Page, press: Press, place: str) -> str:
    """Convert the links in a Markdown text, and register its formulas."""
    for line, tex in formulas_in(text):
        display = text.split("\n")[line].lstrip().startswith("$$") or f"$${tex}$$" in text
        press.formulas.add(Formula.of(tex, display), f"{place}, line {line + 1}")
    return press.links.in_prose(text, page, place, press.picture).strip()


def code(cell: NotebookNode, page: Page, press: Press, place: str) -> list[str]:
    """Return a code cell with its outputs. The code of a question is omitted."""
    tags = cell.metadata.get("tags", [])
    shown = [part for result in cell.get("outputs", []) if (part := as_block(result, page, press, place))]
    asks = _QUESTION.match(cell.source.split("\n")[0])
    if asks:
        return [raw(f'<div class="place" id="cell-{cell.id}">'), *shown, raw("</div>")]
    options = {"id": f"cell-{cell.id}"}
    if FOLDED in tags:
        options["folded"] = ""
    return [block("cell", cell.source, **options), *shown]


def as_block(result: NotebookNode, page: Page, press: Press, place: str) -> str:
    """Return a cell's output as a directive. Record a fault if a page cannot show the output."""
    if result.output_type == "stream" and result.name == "stdout":
        return block("printed", _ESCAPES.sub("", result.text).rstrip("\n"))
    data = result.get("data", {})
    if result.output_type in ("display_data", "execute_result") and "text/html" in data:
        for formula in output.formulas_of(data["text/html"]):
            press.formulas.add(formula, place)

        def lead(href: str) -> str | None:
            return press.links.leads(href, page, place)

        try:
            html = output.page_html(data["text/html"], press.assets, lead, page.up)
        except ValueError as error:
            press.faults.add(place, str(error))
            return ""
        return block("shown", html)
    press.faults.add(place, f"the page cannot show this output: {result.output_type} {sorted(data)}")
    return ""
