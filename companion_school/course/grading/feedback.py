"""One student's page of feedback: HTML in one file, that needs nothing from anywhere.

It is made of `Mark`s, whose hidden verdicts hold no input, no value and nothing that the student's code wrote. The
template, `feedback.html`, escapes all that it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from companion_school.checking.examine import Verdict
from companion_school.course.grading.exercise_mark import Graded, Mark, Text

_WORDS = {
    "right": "Right.",
    "wrong": "Wrong: the code runs, and the result is not the right one.",
    "missing": "Missing: there is no answer, or it is still as it was handed out.",
    "crashed": "Crashed: the code raised an error, or ended its process.",
    "timeout": "Timeout: the code did not end in the time it has.",
    "refused": "Refused: the code uses what the exercise, or the grader, does not allow.",
    "unreadable": "Unreadable: there was no notebook that could be read, so nothing was tried.",
}


def page(graded: Graded, assignment: str) -> str:
    """The page of one student."""
    return _template().render(graded=graded, assignment=assignment, words=_WORDS)


def with_texts(made: str, texts: Sequence[Text], total: str) -> str:
    """A page that was made before with these written answers, and this line of the points, in it."""
    parts = {text.item.id: _written(text) for text in texts} | {"total": escape(total)}
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        head, _, rest = made.partition(begin)
        if end in rest:
            made = f"{head}{begin}{part}{end}{rest.partition(end)[2]}"
    return made


def _written(text: Text) -> Markup:
    """The section of a written answer."""
    item, given = text.item, text.given
    said = {"missing": _WORDS["missing"], "to mark": "A person will mark it."}.get(text.outcome, "")
    head = Markup("<section><h2>{} {}</h2>\n").format(item.id, item.title)
    if given is None or not text.text:
        return head + Markup('<p class="outcome">{}</p></section>').format(said)
    comment = Markup('<p class="likely">{}</p>').format(given.comment) if given.comment else Markup("")
    level = Markup("<p>{} of {} points: {}</p>").format(given.points, item.points, item.level(given.points).text)
    return head + level + comment + Markup("</section>")


@cache
def _template() -> Template:
    made = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    made.filters |= {"sentence": _sentence, "failed": _failed, "written": _written}
    return made.from_string(files(__package__).joinpath("feedback.html").read_text(encoding="utf-8"))


def _failed(mark: Mark) -> list[Verdict]:
    return [verdict for verdict in (mark.public, mark.hidden) if verdict and not verdict.is_right]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
