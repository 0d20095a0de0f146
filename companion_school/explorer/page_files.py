"""What the explorer's page is made of: its style, its script, and each model as a script.

A page that is opened from a folder may not fetch files, but it may ask for scripts. `page` puts all of it
into one file.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from companion_school.explorer.models import NAMES, live_file
from companion_school.study.figure_html import STYLE
from companion_school.study.palette import DARK_PAGE, LIGHT_PAGE

LIVE = files("companion_school") / "study" / "live"  # its files only: to import the figures would take Matplotlib
PARTS = ("words.js", "engine.js", "served.js", "page.js")


@dataclass(frozen=True)
class Shown:
    """A model as the page offers it.

    name:   by which a link knows it.
    title:  what its button says.
    text:   what it reads first.
    label:  what stands over the text.
    """

    name: str
    title: str
    text: str
    label: str = "Text"


_MOLE = 'One windy day Mila the mole went to the pond. She lost her kite. "My kite is gone," said'
SHIPPED = (
    Shown("story", "Stories", _MOLE),
    Shown("experts", "Stories, with experts", _MOLE),
    Shown("translator", "Number names", "einundzwanzigtausenddreihundertvier", "A number, in German"),
)
"""The models of the course."""


def style() -> str:
    """The style sheet: that of the figures, and what the page adds."""
    return (
        STYLE + LIVE.joinpath("kit.css").read_text("utf-8") + files(__package__).joinpath("page.css").read_text("utf-8")
    )


def script() -> str:
    """The script that makes an explorer of the page's `#explorer`."""
    parts = [LIVE.joinpath("kit.js"), *(files(__package__).joinpath(name) for name in PARTS)]
    return "\n".join([*(part.read_text("utf-8") for part in parts), 'explore(document.getElementById("explorer"));'])


def model_script(name: str, file: bytes) -> str:
    """A script that holds the file of a model, as text."""
    return f'(window.explorerModels ??= {{}}).{name} = "{base64.b64encode(file).decode()}";\n'


def shipped_scripts() -> dict[str, str]:
    """The scripts of the models that ship, by their names."""
    return {name: model_script(name, live_file(name).read_bytes()) for name in NAMES}


def body(models: Sequence[Shown], folder: str = "") -> str:
    """The HTML of the explorer, without its script.

    folder:  where the models' scripts lie, seen from the page. Empty: they stand in it.
    """
    said = [{**vars(model), **({"script": f"{folder}/{model.name}.js"} if folder else {})} for model in models]
    models_said = html.escape(json.dumps(said, ensure_ascii=False))
    return (
        f'<div class="ext-figure" id="explorer" data-models="{models_said}"></div>'
        "<noscript><p>The models run in scripts, which your browser does not run.</p></noscript>"
    )


def page(models: Sequence[Shown], scripts: Mapping[str, str], title: str) -> str:
    """One HTML file that needs nothing beside it. `scripts`: of each model, by its name."""
    held = "".join(f"<script>{text}</script>" for text in scripts.values())
    around = (
        "body{margin:0 auto;padding:1em;max-width:1200px;font-family:system-ui,sans-serif;"
        f"background:{LIGHT_PAGE['page']};color:{LIGHT_PAGE['ink']}}}@media(prefers-color-scheme:dark)"
        f"{{body{{background:{DARK_PAGE['page']};color:{DARK_PAGE['ink']}}}}}"
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
        '<link rel="icon" href="data:,">'
        f"<style>{around}{style()}</style></head><body><main><h1>{html.escape(title)}</h1>{body(models)}</main>"
        f'{held}<script>"use strict";{script()}</script></body></html>\n'
    )


def served(page: str, address: str) -> str:
    """The same page, which asks Python at an address for the passes that it shows; "./" is that of the page."""
    return page.replace('id="explorer"', f'id="explorer" data-served="{html.escape(address)}"', 1)
