"""The scripts and styles that outputs carry along, brought up to date without running a cell.

An output of a question or a figure holds everything it needs, so that it works in a saved notebook without a kernel.
The picture, the data and the tables depend on the cell, and stay as the cell wrote them. The scripts and styles are the
package's, the same in every output, so the builder replaces them when they change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nbformat import NotebookNode

from companion_school.questions.asking import Shown
from companion_school.questions.question import Question
from companion_school.study.figure_html import STYLE
from companion_school.study.live import moving

_ASKED = re.compile(r'^ask\("(?P<id>[^"]+)"\)$', re.MULTILINE)
_FIGURE = re.compile(
    r'^<style>.*?</style>(?P<figure><figure class="ext-figure"(?: data-live="(?P<name>\w+)")?.*)$', re.DOTALL
)
_SCRIPT = re.compile(r'<script type="module">.*?</script>(?=</figure>$)', re.DOTALL)


def up_to_date(cell: NotebookNode, questions: Mapping[str, Question]) -> list[NotebookNode]:
    """The outputs of an executed cell, with the scripts and styles that the package has now.

    cell:       a code cell with its outputs.
    questions:  those of the lesson, by id, as its source asks them now.
    """
    return [_output(output, cell.source, questions) for output in cell.outputs]


def _output(output: NotebookNode, source: str, questions: Mapping[str, Question]) -> NotebookNode:
    html = output.get("data", {}).get("text/html")
    if html is None:
        return output
    asked = _ASKED.search(source)
    new = _question(questions.get(asked["id"])) if asked else _figure(html)
    return output if new is None else NotebookNode({**output, "data": NotebookNode({**output.data, **new})})


def _question(question: Question | None) -> dict[str, str] | None:
    if question is None:
        return None
    shown = Shown(question)
    return {"text/html": shown._repr_html_(), "text/plain": repr(shown)}


def _figure(html: str) -> dict[str, str] | None:
    found = _FIGURE.match(html)
    if found is None:
        return None
    figure, name = found["figure"], found["name"]
    if name:
        figure = _SCRIPT.sub(lambda _: moving.script(name), figure)
    return {"text/html": f"<style>{STYLE}{moving.asset('kit.css') if name else ''}</style>{figure}"}
