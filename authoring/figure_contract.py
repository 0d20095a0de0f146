"""The contract's rules for figures, checked on their HTML without running scripts (a browser test runs them).

Every figure must be shown by `figures.show` and have alternative text; captions must begin with a number. An
interactive figure also needs a still picture for use without scripts, a name and a description. It must work with the
keyboard, make no network requests, be smaller than 42 kB, and be deterministic.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence

from nbformat import NotebookNode

from companion_school.study.figure_html import CAPTION_NUMBER
from companion_school.study.live.moving import LARGEST

_FIGURE = re.compile(r'<figure class="ext-figure"([^>]*)>(.*?)</figure>', re.DOTALL)
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
_DATA = re.compile(r'<script type="application/json">(.*?)</script>', re.DOTALL)
_SCRIPT = re.compile(r'<script type="module">(.*?)</script>', re.DOTALL)
_NETWORK = re.compile(
    r"\b(?:https?|wss?):/|\bfetch\s*\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon|\bimport\b|@import|url\("
)
_NAMESPACE = "http://www.w3.org/2000/svg"
_CHANCE = re.compile(r"Math\.random|Date\b|performance\.now|crypto\.")
_GLOBAL = re.compile(r"\bwindow\.|globalThis|localStorage|getElementById|\bid=")
_HANDLE = re.compile(r"kit\.(?:handle|choice|toggle)\(")
_LOOSE_HANDLE = re.compile(r"<(?:input|button|select|textarea)\b")
FEWEST_WORDS = 8  # minimum number of words in the alternative text, which must say what the figure shows and what moves


def figures_in(page: str) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the attributes and the content of each figure in an output."""
    for found in _FIGURE.finditer(page):
        yield {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(found[1])}, found[2]


def caption(inside: str) -> str:
    """Return a figure's caption as text, or an empty string."""
    found = re.search(r"<figcaption>(.*?)</figcaption>", inside)
    return html.unescape(re.sub(r"<[^>]+>", "", found[1])) if found else ""


def words(inside: str) -> str:
    """Return the alternative text of a figure's picture, or an empty string."""
    found = re.search(r'<img alt="([^"]*)"[^>]*\ssrc="data:image/png;base64,[^"]+"', inside)
    return html.unescape(found[1]) if found else ""


def _pages(cell: NotebookNode) -> list[str]:
    return ["".join(output.get("data", {}).get("text/html", "")) for output in cell.get("outputs", [])]


def shows_figure(cell: NotebookNode) -> bool:
    """Return whether a cell shows a figure, still or interactive."""
    return any(True for page in _pages(cell) for _ in figures_in(page))


def figure_faults(cells: Sequence[NotebookNode], prefix: str) -> Iterator[tuple[int, str]]:
    """Yield the faults of a lesson's figures as (cell, counted from 1; message).

    Args:
        cells: The cells.
        prefix: The part of figure numbers before the dot: "2", or "D2" in the lesson's deeper notebook.
    """
    expected = 1
    for number, cell in enumerate(cells, 1):
        if any(kind.startswith("image/") for output in cell.get("outputs", []) for kind in output.get("data", {})):
            yield number, "this figure was not finished with figures.show(fig, alt=...), which checks it"
        for page in _pages(cell):
            yield from ((number, fault) for fault in faults(page))
            for attributes, inside in figures_in(page):
                if "data-live" not in attributes and not words(inside):
                    yield number, "this figure has no alternative text: figures.show(fig, alt=...)"
                if found := CAPTION_NUMBER.match(caption(inside)):
                    wanted = f"Figure {prefix}.{expected}. "
                    if found[0] != wanted:
                        yield number, f"the caption begins {found[0].strip()!r}: expected {wanted.strip()!r}"
                    expected += 1


def faults(page: str) -> Iterator[str]:
    """Yield the faults of the interactive figures in an output, and of controls that are not in a figure."""
    if _LOOSE_HANDLE.search(_FIGURE.sub("", page)):
        yield "a handle without a still figure: what moves is shown with companion_school.study.live"
    for attributes, inside in figures_in(page):
        if name := attributes.get("data-live"):
            yield from (f"moving figure {name!r}: {fault}" for fault in _faults(page, attributes, inside))


def _faults(page: str, attributes: dict[str, str], inside: str) -> Iterator[str]:
    size = len(page.encode())
    if size > LARGEST:
        yield f"it has {size} bytes, and must stay under {LARGEST}"
    if not words(inside):
        yield "it has no still figure, which is all that remains where no script runs"
    elif len(words(inside).split()) < FEWEST_WORDS:
        yield f"its alternative text must say what is there and what moves: {words(inside)!r}"
    if attributes.get("role") != "group" or not attributes.get("aria-label"):
        yield 'a screen reader needs role="group" and a label'
    if not CAPTION_NUMBER.match(caption(inside)):
        yield f"its caption must begin with its number, as in 'Figure 2.1. ...': {caption(inside)!r}"
    data, scripts = _DATA.findall(inside), _SCRIPT.findall(inside)
    if len(data) != 1 or len(scripts) != 1:
        yield f"it needs its data and its script once each; there are {len(data)} and {len(scripts)}"
        return
    try:
        json.loads(data[0])
    except ValueError as error:
        yield f"its data are not JSON: {error}"
    yield from _script_faults(scripts[0])


def _script_faults(script: str) -> Iterator[str]:
    for found in _NETWORK.finditer(script.replace(_NAMESPACE, "")):
        yield f"it must not ask the network for anything: {found[0]!r}"
    for found in _CHANCE.finditer(script):
        yield f"it must be the same each time: {found[0]!r}"
    for found in _GLOBAL.finditer(script):
        yield f"it must leave nothing behind and find itself, so that it may stand on a page twice: {found[0]!r}"
    if not _HANDLE.search(script):
        yield "it has no handle: kit.handle, kit.choice or kit.toggle, which work with the keyboard"
    if "kit.say(" not in script.split("const move =")[-1]:
        yield "it must say in a sentence what is shown now: kit.say"
    if "kit.numbers(" not in script.split("const move =")[-1]:
        yield "the numbers behind it must follow its handles: kit.numbers"
    if "stopPropagation" not in script:
        yield "it must keep its key presses to itself, or JupyterLab takes the arrow keys"
