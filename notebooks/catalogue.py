"""The exercises of a lesson, as the table that stands in it.

They are read from the text of companion/exercises/lesson_NN.py, which is not imported: exercises need torch, and
whoever builds or checks prose should not have to wait for it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

PLACEHOLDER = "{{ exercises }}"
"""The line of a source that `table` takes the place of."""


@dataclass(frozen=True)
class Listed:
    """What the table says of an exercise: the first arguments of its decorator `@exercise(...)`."""

    id: str
    title: str
    task: str
    points: int
    difficulty: int
    minutes: int


def file_of(lesson: int, package: Path) -> Path:
    """Where the exercises of a lesson are written."""
    return package / "exercises" / f"lesson_{lesson:02}.py"


def listed(lesson: int, package: Path) -> list[Listed]:
    """The exercises of a lesson, in order; none if it has none.

    Raises:
        ValueError: for an exercise that does not say in so many words what the table needs.
    """
    path = file_of(lesson, package)
    if not path.exists():
        return []
    calls = [
        call
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "exercise"
    ]
    return [_listed(call, path) for call in calls]


def _listed(call: ast.Call, path: Path) -> Listed:
    names = [field.name for field in fields(Listed)]
    given = dict(zip(names, call.args, strict=False)) | {word.arg: word.value for word in call.keywords}
    try:
        return Listed(**{name: ast.literal_eval(given[name]) for name in names})
    except (KeyError, ValueError) as error:
        what = f"expected {', '.join(names)}, each as a plain value"
        raise ValueError(f"{path.name}, line {call.lineno}: an exercise for the table of its lesson: {what}") from error


def difficulties(package: Path) -> dict[int, str]:
    """What the numbers for difficulty mean, in a word or two."""
    path = package / "checking" / "exercise.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DIFFICULTIES":
            found: dict[int, str] = ast.literal_eval(node.value)
            return found
    raise ValueError(f"{path}: expected DIFFICULTIES")


def table(name: str, package: Path) -> str | None:
    """Markdown for the lesson of this name ("02_scaled_dot_product_attention"); None if it has no exercises.

    It lists them, links to their notebook, and says how to work with them.
    """
    book = listed(int(name[:2]), package)
    if not book:
        return None
    kinds = difficulties(package)
    rows: list[tuple[Any, ...]] = [
        ("no.", "exercise", "what you do", "difficulty", "minutes", "points"),
        ("---", "---", "---", "---", "---:", "---:"),
        *((x.id, x.title, x.task, f"{x.difficulty} ({kinds[x.difficulty]})", x.minutes, x.points) for x in book),
    ]
    drawn = "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)
    minutes, points = sum(x.minutes for x in book), sum(x.points for x in book)
    link = f"exercises/{name}.ipynb"
    return f"""\
{drawn}

They wait in **[{link}]({link})**: about {minutes} minutes and {points} points in all.
Write each answer into its cell there, and run it.

- `check("{book[0].id}")` tries your answer at once, and says what is wrong with it and on which input;
- `hint("{book[0].id}")` gives the first of three steps, and the next one each time you run it again;
- `solution("{book[0].id}")` shows an answer that works; yours may look different and be as right;
- `progress()` shows what you have done; it is kept from day to day."""
