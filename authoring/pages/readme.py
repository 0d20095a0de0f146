"""README.md: a cell of a lesson, the list of lessons, the tree of the package, between marks; the rest is by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from authoring.imports import PACKAGE
from authoring.lesson import ROOT, Lesson, LessonError
from authoring.pages import map
from companion.ground import display

FILE = "../README.md"
BEGIN, END = "<!-- the lessons, by make notebooks -->", "<!-- end of the lessons -->"
CELL, END_CELL = "<!-- a cell of lesson 02, by make notebooks -->", "<!-- end of the cell -->"
SHOWN = (2, "measured-size")
"""The lesson, and the name of its cell."""
TREE, END_TREE = "<!-- the package, by make notebooks -->", "<!-- end of the package -->"


def table(lessons: Sequence[Lesson]) -> str:
    """The list: title, question, minutes."""
    lines = ["| lesson | question | minutes |", "|---|---|---|"]
    for lesson in lessons:
        link = f"[{lesson.label} {lesson.title}](notebooks/{lesson.name}.ipynb)"
        lines.append(f"| {link} | {lesson.question} | {lesson.minutes} |")
    hours = sum(lesson.minutes for lesson in lessons) / 60
    lines.append(f"| | all of them, without the exercises | {hours:.0f} hours |")
    return "\n".join(lines)


def excerpt(lessons: Sequence[Lesson]) -> str:
    """The cell `SHOWN`, and what it printed. Raises `LessonError` where there is none."""
    number, name = SHOWN
    cells = [cell for lesson in lessons if lesson.number == number for cell in lesson.built]
    for cell in cells:
        if cell.cell_type == "code" and cell.metadata.get("name") == name:
            printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
            return f"```python\n{cell.source}\n```\n\n```\n{printed.rstrip()}\n```"
    raise LessonError(f"README.md shows the cell {name!r} of lesson {number:02d}, and there is none")


def tree(package: Path = PACKAGE) -> str:
    """The files of the package, each with its first sentence; of the lessons' exercises, one line for all.

    A folder's files come in the order of their floors, the ground floor first.
    """
    lines = display.table(list(_entries(package, package)), left=(0, 1), indent=0, width=None)
    return "\n".join(["```text", f"{package.name}/", lines, "```"])


def _entries(folder: Path, package: Path) -> Iterator[tuple[str, str]]:
    """What is in a folder, indented by its depth: a name, and the first sentence of the file or of the folder."""
    indent = "  " * (1 + len(folder.relative_to(package).parts))
    exercises = False
    for path in sorted(_shown(folder), key=lambda path: (_floor(path, package), path.is_dir(), path.name)):
        if map.EXERCISES.fullmatch(path.relative_to(package).with_suffix("").as_posix()):
            if not exercises:
                yield f"{indent}lesson_00.py ...", "The exercises, a file for each lesson."
            exercises = True
        elif path.is_dir():
            init = path / "__init__.py"
            yield f"{indent}{path.name}/", _first_sentence(init) if init.exists() else ""
            yield from _entries(path, package)
        else:
            yield f"{indent}{path.name}", _first_sentence(path)


def _shown(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if any(path.rglob("*.py")) if path.is_dir() else path.suffix == ".py" and path.name[:2] != "__":
            yield path


def _floor(path: Path, package: Path) -> int:
    """The lowest floor that a file, or a file of a folder, stands on."""
    inside = [file for file in path.rglob("*.py") if file.name[:2] != "__"]
    files = [path] if path.is_file() else inside or [path / "__init__.py"]
    return min(map.floor(file.relative_to(package).with_suffix("").as_posix()) for file in files)


def _first_sentence(file: Path) -> str:
    """Raises `LessonError` for a file that does not say what it is."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    if not text:
        raise LessonError(f"{file}: expected a first sentence that says what it is")
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[^.][.?!]) (?=[A-Z`])", first)[0]


def render(lessons: Sequence[Lesson]) -> str:
    """The README with its three pieces made anew. Raises `LessonError` if a mark is missing."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = between(text, CELL, excerpt(lessons), END_CELL, "the cell of a lesson")
    text = between(text, BEGIN, table(lessons), END, "the list of lessons")
    return between(text, TREE, tree(), END_TREE, "the tree of the package")


def between(text: str, begin: str, new: str, end: str, what: str) -> str:
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise LessonError(f"the README: {what} stands between `{begin}` and `{end}`; one of them is missing")
    return f"{before}{begin}\n{new}\n{end}{after}"
