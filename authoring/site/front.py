"""The page that the site opens with, from `index.md`, the path through the course, and what the start page says."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path

from authoring.markdown import formulas as formulas_in
from authoring.site.formula import Formula, Formulas
from authoring.site.notebook import Press, block, prose
from authoring.site.pages import Course, Page
from authoring.site.questions import bar
from companion.questions.question import Question

TEXT = Path(__file__).with_name("index.md")


def text(course: Course, asked: Mapping[str, list[Question]], press: Press, badges: str) -> str:
    """The text of the front page: its own words, and the parts of the start page, which are about JupyterLab."""
    start = course.pages["start.ipynb"]
    own = TEXT.read_text(encoding="utf-8").replace("{{ path }}", path(course, asked, press.formulas))
    parts = [own.replace("{{ badges }}", badges)]
    for number, cell in enumerate(start.notebook.cells, 1):
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            parts.append(prose(f"#{cell.source}", start, press, f"{start.place}, cell {number}"))
    return "\n\n".join(parts) + "\n"


def path(course: Course, asked: Mapping[str, list[Question]], formulas: Formulas) -> str:
    """The lessons as a list: question, minutes, and how many of its questions are answered."""
    rows = []
    for lesson in course.path:
        number, page = lesson["number"], course.pages[lesson["file"]]
        for _, tex in formulas_in(lesson["question"]):
            formulas.add(Formula.of(tex, False), f"lesson {number}, its question")
        parts = [
            f'<a href="{page.name}.html">{html.escape(page.label)}</a>',
            f'<span class="asks">{html.escape(lesson["question"])}</span>',
            f'<span class="counts">{lesson["minutes"]} minutes',
            f"{_progress(asked.get(number))}{_more(course, page)}</span>",
        ]
        rows.append(f"<li>{''.join(parts)}</li>")
    minutes = sum(lesson["minutes"] for lesson in course.path)
    said = f"{len(course.path)} lessons, {minutes / 60:.0f} hours without the exercises."
    return block("shown", f'<p id="go-on" hidden></p><ul class="path">{"".join(rows)}</ul><p>{said}</p>')


def _progress(asked: list[Question] | None) -> str:
    return f" · {bar(asked)}" if asked else ""


def _more(course: Course, lesson: Page) -> str:
    parts = [(page, kind) for kind in ("exercises", "deeper") if (page := course.part(kind, lesson.lesson))]
    return "".join(
        f' · <a href="{page.name}.html" aria-label="{kind} of lesson {lesson.lesson}">{kind}</a>'
        for page, kind in parts
    )
