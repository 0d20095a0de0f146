"""The search index, which contains every section of every page with its headings and words.

The browser loads the whole index (one or two megabytes), but only on the search page. The index is a script, because a
page opened from a local folder cannot fetch files. `search.js` searches it.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from docutils import nodes

from authoring.markdown import tables
from companion_school.questions.terminal import readable

_ASKED = re.compile(r'<div class="ext-ask">(.*?)</div>', re.DOTALL)
_CAPTION = re.compile(r"<figcaption>(.*?)</figcaption>|<img alt=\"([^\"]*)\"", re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_MATHML = re.compile(r"<math\b.*?</math>", re.DOTALL)
_SPACED = frozenset("=<>≤≥≈≠≪≫←→⟶⟹∈∉∪∩+−-·×⋅∣|;,")

Say = Callable[[str], str]  # maps a formula's TeX to its MathML


@dataclass(frozen=True)
class Section:
    """A section: its page, the page's kind and title, its anchor, its headings (outermost first) and its text."""

    page: str
    kind: str
    title: str
    anchor: str
    headings: tuple[str, ...]
    text: str


def sections(page: str, kind: str, title: str, doctree: nodes.document, mathml: Say) -> Iterator[Section]:
    """Yield the sections of a page. The text of a nested section is not repeated in the enclosing section."""
    title = html.unescape(title)
    for section in doctree.findall(nodes.section):
        above: list[str] = []
        node: nodes.Node | None = section
        while isinstance(node, nodes.section):
            above.insert(0, _words(node.next_node(nodes.title), mathml))
            node = node.parent
        shown = (child for child in section.children if not isinstance(child, nodes.section | nodes.title))
        words = " ".join(filter(None, (_words(child, mathml) for child in shown)))
        anchor = section["ids"][0] if len(above) > 1 else ""
        if words or len(above) > 1:
            yield Section(page, kind, title, anchor, tuple(above[1:]), words)


def terms(glossary: str, lead: Callable[[str], str | None]) -> Iterator[Section]:
    """Yield each term of the glossary as a section that links to the term's explanation.

    Args:
        glossary: The glossary as Markdown.
        lead: Function that returns the target of a link in the glossary on the site.
    """
    for rows in tables(glossary):
        for term, said, where in rows[1:]:
            link = _LINK.search(where)
            page, _, anchor = ((lead(link[2]) if link else None) or "glossary.html").partition("#")
            words = readable(f"{said} {link[1] if link else ''}")
            name = term.replace("*", "").strip()
            yield Section(page.removesuffix(".html"), "term", "Glossary", anchor, (name,), words)


def _words(node: nodes.Node | None, mathml: Say) -> str:
    """Return the visible text of a node.

    Formulas become plain text, and code is not changed. Of outputs, only questions and captions are included.
    """
    if node is None or isinstance(node, nodes.comment):
        return ""
    if isinstance(node, nodes.math | nodes.math_block):
        return _without_marks(mathml(node.astext()))
    if isinstance(node, nodes.raw):
        return _of_html(node.astext())
    if isinstance(node, nodes.literal_block) and {"of-a-fold", "printed"} & set(node["classes"]):
        return ""
    if isinstance(node, nodes.Text):
        return node.astext()
    glue = "" if isinstance(node, nodes.TextElement) else " "
    parts = glue.join(filter(None, (_words(child, mathml) for child in node.children)))
    return parts.replace("\n", " ")


def _of_html(text: str) -> str:
    found = _ASKED.findall(text) + [part for pair in _CAPTION.findall(text) for part in pair]
    return " ".join(_without_marks(" ".join(found)).split())


def _without_marks(text: str) -> str:
    """Return the words in HTML, with formulas as plain text."""
    return html.unescape(re.sub(r"<[^>]+>", " ", _MATHML.sub(lambda found: html.escape(in_a_line(found[0])), text)))


def in_a_line(mathml: str) -> str:
    """Return a formula as one line of text without TeX, such as `(a + b)/(2)`, `√(d_k)` and `x^2`."""
    text = re.sub(r"&(?!(?:amp|lt|gt|quot|apos|#\w+);)\w+;", lambda found: html.unescape(found[0]), mathml)
    said = _said(ElementTree.fromstring(text))
    return re.sub(r"\s+", " ", re.sub(r"[\u2061-\u2064]", "", said)).replace("( ", "(").replace(" )", ")").strip()


def _said(node: ElementTree.Element) -> str:
    kind, inside = node.tag.rpartition("}")[2], [_said(child) for child in node]
    if kind in ("annotation", "annotation-xml", "mspace"):
        return " " if kind == "mspace" else ""
    if kind in ("mi", "mn", "mtext"):
        return node.text or ""
    if kind == "mo":
        sign = node.text or ""
        return f" {sign} " if sign in _SPACED else sign
    if kind == "mfrac":
        return f"({inside[0].strip()})/({inside[1].strip()})"
    if kind in ("msqrt", "mroot"):
        body = "".join(inside[:1] if kind == "mroot" else inside).strip()
        return f"√{body}" if len(body) == 1 else f"√({body})"
    if kind in ("msub", "munder"):
        return f"{inside[0].strip()}_{inside[1].strip()}"
    if kind in ("msup", "mover"):
        return inside[0] if kind == "mover" else f"{inside[0].strip()}^{inside[1].strip()}"
    if kind in ("msubsup", "munderover"):
        return f"{inside[0].strip()}_{inside[1].strip()}^{inside[2].strip()}"
    return (" " if kind in ("mtr", "mtd", "mtable") else "").join(inside)


def script(found: Sequence[Section], aliases: Mapping[str, Sequence[str]]) -> str:
    """Return the script with the index, which the search page loads.

    The glossary's own page is omitted, because each term is already a section.
    """
    rows = [
        [entry.page, entry.anchor, entry.kind, entry.title, " › ".join(entry.headings), " ".join(entry.text.split())]
        for entry in sorted(found, key=lambda entry: (entry.page, entry.anchor, entry.headings))
        if entry.page != "glossary" or entry.kind == "term"
    ]
    pairs = [[name, term] for term, names in aliases.items() for name in names]
    known = {"courseSections": rows, "courseAliases": pairs}
    return "".join(
        f"window.{name} = {json.dumps(value, ensure_ascii=False, separators=(',', ':'))};\n"
        for name, value in known.items()
    )
