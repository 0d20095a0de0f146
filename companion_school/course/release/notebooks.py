"""Exercise notebooks for self-study, and notebooks with solutions, which prove that the exercises can be solved."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import nbformat

from companion.ground.atomic import write_atomic
from companion.ground.display import count
from companion_school.build.take_over import BRIDGES
from companion_school.checking.call import Result
from companion_school.checking.examine import Verdict
from companion_school.checking.exercise import Exercise
from companion_school.checking.notebook_answer import praise
from companion_school.course.release import navigation_line
from companion_school.course.release.dependencies import other_exercises
from companion_school.course.release.documents import document
from companion_school.course.release.notebook_cells import (
    IMPORTS,
    IN_ANOTHER_KERNEL,
    PRECISION,
    Cell,
    Notebook,
    code,
    heading,
    markdown,
    notebook,
    to_text,
)
from companion_school.exercises.catalogue import exercises

_HOW = (
    "**Run the cell below first**, each time you open this notebook, because Python stores nothing between "
    "sessions.\nThen write each answer into the cell that starts with its `def` line, run that cell, and run the "
    "`check` below\nit, which tries your answer at once. If you are stuck, remove the `#` in front of `hint` and run "
    "the cell. Run\nit again for the next of three hints. `solution` shows an answer that works. Your progress is "
    f"saved.\n\n{PRECISION}"
)
_DESK = "from companion_school.exercises import check, hint, progress, solution"


def titles(folder: Path) -> navigation_line.Titles:
    """Return the name and title of each lesson notebook (`NN_name.ipynb`) in `folder`, keyed by lesson number."""
    found = {}
    for path in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        title = next((title[1] for cell in cells if (title := re.match(r"# (.+)", cell.source))), None)
        if title:
            found[int(path.name[:2])] = (path.stem, title)
    return found


def chapters(folder: Path) -> dict[str, tuple[str, list[Exercise]]]:
    """Return the title and exercises of each lesson in `folder` that has exercises, keyed by notebook name."""
    found = {}
    for number, (name, title) in titles(folder).items():
        of_lesson = [exercise for exercise in exercises().values() if exercise.lesson == number]
        if of_lesson:
            found[name] = (title, of_lesson)
    return found


def self_study(name: str, title: str, book: Iterable[Exercise], line: str = "") -> Notebook:
    """Return the self-study notebook of a lesson, with stubs, checks, hints and progress, but no outputs.

    Args:
        name: Name of the lesson's notebook, without suffix.
        title: Title of the lesson.
        book: The lesson's exercises.
        line: Navigation line for the top and bottom of the notebook (see `navigation_line.navigation`).
    """
    book = list(book)
    minutes = sum(exercise.minutes for exercise in book)
    ends = [markdown(line, tags=[navigation_line.TAG]) for _ in range(2 if line else 0)]
    cells: list[Cell] = [
        *ends[:1],
        markdown(
            f"# Exercises: {title}\n\nThese are the exercises for [lesson {name[:2]}](../{name}.ipynb): "
            f"{len(book)} in all, about {minutes} minutes.\n\n{_HOW}"
        ),
        code(f"{IN_ANOTHER_KERNEL}\n{IMPORTS}\n\n{_DESK}"),
    ]
    for exercise in book:
        cells += [
            markdown(heading(exercise)),
            code(exercise.stub),
            code(f'check("{exercise.id}")', tags=["raises-exception"]),
            code(f'# hint("{exercise.id}")\n# solution("{exercise.id}")'),
        ]
    cells += [markdown("## Where you stand"), code(f"progress({int(name[:2])})"), *ends[1:]]
    return notebook(cells)


def solved(title: str, book: Iterable[Exercise]) -> Notebook:
    """Return the solved notebook of a lesson, with reference solutions and the expected output of the checks."""
    book = list(book)
    cells: list[Cell] = [
        markdown(
            f"# Exercises, solved: {title}\n\nOne solution to each exercise. Yours may look different and be just as "
            "right."
        ),
        code(f"{IMPORTS}\n\nfrom companion_school.exercises import check", prints=""),
    ]
    earlier = {exercise.id for exercise in book}
    for exercise in book:
        for id in other_exercises(exercise):
            if id not in earlier:
                earlier.add(id)
                cells.append(code(exercises()[id].solution, prints=""))
        right = f"{exercise.id} {exercise.title}: right. {count(exercise.points, 'point')}."
        right = f"{praise(Verdict(Result.RIGHT), right)}\n"
        if exercise.id in BRIDGES:
            right += f"{BRIDGES[exercise.id].told}\n"
        cells += [
            markdown(heading(exercise)),
            code(exercise.solution, prints=""),
            code(f'check("{exercise.id}")', prints=right),
        ]
    return notebook(cells)


def self_study_files(folder: Path) -> dict[Path, str]:
    """Return the contents of every file that must be in `folder`/exercises, keyed by path."""
    files, known = {}, titles(folder)
    for name, (title, book) in chapters(folder).items():
        number = int(name[:2])
        line = navigation_line.navigation(
            "exercises", number, known, deeper=(folder / navigation_line.deeper_of(number)).exists()
        )
        files[folder / navigation_line.exercises_of(number)] = to_text(self_study(name, title, book, line))
    return files | {folder / "exercises" / "TUTOR.md": document("TUTOR.md")}


def stale_files(folder: Path) -> list[str]:
    """Return a description of each file in `folder`/exercises that is missing, outdated or superfluous."""
    wanted = self_study_files(folder)
    faults = []
    for path, text in wanted.items():
        if not path.exists():
            faults.append(f"{path}: has never been built")
        elif path.read_bytes() != text.encode():
            faults.append(f"{path}: is not up to date with the exercises")
    faults += [f"{path}: does not belong to any exercises" for path in _left_over(folder, wanted)]
    return faults


def write_self_study(folder: Path) -> list[str]:
    """Update the files in `folder`/exercises.

    Returns:
        One line for each file that was written or removed.

    Raises:
        ValueError: `folder` contains no lesson with exercises.
    """
    wanted = self_study_files(folder)
    if len(wanted) == 1:
        expected = "expected the folder of the lessons, with files named NN_name.ipynb"
        raise ValueError(f"{folder}: {expected}; found no lesson there")
    lines = []
    for path, text in wanted.items():
        if not path.exists() or path.read_bytes() != text.encode():
            write_atomic(path, text)
            lines.append(f"{path}: written")
    for path in _left_over(folder, wanted):
        path.unlink()
        lines.append(f"{path}: removed, because it does not belong to any exercises")
    return lines


def write_solved(folder: Path, out: Path) -> list[Path]:
    """Write the solved notebooks of all lessons in `folder` to `out` and return their paths."""
    written = []
    for name, (title, book) in chapters(folder).items():
        path = out / f"{name[:2]}_exercises.ipynb"
        write_atomic(path, to_text(solved(title, book)))
        written.append(path)
    return written


def _left_over(folder: Path, wanted: Iterable[Path]) -> list[Path]:
    return sorted(set((folder / "exercises").glob("*.ipynb")) - set(wanted))
