"""A student's feedback page: a single HTML file that loads no other files.

The page is rendered from `Settled` marks, whose findings on hidden cases contain no input, no value and nothing that
the student's code wrote. The template, `feedback.html`, escapes all inserted text.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from companion_school.course.grading.results import EXTRA, Line, Settled
from companion_school.course.grading.submissions import CHOICE, CHOICE_OF_FOLDER, platform_name
from companion_school.course.grading.tables import number, points
from companion_school.course.release.own_numbers import is_own
from companion_school.course.release.questions import LINK, is_question
from companion_school.course.written.rubrics import find_written

_WORDS = {
    "right": "Right.",
    "wrong": "Wrong: the code runs, but its result is not the right one.",
    "missing": "Missing: no answer was found, or it is still as it was handed out.",
    "crashed": "Crashed: the code raised an error, or its process ended.",
    "timeout": "Timeout: the code did not finish within its time limit. If it is fast for you, tell your instructor.",
    "refused": "Refused: the code uses something that the exercise or the grader does not allow.",
    "unreadable": "Unreadable: no file could be read, so nothing was tried.",
    "to mark": "A person will mark it.",
    "marked": "Marked by a person.",
}
_RIGHT_BUT = "Not accepted: the result is right, but another requirement of the exercise is not met."


def page(settled: Settled, assignment: str) -> str:
    """Render a student's feedback page for this assignment as HTML."""
    record = settled.record
    # The name in the tables includes the platform's number, which means something to a student only in blind marking,
    # where Moodle calls everyone "Participant" in the site's language.
    is_blind = "_assignsubmission_" in record.place and " " not in record.student
    of_platform = re.sub(r"_(\d+)$", r" \1" if is_blind else "", record.student)
    name = of_platform if platform_name(record.place) else record.student
    choice = CHOICE_OF_FOLDER if any(item.section for item in record.items) else CHOICE
    return _template().render(one=settled, record=record, name=name, assignment=assignment, choice=choice, extra=EXTRA)


@cache
def _template() -> Template:
    made = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    made.filters |= {
        "sentence": _sentence,
        "number": number,
        "points": points,
        "verdict": _verdict,
        "prose": _prose,
        "level": lambda line: find_written(line.item.id).level(line.given.points).text,
    }
    made.tests["question"] = is_question
    return made.from_string(files(__package__).joinpath("feedback.html").read_text(encoding="utf-8"))


def _verdict(line: Line) -> str:
    if line.item.robust == "yes":
        return "Right, and robust ★."
    if line.outcome != "wrong":
        return _WORDS[line.outcome]
    faults = [finding.fault for finding in line.item.findings]
    if is_question(line.item.id):
        return "Wrong: this is not one of the choices." if any(faults) else "Wrong: this is not the right answer."
    if is_own(line.item.id):
        return "Wrong: this is not the right result for your numbers."
    is_right_but = faults and faults[0].startswith(("the result is right", "right at first"))
    return _RIGHT_BUT if is_right_but else _WORDS["wrong"]


def _sentence(text: str) -> str:
    first = text.partition(" ")[0]
    # A first word that contains anything but letters is probably the name of a function or file, so it is not changed.
    begins = text[:1].upper() + text[1:] if first.isalpha() else text
    return begins + ("" if text.endswith((".", "?", "!")) else ".")


def _prose(text: str) -> Markup:
    """Convert a line of the course's Markdown to HTML, with code marked up and links reduced to their text."""
    text = LINK.sub(r"\1", text)
    text = re.sub(r"\$([^$]+)\$", lambda found: found[1].replace("{", "").replace("}", ""), text)
    parts = re.split(r"`([^`]+)`", text)
    return Markup("").join(Markup("<code>{}</code>").format(p) if at % 2 else escape(p) for at, p in enumerate(parts))
