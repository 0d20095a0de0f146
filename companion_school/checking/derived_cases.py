"""Cases that follow from an exercise's own ones, whatever it asks: what nobody wrote down, every answer must stand.

From one of the cases others are made, and the reference says what is right there: each axis of size one, rows of quite
different levels, a large number added to all, NaN in one place, the other dtype, other numbers where the shapes stay:
what was kept by shape is of no use there. A case is left out where the reference refuses its arguments or gives NaN of
its own: nothing was promised there. An exercise is excused from a law by name, with a reason, in its source
(`excused`).

What must be refused is made in the same way: a statement says once what that is ("if the shapes differ"), there are
many ways to break such a sentence, and a check that tries one of them lets the others pass.

The other laws need no case of their own (`examine`): a second call after other ones, on arguments that lie in memory in
another order; arguments and earlier results left as they were; no memory shared.

Which mark a law belongs to: what a lesson's reader may well meet (any shape, other numbers, equal ones) is
asked of what is right; extremes, NaN, another dtype, memory, refusals and what misses a limit by a rounding, of what is
robust (`EXTREME`). An exercise may say otherwise, with the reason (`Exercise.right`, `Exercise.robust`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

import torch

from .compare import difference
from .exercise import Case, Exercise, Value

ONE = "an axis of size one is an axis"
LEVELS = "rows and columns of quite different levels"
OFFSET = "a large number added to all"
NAN = "a NaN that goes in shows in the result"
DTYPE = "float32 in, and the same comes out as in float64"
OTHER = "other numbers of the same shapes"
TIE = "equal numbers side by side"
SCALE = "numbers that are ten thousand times as large, or as small"
EDGE = "whole numbers as large as an axis, or as one another"
LARGE = "axes longer than any that is shown"
LIMIT = "a limit that is met exactly, or missed by a little"
ROOM = "no more memory than the statement allows"

NAMES = {
    "one": ONE, "levels": LEVELS, "offset": OFFSET, "nan": NAN, "dtype": DTYPE, "other": OTHER, "tie": TIE,
    "scale": SCALE, "edge": EDGE, "large": LARGE,
}  # fmt: skip
"""Short names, by which an exercise is excused, and what these cases show, in words that hold for every exercise;
"memory" and "layout" are those of `examine`."""

EXTREME = {
    "levels": "levels that a lesson's numbers do not have",
    "offset": "a level that a lesson's numbers do not have",
    "nan": "a lesson has no NaN",
    "scale": "factors that a lesson does not have",
    "dtype": "a lesson's numbers are of one dtype",
}
"""The laws that are robust, each with the reason."""

EXCUSES = (*NAMES, "memory", "layout")
_MOST = 6  # cases of one law
_MANY = 1000  # of whole numbers: larger ones count what would fill the memory
_STEP, _FAR = 1000.0, 1e4
_LONG = 33  # entries of an axis that is longer than any that a reader is shown
_MOST_ENTRIES = 20_000  # of all tensors of such a case
_COARSE = 1e-9  # what is left of float64 where large numbers cancel


def law_cases(
    exercise: Exercise, cases: Sequence[Case], call: Callable[[Case], Any], others: Sequence[Callable[[Case], Any]] = ()
) -> list[Case]:
    """The cases that the laws make of an exercise's own, none where there is nothing to vary.

    call:    gives what the reference gives on a case, an `Outcome`.
    others:  the same of the other right answers that are known. Where one of them differs on an axis that was made
             longer, the statement does not settle what is right there.
    """
    wanted = [case for case in cases if case.arguments and not case.refuse and not case.only_nan]
    if not wanted:
        return []
    wanted = [case for case in wanted if not case.is_robust] or wanted
    base = max(wanted, key=lambda case: (_of_double(case), len(_sizes(case)), _numbers(case), cases.index(case)))
    base = replace(base, gradients=False, robust="")
    found: list[Case] = []
    makers = {
        "one": _ones, "levels": _levels, "offset": _offsets, "nan": _nans, "dtype": _single, "other": _others,
        "tie": _ties, "scale": _scales, "edge": _edges,
    }  # fmt: skip
    for name, make in makers.items():
        if name in exercise.excused:
            continue
        why = _robust(exercise, name)
        made = (replace(case, shows=NAMES[name], robust=why, right="") for case in make(base))
        found += islice((case for case in made if _holds(case, call)), _MOST)
    if not {"large", "one"} & {*exercise.excused}:
        made = (replace(case, shows=LARGE, robust=_robust(exercise, "large"), right="") for case in _larges(base))
        some = (case for case in made if _holds(case, call) and _entries(call(case).value) <= _MOST_ENTRIES)
        found += [case for case in some if all(_agrees(case, call, other) for other in others)]
    found += [replace(case, shows=LIMIT) for case in _limits(exercise, base, call)]
    if exercise.room is not None:
        largest = max(wanted, key=_numbers)
        room = exercise.room(*largest.arguments)
        found.append(replace(largest, shows=ROOM, room=room, gradients=False, layout=False))
    return found


def _robust(exercise: Exercise, name: str) -> str:
    """Why the cases of a law are robust ones here; "" where they are not."""
    return exercise.robust.get(name, "" if name in exercise.right else EXTREME.get(name, ""))


def _holds(case: Case, call: Callable[[Case], Any]) -> bool:
    """Whether the reference has something to say: a result, and NaN where NaN is asked for and nowhere else."""
    value = call(case).value  # None where the reference refuses, or PyTorch does
    return value is not None and holds_nan(value) == case.only_nan


def holds_nan(value: Any) -> bool:
    """Whether a value has NaN in it."""
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() and bool(value.isnan().any())
    if isinstance(value, dict):
        return any(holds_nan(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return any(holds_nan(part) for part in value)
    return isinstance(value, float) and value != value


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a value, in lists and dicts as well."""
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in inner for tensor in _tensors(part)]


