"""Two more pages that run the story model: a text's flow through it, and a story by the reader and the model.

The texts of the pages are in `flow.md` and `chat.md`, so readers can read, search and print them without scripts.
`flow.js` and `chat.js` replace each mark in these texts with a part of the picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from authoring.site.explorer import MODELS
from authoring.site.notebook import raw
from authoring.site.output import Assets, page_html
from companion_school.explorer.page_files import LIVE
from companion_school.study.figure_html import STYLE

HERE = Path(__file__).parent
PAGES = (("flow", "The whole flow"), ("chat", "Write a story together"))
"""The name of each page and its label in the contents."""
ENGINE = ("words.js", "engine.js")
_PART = re.compile(r"<!-- (flow|chat)(?: (\w+))? -->")


def texts(assets: Assets) -> Iterator[tuple[str, str, str]]:
    """Yield each page's name, its label in the contents, and its text."""
    for name, label in PAGES:
        text = (HERE / f"{name}.md").read_text(encoding="utf-8")
        yield name, label, _PART.sub(_place, text) + "\n" + raw(_script(name, assets)) + "\n"


def _place(found: re.Match[str]) -> str:
    kind, part = found.groups()
    if part not in (None, "controls"):
        return raw(f'<div class="ext-figure flow-part" data-part="{part}"></div>')
    nothing = "<noscript><p>The model runs in a script, which your browser does not run.</p></noscript>"
    place = f'<div class="ext-figure flow" id="{kind}" data-model="{MODELS}/story.js"></div>'
    return raw(place + nothing)


def _script(name: str, assets: Assets) -> str:
    explorer = files("companion_school.explorer")
    own = [HERE / "story_model.js", HERE / f"{name}.js"]
    parts = [LIVE.joinpath("kit.js"), *(explorer.joinpath(part) for part in ENGINE), *own]
    code = "\n".join(part.read_text(encoding="utf-8") for part in parts)
    style = STYLE + LIVE.joinpath("kit.css").read_text(encoding="utf-8")
    return page_html(f'<style>{style}</style><script type="module">{code}</script>', assets, lambda href: href, "")
