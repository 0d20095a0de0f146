"""Functions that a reader calls in a notebook: `check("2.3")`, `hint("2.3")`, `solution("2.3")`, `progress()` and, for
an answer that is part of the reader's own transformer, `take_over("2.3")`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from companion.ground.display import count
from companion_school.build.check import check_stage
from companion_school.build.stages import find_stage
from companion_school.build.take_over import BRIDGES
from companion_school.build.take_over import take_over as lay_over
from companion_school.build.workspace import find_folder
from companion_school.checking.call import Result, in_this_process
from companion_school.checking.examine import examine, key_of
from companion_school.checking.notebook_answer import NotYet, attempt, not_run, praise, readers
from companion_school.exercises import progress as kept
from companion_school.exercises.catalogue import find_exercise


def check(id: str | float, answer: Callable[..., Any] | None = None) -> None:
    """Check your answer to an exercise. If it is right, print that, and the next thing that would make it robust.

    Args:
        id: Number of the exercise, as in "2.3", or a stage of your own transformer, as in "build.5".
        answer: Your function (default: the function in your notebook that has the name the exercise asks for).

    Raises:
        NotYet: The answer is not right. The message names the property that fails, the smallest input that shows the
            failure, the expected and the actual result, and the most likely mistake.
        ValueError: There is no such exercise.
    """
    if str(id).startswith("build."):
        check_stage(find_stage(id), find_folder())
        return
    exercise = find_exercise(id)
    own = answer is None
    if answer is None:
        answer = readers(exercise.name, sys._getframe(1))
    title = f"{exercise.id} {exercise.title}"
    stale = not_run(exercise.name, answer, sys._getframe(1).f_globals.get("In", [])) if own else ""
    try:
        key = key_of(exercise)
        without = exercise.forbidden
        call = lambda tried: examine(key, in_this_process(tried, without))  # noqa: E731
        verdict = attempt(title, exercise.name, answer, without, call)
    except NotYet as fault:
        if own and fault.verdict is not None and fault.verdict.result is not Result.MISSING:
            kept.note_check(exercise.id, passed=False)
        if stale:
            raise NotYet(f"{stale}\n\n{fault}", fault.verdict) from None
        raise
    if own:
        kept.note_check(exercise.id, passed=True, robust=verdict.is_robust)
    print(*filter(None, [stale, praise(verdict, f"{title}: right. {count(exercise.points, 'point')}.")]), sep="\n\n")
    if own and exercise.id in BRIDGES:
        print(BRIDGES[exercise.id].told)


def take_over(id: str | float) -> None:
    """Write your answer to an exercise into the file of your own transformer where it belongs.

    The answer is checked first, and nothing that you have written is overwritten.

    Args:
        id: Number of the exercise, as in "2.3".

    Raises:
        NotYet: The answer is not right.
        ValueError: The exercise does not belong to a stage, the file already has its own version, or the answer does
            not work there.
    """
    exercise = find_exercise(id)
    bridge = BRIDGES.get(exercise.id)
    if bridge is None:
        raise ValueError(f"exercise {exercise.id} is not part of a stage; expected one of {', '.join(BRIDGES)}")
    answer = readers(exercise.name, sys._getframe(1))
    check(exercise.id, answer)
    try:
        text = inspect.getsource(answer)
    except (OSError, TypeError):
        raise ValueError(
            f"exercise {exercise.id}: the source of {exercise.name} cannot be read; copy it manually"
        ) from None
    print(lay_over(bridge, text, find_folder()))


def hint(id: str | float) -> None:
    """Print the next hint for an exercise. After the last hint, print it again."""
    exercise = find_exercise(id)
    number = kept.note_hint(exercise.id)
    print(f"{exercise.id}, hint {number} of {len(exercise.hints)}: {exercise.hints[number - 1]}")
    if number == len(exercise.hints):
        print(f'This was the last hint. solution("{exercise.id}") shows an answer that works.')


def solution(id: str | float) -> None:
    """Print the reference solution. Yours may look quite different and be just as right."""
    exercise = find_exercise(id)
    kept.note_solution(exercise.id)
    print(exercise.solution)


def progress(lesson: int | str | None = None) -> None:
    """Show what you have done so far in this course on this machine.

    Args:
        lesson: Number of the lesson whose exercises are listed, as in `progress(2)`; "all" lists the exercises of every
            lesson. By default, each lesson has one line. The total for the course is always printed.

    Raises:
        ValueError: There is no such lesson, or it has no exercises.
    """
    print(kept.overview() if lesson is None else kept.table() if lesson == "all" else kept.table(lesson))