def _sizes(case: Case) -> list[int]:
    """The sizes of the axes, each once, without those of one."""
    return sorted({size for tensor in _tensors(case.arguments) for size in tensor.shape if size > 1})


def _numbers(case: Case) -> int:
    return _entries(case.arguments)


def _entries(value: Any) -> int:
    return sum(tensor.numel() for tensor in _tensors(value))


def _of_double(case: Case) -> bool:
    floating = [tensor for tensor in _tensors(case.arguments) if tensor.is_floating_point()]
    return all(tensor.dtype == torch.float64 for tensor in floating)


def _ones(case: Case) -> Iterator[Case]:
    """Each axis cut to size one, in every argument that has it: sizes differ, so an axis is known by its size."""
    for size in _sizes(case):
        for zeroed in (False, True):  # places in a table of one row are 0
            yield replace(case, arguments=tuple(_cut(value, size, zeroed) for value in case.arguments))


def _cut(value: Any, size: int, zeroed: bool) -> Any:
    if isinstance(value, torch.Tensor):
        for axis, length in enumerate(value.shape):
            if length == size:
                value = value.narrow(axis, 0, 1)
        whole = not value.is_floating_point() and value.dtype != torch.bool
        return value.clone().zero_() if zeroed and whole else value.clone()
    if isinstance(value, dict):
        return {key: _cut(part, size, zeroed) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_cut(part, size, zeroed) for part in value]
        parts = parts[:1] if len(parts) == size and not _tensors(value) else parts
        return parts if isinstance(value, list) else tuple(parts)
    return 1 if type(value) is int and value == size else value


