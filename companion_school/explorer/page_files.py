"""Assemble the explorer's page from its style, its script, and a script for each model.

A page opened from a folder cannot fetch files, but it can load scripts, so models are stored as scripts. `page` puts
everything into one file.
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

LIVE = files("companion_school") / "study" / "live"  # not imported as a module, because it would import Matplotlib
PARTS = ("words.js", "engine.js", "served.js", "page.js")


@dataclass(frozen=True)
class Shown:
    """A model on the page.

    Attributes:
        name: Name of the model in links.
        title: Label of the model's button.
        text: Initial text for the model.
        label: Label of the text field.
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
    """Return the style sheet of the figures and the page."""
    return (
        STYLE + LIVE.joinpath("kit.css").read_text("utf-8") + files(__package__).joinpath("page.css").read_text("utf-8")
    )


def script() -> str:
    """Return the script that builds the explorer in the page's element `#explorer`."""
    parts = [LIVE.joinpath("kit.js"), *(files(__package__).joinpath(name) for name in PARTS)]
    return "\n".join([*(part.read_text("utf-8") for part in parts), 'explore(document.getElementById("explorer"));'])


def model_script(name: str, file: bytes) -> str:
    """Return a script that contains a model file in base64."""
    return f'(window.explorerModels ??= {{}}).{name} = "{base64.b64encode(file).decode()}";\n'


def shipped_scripts() -> dict[str, str]:
    """Return the scripts of the models that ship with the package, keyed by name."""
    return {name: model_script(name, live_file(name).read_bytes()) for name in NAMES}


def body(models: Sequence[Shown], folder: str = "") -> str:
    """Return the explorer's HTML without its script.

    Args:
        models: The models on the page.
        folder: Folder with the models' scripts, relative to the page; empty if the page itself contains them.
    """
    said = [{**vars(model), **({"script": f"{folder}/{model.name}.js"} if folder else {})} for model in models]
    models_said = html.escape(json.dumps(said, ensure_ascii=False))
    return (
        f'<div class="ext-figure" id="explorer" data-models="{models_said}"></div>'
        "<noscript><p>The models run in scripts, which your browser does not run.</p></noscript>"
    )


def page(models: Sequence[Shown], scripts: Mapping[str, str], title: str) -> str:
    """Return the page as one self-contained HTML file.

    Args:
        models: The models on the page.
        scripts: Scripts of the models, keyed by name.
        title: Title of the page.
    """
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
    """Return a page that requests passes from the server at this address, where "./" means the page's own address."""
    return page.replace('id="explorer"', f'id="explorer" data-served="{html.escape(address)}"', 1)
