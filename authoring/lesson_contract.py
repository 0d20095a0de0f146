"""The contract of a lesson: rules that ensure that readers can finish it in an evening."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from nbformat import NotebookNode

from authoring.exercises import PLACEHOLDER, file_of
from authoring.finish import HEAD
from authoring.imports import parsed
from authoring.lesson import Lesson, assertions
from authoring.markdown import PARSER, formulas
from authoring.minutes import LONGEST_IN_ALL, LONGEST_LESSON, LONGEST_SITTING, Part
from authoring.notation import second_meanings, symbols, unknown_letters
from authoring.notebook_contract import Fault, Known, fault, line_at, numbered, title
from authoring.source import FOLDED

SITTINGS = range(2, 5)
CHECKPOINT_QUESTIONS = range(2, 4)
FEWEST_QUESTIONS = 8
MOST_MISCONCEPTIONS = 3
LONGEST_VISIBLE = 15  # the only limit for folded cells is the one for all cells, rules.LONGEST_CELL
CODE_WIDTH, PRINTED_WIDTH = 88, 80
TITLE = 2  # number of the cell with the title, which follows the navigation line
LAST_PARTS = ("Exercises", "Summary", "What to read next")
FIRST_LINES = ("# draws ", "# checks ", "# question ", "# sets up ", "# is this ")
_PLOTTING = re.compile(r"\b(?:plt|matplotlib|pyplot|figures|live)\b|\bax(?:es)?\.")
_TOLERANCE = re.compile(r"\b(?:atol|rtol|rel_tol|abs_tol|assert_close|allclose|isclose|approx)\b")
_CLAIM = re.compile(r"\bS\d-\d\d\b")


def folded(cell: NotebookNode) -> bool:
    return FOLDED in cell.metadata.get("tags", [])


def _place(lesson: Lesson, part: Part) -> tuple[int, int]:
    return part.index + 2, part.line  # cells are counted from 1, and the first one is the navigation line


def parts(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check the parts of a lesson.

    A lesson consists of its question and head, two to four sittings with a question and a checkpoint each, and three
    final parts.
    """
    tokens = PARSER.parse(lesson.cells[1].source)
    paragraphs = [token.content for token in tokens if token.type == "inline"]
    if len(paragraphs) < 2 or not paragraphs[1].rstrip("*_ ").endswith("?"):
        yield fault(lesson, "the first paragraph under the title must be the lesson's question, ending in `?`", 2)
    if "**Time:**" not in "\n".join(paragraphs):
        yield fault(lesson, f"the line `{HEAD}` is missing under the lesson's question", 2)
    names = [part.title.split(":")[0].strip() for part in lesson.parts]
    wanted = [f"Sitting {number}" for number in range(1, len(lesson.sittings) + 1)]
    if len(wanted) not in SITTINGS:
        yield Fault(f"a lesson has two to four sittings, `## Sitting 1: ...?`; this one has {len(wanted)}", 1)
    elif names != [*wanted, *LAST_PARTS]:
        yield Fault(f"its parts must be {', '.join([*wanted, *LAST_PARTS])}, not {', '.join(names)}", 1)
    ends = [*lesson.parts[1:], None]
    for part, end in zip(lesson.parts, ends, strict=True):
        if part.is_sitting:
            for what in _sitting_faults(lesson, part, end):
                yield fault(lesson, what, *_place(lesson, part))


def _sitting_faults(lesson: Lesson, part: Part, end: Part | None) -> Iterator[str]:
    """Yield the faults in a sitting's question, its checkpoint, and the note that tells readers where to stop."""
    cells = lesson.cells[part.index + 1 : end.index + 2 if end else len(lesson.cells)]
    if "?" not in part.title and "?" not in _first_paragraph(cells[0].source, part):
        yield f"{part.title!r} must begin with a question"
    starts = [at for at, cell in enumerate(cells) if re.search(r"^### Checkpoint", cell.source, re.MULTILINE)]
    if len(starts) != 1:
        yield f"{part.title!r} must end with one `### Checkpoint`; it has {len(starts)}"
        return
    asked = sum(cell.source.startswith("# question ") for cell in cells[starts[0] + 1 :])
    if asked not in CHECKPOINT_QUESTIONS:
        yield f"the checkpoint of {part.title!r} has {asked} questions; expected two or three"
    if part is not lesson.sittings[-1] and "You can stop here." not in cells[-1].source:
        yield f"{part.title!r} must say at its end: You can stop here. Next: ..."


def _first_paragraph(text: str, part: Part) -> str:
    under = text.split(f"## {part.title}", 1)[-1].split("\n\n")
    return under[1] if len(under) > 1 else ""


