"""The page that runs a model, made from `explorer.md`, the explorer and the files that it needs.

The explorer replaces the part of the text that is meant for readers outside the site.
"""

from __future__ import annotations

import re

from authoring.site.notebook import raw
from authoring.site.output import Assets, page_html
from companion_school.explorer.page_files import SHIPPED, body, script, shipped_scripts, style

FILE, MODELS = "explorer.md", "_static/explorer"
_ELSEWHERE = re.compile(r"<!-- without the site -->.*?<!-- end -->", re.DOTALL)


def with_explorer(text: str, assets: Assets) -> str:
    """Return the page's text with the explorer, and add the explorer's files to the assets."""
    for name, held in shipped_scripts().items():
        assets.files[f"{MODELS}/{name}.js"] = held.encode()
    parts = f'<style>{style()}</style>{body(SHIPPED, MODELS)}<script type="module">{script()}</script>'
    shown = raw(page_html(parts, assets, lambda href: href, ""))
    return _ELSEWHERE.sub(lambda _: shown, text, count=1)
