"""Find a reader's answer in a notebook, try it, and report the result."""

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
"""Seconds until a message says how to stop an answer that is still running."""
MOST_LINES, MOST_PRINTED = 20, 4_000
"""Maximum number of lines and characters that are shown of an answer's own output."""


class NotYet(AssertionError):
    """Raised if an answer is not right yet; the message says why. Jupyter prints it without a traceback.

    Args:
        message: The message for the reader.
        verdict: The verdict, if the answer was examined.
    """

    def __init__(self, message: str, verdict: Verdict | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def readers(name: str, frame: FrameType | None) -> Any:
    """Look up the reader's object with this name in the globals of `frame`, then in those of its callers.

    Returns:
        The object, or None if it is not found.
    """
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
    """Try an answer.

    Args:
        title: Number and title of the exercise, which begin each message.
        name: Name of the required function.
        answer: The reader's object with that name, or None.
        forbidden: Names that the answer must not use.
        test: Function that examines the answer.
        prints: Whether to show what the answer prints while it runs.

    Returns:
        The verdict on a right answer.

    Raises:
        NotYet: The answer is not right.
    """
    if answer is None:
        raise NotYet(f"{title}: not written yet. The check found no function named {name}.")
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
    """Text stream that stores the beginning of an answer's output and counts its lines."""

    def __init__(self) -> None:
        super().__init__()
        self._start, self._ends, self._size = "", 0, 0

    def writable(self) -> bool:
        """Return True, because text can be written to this stream."""
        return True

    def write(self, text: str) -> int:
        """Store only the beginning of the text, but count all of it."""
        self._ends += text.count("\n")
        self._size += len(text)
        self._start += text[: MOST_PRINTED - len(self._start)]
        return len(text)

    @property
    def told(self) -> str:
        """A heading, followed by the first lines and the number of further lines, or "" if nothing was printed."""
        if not self._start.strip():
            return ""
        lines = self._start.split("\n")[:MOST_LINES]
        more = self._ends + (self._ends == self._start.count("\n") and not self._start.endswith("\n")) - len(lines)
        whole = more <= 0 and self._size == len(self._start)
        rest = "" if whole else f"\n... and {more:,} more line{'s' * (more > 1)}" if more > 0 else " ..."
        return "Printed by your function while it was tried:\n" + "\n".join(lines).rstrip("\n") + rest


def not_run(name: str, answer: Any, cells: Sequence[str]) -> str:
    """Explain why the most recent cell with the definition of a function did not define it.

    Args:
        name: Name of the function.
        answer: The current object with that name, which comes from an earlier cell, or None.
        cells: Texts of the notebook's cells in the order in which they ran, as in IPython's `In`.

    Returns:
        The explanation; empty if the cell defined the function, or if that cannot be determined.
    """
    latest = next((cell for cell in reversed(cells) if f"def {name}(" in cell), None)
    if latest is None:
        return ""
    judged = f"the check used the {name} of an earlier run" if answer is not None else "so there is nothing to check"
    try:
        ast.parse(latest)
    except SyntaxError as error:
        if latest.lstrip().startswith("%") or "\n%" in latest or "\n!" in latest:
            return ""  # the cell contains IPython magics or shell commands
        what = f"{type(error).__name__}, line {error.lineno}: {error.msg}"
        return f"Your latest cell with {name} did not run ({what}); {judged}."
    try:
        text = inspect.getsource(answer).strip()
    except (OSError, TypeError):
        return ""
    return "" if text in latest else f"Your latest cell with {name} stopped before its function was defined; {judged}."


def praise(verdict: Verdict, right: str) -> str:
    """Return the message for a right answer, which also says what would make the answer robust.

    Args:
        verdict: The verdict on the answer.
        right: A sentence that says that the answer is right.
    """
    in_color = type(sys.stdout).__module__.startswith("ipykernel")  # Jupyter displays and saves colored text
    sign = "\x1b[1;32m\u2713\x1b[0m" if in_color else "\u2713"
    if verdict.robust is None:
        said = f"{sign} {right} It is also robust {STAR}: it passed all further tests."
    else:
        said = f"{sign} {right}\n\nWhat would make it robust {STAR}, next:\n{verdict.robust}"
    return "\n\n".join(filter(None, [said, verdict.printed]))


@contextmanager
def _still_running(title: str) -> Iterator[None]:
    """Say how to stop a slow answer, because it cannot be distinguished from an endless loop."""
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
    """Return the forbidden names that the answer uses, or none if its source is unavailable, as for generated code."""
    try:
        return forbidden_uses(textwrap.dedent(inspect.getsource(answer)), forbidden)
    except (OSError, TypeError, SyntaxError):
        return []
