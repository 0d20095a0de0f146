"""Compare an answer's result with the expected one, beginning with shapes, and describe the difference briefly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import isfinite
from typing import Any

import torch

MOST_NUMBERS = 16
LONGEST = 1000  # maximum number of characters in the description of a list
_ENTRIES = 4  # maximum number of entries of a dict to describe
_NUMBER = 1e-11  # tolerance for Python floats; ints must be equal
_SINGLE = 1e-6  # errors below this suggest that the result was computed in float32
SINGLE = 1e-5
"""Absolute and relative tolerance for the mark *right*: the error of `float32` for numbers around 1."""
_TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def difference(
    found: Any,
    expected: Any,
    tolerance: float | None = None,
    *,
    exact_zero: bool = False,
    told: bool = True,
    gone: bool = True,
) -> str | None:
    """Describe how `found` differs from `expected`.

    Tensors must agree in shape, then in dtype, then in every entry, including NaN and infinities. A tensor with one
    entry is accepted where a number is expected, and a list where a tuple is expected.

    Args:
        found: The result of an answer.
        expected: The expected result.
        tolerance: Absolute and relative tolerance; by default it depends on the dtype.
        exact_zero: If true, entries of a floating-point tensor that are expected to be 0 must be exactly 0.
        told: Whether to list the numbers that differ; if false, the description only says "other numbers", which takes
            less time.
        gone: If true, `exact_zero` also rejects an exact 0 where a small nonzero number is expected, and `tolerance`
            applies to ints as well. If false, a 0 within the tolerance is accepted, and ints must be equal.

    Returns:
        One line such as "expected ..., got ...", or None if there is no difference.

    Raises:
        TypeError: `expected` has a type that an exercise cannot use.
    """
    if isinstance(expected, torch.Tensor):
        return _tensor_difference(found, expected, tolerance, exact_zero, told, gone)
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        same = type(found) is type(expected) and found == expected
    elif isinstance(expected, (int, float)):
        number = found.item() if isinstance(found, torch.Tensor) and found.numel() == 1 else found
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            return f"expected a number, got {_kind(found)}"
        whole = isinstance(expected, int) and (tolerance is None or not gone)
        if whole and isinstance(number, float):
            return f"expected the int {describe(expected)}, got the float {describe(number)}"
        allowed = _NUMBER if tolerance is None else tolerance
        close = isfinite(expected) and abs(number - expected) <= allowed * (1 + abs(expected))
        same = number == expected if whole else close
        same = same or number == expected or (number != number and expected != expected)
    elif isinstance(expected, Mapping):
        if not isinstance(found, Mapping) or set(found) != set(expected):
            wanted = ", ".join(map(repr, expected))
            return f"expected a dict with the keys {wanted}, got {describe(found)}"
        parts = ((f"[{key!r}]", found[key], expected[key]) for key in expected)
        return _first(parts, tolerance, exact_zero, told, gone)
    elif isinstance(expected, Sequence):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            return f"expected {len(expected)} results, got {describe(found)}"
        pairs = enumerate(zip(found, expected, strict=True), 1)
        return _first(((f"result {n}", f, e) for n, (f, e) in pairs), tolerance, exact_zero, told, gone)
    else:
        raise TypeError(f"an exercise cannot expect a {type(expected).__name__}")
    return None if same else f"expected {describe(expected)}, got {describe(found)}"


def far_off(found: Any, expected: Any, tolerance: float | None = None, *, exact_zero: bool = False) -> str | None:
    """Describe how the numbers in `found` differ from the expected ones, regardless of their types.

    A list of numbers is accepted in place of a tensor, 3.0 in place of 3, and `float32` in place of `float64`, with a
    tolerance that allows for the precision of `float32`. Shapes, NaN and the zeros of `exact_zero` are compared as
    strictly as in `difference`.

    Returns:
        One line, or None if there is no difference.
    """
    tolerance = max(tolerance or 0.0, SINGLE)
    return difference(_held_as(found, expected), expected, tolerance, exact_zero=exact_zero, gone=False)


def _held_as(found: Any, expected: Any) -> Any:
    """Convert `found` to the types of `expected` if this does not change any number; otherwise return it unchanged."""
    if isinstance(expected, torch.Tensor):
        if isinstance(found, (list, tuple, int, float)):
            found = _as_tensor(found)
        if isinstance(found, torch.Tensor) and found.dtype != expected.dtype:
            held = found.to(expected.dtype) if expected.is_complex() or not found.is_complex() else found
            exact = expected.is_floating_point() and found.dtype != torch.bool
            return held if exact or torch.equal(held.to(found.dtype), found) else found
        return found
    if isinstance(expected, bool):
        of_tensor = isinstance(found, torch.Tensor) and found.dtype == torch.bool and found.numel() == 1
        return bool(found) if of_tensor else found
    if isinstance(expected, (int, float)):
        number = found.item() if isinstance(found, torch.Tensor) and found.numel() == 1 else found
        whole = isinstance(number, float) and isinstance(expected, int) and number.is_integer()
        return int(number) if whole else number
    if isinstance(expected, Mapping):
        if isinstance(found, Mapping) and set(found) == set(expected):
            return {key: _held_as(found[key], part) for key, part in expected.items()}
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        if isinstance(found, torch.Tensor) and found.dim():
            found = [*found] if any(isinstance(part, torch.Tensor) for part in expected) else found.tolist()
        if isinstance(found, (list, tuple)) and len(found) == len(expected):
            return [_held_as(f, e) for f, e in zip(found, expected, strict=True)]
    return found


def _as_tensor(found: Any) -> Any:
    """Convert nested lists of numbers, or a list of tensors, to a tensor where possible."""
    try:
        if isinstance(found, (list, tuple)) and found and all(isinstance(part, torch.Tensor) for part in found):
            return torch.stack([*found])
        made = torch.tensor(found, dtype=torch.float64)
        return made if not _all(found, bool) else made.bool()
    except (TypeError, ValueError, RuntimeError):
        return found


def _all(found: Any, kind: type) -> bool:
    return all(_all(part, kind) for part in found) if isinstance(found, (list, tuple)) else isinstance(found, kind)


def _first(parts: Any, tolerance: float | None, exact_zero: bool, told: bool, gone: bool) -> str | None:
    for name, found, expected in parts:
        fault = difference(found, expected, tolerance, exact_zero=exact_zero, told=told, gone=gone)
        if fault:
            return f"{name}: {fault}"
    return None


def _tensor_difference(
    found: Any, expected: torch.Tensor, tolerance: float | None, exact_zero: bool, told: bool, gone: bool
) -> str | None:
    if not isinstance(found, torch.Tensor):
        return f"expected a tensor of shape {tuple(expected.shape)}, got {_kind(found)}"
    if found.shape != expected.shape:
        return f"expected shape {tuple(expected.shape)}, got {tuple(found.shape)}"
    if found.dtype != expected.dtype:
        return f"expected {_name(expected.dtype)}, got {_name(found.dtype)}"
    if expected.is_complex():
        found, expected = torch.view_as_real(found.resolve_conj()), torch.view_as_real(expected.resolve_conj())
    allowed = tolerance if tolerance is not None else _TOLERANCE.get(expected.dtype, 0.0)
    if _close(found, expected, allowed):
        if not exact_zero or not expected.is_floating_point():
            return None
        # A sum of numbers of magnitude 1 may be 0 or a rounding error, depending on the order, so ignore any below eps.
        lost = (found == 0) & (expected.abs() > torch.finfo(expected.dtype).eps)
        if gone and lost.any():
            return f"expected {expected[lost].detach().abs().max().item():.1e}, got exactly 0 in its place"
        almost = found[expected == 0].detach().double().abs()
        most = almost.max().item() if almost.numel() else 0.0
        return f"expected exactly 0, got numbers up to {most:.1e} in its place" if most else None
    if not told:
        return "other numbers"
    wrong = ~torch.isclose(found.double(), expected.double(), rtol=allowed, atol=allowed, equal_nan=True)
    where, wanted, came = "", expected, found
    if expected.numel() > MOST_NUMBERS:
        row = tuple(int(i) for i in wrong.nonzero()[0][:-1])
        where = f"in {''.join(f'[{i}]' for i in row) or 'it'} "
        wanted, came = expected[row], found[row]
    if numbers(wanted) != numbers(came):
        return f"{where}expected {numbers(wanted)}, got {numbers(came)}"
    off = (found.double() - expected.double())[wrong].abs()
    looks = expected.dtype == torch.float64 and bool((off <= _SINGLE * (1 + expected.double()[wrong].abs())).all())
    why = ", which happens if float32 is used in between" if looks else ""
    return f"{where}expected {numbers(wanted)}, got numbers that differ from these by up to {off.max().item():.1e}{why}"


def _close(found: torch.Tensor, expected: torch.Tensor, allowed: float) -> bool:
    if torch.equal(found, expected):  # in the usual case, this test takes only a tenth of the time
        return True
    if not expected.is_floating_point():
        return False
    found, expected = found.double(), expected.double()
    # Testing only the largest deviation takes a third of the operations of isclose.
    # If the deviation is NaN, at least one side contains NaN or infinity.
    over = ((found - expected).abs() - (allowed + allowed * expected.abs())).max().item()
    if over != over:
        return bool(torch.isclose(found, expected, rtol=allowed, atol=allowed, equal_nan=True).all())
    return over <= 0


def numbers(tensor: torch.Tensor) -> str:
    """Format at most `MOST_NUMBERS` entries of a tensor with four digits each."""
    tensor = tensor.detach()
    if tensor.numel() > MOST_NUMBERS:
        return numbers(tensor.flatten()[:MOST_NUMBERS])[:-1] + ", ...]"
    return _listed(tensor.tolist())


def _listed(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_listed(part) for part in value) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def describe(value: Any, most: int = MOST_NUMBERS) -> str:
    """Describe a value briefly.

    A tensor with at most `most` entries is shown in full. A larger one is shown with its shape and, if `most` is
    `MOST_NUMBERS`, its first entries. If there are many parts, only the first ones are described. Long texts are cut
    off.
    """
    if isinstance(value, torch.Tensor):
        kind = f"{_name(value.dtype)} {tuple(value.shape)}"
        if value.numel() <= most:
            return f"{kind} {numbers(value)}"
        return f"{kind}, beginning {numbers(value)}" if most == MOST_NUMBERS else kind
    if isinstance(value, Mapping):
        shown = [f"{_cut(repr(key))}: {describe(value[key], most)}" for key in islice(value, _ENTRIES)]
        return "{" + _joined([*shown, *[f"and {len(value) - _ENTRIES} more"] * (len(value) > _ENTRIES)]) + "}"
    if isinstance(value, (list, tuple)) and not all(isinstance(part, (int, float, str)) for part in value):
        return "(" + _joined(describe(part, most) for part in value) + ")"
    if isinstance(value, float):
        return f"{value:.6g}"
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."


def _joined(parts: Iterable[str]) -> str:
    """Join the first parts with commas, adding an ellipsis if there are more parts or the text is too long."""
    parts = iter(parts)
    text = ", ".join(islice(parts, MOST_NUMBERS))
    if next(parts, None) is not None:
        text += ", ..."
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
