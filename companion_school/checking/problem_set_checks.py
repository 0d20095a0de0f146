"""The checks in a problem set. Students can run `check("2.3")` as often as they like.

The checks contain inputs and results but no solutions. They accept any answer that gives the right results.
"""

from __future__ import annotations

import base64
import contextlib
import io
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .call import Result, in_this_process
from .examine import Verdict
from .notebook_answer import NotYet, attempt, praise, readers
from .sealed_keys import Sealed, unseal

__all__ = ["NotYet", "check", "check_hidden"]

KEYS = Path(__file__).parent / "keys"


def check(id: str | float, group: int | None = None) -> None:
    """Try your answer to an exercise on the public cases.

    If the answer is right, print a message that says so and explains what would make the answer robust.

    Args:
        id: Number of the exercise, such as "2.3".
        group: Number of a group of cases, for an exercise whose groups earn points separately (default: all cases).
            The first group must pass as well.

    Raises:
        NotYet: The answer is not right. The message names the property that fails, the smallest input that shows the
            failure, the expected and the actual result, and the most likely mistake.
        ValueError: The exercise is not in this problem set, or has no such group.
    """
    file = KEYS / f"{id}.key"
    if not file.is_file():
        there = ", ".join(sorted((path.stem for path in KEYS.glob("*.key")), key=_order))
        raise ValueError(f"exercise {id!r}: expected one of {there}")
    sealed = unseal(file.read_bytes())
    title = _title(sealed, group)
    answer = readers(sealed.name, sys._getframe(1))
    with _muted():
        found = attempt(title, sealed.name, answer, sealed.forbidden, lambda tried: _examined(sealed, tried, group))
    if sealed.knows_answers:
        print(praise(found, f"{title}: right on the public cases."))
    else:
        print(f"{title}: your answer has the right form. Grading will say whether it is right.")


def check_hidden(*texts: str, group: int | None = None) -> None:
    """Try an answer on an instructor's hidden cases. A failure reports only the property that fails.

    The check also fails if the public cases fail, because hidden cases earn nothing without the public ones.

    Args:
        texts: Sealed exercises with hidden cases, from `to_text`.
        group: Number of a group of cases, as in `check`.

    Raises:
        NotYet: The answer is not right.
        ValueError: A text is not a sealed exercise, or the exercise has no such group.
    """
    hidden = [from_text(text) for text in texts]
    sealed = hidden[0]
    file = KEYS / f"{sealed.id}.key"
    public = [unseal(file.read_bytes())] if file.is_file() else []
    title = _title(sealed, group)
    answer = readers(sealed.name, sys._getframe(1))
    with _muted():
        tried_on = [*(key for key in public if key.knows_answers), *hidden]
        test = lambda tried: _discreet(tried_on, tried, group)  # noqa: E731
        # Discard all output, because an answer could reveal the hidden cases by printing its arguments.
        attempt(title, sealed.name, answer, sealed.forbidden, test, prints=False)
    print(f"{title}: right on the hidden cases.")


def to_text(data: bytes) -> str:
    """Encode a sealed exercise as lines of text for a notebook cell."""
    text = base64.b64encode(zlib.compress(data, 9)).decode()
    return "\n".join(text[at : at + 100] for at in range(0, len(text), 100))


def from_text(text: str) -> Sealed:
    """Decode a sealed exercise from the lines that `to_text` returned.

    Raises:
        ValueError: The text was not written by `to_text`.
    """
    try:
        return unseal(zlib.decompress(base64.b64decode("".join(text.split()), validate=True)))
    except zlib.error as error:
        raise ValueError(f"expected a sealed exercise: {error}") from None


def _title(sealed: Sealed, group: int | None) -> str:
    """Return the first line of a message: the number and title of the exercise, and the group."""
    title = f"{sealed.id} {sealed.title}"
    if group is None:
        return title
    if not 1 <= group <= len(sealed.groups):
        there = f"1 to {len(sealed.groups)}" if sealed.groups else "no group, because all points are earned together"
        raise ValueError(f"exercise {sealed.id}: group={group!r}: expected {there}")
    return f"{title}, group {group} ({sealed.groups[group - 1]})"


def _examined(sealed: Sealed, answer: Callable[..., Any], group: int | None) -> Verdict:
    call = in_this_process(answer, sealed.forbidden)
    return sealed.examine(call) if group is None else sealed.examine_group(group, call)


def _discreet(hidden: Sequence[Sealed], answer: Callable[..., Any], group: int | None) -> Verdict:
    for sealed in hidden:
        found = _examined(sealed, answer, group)
        if found.result is Result.MISSING:
            return found
        if not found.is_right:
            return Verdict(found.result, found.shows, fault="fails on a hidden case")
    return Verdict(Result.RIGHT)


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Suppress warnings and stderr, because nbgrader gives no points to a cell whose output contains a warning."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _order(id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in id.split("."))
