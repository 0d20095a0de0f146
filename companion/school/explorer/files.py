"""What the explorer's page is made of: its style, its script, and each model as a script.

A page that is opened from a folder may not fetch files, but it may ask for scripts.
"""

from __future__ import annotations

import base64
from importlib.resources import files

from companion.school.explorer.models import NAMES, live_file
from companion.school.study.frame import STYLE

LIVE = files("companion.school.study.live")
PARTS = ("words.js", "engine.js", "page.js")


def style() -> str:
    """The style sheet: that of the figures, and what the page adds."""
    return (
        STYLE + LIVE.joinpath("kit.css").read_text("utf-8") + files(__package__).joinpath("page.css").read_text("utf-8")
    )


def script() -> str:
    """The script that makes an explorer of the page's `#explorer`."""
    parts = [LIVE.joinpath("kit.js"), *(files(__package__).joinpath(name) for name in PARTS)]
    return "\n".join([*(part.read_text("utf-8") for part in parts), 'explore(document.getElementById("explorer"));'])


def model_script(name: str) -> str:
    """A script that holds the file of a model, as text. Raises `ValueError` for a name that there is not."""
    return f'(window.explorerModels ??= {{}}).{name} = "{base64.b64encode(live_file(name).read_bytes()).decode()}";\n'


def body(folder: str) -> str:
    """The HTML of the explorer, without its script. folder: where the models' scripts lie, seen from the page."""
    models = " ".join(f'data-{name}="{folder}/{name}.js"' for name in NAMES)
    return (
        f'<div class="ext-figure" id="explorer" {models}></div>'
        "<noscript><p>The models run in scripts, which your browser does not run.</p></noscript>"
    )
