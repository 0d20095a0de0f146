"""One call of an answer: on copies of a case's arguments, watched; and all that can be seen of it afterwards.

What is seen (`Outcome`) is the result or the error, the gradients, what the call wrote into and what memory it shares:
enough to say whether the call was right, in this process or in another that shares nothing with it (the grader's).
"""

from __future__ import annotations

import numbers
import warnings
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from types import GeneratorType
from typing import Any, Protocol, cast

import torch

from .compare import difference
from .exercise import Answer, Case
from .operator_watch import Watch, forbidden_fault

KEPT = 8  # earlier results that are looked at again
_LISTS: tuple[type, ...] = (
    GeneratorType,
    range,
    map,
    filter,
    zip,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
"""What is a list, in another form."""
_PARTS: tuple[type, ...] = (*_LISTS, list, tuple, Mapping, torch.Tensor)
_LONGEST = 100_000  # of a generator that may have no end


class Result(Enum):
    """How an examination can end."""

    RIGHT = "right"
    WRONG = "wrong"
    MISSING = "missing"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    REFUSED = "refused"


@dataclass(frozen=True)
class Outcome:
    """What one call gave.

    value:      what was returned.
    error:      the type of what was raised, and its message; None if nothing was.
    gradients:  where the case asks: of each floating tensor among the arguments; None where there is none.
    changed:    the arguments, by position, that the call wrote into.
    spoiled:    the call changed what an earlier one had returned.
    shared:     the arguments, by position, with which the result shares memory.
    peak:       where the case asks: the most bytes that the call took at once, beside its arguments.
    result:     MISSING where nothing is written yet TIMEOUT where the call did not end, CRASHED where it took its
                process along; else None.
    """

    value: Any = None
    error: tuple[str, str] | None = None
    gradients: tuple[torch.Tensor | None, ...] | None = None
    changed: tuple[int, ...] = ()
    result: Result | None = None
    spoiled: bool = False
    shared: tuple[int, ...] = ()
    peak: int = 0


class Call(Protocol):
    """An answer, wherever it runs. `again`: the second call, on arguments that lie in memory in another order."""

    def __call__(self, case: Case, again: bool = False, /) -> Outcome: ...


def in_this_process(answer: Answer, forbidden: Collection[str] = (), watch: Watch | None = None) -> Call:
    """An answer that is called in this process, on copies of the arguments.

    forbidden:  what it must do without; or else a `watch` that looks for that.
    """
    watch = watch or Watch(forbidden)
    # What was returned, what was in it when that was last looked at, and whether it has been written into.
    earlier: deque[tuple[Any, Any, bool]] = deque(maxlen=KEPT)

    def call(case: Case, again: bool = False) -> Outcome:
        arguments = [copied(value, case.gradients, again and case.layout) for value in case.arguments]
        if again:  # whoever has a result may write into it
            for at, (value, _, written) in enumerate(earlier):
                if not written:
                    overwrite(value)
                    earlier[at] = value, _detached(value), True
        # The processor's generator alone: `torch.manual_seed` writes a traceback for each device that is not there.
        torch.default_generator.manual_seed(0)
        watch.measures = case.room is not None
        value, ended = _called(answer, arguments, case, watch)
        if ended is not None:
            return ended
        value = with_python_numbers(value)
        pairs = enumerate(zip(arguments, case.arguments, strict=True))
        changed = tuple(i for i, (now, was) in pairs if not identical(now, was))
        gradients = _gradients(value, arguments) if case.gradients else None
        given = _detached(value)
        spoiled = any(not identical(now, was) for now, was, _ in earlier)
        earlier.append((value, given, False))
        shared = shared_with(value, arguments)
        peak = watch.peak if watch.measures else 0
        return Outcome(given, gradients=gradients, changed=changed, spoiled=spoiled, shared=shared, peak=peak)

    return call


def _called(answer: Answer, arguments: Sequence[Any], case: Case, watch: Watch) -> tuple[Any, Outcome | None]:
    """What an answer returns; or the outcome, where that is none to look at."""
    try:
        with warnings.catch_warnings(), watch:
            warnings.simplefilter("ignore")  # PyTorch's, of axes of size one, say nothing of the answer
            value = listed(answer(*arguments))
    except KeyboardInterrupt:
        if not case.is_robust:
            raise
        return None, Outcome(result=Result.TIMEOUT)  # stopped by hand where it costs no point: the check goes on
    except Exception as error:
        if type(error) is NotImplementedError and not str(error):  # PyTorch says what it has not
            return None, Outcome(result=Result.MISSING)
        if watch.seen:
            return None, _refused(watch)
        kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__  # as `except` sees it
        return None, Outcome(error=(kind, str(error)))
    if watch.seen:
        return None, _refused(watch)
    if value is ... or (value is None and _is_empty(answer)):
        return None, Outcome(error=("Empty", "its body is only `pass` or `...`"), result=Result.MISSING)
    if strange := _without_plain_numbers(value):
        return None, Outcome(error=("TypeError", strange))
    return value, None


def _refused(watch: Watch) -> Outcome:
    return Outcome(error=("Refused", forbidden_fault(watch.seen[:1])), result=Result.REFUSED)


def _is_empty(answer: Answer) -> bool:
    """A function whose body is `...` or `pass` alone."""
    code = getattr(answer, "__code__", None)
    return code is not None and code.co_names == () and set(code.co_consts) <= {None, ...}


def _without_plain_numbers(value: Any) -> str | None:
    """What is said of a result that holds a tensor whose numbers cannot be read one by one; None where all can.

    Asked before anything is done with the result: the first operation on a tensor of the meta device loads seconds'
    worth of PyTorch.
    """
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            return f"the result is a tensor on the device {value.device.type!r}, expected one on the processor"
        if value.layout != torch.strided:
            return f"the result is a tensor of the layout {value.layout}, expected torch.strided"
    elif isinstance(value, Mapping):
        return next((said for part in value.values() if (said := _without_plain_numbers(part))), None)
    elif isinstance(value, (list, tuple)):
        return next((said for part in value if (said := _without_plain_numbers(part))), None)
    return None


def is_floating(value: Any) -> bool:
    """Whether it is a tensor of floating numbers."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _detached(value: Any) -> Any:
    return copied(value, False)


def _gradients(value: Any, arguments: Sequence[Any]) -> tuple[torch.Tensor | None, ...]:
    """Of the results times fixed numbers, so that no part of the gradient cancels."""
    leaves = [argument for argument in arguments if is_floating(argument)]
    parts = value if isinstance(value, (list, tuple)) else [value]
    results = [part for part in parts if is_floating(part) and part.requires_grad]
    if not results:
        return tuple(None for _ in leaves)
    total = sum((result * _upstream(result)).sum() for result in results)
    assert isinstance(total, torch.Tensor)
    return tuple(torch.autograd.grad(total, leaves, allow_unused=True))


def _upstream(like: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1.0, 2.0, max(1, like.numel()), dtype=like.dtype).reshape(like.shape).cos()


# What tensors and lists are in memory

_RUBBISH = 77


def in_other_order(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same numbers that is not contiguous, as far as it has several: its axes lie in reverse order."""
    if tensor.dim() > 1:
        axes = tuple(range(tensor.dim()))[::-1]
        return tensor.permute(axes).clone(memory_format=torch.contiguous_format).permute(axes)
    if tensor.dim() == 1:
        return torch.stack([tensor, tensor], dim=1)[:, 0]
    return tensor.clone()


def copied(value: Any, leaves: bool, other_order: bool = False) -> Any:
    """The same in memory of its own.

    leaves:       floating tensors want gradients.
    other_order:  their axes lie in memory in another order.
    """
    if isinstance(value, torch.Tensor):
        copy = in_other_order(value.detach()) if other_order else value.detach().clone()
        return copy.requires_grad_() if leaves and copy.is_floating_point() else copy
    if isinstance(value, Mapping):
        return {key: copied(part, leaves, other_order) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        copies = [copied(part, leaves, other_order) for part in value]
        return copies if isinstance(value, list) else tuple(copies)  # a NamedTuple, too
    return value


def shared_with(value: Any, arguments: Sequence[Any]) -> tuple[int, ...]:
    """The places of the arguments that a result is, or has as a part, or holds memory of."""
    mine = set(_places(value))
    return tuple(at for at, argument in enumerate(arguments) if not mine.isdisjoint(_places(argument)))


def _places(value: Any) -> Iterator[tuple[str, int]]:
    """Where the tensors in a value begin in memory, as far as they have any numbers, and the lists and dicts in it."""
    if isinstance(value, torch.Tensor):
        if value.numel():
            yield "tensor", value.untyped_storage().data_ptr()
    elif isinstance(value, (list, tuple, Mapping)):
        if isinstance(value, (list, dict)):
            yield "list", id(value)
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _places(part)


def overwrite(value: Any) -> None:
    """Write rubbish into a result, as whoever has it may."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad(), suppress(RuntimeError):  # an expanded one has fewer numbers than places
            value.fill_(_RUBBISH)
    elif isinstance(value, tuple):
        for part in value:
            overwrite(part)
    elif isinstance(value, (list, dict)):
        value.clear()


def listed(value: Any) -> Any:
    """A result as data: generators, ranges, and what dicts and loops give are lists, and subclasses of tensors, lists,
    tuples and dicts are what they are subclasses of, so that no method of the answer's own is called afterwards.
    """
    if isinstance(value, torch.Tensor):
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            return value
        with torch._C.DisableTorchFunctionSubclass():
            return torch.Tensor.as_subclass(value, torch.Tensor)
    if isinstance(value, _LISTS):
        value = [*islice(cast(Iterable[Any], value), _LONGEST)]
    elif isinstance(value, list) and type(value) is not list:
        value = [*list.__iter__(value)]
    elif isinstance(value, tuple) and type(value) is not tuple:
        value = (*tuple.__iter__(value),)
    elif isinstance(value, Mapping) and type(value) is not dict:
        value = dict([*dict.items(value)] if isinstance(value, dict) else [*islice(value.items(), _LONGEST)])
    if not isinstance(value, (list, tuple, dict)):
        return value
    parts = value.values() if isinstance(value, dict) else value
    if not any(isinstance(part, _PARTS) for part in parts):
        return value
    made = [listed(part) for part in parts]
    if all(now is was for now, was in zip(made, parts, strict=True)):
        return value
    return dict(zip(value, made, strict=True)) if isinstance(value, dict) else type(value)(made)


def with_python_numbers(value: Any) -> Any:
    """A result whose numbers are Python's own, where they are numpy's or a fraction; else the result itself."""
    if isinstance(value, (int, float, torch.Tensor)):
        return value
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, (list, tuple)):
        parts = [with_python_numbers(part) for part in value]
        if all(now is was for now, was in zip(parts, value, strict=True)):
            return value
        return parts if isinstance(value, list) else tuple(parts)
    return value


def identical(now: Any, was: Any) -> bool:
    """Whether nothing in a value has changed."""
    if now is was:  # what cannot be copied
        return True
    if isinstance(was, torch.Tensor):
        if not isinstance(now, torch.Tensor) or now.shape != was.shape or now.dtype != was.dtype:
            return False
        return torch.equal(now, was) or difference(now.detach(), was, 0.0, told=False) is None  # NaN is NaN
    if isinstance(was, (list, tuple)):
        return len(now) == len(was) and all(identical(a, b) for a, b in zip(now, was, strict=True))
    if isinstance(was, Mapping):
        return set(now) == set(was) and all(identical(now[key], was[key]) for key in was)
    return bool(now == was or now != now)
