"""Prepare outputs of cells for pages: pictures, scripts and styles become files that all pages share.

In a notebook, each output contains everything it needs: every question has its own script and style, and pictures are
encoded as text. On the site, pictures become files, each distinct script becomes one file, and all styles become a
single sheet, with rules for the site's themes in place of those for JupyterLab's themes. The scripts are not modules,
because browsers do not load modules from a local folder.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from authoring import figure_contract
from authoring.markdown import DISPLAY
from authoring.site import stacked
from authoring.site.formula import Formula, Formulas

PICTURES, SCRIPTS, STYLES = "_static/pictures", "_static/outputs", "_static/outputs.css"
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_SCRIPT = re.compile(r'<script type="module">(.*?)</script>', re.DOTALL)
_PICTURE = re.compile(r'(<img [^>]*?)src="data:image/png;base64,([^"]+)"([^>]*>)')
_WIDTH = re.compile(r'width="(\d+)"')
_HREF = re.compile(r'href="([^"]+)"')
_ANCHOR = re.compile(r'<a\b[^>]*href="[^"]+"[^>]*>(.*?)</a>', re.DOTALL)
# Parts of outputs that contain formulas between dollar signs: questions, and descriptions of lessons on the front page
_QUESTION = re.compile(r'<section class="ext-question".*?</section>|<span class="asks">.*?</span>', re.DOTALL)
_DOLLARS = re.compile(r"(?<!\\)\$([^$]+?)(?<!\\)\$")
_CODE = re.compile(r"(<code>.*?</code>)", re.DOTALL)
_OUTSIDE_A_MODULE = re.compile(r"^\s*(?:import|export)\b", re.MULTILINE)

# Selectors for the dark and light themes: in an output, and on a page
_THEMES = (
    ("body:not([data-jp-theme-light])", "body:not([data-theme=light])"),
    ("[data-jp-theme-light=false]", "body[data-theme=dark]"),
    ("[data-jp-theme-light=true]", "body[data-theme=light]"),
)

Lead = Callable[[str], str | None]  # returns a link's target on the site, or None


@dataclass
class Assets:
    """Files that outputs need, by their path on the site."""

    files: dict[str, bytes] = field(default_factory=dict)
    styles: dict[str, None] = field(default_factory=dict)

    def sheet(self) -> str:
        """Return all styles as one sheet."""
        return "\n".join(sorted(self.styles)) + "\n"

    def script(self, code: str) -> str:
        """Add a script and return the path of its file.

        Raises:
            ValueError: If the code only works as a module.
        """
        if found := _OUTSIDE_A_MODULE.search(code):
            raise ValueError(f"a script on a page that is opened from a folder cannot use {found[0].strip()!r}")
        text = f'(async () => {{ "use strict";\n{code.strip()}\n}})();\n'
        name = f"{SCRIPTS}/{_digest(text.encode())}.js"
        self.files[name] = text.encode()
        return name

    def picture(self, png: bytes) -> tuple[str, int, int]:
        """Add a picture, and return the path of its file and its width and height in pixels."""
        name = f"{PICTURES}/{_digest(png)}.png"
        self.files[name] = png
        return name, *_pixels(png)


def _phone(width: int) -> str:
    """Return the attribute that sets a picture's width on a phone, if the picture scrolls there."""
    return f'style="--phone:{width}px" ' if width else ""


def _pixels(png: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def page_html(output: str, assets: Assets, lead: Lead, up: str) -> str:
    """Return the HTML of an output for a page. Its formulas remain in dollars (see `with_formulas`).

    Args:
        output: The output's HTML.
        assets: Collection to which the output's files are added.
        lead: Function that returns the target of a link; it may raise an error for a broken link.
        up: Path from the page to the site's root.

    Raises:
        ValueError: If a figure has no still picture with alternative text, or a script only works as a module.
    """
    for attributes, inside in figure_contract.figures_in(output):
        if not figure_contract.words(inside):
            what = f"moving figure {attributes['data-live']!r}" if "data-live" in attributes else "a figure"
            raise ValueError(f"{what} has no still picture with alternative text")
    for style in _STYLE.findall(output):
        for notebook, page in _THEMES:
            style = style.replace(notebook, page)
        assets.styles[style.strip()] = None
    output = _STYLE.sub("", output)

    def script(found: re.Match[str]) -> str:
        return f'<script defer src="{up}{assets.script(found[1])}"></script>'

    def picture(found: re.Match[str]) -> str:
        png, said = base64.b64decode(found[2]), _WIDTH.search(found[0])
        name, width, height = assets.picture(png)
        shown = int(said[1]) if said else width
        rest = f'height="{round(shown * height / width)}" loading="lazy" decoding="async" src="{up}{name}"'
        small = None if "data-live=" in output else stacked.stacked(png, shown)
        if small is None:
            wide = stacked.shown_width(shown)
            return f"{found[1]}{_phone(wide)}{rest}{found[3]}"
        wide = stacked.shown_width(round(shown * _pixels(small)[0] / width))
        name, width, height = assets.picture(small)
        source = f'media="(max-width: 600px)" srcset="{up}{name}" width="{width}" height="{height}"'
        return f"<picture><source {source}>{found[1]}{_phone(wide)}{rest}{found[3]}</picture>"

    output = _PICTURE.sub(picture, _SCRIPT.sub(script, output))

    def link(found: re.Match[str]) -> str:
        there = lead(html.unescape(_HREF.search(found[0])[1]))  # type: ignore[index]
        return _HREF.sub(f'href="{html.escape(there)}"', found[0], count=1) if there else found[1]

    return _ANCHOR.sub(link, output).strip()


def formulas_of(output: str) -> list[Formula]:
    """Return the formulas in the questions of an output."""
    return [
        Formula.of(html.unescape(tex), display)
        for question in _QUESTION.findall(output)
        for part in _CODE.split(question)[::2]
        for display, pattern in ((True, DISPLAY), (False, _DOLLARS))
        for tex in pattern.findall(part if display else DISPLAY.sub("", part))
    ]


def with_formulas(output: str, formulas: Formulas) -> str:
    """Render the formulas in the questions of an output."""

    def question(found: re.Match[str]) -> str:
        parts = _CODE.split(found[0])
        parts[::2] = [_set(part, formulas) for part in parts[::2]]
        return "".join(parts)

    return _QUESTION.sub(question, output)


def _set(part: str, formulas: Formulas) -> str:
    part = DISPLAY.sub(lambda found: formulas.html(html.unescape(found[1]), True), part)
    return _DOLLARS.sub(lambda found: formulas.html(html.unescape(found[1]), False), part)
