"""Sphinx extension of the site: cells, outputs, formulas as MathML, navigation between pages, and search."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from pygments.formatters import HtmlFormatter
from pygments.token import Name, Punctuation, Text, Whitespace
from sphinx.application import Sphinx
from sphinx.highlighting import PygmentsBridge
from sphinx.util.docutils import SphinxDirective

from authoring.site.formula import Formula, Formulas
from authoring.site.output import with_formulas
from authoring.site.search import Section, sections


@dataclass
class Site:
    """Data that Sphinx needs to render the pages.

    Attributes:
        formulas: The formulas, converted to MathML.
        ways: The previous and the next page as (name, label), by page name.
        kinds: The kind of each page, by page name.
        days: The date of the last change to each page's file, by page name.
        sections: Sections for the search index, added as pages are rendered.
    """

    formulas: Formulas
    ways: Mapping[str, tuple[tuple[str, str] | None, tuple[str, str] | None]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    days: Mapping[str, str] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)


SITE = Site(Formulas())  # global, because Sphinx creates the directives itself and cannot pass our data to them


class LightFormatter(HtmlFormatter):
    """Code formatter that omits spans around plain names, brackets and spaces.

    These have the color of plain code anyway, and their spans would take up as much as a third of a page.
    """

    def _get_css_classes(self, ttype: Any) -> str:
        return "" if ttype in (Name, Punctuation, Text, Whitespace) else super()._get_css_classes(ttype)


class Cell(SphinxDirective):
    """A code cell. Clicking on the first line of a folded cell opens it."""

    has_content = True
    option_spec: ClassVar = {"id": directives.unchanged_required, "folded": directives.flag}

    def run(self) -> list[nodes.Node]:
        source = "\n".join(self.content)
        code = nodes.literal_block(source, source, language="python")
        id = html.escape(self.options["id"])
        if "folded" in self.options:
            first, _, rest = source.partition("\n")
            code = nodes.literal_block(rest, rest, language="python", classes=["of-a-fold"])
            said = html.escape(first.removeprefix("#").strip())
            before = f'<details class="cell fold" id="{id}"><summary>{said}</summary>'
            return [_raw(before), code, _raw("</details>")]
        return [_raw(f'<div class="cell" id="{id}">'), code, _raw("</div>")]


class Printed(SphinxDirective):
    """The printed output of a cell.

    Output that consists of sentences instead of columns is wrapped on narrow screens.
    """

    has_content = True

    def run(self) -> list[nodes.Node]:
        text = "\n".join(self.content)
        wraps = text.startswith("checked:") and "  " not in text
        return [nodes.literal_block(text, text, language="none", classes=["printed", *["sentences"] * wraps])]


class Signature(SphinxDirective):
    """A signature or an example in the API reference."""

    has_content = True
    option_spec: ClassVar = {"language": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        text = "\n".join(self.content)
        return [nodes.literal_block(text, text, language=self.options.get("language", "python"), classes=["signature"])]


class Shown(SphinxDirective):
    """HTML shown by a cell or by the site, with its formulas rendered."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        return [_raw(with_formulas("\n".join(self.content), SITE.formulas))]


def _raw(content: str) -> nodes.raw:
    return nodes.raw("", content, format="html")


def _math(self: Any, node: nodes.math | nodes.math_block) -> None:
    place = f"{node.document.attributes.get('source', '') if node.document else ''}, line {node.line}"
    self.body.append(SITE.formulas.html(node.astext(), isinstance(node, nodes.math_block), place))
    raise nodes.SkipNode


def _mathml(tex: str) -> str:
    """Return the MathML of a formula if it has been converted, or an empty string."""
    found = [SITE.formulas.done.get(Formula.of(tex, display)) for display in (False, True)]
    return next(filter(None, found), "")


def _context(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Set the page's previous and next pages, its kind and its date, and collect its sections for the search."""

    def link(there: tuple[str, str] | None) -> dict[str, str] | None:
        return {"link": context["pathto"](there[0]), "title": html.escape(there[1])} if there else None

    before, after = SITE.ways.get(page, (None, None))
    context["prev"], context["next"] = link(before), link(after)
    context["last_updated"] = SITE.days.get(page, "")
    context["kind"] = SITE.kinds.get(page, "")
    contents = context.get("furo_navigation_tree", "")  # Sphinx gives captions the role "heading" but no level
    context["furo_navigation_tree"] = contents.replace('role="heading"', 'role="heading" aria-level="2"')
    if doctree is not None:
        title = context.get("title", "")
        SITE.sections += sections(page, SITE.kinds.get(page, ""), re.sub(r"<[^>]+>", "", title), doctree, _mathml)


def _no_index(app: Sphinx) -> None:
    app.builder.search = False  # type: ignore[attr-defined]  # the site has a search of its own (search.py)


def _search_page(app: Sphinx) -> Sequence[tuple[str, dict[str, Any], str]]:
    return [("search", {"title": "Search"}, "search.html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives, renderers and handlers with Sphinx."""
    for name, directive in {"cell": Cell, "printed": Printed, "signature": Signature, "shown": Shown}.items():
        app.add_directive(name, directive)
    app.add_html_math_renderer("mathml", inline_renderers=(_math, None), block_renderers=(_math, None))
    PygmentsBridge.html_formatter = LightFormatter
    app.connect("html-page-context", _context, priority=900)  # after the theme's handler
    app.connect("builder-inited", _no_index)
    app.connect("html-collect-pages", _search_page)
    return {"parallel_read_safe": False, "parallel_write_safe": False}
