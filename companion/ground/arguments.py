"""Check arguments once, where they enter the package.

The user gets a clear message instead of meaningless results or an error from deep inside PyTorch.

Shapes and dtypes are known without waiting for the device, and are always checked. Whether an id is in range, however,
depends on the contents of a tensor. On the CPU, the look-up itself detects a wrong id at no cost. On a GPU, the device
checks the ids without making Python wait, so the error is a `RuntimeError` that appears at a later call; its message
still says what was wrong. `generate` and `beam_search` take prompts as lists and check them on any device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from companion.ground.fields import shown

_WHOLE = (torch.int64, torch.int32)


def described(value: object) -> str:
    """Describe a value for a message: a tensor by its dtype and shape, anything else by its shortened repr."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return shown(value)


def check_kind(name: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    """Check that an argument has one of these types.

    Raises:
        ValueError: If `value`, the argument called `name`, has a different type.
    """
    if not isinstance(value, kinds):
        raise ValueError(f"{name}={described(value)}: expected {expected}")


def check_dtype(dtype: object) -> None:
    """Check that a dtype is `None` or one that a model's weights can have.

    Raises:
        ValueError: If it is neither.
    """
    if dtype is not None and dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        raise ValueError(f"dtype={described(dtype)}: expected a floating-point dtype, such as torch.bfloat16")


def check_device(device: object) -> None:
    """Check that a device is `None` or the name of a device that PyTorch supports.

    Raises:
        ValueError: If it is neither.
    """
    try:
        if device is not None:
            torch.device(device)  # type: ignore[call-overload]
    except (RuntimeError, TypeError, ValueError, OverflowError):
        raise ValueError(f"device={described(device)}: expected cpu, cuda, cuda:1 or mps") from None


def check_ids(name: str, ids: object, axes: str = "(batch, token)") -> None:
    """Check that `ids` is a tensor of integers with two axes, neither of which is empty.

    `look_up` checks whether a table has rows for these ids.

    Raises:
        ValueError: If `ids` is anything else.
    """
    if not isinstance(ids, Tensor):
        raise ValueError(f"{name}={described(ids)}: expected a tensor of token ids, {axes}; use torch.tensor(...)")
    if ids.dtype not in _WHOLE:
        raise ValueError(f"{name} is {described(ids)}: expected whole-number ids, torch.int64 or torch.int32, {axes}")
    if ids.ndim != 2:
        hint = f"; {name}[None] is a batch of one" if ids.ndim == 1 else ""
        raise ValueError(f"{name} has shape {tuple(ids.shape)}: expected two axes, {axes}{hint}")
    if 0 in ids.shape:
        raise ValueError(f"{name} has shape {tuple(ids.shape)}: expected at least one row and one token, {axes}")


def check_positions(positions: object, batch: int, tokens: int) -> None:
    """Check that `positions` contains one integer for each token, (token) or (batch, token).

    Raises:
        ValueError: If `positions` is anything else.
    """
    expected = f"whole numbers, (token) or (batch, token), ({tokens},) or {(batch, tokens)}"
    if not isinstance(positions, Tensor) or positions.dtype not in _WHOLE:
        raise ValueError(f"positions={described(positions)}: expected {expected}")
    *rows, last = positions.shape or (0,)
    if last != tokens or len(rows) > 1 or (rows and rows[0] != 1 and rows[0] != batch):
        raise ValueError(f"positions has shape {tuple(positions.shape)}: expected {expected}")


def checks_contents(tensor: Tensor, anywhere: bool) -> bool:
    """Return whether the contents of a tensor are checked."""
    near = tensor.device.type == "cpu" or anywhere
    return near and tensor.device.type != "meta" and tensor.numel() > 0 and not torch.compiler.is_compiling()


def heads_fit(given: Mapping[str, Any]) -> None:
    """Check that the number of key heads divides the number of query heads, and that `q`, `k` and `v` have the same
    dtype.

    `v` may be missing.

    Raises:
        ValueError: If one of these conditions does not hold.
    """
    q, k, v = given["q"], given["k"], given.get("v")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"k has kv_head={k.shape[1]}: expected a divisor of head={q.shape[1]}, as in q")
    for name, x in (("k", k), ("v", v)):
        if x is not None and x.dtype != q.dtype:
            raise ValueError(f"{name} is {described(x)}: expected {str(q.dtype).removeprefix('torch.')}, like q")


def check_numbers(name: str, x: Tensor) -> None:
    """Check that a tensor contains neither NaN nor +infinity, which would make a softmax NaN; -infinity is allowed.

    Only tensors on the CPU are checked, because on a GPU the check would wait for the device.

    Raises:
        ValueError: If the tensor contains NaN or +infinity.
    """
    if checks_contents(x, anywhere=False):
        most = x.detach().max().item()
        if math.isnan(most) or most == math.inf:
            raise ValueError(f"{name} is {described(x)} with values up to {most}: expected finite values or -infinity")


def look_up(name: str, table: nn.Module, ids: Tensor) -> Tensor:
    """Look up `ids` in a table, which is a module with a single `weight`.

    Raises:
        ValueError: If the table has no row for an id. The module's docstring explains when this is checked.
    """
    rows = len(table.weight)  # type: ignore[arg-type]
    if ids.is_cuda and not torch.compiler.is_compiling():
        assert_in_range(name, ids, rows)
    try:
        return table(ids)
    except IndexError:
        place = [int(at) for at in ((ids < 0) | (ids >= rows)).nonzero()[0]]
        raise ValueError(
            f"{name}{place} is {int(ids[tuple(place)])}: expected a whole number from 0 to {rows - 1}"
        ) from None


def assert_in_range(name: str, ids: Tensor, rows: int) -> None:
    """Let the device of `ids` check that they are from 0 to rows - 1; on a GPU, Python does not wait for the result.

    Raises:
        RuntimeError: If an id is out of range; on a GPU, some later call raises the error.
    """
    torch._assert_async(((ids >= 0) & (ids < rows)).all(), f"{name}: expected whole numbers from 0 to {rows - 1}")
