"""One attempt at an exercise in a notebook: find the reader's function, try it, and say how that went."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

from .call import Result
from .examine import Verdict
from .exercise import STAR
from .operator_watch import forbidden_fault, forbidden_uses

PATIENCE = 10.0
"""Seconds until a reader is told how to stop an answer that still runs."""
MOST_LINES, MOST_PRINTED = 20, 4_000
"""Of what an answer prints while it is tried: the lines and the characters that are shown."""


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
    title: str,
    name: str,
    answer: Any,
    forbidden: Sequence[str],
    test: Callable[[Callable[..., Any]], Verdict],
    prints: bool = True,
) -> Verdict:
    """Try an answer: the verdict, if it is right, robust or not. Raises `NotYet` if it is not right.

    title:      number and title of the exercise, with which a message begins.
    name:       of the function that is asked for.
    answer:     what the reader has under that name; None if there is nothing.
    forbidden:  names that the answer must not use.
    test:       tries the answer.
    prints:     tell what the answer prints while it is tried.
    """
    if answer is None:
        raise NotYet(f"{title}: not written yet. The check looks for a function {name} and finds none.")
    if not callable(answer):
        raise NotYet(f"{title}: {name} is a {type(answer).__name__}; expected a function.")
    used = _forbidden(answer, forbidden)
    if used:
        fault = forbidden_fault(used)
        raise NotYet(f"{title}: {fault}.", Verdict(Result.REFUSED, fault=fault))
    printed = Printed()
    with _still_running(title), contextlib.redirect_stdout(printed):
        verdict = test(answer)
    verdict = replace(verdict, printed=printed.told if prints else "")
    if not verdict.is_right:
        raise NotYet("\n\n".join(filter(None, [f"{title}: {verdict}", verdict.printed])), verdict)
    return verdict


class Printed(io.TextIOBase):
    """What an answer prints while it is tried: the beginning, and how many lines there are in all."""

    def __init__(self) -> None:
        super().__init__()
        self._start, self._ends, self._size = "", 0, 0

    def writable(self) -> bool:
        """Always true."""
        return True

    def write(self, text: str) -> int:
        """Keep the beginning of the text, and count all of it."""
        self._ends += text.count("\n")
        self._size += len(text)
        self._start += text[: MOST_PRINTED - len(self._start)]
        return len(text)

    @property
    def told(self) -> str:
        """The first lines under a title, and how many more there are; empty if nothing was printed."""
        if not self._start.strip():
            return ""
        lines = self._start.split("\n")[:MOST_LINES]
        more = self._ends + (self._ends == self._start.count("\n") and not self._start.endswith("\n")) - len(lines)
        whole = more <= 0 and self._size == len(self._start)
        rest = "" if whole else f"\n... and {more:,} more line{'s' * (more > 1)}" if more > 0 else " ..."
        return "Printed by your function while it was tried:\n" + "\n".join(lines).rstrip("\n") + rest


def not_run(name: str, answer: Any, cells: Sequence[str]) -> str:
    """Return why the latest cell that defines a function did not do so; empty if it did, or if that cannot be seen.

    name:    of the function.
    answer:  what is called so now, from an earlier cell; None if nothing is.
    cells:   the texts of the notebook's cells in the order in which they were run, as IPython keeps them in `In`.
    """
    latest = next((cell for cell in reversed(cells) if f"def {name}(" in cell), None)
    if latest is None:
        return ""
    judged = f"judged is the {name} of an earlier run" if answer is not None else "so there is nothing to judge"
    try:
        ast.parse(latest)
    except SyntaxError as error:
        if latest.lstrip().startswith("%") or "\n%" in latest or "\n!" in latest:
            return ""  # not Python alone
        what = f"{type(error).__name__}, line {error.lineno}: {error.msg}"
        return f"Your latest cell with {name} did not run ({what}); {judged}."
    try:
        text = inspect.getsource(answer).strip()
    except (OSError, TypeError):
        return ""
    return "" if text in latest else f"Your latest cell with {name} stopped before its function was defined; {judged}."


def praise(verdict: Verdict, right: str) -> str:
    """What is said to whoever is right: that first, and then the one next thing that would make the answer robust.

    right:  the sentence that says it.
    """
    in_color = type(sys.stdout).__module__.startswith("ipykernel")  # Jupyter shows it, and keeps it in the notebook
    sign = "\x1b[1;32m\u2713\x1b[0m" if in_color else "\u2713"
    if verdict.robust is None:
        said = f"{sign} {right} And robust {STAR}: nothing that was tried besides upset it."
    else:
        said = f"{sign} {right}\n\nWhat would make it robust {STAR}, next:\n{verdict.robust}"
    return "\n\n".join(filter(None, [said, verdict.printed]))


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
