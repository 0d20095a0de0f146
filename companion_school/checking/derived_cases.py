"""Derive further cases from an exercise's own cases, using general laws (metamorphic tests).

Each law varies one of the exercise's cases. For example, a law may cut each axis to size one, shift rows to very
different levels, add a large number to all entries, insert one NaN, change the dtype, or use other values with the same
shapes (which exposes results cached by shape). The reference gives the expected result. A variation is dropped if the
reference rejects it or produces NaN from inputs without NaN, because the statement says nothing about such inputs. An
exercise can opt out of a law by giving its name and a reason (`excused`).

Inputs that must be rejected are derived in the same way. A statement gives a condition once ("if the shapes differ"),
but many different inputs meet it. A check that tried only one of them would accept an answer that overlooks the others.

The remaining laws need no cases of their own (see `examine`). Each case runs a second time after the others, with a
different memory layout. The arguments and earlier results must stay unchanged, and a result must not share memory with
them.

Laws about inputs that readers are likely to encounter (other shapes, other numbers, equal numbers) count towards the
mark *right*. Laws about extremes, NaN, other dtypes, memory, rejected inputs and values that miss a limit by a rounding
error count towards the mark *robust* (`EXTREME`). An exercise can override this by giving a reason (`Exercise.right`,
`Exercise.robust`).
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

ONE = "axes of size one"
LEVELS = "rows and columns of very different sizes"
OFFSET = "a large number added to all entries"
NAN = "NaN in an argument shows in the result"
DTYPE = "float32 arguments give the same result as float64"
OTHER = "other values in the same shapes"
TIE = "equal numbers next to each other"
SCALE = "numbers ten thousand times as large or as small"
EDGE = "integers equal to the size of an axis or to each other"
LARGE = "axes longer than in any example"
LIMIT = "values exactly at a limit and just beside it"
ROOM = "no more memory than the statement allows"

NAMES = {
    "one": ONE, "levels": LEVELS, "offset": OFFSET, "nan": NAN, "dtype": DTYPE, "other": OTHER, "tie": TIE,
    "scale": SCALE, "edge": EDGE, "large": LARGE,
}  # fmt: skip
"""Short names of the laws, as used in `excused`, and the property that each law's cases test. `EXCUSES` adds "memory"
and "layout", the laws that `examine` applies."""

EXTREME = {
    "levels": "no lesson has numbers of such different sizes",
    "offset": "no lesson has numbers with such an offset",
    "nan": "no lesson has NaN",
    "scale": "no lesson has numbers of such sizes",
    "dtype": "the numbers of a lesson have one dtype",
}
"""Laws that belong to the mark *robust*, each with the reason."""

EXCUSES = (*NAMES, "memory", "layout")
_MOST = 6  # cases per law
_MANY = 1000  # largest integer to try as the value of another argument; a larger size could fill the memory
_STEP, _FAR = 1000.0, 1e4
_LONG = 33  # minimum length of a stretched axis, which is longer than any axis that readers see
_MOST_ENTRIES = 20_000  # Maximum number of tensor entries in a derived case
_COARSE = 1e-9  # tolerance in float64 when large numbers cancel
# Tolerance if the result is also multiplied by a number as large as `_FAR` (it would be 1e-3 in float32)
_FAR_OFF = 1e-7


def law_cases(
    exercise: Exercise, cases: Sequence[Case], call: Callable[[Case], Any], others: Sequence[Callable[[Case], Any]] = ()
) -> list[Case]:
    """Derive cases from an exercise's own cases, using all laws that the exercise has not opted out of.

    Args:
        exercise: The exercise.
        cases: The exercise's own cases.
        call: Function that returns the `Outcome` of the reference on a case.
        others: The corresponding function for each known alternative solution. If an alternative differs from the
            reference on a case with a stretched axis, the case is dropped, because the statement does not determine the
            result.

    Returns:
        The derived cases; an empty list if there is nothing to vary.
    """
    wanted = _ordinary(cases)
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
        held = (case for case in made if _holds(case, call))
        if name == "nan":  # a right answer may ignore the NaN, so it need not appear in the result
            held = (case for case in held if all(_shows_nan(other(case)) for other in others))
        found += islice(held, _MOST)
    if not {"large", "one"} & {*exercise.excused}:
        long = base
        if not _sizes(base):
            long = max(wanted, key=lambda case: (_length(case.arguments), sum(_wholes(case.arguments))))
        long = replace(long, gradients=False, robust="")
        made = (replace(case, shows=LARGE, robust=_robust(exercise, "large"), right="") for case in _larges(long))
        some = (case for case in made if _holds(case, call) and _entries(call(case).value) <= _MOST_ENTRIES)
        found += [case for case in some if all(_agrees(case, call, other) for other in others)]
    found += [replace(case, shows=LIMIT) for case in _limits(exercise, base, call)]
    if exercise.room is not None:
        largest = max(wanted, key=_numbers)
        room = exercise.room(*largest.arguments)
        found.append(replace(largest, shows=ROOM, room=room, gradients=False, layout=False))
    return found


def _ordinary(cases: Sequence[Case]) -> list[Case]:
    """Return the cases that can be varied: those with arguments and a result, except the exercise's own large ones."""
    return [one for one in cases if one.arguments and not one.refuse and not one.only_nan and one.shows != LARGE]


