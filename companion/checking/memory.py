"""What tensors and lists are in memory: shared or not, changed or not, and the same in another order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def shared_with(value: Any, argument: Any) -> bool:
    """Whether a result is an argument, or a part of one, or holds memory of it."""
    mine, theirs = list(_parts(value)), list(_parts(argument))
    places = {place for part in theirs if (place := _place(part))}
    lists = {id(part) for part in theirs if isinstance(part, (list, dict))}
    return any(_place(part) in places or (isinstance(part, (list, dict)) and id(part) in lists) for part in mine)


def _parts(value: Any) -> Iterator[Any]:
    yield value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    for part in inner:
        yield from _parts(part)


def _place(value: Any) -> int:
    """Where a tensor's memory begins; 0 where it has none."""
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) and value.numel() else 0


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


def identical(now: Any, was: Any) -> bool:
    """Whether nothing in a value has changed."""
    if now is was:  # what cannot be copied
        return True
    if isinstance(was, torch.Tensor):
        return isinstance(now, torch.Tensor) and now.shape == was.shape and difference(now.detach(), was, 0.0) is None
    if isinstance(was, Mapping):
        return set(now) == set(was) and all(identical(now[key], was[key]) for key in was)
    if isinstance(was, (list, tuple)):
        return len(now) == len(was) and all(identical(a, b) for a, b in zip(now, was, strict=True))
    return bool(now == was or now != now)
