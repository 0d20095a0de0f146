"""What a reader calls in a notebook: `check("2.3")`, `hint("2.3")`, `solution("2.3")`, `progress()`."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from companion.study.exercises import progress as kept
from companion.study.exercises.book import find_exercise
from companion.study.exercises.examine import Result, Verdict, examine, here, key_of
from companion.study.exercises.exercise import Exercise
from companion.study.exercises.forbidden import forbidden_uses


class NotYet(AssertionError):
    """An answer is not right yet; the message says how that shows. Jupyter prints it without a traceback."""

    def __init__(self, message: str, verdict: Verdict | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def check(id: str, answer: Callable[..., Any] | None = None) -> None:
    """Try your answer to an exercise, and say at once how it stands.

    Args:
        id: the exercise, as in "2.3".
        answer: your function; by default the one of the exercise's name in your notebook.

    Raises:
        NotYet: the answer is not right. The message names the property that fails, the smallest input that shows it,
            what was expected and what came, and the most likely mistake.
        ValueError: there is no such exercise.
    """
    exercise = find_exercise(id)
    own = answer is None
    if answer is None:
        answer = _readers(exercise.name)
    title = f"{exercise.id} {exercise.title}"
    if answer is None:
        raise NotYet(f"{title}: not written yet. The check looks for a function {exercise.name} and finds none.")
    if not callable(answer):
        raise NotYet(f"{title}: {exercise.name} is a {type(answer).__name__}; expected a function.")
    used = _forbidden(answer, exercise)
    if used:
        verdict = Verdict(Result.REFUSED, fault=f"it uses {', '.join(used)}, which the exercise asks you to do without")
        fault = f"{title}: {verdict.fault}."
    else:
        verdict = examine(key_of(exercise), here(answer))
        fault = "" if verdict.result is Result.RIGHT else f"{title}: {verdict}"
    if own:
        kept.note_check(exercise.id, passed=not fault)
    if fault:
        raise NotYet(fault, verdict)
    print(f"{title}: right. {exercise.points} point{'s' if exercise.points > 1 else ''}.")


def hint(id: str) -> None:
    """One step of help; call it again for the next."""
    exercise = find_exercise(id)
    number = kept.note_hint(exercise.id)
    print(f"{exercise.id}, hint {number} of {len(exercise.hints)}: {exercise.hints[number - 1]}")


def solution(id: str) -> None:
    """The reference solution. Yours may look quite different and be as right."""
    exercise = find_exercise(id)
    kept.note_solution(exercise.id)
    print(exercise.solution)


def progress() -> None:
    """What you have done so far, in this course and on this machine."""
    print(kept.table())


def _readers(name: str) -> Any:
    """What has this name where the reader called from: in the nearest caller's globals that have it."""
    frame = sys._getframe(2)
    while frame is not None:
        if name in frame.f_globals:
            return frame.f_globals[name]
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _forbidden(answer: Callable[..., Any], exercise: Exercise) -> list[str]:
    """What the answer uses and must not, as far as its source can be read (code that other code made has none)."""
    try:
        return forbidden_uses(textwrap.dedent(inspect.getsource(answer)), exercise.forbidden)
    except (OSError, TypeError, SyntaxError):
        return []