def _robust(exercise: Exercise, name: str) -> str:
    """Return the reason why a law's cases count towards *robust* here, or "" if they count towards *right*."""
    return exercise.robust.get(name, "" if name in exercise.right else EXTREME.get(name, ""))


def _holds(case: Case, call: Callable[[Case], Any]) -> bool:
    """Return True if the reference returns a result that contains NaN exactly when the case expects NaN."""
    value = call(case).value  # the value is None if the reference or PyTorch raised
    return value is not None and holds_nan(value) == case.only_nan


def _shows_nan(gave: Any) -> bool:
    """Return True if an answer returned NaN or raised an exception."""
    return gave.error is not None or holds_nan(gave.value)


def holds_nan(value: Any) -> bool:
    """Return True if a value contains NaN."""
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() and bool(value.isnan().any())
    if isinstance(value, dict):
        return any(holds_nan(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return any(holds_nan(part) for part in value)
    return isinstance(value, float) and value != value


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in inner for tensor in _tensors(part)]


def _sizes(case: Case) -> list[int]:
    """Return the distinct axis sizes above 1, in increasing order."""
    return sorted({size for tensor in _tensors(case.arguments) for size in tensor.shape if size > 1})


def _numbers(case: Case) -> int:
    return _entries(case.arguments)


def _entries(value: Any) -> int:
    return sum(tensor.numel() for tensor in _tensors(value))


def _of_double(case: Case) -> bool:
    floating = [tensor for tensor in _tensors(case.arguments) if tensor.is_floating_point()]
    return all(tensor.dtype == torch.float64 for tensor in floating)


def _ones(case: Case) -> Iterator[Case]:
    """Cut each axis to size one in every tensor that has it. No two axes have the same size, so a size identifies an
    axis."""
    for size in _sizes(case):
        for zeroed in (False, True):  # 0 is the only valid index into a table with one row
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
    """Stretch each axis to a multiple of its size, wherever it occurs.

    All divisors of the old size also divide the new one. If no argument is a tensor, the lengths of lists and texts are
    stretched in the same way; if there are no lists or texts either, integers are multiplied.
    """
    tensors, sizes = _tensors(case.arguments), _sizes(case) or _lengths(case.arguments) or _wholes(case.arguments)
    for size in sizes:
        times = -(-_LONG // size)
        entries = (math.prod(times * axis if axis == size else axis for axis in tensor.shape) for tensor in tensors)
        if sum(entries) <= _MOST_ENTRIES:
            yield _coarse(replace(case, arguments=tuple(_stretched(value, size, times) for value in case.arguments)))


def _lengths(value: Any) -> list[int]:
    """Return the distinct lengths above 1 of all texts and lists, in increasing order."""
    own = {len(value)} if isinstance(value, (str, list)) else set[int]()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return sorted({size for size in own if size > 1}.union(*map(_lengths, inner)))


def _length(value: Any) -> int:
    """Return the total number of characters in texts and of items in lists and tuples."""
    if isinstance(value, str):
        return len(value)
    return sum((1 + _length(part) for part in value), 0) if isinstance(value, (list, tuple)) else 0


def _wholes(arguments: Sequence[Any]) -> list[int]:
    """Return the distinct integers from 2 to `_LONG` among the arguments, in increasing order."""
    return sorted({value for value in arguments if type(value) is int and 1 < value <= _LONG})


def _stretched(value: Any, size: int, times: int) -> Any:
    if isinstance(value, torch.Tensor):
        for axis, length in enumerate(value.shape):
            if length == size:
                copies = [value * (1 + copy / 64) if value.is_floating_point() else value for copy in range(times)]
                value = torch.cat(copies, dim=axis)  # scale the copies so that no two of them are equal
        return value.clone()
    if isinstance(value, dict):
        return {key: _stretched(part, size, times) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_stretched(part, size, times) for part in value]
        parts = parts * times if len(parts) == size and not _tensors(value) else parts
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, str):
        return value * times if len(value) == size else value
    return times * size if type(value) is int and value == size else value


def _agrees(case: Case, call: Callable[[Case], Any], other: Callable[[Case], Any]) -> bool:
    """Return True if another right answer and the reference agree on a case."""
    try:
        return difference(other(case).value, call(case).value, case.tolerance, told=False) is None
    except TypeError:  # the values cannot be compared
        return False


def _varied(case: Case, change: Callable[[torch.Tensor], Iterator[torch.Tensor]]) -> Iterator[Case]:
    """Apply each change to each float64 tensor with at least two entries, one tensor at a time."""
    for value in _tensors(case.arguments):
        if value.dtype == torch.float64 and value.numel() > 1:
            for changed in change(value):
                yield _coarse(replace(case, arguments=_instead(case.arguments, value, changed)))


def _coarse(case: Case) -> Case:
    return replace(case, tolerance=max(case.tolerance or 0.0, _COARSE))


def _instead(value: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    if value is old:
        return new
    if isinstance(value, dict):
        return {key: _instead(part, old, new) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_instead(part, old, new) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def _levels(case: Case) -> Iterator[Case]:
    """Shift the columns of each row to very different levels and, in another case, shift whole rows.

    The column with the highest entries differs from row to row, so a mask hides some of these entries.
    """

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
    for far in _varied(case, lambda tensor: iter([tensor + _FAR])):
        yield replace(far, tolerance=max(far.tolerance or 0.0, _FAR_OFF))


def _nans(case: Case) -> Iterator[Case]:
    for part in (2, 3, 1):  # use several positions, because a mask may hide one of them

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
    """Change one argument at a time, keeping all shapes: scale a float, or reverse a list, integer tensor or mask."""
    for at, value in enumerate(case.arguments):
        whole = isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.bool) and value.dim() > 0
        other = value
        if isinstance(value, torch.Tensor) and whole:
            other = value.flip(tuple(range(value.dim())))
        elif type(value) is float and 1.5 * value != value:  # neither 0 nor infinite
            other = 1.5 * value
        elif isinstance(value, list) and all(type(part) is int for part in value):
            other = value[::-1]
        if other is not value:
            yield _with(case, at, other)


def _ties(case: Case) -> Iterator[Case]:
    """Make pairs of neighboring entries equal, or round all entries to integers so that many become equal."""

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
    """Set each integer argument to 1, to the size of each axis, and to the value of each other integer argument."""
    whole = [value for value in case.arguments if type(value) is int and value <= _MANY]
    for at, value in enumerate(case.arguments):
        if type(value) is int:
            for other in sorted({1, *whole, *_sizes(case)} - {value})[:_MOST]:
                yield _with(case, at, other)


def _limits(exercise: Exercise, case: Case, call: Callable[[Case], Any]) -> Iterator[Case]:
    """Try each limit, and values just above and just below it. The reference decides which values must be rejected.

    A float that misses a limit by a rounding error counts as an extreme; an integer next to a limit does not.
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
                    why = "the difference is too small to matter" if by_a_hair else _robust(exercise, "limit")
                    yield replace(tried, refuse=error is not None, robust=why)


def _below(limit: float, whole: bool) -> float:
    return limit - 1 if whole else math.nextafter(limit, -math.inf)


def _above(limit: float, whole: bool) -> float:
    return -_below(-limit, whole)


def _with(case: Case, at: int, value: Any) -> Case:
    return replace(case, arguments=(*case.arguments[:at], value, *case.arguments[at + 1 :]))


# Rejected inputs

REFUSED = "invalid input is rejected in every argument"
_MOST_REFUSALS, _MOST_BESIDE = 24, 8
_UNPACKED = "to unpack"  # from Python's message about a tuple of the wrong length, which no answer raises deliberately


class Gave(Protocol):
    """The part of `call.Outcome` that is needed here: the type and message of the exception, if one was raised."""

    @property
    def error(self) -> tuple[str, str] | None: ...


def refusal_cases(cases: Sequence[Case], calls: Sequence[Callable[[Case], Gave]]) -> list[Case]:
    """From an exercise's own cases, derive inputs that an answer must reject.

    The arguments of the largest case are changed one at a time. A tensor is extended by one entry along an axis, cut to
    one entry along an axis, transposed, or given another axis. A list loses or repeats its last item. An integer
    becomes 0, -1, its double, or the value of another argument. A float becomes NaN. In addition, each integer in the
    exercise's own rejected cases is set to its smallest accepted value, because an answer must reject such inputs even
    if there is nothing to compute.

    A changed input becomes a case only if all known right answers reject it. If a right answer accepts the input, the
    statement does not cover it.

    Args:
        cases: The exercise's own cases.
        calls: A function for each known right answer, starting with the reference, that returns the answer's outcome on
            a case.

    Returns:
        The derived cases; an empty list if the exercise has no case that must be rejected.
    """
    taken = _ordinary(cases)
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
    """In each rejected case, replace each integer with the smallest value that this argument has in accepted cases."""
    for case in cases:
        if case.refuse:
            for at, value in enumerate(case.arguments):
                others = [other.arguments[at] for other in taken if at < len(other.arguments)]
                least = min((other for other in others if type(other) is int), default=value)
                if type(value) is int and least != value:
                    yield _with(case, at, least)


def _size(case: Case) -> tuple[int, int]:
    """Return the number of tensor entries in a case, and the number of distinct integers above 1."""
    numbers = sum(value.numel() for value in case.arguments if isinstance(value, torch.Tensor))
    return numbers, len({value for value in case.arguments if type(value) is int and value > 1})


def _refuses(gave: Gave) -> bool:
    """Return True if an answer rejected the arguments deliberately instead of failing by accident."""
    return gave.error is not None and gave.error[0] == "ValueError" and _UNPACKED not in gave.error[1]


def _changed(arguments: tuple[Value, ...], at: int) -> Iterator[Value]:
    """Change an argument in ways that a statement may reject."""
    value = arguments[at]
    if isinstance(value, torch.Tensor):
        twins = [part.shape == value.shape for part in arguments if isinstance(part, torch.Tensor)]
        if twins.count(True) > 1 and value.dim() > 1:  # another argument may be required to have the same shape
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
    """Return the other positive integers among the arguments, or an empty list if this argument is not an integer."""
    if type(arguments[at]) is not int:
        return []
    others = {value for value in arguments if type(value) is int and value > 0}
    return sorted(others - {arguments[at]})
