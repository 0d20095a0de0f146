"""Call an answer once on copies of a case's arguments, observe the call, and record its outcome.

An `Outcome` holds the result or the error, the gradients, and the positions of the arguments that the call modified or
that share memory with the result. That is enough to judge a call, whether it ran in this process or in the grader's
separate process.
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

KEPT = 8  # number of earlier results to check again after each call
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
"""Types that are converted to lists."""
_PARTS: tuple[type, ...] = (*_LISTS, list, tuple, Mapping, torch.Tensor)
_LONGEST = 100_000  # maximum number of items taken from a generator, which may be infinite


class Result(Enum):
    """Possible results of examining an answer."""

    RIGHT = "right"
    WRONG = "wrong"
    MISSING = "missing"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    REFUSED = "refused"


@dataclass(frozen=True)
class Outcome:
    """Outcome of one call.

    Attributes:
        value: The returned value.
        error: Type and message of the exception, or None if nothing was raised.
        gradients: Gradients with respect to the floating-point tensors among the arguments (None for a tensor that
            receives no gradient), or None if the case does not ask for gradients.
        changed: Positions of the arguments that the call modified.
        spoiled: True if the call changed the result of an earlier call.
        shared: Positions of the arguments that the result shares memory with.
        peak: Peak memory of the call in bytes, not counting its arguments; 0 unless the case sets a limit.
        result: MISSING if the answer is not written yet, TIMEOUT if the call did not finish in time or was interrupted,
            CRASHED if its process died, REFUSED if it used something forbidden; otherwise None.
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
    """An answer that can be called on a case, in this or another process.

    `again` is true for the second call on a case, in which the arguments have a different memory layout.
    """

    def __call__(self, case: Case, again: bool = False, /) -> Outcome: ...


def in_this_process(answer: Answer, forbidden: Collection[str] = (), watch: Watch | None = None) -> Call:
    """Return a `Call` that runs an answer in this process, on copies of the arguments.

    Args:
        answer: The function to call.
        forbidden: Names that the answer must not use (ignored if `watch` is given).
        watch: The watch that detects forbidden operators (default: a new one for `forbidden`).
    """
    watch = watch or Watch(forbidden)
    # Each entry holds a returned value, a copy of it, and a flag that is True once the value has been overwritten here.
    earlier: deque[tuple[Any, Any, bool]] = deque(maxlen=KEPT)

    def call(case: Case, again: bool = False) -> Outcome:
        arguments = [copied(value, case.gradients, again and case.layout) for value in case.arguments]
        if again:  # overwrite earlier results, as a caller might
            for at, (value, _, written) in enumerate(earlier):
                if not written:
                    overwrite(value)
                    earlier[at] = value, _detached(value), True
        # Seed only the CPU's generator: `torch.manual_seed` prints a traceback for each device that is missing.
        torch.default_generator.manual_seed(0)
        watch.measures = case.room is not None
        value, ended = _called(answer, arguments, case, watch)
        if ended is not None:
            return ended
        given = _detached(value)  # copy before the answer's gradient hooks can write to it
        pairs = enumerate(zip(arguments, case.arguments, strict=True))
        changed = tuple(i for i, (now, was) in pairs if not identical(now, was))
        try:
            gradients = _gradients(value, arguments) if case.gradients else None
        except RuntimeError as error:  # for example, because a tensor that the backward pass needs was overwritten
            return Outcome(error=("RuntimeError", str(error)))
        spoiled = any(not identical(now, was) for now, was, _ in earlier)
        earlier.append((value, given, False))
        shared = shared_with(value, arguments)
        peak = watch.peak if watch.measures else 0
        return Outcome(given, gradients=gradients, changed=changed, spoiled=spoiled, shared=shared, peak=peak)

    return call


def _called(answer: Answer, arguments: Sequence[Any], case: Case, watch: Watch) -> tuple[Any, Outcome | None]:
    """Return the answer's value and None; if there is no value to examine, return None and the outcome."""
    try:
        with watch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's warnings about axes of size one do not concern the answer
            value = with_python_numbers(listed(answer(*arguments)))
    except KeyboardInterrupt:
        if not case.is_robust:
            raise
        # The user interrupted a case that costs no points, so continue with the next one
        return None, Outcome(result=Result.TIMEOUT)
    except Exception as error:
        if type(error) is NotImplementedError and not str(error):  # PyTorch's own errors of this type have a message
            return None, Outcome(result=Result.MISSING)
        if watch.seen:
            return None, _refused(watch)
        # subclasses are accepted, as in `except ValueError`
        kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
        return None, Outcome(error=(kind, str(error)))
    if watch.seen:
        return None, _refused(watch)
    if value is ... or (value is None and _is_empty(answer)):
        return None, Outcome(error=("Empty", "its body is only `pass` or `...`"), result=Result.MISSING)
    if strange := _without_plain_numbers(value):
        return None, Outcome(error=("TypeError", strange))
    return value, None


