"""start.ipynb, the first page for readers: the course, the path, and how to run a cell, stop, and continue later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

from authoring import exercises
from authoring.lesson import ROOT, Lesson
from authoring.minutes import Part
from authoring.pages import front
from authoring.site.fault import Faults
from authoring.site.repository import address
from companion_school.course.release.notebook_cells import IN_ANOTHER_KERNEL, KERNEL
from companion_school.study import progress_table

FILE = progress_table.FILE
PATH = "../companion_school/study/path.json"
TEXT = Path(__file__).with_suffix(".md")
CODE = f"{IN_ANOTHER_KERNEL}\nfrom companion_school.study import progress_table\n\nprogress_table.show()"
MARK = "<!-- the path -->"  # shows in start.md where to insert the cell with the path


def lessons_on_the_path(lessons: Sequence[Lesson]) -> list[dict[str, Any]]:
    """Return the data that `progress_table.table` needs for each lesson."""
    return [
        {
            "number": lesson.label,
            "title": lesson.title,
            "file": f"{lesson.name}.ipynb",
            "question": lesson.question,
            "minutes": lesson.minutes,
            "sittings": [
                {"title": part.title, "cell": cell_of(lesson, part), "minutes": part.minutes, "questions": part.asked}
                for part in lesson.sittings
            ],
            "exercises": [exercise.id for exercise in exercises.of_lesson(lesson.number)],
            "exercise_file": f"exercises/{lesson.label}_exercises.ipynb",
        }
        for lesson in lessons
    ]


def cell_of(lesson: Lesson, part: Part) -> str:
    """Return the id of the cell in which a sitting begins. JupyterLab follows links to a cell even in an output."""
    return str(lesson.cells[lesson.heading(part.title).index].id)


def whom_to_tell(repository: str) -> str:
    """Return where to report mistakes: in the repository's issues, if pyproject.toml names a repository."""
    return f"[open an issue]({repository}/issues)" if repository else "tell whoever gave you the course"


def course(lessons: Sequence[Lesson]) -> str:
    """Return the path as JSON for the package, for use when the file of the start page is not available."""
    return json.dumps(lessons_on_the_path(lessons), ensure_ascii=False, indent=1) + "\n"


def render(lessons: Sequence[Lesson]) -> str:
    """Return the notebook, which shows the path for a reader who has not done anything yet."""
    text = TEXT.read_text(encoding="utf-8").replace("{tell}", whom_to_tell(address(ROOT, Faults())))
    text = text.replace("{picture}", front.ALT)
    before, _, after = text.partition(MARK)
    picture, *parts = after.split("\n## ")
    known = lessons_on_the_path(lessons)
    shown = nbformat.v4.new_output(
        "display_data", data={"text/html": progress_table.table(known, progress_table.Done()), "text/plain": ""}
    )
    cells = [
        nbformat.v4.new_markdown_cell(before.strip()),
        nbformat.v4.new_code_cell(CODE, outputs=[shown], execution_count=1, metadata={"name": progress_table.CELL}),
        nbformat.v4.new_markdown_cell(picture.strip()),
        *(nbformat.v4.new_markdown_cell(f"## {part.strip()}") for part in parts),
    ]
    for cell in cells:
        cell.id = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
    cells[1].metadata["tags"] = ["nbval-ignore-output"]  # the output depends on the reader's progress
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={**KERNEL, "path": known})
    notebook.nbformat_minor = 5
    return nbformat.writes(notebook) + "\n"
