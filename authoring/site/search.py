"""What the search knows: each section of each page, its headings, and its words.

The browser reads all of it, a text of a megabyte or two, only on the search's page, and as a script: a page opened from
a folder may not fetch files. `search.js` looks through it.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from docutils import nodes

from authoring.markdown import tables
from authoring.site.formula import Formula
from companion_school.questions.terminal import readable

_ASKED = re.compile(r'<div class="ext-ask">(.*?)</div>', re.DOTALL)
_CAPTION = re.compile(r"<figcaption>(.*?)</figcaption>|<img alt=\"([^\"]*)\"", re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_MATH = re.compile(r"\$\$?(.+?)\$\$?", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """A section: its page, the page's kind and title, its anchor there, its headings from the outermost, its words."""

    page: str
    kind: str
    title: str
    anchor: str
    headings: tuple[str, ...]
    text: str


def sections(page: str, kind: str, title: str, doctree: nodes.document) -> Iterator[Section]:
    """The sections of a page; what stands in a section within it is that one's."""
    title = html.unescape(title)
    for section in doctree.findall(nodes.section):
        above: list[str] = []
        node: nodes.Node | None = section
        while isinstance(node, nodes.section):
            above.insert(0, _words(node.next_node(nodes.title)))
            node = node.parent
        words = " ".join(filter(None, (_words(child) for child in section.children if _counts(child))))
        anchor = section["ids"][0] if len(above) > 1 else ""
        if words or len(above) > 1:
            yield Section(page, kind, title, anchor, tuple(above[1:]), words)


def terms(glossary: str, lead: Callable[[str], str | None]) -> Iterator[Section]:
    """What the glossary explains, each term as a section that leads to where it is explained.

    lead:  where a link of the glossary leads on the site.
    """
    for rows in tables(glossary):
        for term, said, where in rows[1:]:
            link = _LINK.search(where)
            page, _, anchor = ((lead(link[2]) if link else None) or "glossary.html").partition("#")
            words = readable(f"{said} {link[1] if link else ''}")
            yield Section(page.removesuffix(".html"), "term", "Glossary", anchor, (term.strip("* "),), words)


def _counts(node: nodes.Node) -> bool:
    return not isinstance(node, nodes.section | nodes.title)


def _words(node: nodes.Node | None) -> str:
    """What a reader reads of a node: formulas as they are said, code as it is, of outputs questions and captions."""
    if node is None or isinstance(node, nodes.comment):
        return ""
    if isinstance(node, nodes.math | nodes.math_block):
        return readable(Formula.of(node.astext(), False).tex)
    if isinstance(node, nodes.raw):
        return _of_html(node.astext())
    if isinstance(node, nodes.literal_block) and {"of-a-fold", "printed"} & set(node["classes"]):
        return ""
    if isinstance(node, nodes.Text):
        return node.astext()
    glue = "" if isinstance(node, nodes.TextElement) else " "
    return " ".join(glue.join(filter(None, map(_words, node.children))).split(" ")).replace("\n", " ")


def _of_html(text: str) -> str:
    found = [asked for asked in _ASKED.findall(text)] + [part for pair in _CAPTION.findall(text) for part in pair]
    plain = html.unescape(re.sub(r"<math\b.*?</math>|<[^>]+>", " ", " ".join(found), flags=re.DOTALL))
    return " ".join(_MATH.sub(lambda math: readable(math[1]), plain).split())


def script(found: Sequence[Section]) -> str:
    """The file that the search's page reads."""
    rows = [
        [entry.page, entry.anchor, entry.kind, entry.title, " › ".join(entry.headings), " ".join(entry.text.split())]
        for entry in sorted(found, key=lambda entry: (entry.page, entry.anchor, entry.headings))
    ]
    return f"window.courseSections = {json.dumps(rows, ensure_ascii=False, separators=(',', ':'))};\n"
