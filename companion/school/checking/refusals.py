"""Arguments that must be refused, made from those that need not be: what an exercise refuses, it refuses everywhere.

A statement says once what must be refused: "if the shapes differ", "unless 0 < m <= 1". There are many ways to break
such a sentence, and a check that tries one of them lets the others pass. So each argument of a case is changed in turn:
a tensor gets a row more or keeps one; a list loses its last part; a number becomes 0, -1 or another argument's; a float
becomes NaN. Where all right answers that are known refuse the outcome, so must every answer: what one of them takes,
the statement did not speak of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from .exercise import Case, Value

REFUSED = "what the statement refuses is refused, whichever argument it is"
_MOST = 16  # cases
_UNPACKED = "to unpack"  # in Python's own message, where a tuple has another length: not what an answer refuses


class Gave(Protocol):
    """What a call gave (`examine.Outcome`): `error` is the type of what it raised and the message, or None."""

    @property
    def error(self) -> tuple[str, str] | None: ...


def refusal_cases(cases: Sequence[Case], calls: Sequence[Callable[[Case], Gave]]) -> list[Case]:
    """The cases that an exercise's own ones make; none where it refuses nothing.

    calls:  what each right answer that is known gives on a case, the reference first.
    """
    taken = [case for case in cases if not case.refuse and case.arguments and not case.only_nan]
    if not taken or not any(case.refuse for case in cases):
        return []
    base = replace(max(taken, key=_size), gradients=False, part=None)
    found = []
    for at in range(len(base.arguments)):
        for other in (*_changed(base.arguments, at), *_numbers_beside(base.arguments, at)):
            case = replace(base, arguments=(*base.arguments[:at], other, *base.arguments[at + 1 :]))
            if all(_refuses(call(case)) for call in calls):
                found.append(replace(case, shows=REFUSED, refuse=True))
    return found[:_MOST]


def _size(case: Case) -> tuple[int, int]:
    """The numbers in a case's tensors; and of its whole numbers above one, how many differ."""
    numbers = sum(value.numel() for value in case.arguments if isinstance(value, torch.Tensor))
    return numbers, len({value for value in case.arguments if type(value) is int and value > 1})


def _refuses(gave: Gave) -> bool:
    """Whether an answer refused the arguments, and did not only stumble over them."""
    return gave.error is not None and gave.error[0] == "ValueError" and _UNPACKED not in gave.error[1]


def _changed(arguments: tuple[Value, ...], at: int) -> Iterator[Value]:
    """An argument in ways that a statement may refuse."""
    value = arguments[at]
    if isinstance(value, torch.Tensor):
        twins = [part.shape == value.shape for part in arguments if isinstance(part, torch.Tensor)]
        if twins.count(True) > 1 and value.dim() > 1:  # two that can be told to agree
            yield value.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        for axis, size in enumerate(value.shape):
            yield torch.cat([value, value.narrow(axis, 0, min(1, size))], dim=axis)
            if size > 1:
                yield value.narrow(axis, 0, 1).clone()
    elif isinstance(value, list):
        yield value[:-1]
        yield value + value[-1:]
    elif type(value) is float:
        yield math.nan
    elif type(value) is int:
        yield from (0, -1, 2 * value)


def _numbers_beside(arguments: tuple[Any, ...], at: int) -> list[int]:
    """The other whole numbers among the arguments, each once, where this one is a whole number."""
    if type(arguments[at]) is not int:
        return []
    others = {value for value in arguments if type(value) is int and value > 0}
    return sorted(others - {arguments[at]})