def _refused(watch: Watch) -> Outcome:
    return Outcome(error=("Refused", forbidden_fault(watch.seen[:1], seen=True)), result=Result.REFUSED)


def _is_empty(answer: Answer) -> bool:
    code = getattr(answer, "__code__", None)
    return code is not None and code.co_names == () and set(code.co_consts) <= {None, ...}


def _without_plain_numbers(value: Any) -> str | None:
    """Return a message if a result contains a tensor other than a strided CPU tensor, otherwise None.

    This is checked first, because parts of PyTorch are loaded at the first operation on a meta tensor, which takes
    seconds.
    """
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            return f"the result is a tensor on the device {value.device.type!r}, expected one on the CPU"
        if value.layout != torch.strided:
            return f"the result is a tensor of the layout {value.layout}, expected torch.strided"
    elif isinstance(value, Mapping):
        return next((said for part in value.values() if (said := _without_plain_numbers(part))), None)
    elif isinstance(value, (list, tuple)):
        return next((said for part in value if (said := _without_plain_numbers(part))), None)
    return None


def is_floating(value: Any) -> bool:
    """Return True if the value is a floating-point tensor."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _detached(value: Any) -> Any:
    return copied(value, False)


def _gradients(value: Any, arguments: Sequence[Any]) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of a weighted sum of the results. The fixed weights prevent terms from canceling."""
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


# Functions that copy, compare and overwrite tensors and lists

_RUBBISH = 77


def in_other_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy whose axes are stored in reverse order, which makes it non-contiguous where possible."""
    if tensor.dim() > 1:
        axes = tuple(range(tensor.dim()))[::-1]
        return tensor.permute(axes).clone(memory_format=torch.contiguous_format).permute(axes)
    if tensor.dim() == 1:
        return torch.stack([tensor, tensor], dim=1)[:, 0]
    return tensor.clone()


def copied(value: Any, leaves: bool, other_order: bool = False) -> Any:
    """Return a copy of a value that shares no memory with it.

    Args:
        value: A tensor, or dicts, lists and tuples of tensors; anything else is returned unchanged.
        leaves: If true, floating-point tensors in the copy require gradients.
        other_order: If true, tensors in the copy have a different memory layout (`in_other_order`).
    """
    if isinstance(value, torch.Tensor):
        copy = in_other_order(value.detach()) if other_order else value.detach().clone()
        return copy.requires_grad_() if leaves and copy.is_floating_point() else copy
    if isinstance(value, Mapping):
        return {key: copied(part, leaves, other_order) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        copies = [copied(part, leaves, other_order) for part in value]
        return copies if isinstance(value, list) else tuple(copies)  # a NamedTuple becomes a tuple
    return value


def shared_with(value: Any, arguments: Sequence[Any]) -> tuple[int, ...]:
    """Return the positions of the arguments that a result contains or shares memory with."""
    mine = set(_places(value))
    return tuple(at for at, argument in enumerate(arguments) if not mine.isdisjoint(_places(argument)))


def _places(value: Any) -> Iterator[tuple[str, int]]:
    """Return identifiers of the memory that a value uses: its non-empty tensors' storages, its lists and its dicts."""
    if isinstance(value, torch.Tensor):
        if value.numel():
            yield "tensor", value.untyped_storage().data_ptr()
    elif isinstance(value, (list, tuple, Mapping)):
        if isinstance(value, (list, dict)):
            yield "list", id(value)
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _places(part)


def overwrite(value: Any) -> None:
    """Overwrite a result with meaningless values, as a caller might."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad(), suppress(RuntimeError):  # writing into an expanded tensor raises an error
            value.fill_(_RUBBISH)
    elif isinstance(value, tuple):
        for part in value:
            overwrite(part)
    elif isinstance(value, (list, dict)):
        value.clear()


def listed(value: Any) -> Any:
    """Convert a result to plain data, so that no methods defined by the answer are called afterwards.

    Generators, ranges, `map`, `filter`, `zip` and the views of a dict become lists. Instances of subclasses of tensor,
    list, tuple and dict become instances of these types. Other mappings become dicts.
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
    """Convert numpy scalars and fractions in a result to Python numbers, including those in lists and tuples."""
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
    """Return True if a value is unchanged. NaN counts as equal to NaN."""
    if now is was:  # the same object, because `copied` does not copy objects of this type
        return True
    if isinstance(was, torch.Tensor):
        if not isinstance(now, torch.Tensor) or now.shape != was.shape or now.dtype != was.dtype:
            return False
        return torch.equal(now, was) or difference(now.detach(), was, 0.0, told=False) is None
    if isinstance(was, (list, tuple)):
        return len(now) == len(was) and all(identical(a, b) for a, b in zip(now, was, strict=True))
    if isinstance(was, Mapping):
        return set(now) == set(was) and all(identical(now[key], was[key]) for key in was)
    return bool(now == was or now != now)
