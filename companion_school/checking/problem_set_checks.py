"""The checks that travel with a problem set: a student runs `check("2.3")` as often as they like.

They know inputs and results, and no solution. A right answer may look different from what anybody had in mind.
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

    group:  one group of them alone, by its number, where the exercise has groups that earn points by themselves; the
            first one must be right as well.

    Prints that it is right, and then what would make it robust. Raises `NotYet` if it is not right: the message names
    the property that fails, the smallest input that shows it, what was expected and what came, and the most likely
    mistake. Raises `ValueError` for an exercise that is not in this problem set, and for a group that it does not have.
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
    """Try an answer on an instructor's hidden cases; what does not pass is told by its property alone.

    Where the public cases fail, so does this: hidden ones earn nothing without them. `group` is that of `check`.
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
        # An answer that prints its arguments shows no hidden ones.
        attempt(title, sealed.name, answer, sealed.forbidden, test, prints=False)
    print(f"{title}: right on the hidden cases.")


def to_text(data: bytes) -> str:
    """A sealed exercise as lines of letters, for a cell."""
    text = base64.b64encode(zlib.compress(data, 9)).decode()
    return "\n".join(text[at : at + 100] for at in range(0, len(text), 100))


def from_text(text: str) -> Sealed:
    """The sealed exercise of which `to_text` made these lines. Raises `ValueError` for other ones."""
    try:
        return unseal(zlib.decompress(base64.b64decode("".join(text.split()), validate=True)))
    except zlib.error as error:
        raise ValueError(f"expected a sealed exercise: {error}") from None


def _title(sealed: Sealed, group: int | None) -> str:
    """Number, title and group, as messages begin."""
    title = f"{sealed.id} {sealed.title}"
    if group is None:
        return title
    if not 1 <= group <= len(sealed.groups):
        there = f"1 to {len(sealed.groups)}" if sealed.groups else "no group: all its points are earned together"
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
    """What an answer prints or warns of stays out of the cell: nbgrader gives no point to one with a warning in it."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _order(id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in id.split("."))