def minutes(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that a lesson takes at most 60 minutes to read, a sitting at most 20 to read and at most 26 in all."""
    reading = round(sum(part.reading for part in lesson.parts))
    if reading > LONGEST_LESSON:
        counted = "; ".join(f"{part.title}: {part}" for part in lesson.parts)
        yield fault(lesson, f"a lesson of {reading} minutes of reading; at most {LONGEST_LESSON}. {counted}", TITLE)
    for part in lesson.sittings:
        if round(part.reading) > LONGEST_SITTING:
            what = f"{part.title!r} takes {part}; at most {LONGEST_SITTING} minutes of reading"
            yield fault(lesson, what, *_place(lesson, part))
        if part.minutes > LONGEST_IN_ALL:
            yield fault(lesson, f"{part.title!r} takes {part}; at most {LONGEST_IN_ALL} minutes", *_place(lesson, part))


def questions(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that there are at least eight questions."""
    if len(lesson.questions) < FEWEST_QUESTIONS:
        yield Fault(f"{len(lesson.questions)} questions; expected at least {FEWEST_QUESTIONS}", 1)


def exercises(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check the part `Exercises`, which must have the table and a sentence about the topic of the exercises."""
    there = [part for part in lesson.parts if part.title == "Exercises"]
    if not there:
        return  # reported by `parts`
    place = _place(lesson, there[0])
    if len(lesson.tables) != 1 or lesson.tables[0][0] != place[0]:
        yield fault(lesson, f"the part `## Exercises` needs the line `{PLACEHOLDER}` once", *place)
    elif PLACEHOLDER in lesson.cells[place[0] - 1].source.split("\n"):
        yield fault(lesson, f"this lesson has no exercises; they are written in {file_of(lesson.number)}", *place)
    under = lesson.cells[place[0] - 1].source.split("\n")[place[1] + 1 :]
    tokens = PARSER.parse("\n".join(under))
    if not tokens or tokens[0].type != "paragraph_open" or under[1:2] == [PLACEHOLDER]:
        yield fault(lesson, "say in a sentence, above the table, what the exercises are about", *place)


def visible_code(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check visible cells.

    A visible cell must be short, must not contain plotting, tolerances or `try`, and must print something or define a
    name that is used by one of the next two code cells.
    """
    code = list(numbered(lesson, "code"))
    for at, (number, cell) in enumerate(code):
        if folded(cell):
            continue
        count = len(cell.source.splitlines())
        if count > LONGEST_VISIBLE:
            what = f"a visible cell of {count} lines; at most {LONGEST_VISIBLE}: fold it, or show less"
            yield fault(lesson, what, number)
        for line, words in enumerate(cell.source.split("\n")):
            words = words.split("#")[0]
            for pattern, what in ((_PLOTTING, "draws"), (_TOLERANCE, "has a tolerance")):
                if pattern.search(words):
                    yield fault(lesson, f"a visible line that {what}: fold it into a cell of its own", number, line)
        tree = parsed(cell.source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Try):
                yield fault(lesson, "`try` in a visible cell: fold it", number, node.lineno - 1)
        if not cell.outputs and not _defined(tree) & {
            name for _, later in code[at + 1 : at + 3] for name in _used(later)
        }:
            what = "a visible cell that shows nothing, and defines nothing that one of the next two cells uses"
            yield fault(lesson, what, number)


def bound(tree: ast.AST) -> set[str]:
    """Return the names that code binds, including arguments."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return found


def _defined(tree: ast.Module) -> set[str]:
    """Return the names that a cell defines for later cells, without the local names of its functions and classes."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        else:
            found |= bound(node)
    return found


def _used(cell: NotebookNode) -> set[str]:
    nodes = list(ast.walk(parsed(cell.source)))
    added_to = [node.target for node in nodes if isinstance(node, ast.AugAssign)]
    return {
        node.id for node in nodes if isinstance(node, ast.Name) and (isinstance(node.ctx, ast.Load) or node in added_to)
    }


def folded_code(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check folded cells.

    The first line must state the cell's purpose, because it is all that readers see of a folded cell. A cell with
    checks must print what it checked.
    """
    for number, cell in numbered(lesson, "code"):
        if not folded(cell):
            continue
        first = cell.source.split("\n")[0]
        if not first.startswith(FIRST_LINES):
            kinds = ", ".join(f"`{start.strip()}`" for start in FIRST_LINES)
            yield fault(lesson, f"the first line of a folded cell begins with one of {kinds}; got {first!r}", number)
        if first.startswith("# checks"):
            yield from _checks(lesson, number, cell)


def _checks(lesson: Lesson, number: int, cell: NotebookNode) -> Iterator[Fault]:
    said = "".join("".join(output.text) for output in cell.outputs if output.get("name") == "stdout").splitlines()
    if not said or not all(line.startswith("checked: ") for line in said):
        yield fault(lesson, "a cell of checks prints what it checked, in lines that begin with `checked: `", number)
    elif not all(re.search(r"\d|≈", line) for line in said):
        yield fault(lesson, "a line `checked: ...` says it with numbers", number)
    if not assertions(cell.source):
        yield fault(lesson, "a cell of checks asserts nothing", number)


def claims(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that claims are named in the metadata of cells with assertions, and that readers do not see these names."""
    for number, cell in enumerate(lesson.built, 1):
        found = _CLAIM.search(cell.source)
        if found:
            what = f"a reader sees {found[0]}: claims are an option of the cell, `:claims: {found[0]}`"
            yield fault(lesson, what, number, line_at(cell.source, found.start()))
        wrong = [claim for claim in cell.metadata.get("claims", []) if not _CLAIM.fullmatch(claim)]
        if wrong:
            yield fault(lesson, f"`:claims: {wrong[0]}`: expected rows of the ledger, as in S0-13, S3-06", number)
        if cell.metadata.get("claims") and not assertions(cell.source):
            yield fault(lesson, "this cell claims and asserts nothing", number)


def widths(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that lines of code have at most 88 columns and printed lines at most 80."""
    for number, cell in numbered(lesson, "code"):
        for line, words in enumerate(cell.source.split("\n")):
            if len(words) > CODE_WIDTH:
                yield fault(lesson, f"a line of code of {len(words)} columns; at most {CODE_WIDTH}", number, line)
        for output in cell.outputs:
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            if "text/html" in output.get("data", {}):
                continue  # readers see the HTML, not the text
            widest = max("".join(text).splitlines(), key=len, default="")
            if len(widest) > PRINTED_WIDTH:
                what = f"a printed line of {len(widest)} columns; at most {PRINTED_WIDTH}: {widest[:40]!r} ..."
                yield fault(lesson, what, number)


def misconceptions(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that there are at most three misconceptions ("You may think that ...")."""
    found = [
        (number, line_at(cell.source, start.start()))
        for number, cell in numbered(lesson, "markdown")
        for start in re.finditer(r"^You may think\b", cell.source, re.MULTILINE)
    ]
    if len(found) > MOST_MISCONCEPTIONS:
        what = f"{len(found)} misconceptions; at most {MOST_MISCONCEPTIONS} in a lesson, the others are deeper"
        yield fault(lesson, what, *found[MOST_MISCONCEPTIONS])


def second_meaning(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that each letter in the table of notation means the same in every lesson."""
    for symbol, words in second_meanings(known.symbols).items():
        if lesson.number in words:
            said = "; ".join(f"lesson {number:02}: {meaning}" for number, meaning in sorted(words.items()))
            place = next(_uses(lesson, symbol), (TITLE, 0))
            yield fault(lesson, f"${symbol}$ has a second meaning in pages/notation.toml: {said}", *place)


def _uses(lesson: Lesson, symbol: str) -> Iterator[tuple[int, int]]:
    """Yield the places where a lesson uses a symbol, as (cell, counted from 1; line in the cell, counted from 0)."""
    for number, cell in enumerate(lesson.written, TITLE):
        for line, formula in formulas(cell.source) if cell.cell_type == "markdown" else []:
            if any(symbol in (whole, letter) for whole, letter, _ in symbols(formula)):
                yield number, line


def notation(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that the table of notation has an entry for each letter in this lesson."""
    letters = {symbol for symbol, by_lesson in known.symbols.items() if lesson.number in by_lesson} | lesson.borrowed
    told: set[str] = set()
    for number, cell in numbered(lesson, "markdown"):
        for line, formula in formulas(cell.source):
            for symbol in unknown_letters(formula, letters):
                if symbol not in told:
                    told.add(symbol)
                    what = f"${symbol}$ has no entry for lesson {lesson.number:02} in pages/notation.toml"
                    yield fault(lesson, what, number, line)


BEFORE_BUILDING = [minutes, second_meaning]
"""Rules whose faults prevent a build. They do not need the built notebook."""
RULES = [
    title, parts, questions, exercises, visible_code, folded_code, claims, widths, misconceptions, notation,
    *BEFORE_BUILDING,
]  # fmt: skip
