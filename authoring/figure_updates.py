"""Update the scripts and styles in the outputs of figures without running any cell.

The output of a figure contains everything it needs to work in a saved notebook without a kernel. Its picture, data and
tables depend on the cell and are not changed. Its scripts and styles come from the package and are the same in every
output, so the builder replaces them when they change.
"""

from __future__ import annotations

import re

from nbformat import NotebookNode

from companion_school.study.figure_html import STYLE
from companion_school.study.live import moving

_FIGURE = re.compile(r'^<style>.*?</style>(<figure class="ext-figure"(?: data-live="(?P<name>\w+)")?.*)$', re.DOTALL)
_SCRIPT = re.compile(r'<script type="module">.*?</script>(?=</figure>$)', re.DOTALL)


def up_to_date(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Return the outputs of an executed cell with the package's current scripts and styles in their figures."""
    return [_up_to_date(output) for output in outputs]


def _up_to_date(output: NotebookNode) -> NotebookNode:
    found = _FIGURE.match(output.get("data", {}).get("text/html", ""))
    if found is None:
        return output
    figure, name = found[1], found["name"]
    if name:
        figure = _SCRIPT.sub(lambda _: moving.script(name), figure)
    html = f"<style>{STYLE}{moving.style() if name else ''}</style>{figure}"
    return NotebookNode({**output, "data": NotebookNode({**output.data, "text/html": html})})
