"""The site's front page, made from `index.md` and the list of lessons."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path

from authoring.markdown import formulas as formulas_in
from authoring.pages.start import whom_to_tell
from authoring.site import own
from authoring.site.formula import Formula, Formulas
from authoring.site.notebook import Press, as_block, block, raw
from authoring.site.pages import Course, Page
from authoring.site.questions import bar
from companion_school.build.stages import STAGES
from companion_school.questions.question import Question

TEXT = Path(__file__).with_name("index.md")
DOORS = (
    ("flow.html", "The whole flow", "Follow a text through a model, from its letters to the next word, step by step."),
    ("explorer.html", "The explorer", "Every number of a running model: switch heads off, swap a token, look inside."),
    ("chat.html", "Write a story together", "Take turns with the model that this course trains and ships."),
    (
        f"{own.INDEX}.html",
        own.LABEL,
        f"Write {len(STAGES)} files yourself, each with a check that says what is wrong.",
    ),
)
"""Links on the front page besides the lessons: page, title and description."""
_FIGURE = re.compile(r"{{ figure (\d\d) (\w+) }}")


def text(course: Course, asked: Mapping[str, list[Question]], press: Press, home: str) -> str:
    """Return the text of the front page. `home` is the address of the repository, or an empty string."""
    words = TEXT.read_text(encoding="utf-8").replace("{{ path }}", path(course, asked, press.formulas))
    words = _FIGURE.sub(lambda found: figure(course, press, *found.groups()), words)
    for mark, part in {"begin": begin(course), "doors": doors(), "tell": whom_to_tell(home)}.items():
        words = words.replace(f"{{{{ {mark} }}}}", part)
    return words


def begin(course: Course) -> str:
    """Return the link to the first lesson.

    For returning readers, the page's script replaces it with a link to where they stopped.
    """
    first = course.pages[course.path[0]["file"]]
    return raw(f'<p class="begin"><a id="go-on" href="{first.name}.html">Begin: {html.escape(first.label)}</a></p>')


def doors() -> str:
    """Return the other links as a list in the style of the list of lessons."""
    rows = [f'<li><a href="{href}">{title}</a><span>{said}</span></li>' for href, title, said in DOORS]
    return raw(f'<ul class="path doors">{"".join(rows)}</ul>')


def figure(course: Course, press: Press, number: str, name: str) -> str:
    """Return a moving figure from a lesson, or record a fault if it does not exist."""
    page = course.part("lesson", number)
    for at, cell in enumerate(page.notebook.cells if page else [], 1):
        for result in cell.get("outputs", []):
            if page and f'data-live="{name}"' in result.get("data", {}).get("text/html", ""):
                return as_block(result, page, press, f"{page.place}, cell {at}")
    press.faults.add(TEXT.name, f"there is no moving figure {name!r} in lesson {number}")
    return ""


def path(course: Course, asked: Mapping[str, list[Question]], formulas: Formulas) -> str:
    """Return the list of lessons with their questions, minutes, and the number of questions answered."""
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
    return block("shown", f'<ul class="path">{"".join(rows)}</ul><p>{said}</p>')


def _progress(asked: list[Question] | None) -> str:
    return f" · {bar(asked)}" if asked else ""


def _more(course: Course, lesson: Page) -> str:
    parts = [(page, kind) for kind in ("exercises", "deeper") if (page := course.part(kind, lesson.lesson))]
    return "".join(
        f' · <a href="{page.name}.html" aria-label="{kind} of lesson {lesson.lesson}">{kind}</a>'
        for page, kind in parts
    )