def _larges(case: Case) -> Iterator[Case]:
    """Each axis made longer, in every argument that has it: a multiple of its size, so that it divides as before."""
    for size in _sizes(case):
        longer = replace(case, arguments=tuple(_stretched(value, size, -(-_LONG // size)) for value in case.arguments))
        if _numbers(longer) <= _MOST_ENTRIES:
            yield _coarse(longer)


def _stretched(value: Any, size: int, times: int) -> Any:
    if isinstance(value, torch.Tensor):
        for axis, length in enumerate(value.shape):
            if length == size:
                copies = [value * (1 + copy / 64) if value.is_floating_point() else value for copy in range(times)]
                value = torch.cat(copies, dim=axis)  # no two entries are equal that were not
        return value.clone()
    if isinstance(value, dict):
        return {key: _stretched(part, size, times) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_stretched(part, size, times) for part in value]
        parts = parts * times if len(parts) == size and not _tensors(value) else parts
        return parts if isinstance(value, list) else tuple(parts)
    return times * size if type(value) is int and value == size else value


def _agrees(case: Case, call: Callable[[Case], Any], other: Callable[[Case], Any]) -> bool:
    """Whether another right answer gives what the reference gives."""
    try:
        return difference(other(case).value, call(case).value, case.tolerance, told=False) is None
    except TypeError:  # of what cannot be compared
        return False


def _varied(case: Case, change: Callable[[torch.Tensor], Iterator[torch.Tensor]]) -> Iterator[Case]:
    """The case with one floating tensor of several numbers changed, for each of these, in lists and dicts as well."""
    for value in _tensors(case.arguments):
        if value.dtype == torch.float64 and value.numel() > 1:
            for changed in change(value):
                yield _coarse(replace(case, arguments=_instead(case.arguments, value, changed)))


def _coarse(case: Case) -> Case:
    return replace(case, tolerance=max(case.tolerance or 0.0, _COARSE))


def _instead(value: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    """The value with one tensor in place of another."""
    if value is old:
        return new
    if isinstance(value, dict):
        return {key: _instead(part, old, new) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_instead(part, old, new) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def _levels(case: Case) -> Iterator[Case]:
    """Each row far above the last; and columns so, the highest one another in each row: the hidden ones, too."""

    def change(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        columns = tensor.shape[-1]
        rows = torch.arange(tensor.numel() // columns)[:, None]
        for step in (1, columns - 1):
            level = (torch.arange(columns) * step + rows) % columns
            yield tensor + _STEP * level.to(tensor.dtype).reshape(tensor.shape)
        if tensor.dim() > 1:
            yield tensor + _STEP * rows.expand(-1, columns).to(tensor.dtype).reshape(tensor.shape)

    yield from _varied(case, change)


def _offsets(case: Case) -> Iterator[Case]:
    yield from _varied(case, lambda tensor: iter([tensor + _FAR]))


def _nans(case: Case) -> Iterator[Case]:
    for part in (2, 3, 1):  # where one number is hidden, another is not

        def change(tensor: torch.Tensor, part: int = part) -> Iterator[torch.Tensor]:
            spoiled = tensor.clone(memory_format=torch.contiguous_format)
            spoiled.view(-1)[(tensor.numel() - 1) // part] = torch.nan
            yield spoiled

        yield from (replace(changed, only_nan=True) for changed in _varied(case, change))


def _single(case: Case) -> Iterator[Case]:
    if any(tensor.dtype == torch.float64 for tensor in _tensors(case.arguments)):
        single = case.arguments
        for tensor in _tensors(single):
            single = _instead(single, tensor, tensor.float() if tensor.dtype == torch.float64 else tensor)
        yield replace(case, arguments=single, tolerance=max(case.tolerance or 0.0, 1e-3))


def _others(case: Case) -> Iterator[Case]:
    """One argument after the other changed where all shapes stay: a base, places in another order."""
    for at, value in enumerate(case.arguments):
        whole = isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.bool) and value.dim() > 0
        other = value
        if isinstance(value, torch.Tensor) and whole:
            other = value.flip(tuple(range(value.dim())))
        elif type(value) is float and 1.5 * value != value:  # not 0, not infinite
            other = 1.5 * value
        elif isinstance(value, list) and all(type(part) is int for part in value):
            other = value[::-1]
        if other is not value:
            yield _with(case, at, other)


def _ties(case: Case) -> Iterator[Case]:
    """Each number beside its equal; and rounded to whole ones, so that many are."""

    def change(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        paired = tensor.clone()
        paired[..., 1::2] = paired[..., 0::2][..., : paired[..., 1::2].shape[-1]]
        yield paired
        yield tensor.round()

    yield from _varied(case, change)


def _scales(case: Case) -> Iterator[Case]:
    for at, value in enumerate(case.arguments):
        if type(value) is float and value:
            for factor in (_FAR, 1 / _FAR):
                yield _coarse(_with(case, at, value * factor))


def _edges(case: Case) -> Iterator[Case]:
    """Each whole number as large as each axis and each other one, and 1."""
    whole = [value for value in case.arguments if type(value) is int and value <= _MANY]
    for at, value in enumerate(case.arguments):
        if type(value) is int:
            for other in sorted({1, *whole, *_sizes(case)} - {value})[:_MOST]:
                yield _with(case, at, other)


def _limits(exercise: Exercise, case: Case, call: Callable[[Case], Any]) -> Iterator[Case]:
    """Each limit met, and missed by a little on both sides; refused where the reference refuses.

    A whole number beside a limit is as good as any other; what misses one by a rounding is an extreme.
    """
    names = list(inspect.signature(exercise.reference).parameters)
    for name, limits in exercise.limits.items():
        at = names.index(name)
        value = case.arguments[at]
        for limit in limits(*case.arguments) if callable(limits) else limits:
            whole = type(value) is int
            for number in (_below(limit, whole), limit, _above(limit, whole)):
                put = torch.full_like(value, number) if isinstance(value, torch.Tensor) else type(value)(number)
                tried = _with(case, at, put)
                error = call(tried).error
                if error is None or error[0] == "ValueError":
                    by_a_hair = not whole and number != limit
                    why = "by less than a lesson can tell" if by_a_hair else _robust(exercise, "limit")
                    yield replace(tried, refuse=error is not None, robust=why)


def _below(limit: float, whole: bool) -> float:
    return limit - 1 if whole else math.nextafter(limit, -math.inf)


def _above(limit: float, whole: bool) -> float:
    return -_below(-limit, whole)


def _with(case: Case, at: int, value: Any) -> Case:
    return replace(case, arguments=(*case.arguments[:at], value, *case.arguments[at + 1 :]))


# What must be refused

REFUSED = "what the statement refuses is refused, whichever argument it is"
_MOST_REFUSALS, _MOST_BESIDE = 24, 8
_UNPACKED = "to unpack"  # in Python's own message, where a tuple has another length: not what an answer refuses


class Gave(Protocol):
    """What a call gave (`call.Outcome`): `error` is the type of what it raised and the message, or None."""

    @property
    def error(self) -> tuple[str, str] | None: ...


def refusal_cases(cases: Sequence[Case], calls: Sequence[Callable[[Case], Gave]]) -> list[Case]:
    """The refusals that an exercise's own cases make; none where it refuses nothing.

    Each argument of a case is changed in turn: a tensor gets a row more or keeps one, or an axis more; a list loses
    its last part; a number becomes 0, -1 or another argument's; a float becomes NaN. And what a case of the exercise's
    own refuses is refused beside the smallest whole numbers of all cases: where nothing is to be done, too. Where all
    right answers that are known refuse the outcome, so must every answer: what one of them takes, the statement did not
    speak of.

    calls:  what each right answer that is known gives on a case, the reference first.
    """
    taken = [case for case in cases if not case.refuse and case.arguments and not case.only_nan]
    if not taken or not any(case.refuse for case in cases):
        return []
    base = replace(max(taken, key=_size), gradients=False, part=None)
    changed = (
        _with(base, at, other)
        for at in range(len(base.arguments))
        for other in (*_changed(base.arguments, at), *_numbers_beside(base.arguments, at))
    )

    def refused(some: Iterator[Case], most: int) -> Iterator[Case]:
        return islice((case for case in some if all(_refuses(call(case)) for call in calls)), most)

    found = [
        replace(case, shows=REFUSED, refuse=True, robust="", right="") for case in refused(changed, _MOST_REFUSALS)
    ]
    return [*found, *refused(_beside(cases, taken), _MOST_BESIDE)]


def _beside(cases: Sequence[Case], taken: Sequence[Case]) -> Iterator[Case]:
    """Each case that must be refused, with the smallest whole number that another case has in each place."""
    for case in cases:
        if case.refuse:
            for at, value in enumerate(case.arguments):
                others = [other.arguments[at] for other in taken if at < len(other.arguments)]
                least = min((other for other in others if type(other) is int), default=value)
                if type(value) is int and least != value:
                    yield _with(case, at, least)


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
        yield value.unsqueeze(-1).clone()
        yield value.unsqueeze(0).clone()
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
