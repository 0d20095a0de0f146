"""The scripts and styles that the outputs of figures carry along, brought up to date without running a cell.

An output of a figure holds everything it needs, so that it works in a saved notebook without a kernel. The picture, the
data and the tables depend on the cell, and stay as the cell wrote them. The scripts and styles are the package's, the
same in every output, so the builder replaces them when they change.
"""

from __future__ import annotations

import re

from nbformat import NotebookNode

from companion_school.study.figure_html import STYLE
from companion_school.study.live import moving

_FIGURE = re.compile(r'^<style>.*?</style>(<figure class="ext-figure"(?: data-live="(?P<name>\w+)")?.*)$', re.DOTALL)
_SCRIPT = re.compile(r'<script type="module">.*?</script>(?=</figure>$)', re.DOTALL)


def up_to_date(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """The outputs of an executed cell; figures among them with the scripts and styles that the package has now."""
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
