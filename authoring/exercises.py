"""The exercises of a lesson, formatted as the table that the lesson shows."""

from __future__ import annotations

from typing import Any

from companion_school.checking.exercise import DIFFICULTIES, Exercise
from companion_school.exercises.catalogue import exercises

PLACEHOLDER = "{{ exercises }}"
"""The line in a source that is replaced with the result of `table`."""


def of_lesson(number: int) -> list[Exercise]:
    """Return the exercises of a lesson in order, or an empty list."""
    return [exercise for exercise in exercises().values() if exercise.lesson == number]


def file_of(number: int) -> str:
    """Return the file that defines the exercises of a lesson."""
    return f"companion_school/exercises/lesson_{number:02}.py"


def table(name: str) -> str | None:
    """Return the exercises of a lesson, such as "02_scaled_dot_product_attention", as Markdown, or `None`.

    The text lists the exercises, links to their notebook, and explains how to work with them.
    """
    listed = of_lesson(int(name[:2]))
    if not listed:
        return None
    rows: list[tuple[Any, ...]] = [
        ("no.", "exercise", "what you do", "difficulty", "minutes", "points"),
        ("---", "---", "---", "---", "---:", "---:"),
        *(
            (x.id, x.title, x.task, f"{x.difficulty} ({DIFFICULTIES[x.difficulty]})", x.minutes, x.points)
            for x in listed
        ),
    ]
    drawn = "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)
    minutes, points = sum(x.minutes for x in listed), sum(x.points for x in listed)
    link = f"exercises/{name[:2]}_exercises.ipynb"
    return f"""\
{drawn}

You will find them in **[{link}]({link})**. They take about {minutes} minutes and are worth {points} points in all.
Write each answer into its cell there and run the cell.

- `check("{listed[0].id}")` tries your answer at once and says what is wrong and for which input;
- `hint("{listed[0].id}")` gives the first of three hints, and the next one each time you run it again;
- `solution("{listed[0].id}")` shows an answer that works, although yours may look different and be just as good;
- `progress({int(name[:2])})` shows what you have done in this lesson and in the whole course."""
