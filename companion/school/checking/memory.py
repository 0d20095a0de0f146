"""What tensors and lists are in memory: shared or not, changed or not, and the same in another order."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from .compare import difference

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
