"""One attempt at an exercise in a notebook: find the reader's function, try it, and say how that went."""

from __future__ import annotations

import inspect
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .call import Result
from .examine import Verdict
from .exercise import STAR
from .operator_watch import forbidden_fault, forbidden_uses

PATIENCE = 10.0
"""Seconds until a reader is told how to stop an answer that still runs."""


class NotYet(AssertionError):
    """An answer is not right yet; the message says how that shows. Jupyter prints it without a traceback."""

    def __init__(self, message: str, verdict: Verdict | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def readers(name: str, frame: FrameType | None) -> Any:
    """What has this name where the reader called from: in the nearest globals, from `frame` on, that have it."""
    while frame is not None:
        if name in frame.f_globals:
            return frame.f_globals[name]
        frame = frame.f_back
    return None


def attempt(
    title: str, name: str, answer: Any, forbidden: Sequence[str], test: Callable[[Callable[..., Any]], Verdict]
) -> Verdict:
    """Try an answer: the verdict, if it is right, robust or not. Raises `NotYet` if it is not right.

    title:      number and title of the exercise, with which a message begins.
    name:       of the function that is asked for.
    answer:     what the reader has under that name; None if there is nothing.
    forbidden:  names that the answer must not use.
    test:       tries the answer.
    """
    if answer is None:
        raise NotYet(f"{title}: not written yet. The check looks for a function {name} and finds none.")
    if not callable(answer):
        raise NotYet(f"{title}: {name} is a {type(answer).__name__}; expected a function.")
    used = _forbidden(answer, forbidden)
    if used:
        fault = forbidden_fault(used)
        raise NotYet(f"{title}: {fault}.", Verdict(Result.REFUSED, fault=fault))
    with _still_running(title):
        verdict = test(answer)
    if not verdict.is_right:
        raise NotYet(f"{title}: {verdict}", verdict)
    return verdict


def praise(verdict: Verdict, right: str) -> str:
    """What is said to whoever is right: that first, and then the one next thing that would make the answer robust.

    right:  the sentence that says it.
    """
    if verdict.robust is None:
        return f"{right} And robust {STAR}: nothing that was tried besides upset it."
    return f"{right}\n\nWhat would make it robust {STAR}, next:\n{verdict.robust}"


@contextmanager
def _still_running(title: str) -> Iterator[None]:
    """Say how to stop an answer that takes long: a loop without an end looks like one that works."""
    text = (
        f"{title}: still running after {PATIENCE:g} seconds. If your answer has a loop that does not end, stop it: the "
        "square above the notebook, or the menu Kernel, Interrupt Kernel."
    )
    reminder = threading.Timer(PATIENCE, print, (text,), {"file": sys.stderr, "flush": True})
    reminder.daemon = True
    reminder.start()
    try:
        yield
    finally:
        reminder.cancel()


def _forbidden(answer: Callable[..., Any], forbidden: Sequence[str]) -> list[str]:
    """What the answer uses and must not, as far as its source can be read (code that other code made has none)."""
    try:
        return forbidden_uses(textwrap.dedent(inspect.getsource(answer)), forbidden)
    except (OSError, TypeError, SyntaxError):
        return []
