"""The contract of the first edition: the parts of a lesson, and its exercises."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from nbformat import NotebookNode

from authoring.contract import Fault, Known, begins_with_sentence, fault, numbered, title
from authoring.exercises import PLACEHOLDER, file_of
from authoring.finish import NAVIGATION
from authoring.lesson import Lesson, assertion_lines
from authoring.markdown import PARSER, headings

REQUIRED_PARTS = ("Break it", "Where texts differ", "Exercises", "Summary", "What to read next")
FIRST_LINES = ("**You will be able to**", "**Reading time:**", "**You need:**")


def parts(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """The opening with its question, and the parts of a lesson, in order."""
    there = list(headings(lesson.built))
    second = [heading for heading in there if heading.level == 2]
    names = [heading.part for heading in second]
    for part in REQUIRED_PARTS:
        if part not in names:
            yield Fault(f"the part `## {part}` is missing")
    if set(REQUIRED_PARTS) <= set(names) and names[-3:] != list(REQUIRED_PARTS[2:]):
        last = f"the last three H2 must be {', '.join(REQUIRED_PARTS[2:])}, not {', '.join(names[-3:])}"
        yield fault(lesson, last, second[-1].index + 1, second[-1].line)
    for part in REQUIRED_PARTS[2:]:
        if names.count(part) > 1:
            yield Fault(f"the part `## {part}` is there {names.count(part)} times")
    yield from _opening(lesson)


def _opening(lesson: Lesson) -> Iterator[Fault]:
    opening = []
    for _, cell in numbered(lesson, "markdown"):
        if NAVIGATION in cell.metadata.get("tags", []):
            continue
        before, found, _ = ("\n" + cell.source).partition("\n## ")
        opening.append(before)
        if found:
            break
    text = "\n".join(opening)
    paragraphs = [t.content for t in PARSER.parse(text) if t.type == "inline"]
    if len(paragraphs) < 2 or not paragraphs[1].rstrip("*_ ").endswith("?"):
        yield Fault("the first paragraph under the title must be the lesson's question, ending in `?`", 1)
    for line in FIRST_LINES:
        if line not in text:
            yield Fault(f"`{line}` is missing before the first H2", 1)
    if not re.search(r"\*\*Reading time:\*\*[^\n]*\d", text):
        yield Fault("the reading time must name its minutes", 1)


def exercises(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """The part `Exercises`: a sentence, the table, one wrong answer that is caught; the exercises stand elsewhere."""
    there = list(headings(lesson.built))
    second = [heading for heading in there if heading.level == 2]
    at = [index for index, heading in enumerate(second) if heading.part == "Exercises"]
    if len(at) != 1 or at[0] + 1 == len(second):
        return  # `parts` says so
    start, end = second[at[0] : at[0] + 2]
    first, top, last = start.index + 1, start.line, end.index + 1
    if len(lesson.tables) != 1 or lesson.tables[0][0] != first:
        found = f"in cells {[cell for cell, _ in lesson.tables]}" if lesson.tables else "nowhere"
        what = f"the part `## Exercises` needs the line `{PLACEHOLDER}` once, above its code; it is {found}"
        yield fault(lesson, what, first, top)
    elif PLACEHOLDER in lesson.built[first - 1].source.split("\n"):
        yield fault(
            lesson, f"this lesson has no exercises; they are written in {file_of(lesson.number)}", *lesson.tables[0]
        )
    cell = lesson.built[first - 1]
    under = NotebookNode(cell, source="\n".join(cell.source.split("\n")[top + 1 :]))
    if not begins_with_sentence(under) or under.source.lstrip().startswith(("|", "{{")):
        yield fault(lesson, "say in a sentence, above the table, what the exercises are about", first, top)
    for heading in there:
        if (start.index, start.line) < (heading.index, heading.line) < (end.index, end.line):
            where = file_of(lesson.number)
            what = f"heading {heading.text!r}: exercises are written once, in {where}, and not in the lesson"
            yield fault(lesson, what, heading.index + 1, heading.line)
    yield from _check_at_work(lesson, [n for n, _ in numbered(lesson, "code") if first < n < last] or [first])


def _check_at_work(lesson: Lesson, numbers: Sequence[int]) -> Iterator[Fault]:
    """The code cell of the exercises tries one wrong answer and shows what the check says; there is no other one."""
    for number in numbers[1:]:
        what = f"a second code cell: exercises are written once, in {file_of(lesson.number)}, and not in the lesson"
        yield fault(lesson, what, number)
    cell = lesson.built[numbers[0] - 1]
    for what in _wrong_answer_faults(cell.source if cell.cell_type == "code" else "", lesson.number):
        yield fault(lesson, what, numbers[0])
    if cell.cell_type == "code" and not begins_with_sentence(lesson.built[numbers[0]]):
        what = "the cell under this one must be Markdown, and say in a sentence what the check said"
        yield fault(lesson, what, numbers[0])


def _wrong_answer_faults(code: str, lesson: int) -> Iterator[str]:
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError:
        return  # `code` says so
    calls = [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "check"]
    ids = [str(n.args[0].value) for n in calls if len(n.args) == 2 and isinstance(n.args[0], ast.Constant)]
    if len(calls) != 1 or not any(re.fullmatch(rf"{lesson}\.\d+", id) for id in ids):
        yield f'the exercises need a code cell that tries one wrong answer: `check("{lesson}.1", wrong)`'
        return
    handlers = [ast.unparse(n.type) for n in nodes if isinstance(n, ast.ExceptHandler) and n.type is not None]
    if "NotYet" not in handlers:
        yield "show what the check says of the wrong answer: `except NotYet as fault: print(fault)`"
    if not assertion_lines(code):
        yield "assert a part of what the check says, so that it is what the reader is told"


RULES = [title, parts, exercises]
