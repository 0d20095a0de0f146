"""Pages with the questions of each lesson, which show how many questions the reader has answered."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import replace

from authoring.site import output
from authoring.site.notebook import Press, block, raw
from authoring.site.pages import Course, Page
from companion.ground.display import count
from companion_school.questions.asking import Shown
from companion_school.questions.question import Question, questions

INDEX = "questions/index"


def by_lesson() -> dict[str, list[Question]]:
    """Return all questions, by the number of their lesson, such as "02"."""
    found: dict[str, list[Question]] = {}
    for question in questions().values():
        found.setdefault(f"{question.lesson:02d}", []).append(question)
    return found


def bar(asked: list[Question]) -> str:
    """Return a counter of answered questions, which the page's script updates. Without scripts, it shows the total."""
    keys = html.escape(" ".join(question.key for question in asked))
    return f'<span class="progress" data-questions="{keys}">{count(len(asked), "question")}</span>'


def texts(press: Press, course: Course) -> Iterator[tuple[str, str, str]]:
    """Yield each page's name, its label in the contents, and its text."""
    rows = []
    for number, asked in by_lesson().items():
        lesson = course.part("lesson", number)
        if lesson is None:
            continue
        name = f"questions/{number}"
        label = lesson.label.removeprefix(f"{number} ")
        rows.append(f'<tr><td><a href="{number}.html">{html.escape(lesson.label)}</a></td><td>{bar(asked)}</td></tr>')
        parts = [
            f"# Questions: {label}",
            f"They stand in [lesson {number}](../{lesson.name}.html), where the reasons are. Here you can ask yourself "
            "again: your answers are kept in this browser, and shown there too.",
            raw(f"<p>{bar(asked)}</p>"),
        ]
        for question in asked:
            parts += [f"## {question.id}", _shown(question, name, lesson, course, press)]
        yield name, f"Questions {number}", "\n\n".join(parts) + "\n"
    head = "<thead><tr><th>lesson</th><th>answered</th></tr></thead>"
    table = f'<table class="progress-table">{head}<tbody>{"".join(rows)}</tbody></table>'
    text = (
        "Every question of the course, lesson by lesson. Your answers are kept in this browser, and nowhere else. "
        "In JupyterLab, `companion review` asks each of them again after 1, 3, 7 and 21 days."
    )
    yield INDEX, "Questions", f"# Questions\n\n{text}\n\n{raw(table)}\n"


def _shown(question: Question, name: str, lesson: Page, course: Course, press: Press) -> str:
    asking = [part for kind in ("lesson", "deeper") if (part := course.part(kind, lesson.lesson))]
    cells = ((part, cell) for part in asking for cell in part.notebook.cells)
    code = f"# question {question.id}\n"
    source, asked = next(((part, cell.id) for part, cell in cells if cell.source.startswith(code)), (lesson, None))
    # links in a question are relative to the folder of its notebook
    page, place = replace(source, name=name), f"question {question.id}"

    def lead(href: str) -> str | None:
        there = press.links.leads(href, page, place)
        return f"../{source.name}.html{there}" if there and there.startswith("#") else there

    shown = Shown(question)._repr_html_()
    for formula in output.formulas_of(shown):
        press.formulas.add(formula, place)
    href = f"../{source.name}.html#cell-{asked}"
    back = f'<p class="back"><a href="{href}">Question {question.id} in its place</a></p>' if asked else ""
    return block("shown", output.page_html(shown, press.assets, lead, page.up) + back)
