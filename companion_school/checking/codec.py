"""Serialize cases and outcomes without pickle, for other processes and for the files of a course.

A value (`exercise.Value`) is stored as JSON text that refers to tensors by number, followed by the tensors in
safetensors format. Neither part is trusted when it is read: invalid bytes raise `ValueError`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Hashable
from typing import Any

import torch
from safetensors.torch import load

from .call import Outcome, Result
from .exercise import Case

_HEAD = struct.Struct("<qq")  # the lengths of the JSON text and of the tensors
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_LARGEST_KEY, _LONGEST_KEY = 2**32, 8
# Types that JSON stores unchanged; most items of long lists have these types
_PLAIN = frozenset({bool, int, str, type(None)})


def pack(value: Any) -> bytes:
    """Serialize a value.

    Raises:
        TypeError: The value contains a type that exercises may not use (see `exercise.Value`).
    """
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_written(value, tensors)).encode()
    data = _saved(tensors)
    return _HEAD.pack(len(text), len(data)) + text + data


def _saved(tensors: dict[str, torch.Tensor]) -> bytes:
    """Serialize tensors in safetensors format, five times as fast as `safetensors.torch.save` for small tensors."""
    header, data = {}, bytearray()
    for name, tensor in tensors.items():
        begin = len(data)
        data += tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        if tensor.dtype not in _DTYPES:
            raise TypeError(f"a tensor of dtype {tensor.dtype} is not a valid value in an exercise")
        shape, places = list(tensor.shape), [begin, len(data)]
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": shape, "data_offsets": places}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


def unpack(data: bytes) -> Any:
    """Read a value that `pack` wrote.

    Raises:
        ValueError: The bytes were not written by `pack`.
    """
    try:
        texts, _ = _HEAD.unpack_from(data)
        text, rest = data[_HEAD.size : _HEAD.size + texts], data[_HEAD.size + texts :]
        return _read(json.loads(text), load(rest))
    except Exception as error:  # the parsers may raise any exception on unknown bytes
        raise ValueError(f"expected a packed value: {error}") from None


def same_as(value: Any) -> Hashable:
    """Return a key that is equal for two values exactly when `pack` returns equal bytes, but three times as fast."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_written(value, tensors))
    numbers = [tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors.values()]
    return text, *((one.dtype, one.shape, data) for one, data in zip(tensors.values(), numbers, strict=True))


def _written(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        name, strides = str(len(tensors)), value.stride()
        order = sorted(range(len(strides)), key=lambda axis: -strides[axis])  # the order of the axes in memory
        # Safetensors rejects tensors that share memory.
        tensors[name] = value.detach().permute(order).clone(memory_format=torch.contiguous_format)
        return {"tensor": name} if order == sorted(order) else {"tensor": [name, order]}
    if isinstance(value, float):
        return {"float": value.hex()}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        parts = [part if type(part) in _PLAIN else _written(part, tensors) for part in value]
        return {"list" if isinstance(value, list) else "tuple": parts}
    if isinstance(value, dict):
        return {"dict": [[_written(key, tensors), _written(part, tensors)] for key, part in value.items()]}
    raise TypeError(f"a {type(value).__name__} is not a valid value in an exercise")


def _read(text: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(text, dict):
        return text
    ((kind, inner),) = text.items()
    if kind == "tensor" and isinstance(inner, list):
        name, order = inner
        return tensors[name].permute([order.index(axis) for axis in range(len(order))])
    if kind == "tensor":
        return tensors[inner]
    if kind == "float":
        return float.fromhex(inner)
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(_read(part, tensors) for part in inner)
    if kind == "dict":
        return {_key(_read(key, tensors)): _read(part, tensors) for key, part in inner}
    raise ValueError(f"unknown kind of value in an exercise:  {kind!r}")


def _key(key: Any) -> Any:
    """Return a dict key, or raise `ValueError` if an attacker could create many such keys with the same hash."""
    parts = key if isinstance(key, tuple) else (key,)
    for part in parts:
        small = isinstance(part, int) and abs(part) < _LARGEST_KEY
        if not (small or isinstance(part, str) or part is None or (isinstance(part, float) and part is key)):
            raise ValueError(f"a dict in an exercise cannot have this key: {str(key)[:80]}")
    if len(parts) > _LONGEST_KEY:
        raise ValueError(f"a key has {len(parts)} parts; expected at most {_LONGEST_KEY}")
    return key


def pack_outcome(outcome: Outcome) -> bytes:
    """Serialize an outcome. A result that cannot be serialized becomes an error that names its type."""
    try:
        return pack(_facts(outcome))
    except TypeError:
        return pack(outcome_value(outcome))


def unpack_outcome(data: bytes) -> Outcome:
    """Read an outcome that `pack_outcome` wrote.

    Raises:
        ValueError: The bytes were not written by `pack_outcome`.
    """
    return outcome_of(unpack(data))


def outcome_value(outcome: Outcome) -> dict[str, Any]:
    """Convert an outcome to a value. A result that cannot be serialized becomes an error that names its type."""
    try:
        _written(outcome.value, {})
    except TypeError:
        kind = type(outcome.value).__name__
        outcome = Outcome(error=outcome.error or ("TypeError", f"the result is a {kind}"), result=outcome.result)
    return _facts(outcome)


def _facts(outcome: Outcome) -> dict[str, Any]:
    return {
        "value": outcome.value,
        "error": outcome.error,
        "gradients": outcome.gradients,
        "changed": outcome.changed,
        "result": outcome.result.value if outcome.result else None,
        "spoiled": outcome.spoiled,
        "shared": outcome.shared,
        "peak": outcome.peak,
    }


def outcome_of(value: Any) -> Outcome:
    """Restore an outcome from the value that `outcome_value` returned.

    Raises:
        ValueError: The value is not an outcome, or its result claims to be right or wrong.
    """
    try:
        error = None if value["error"] is None else (str(value["error"][0]), str(value["error"][1]))
        gradients = None if value["gradients"] is None else tuple(value["gradients"])
        result = None if value["result"] is None else Result(value["result"])
        if result in (Result.RIGHT, Result.WRONG):  # only an examination can decide between right and wrong
            raise ValueError(f"the result of a call cannot be {result.value!r}")
        changed = tuple(int(i) for i in value["changed"])
        spoiled = bool(value.get("spoiled", False))  # keys of earlier releases lack it
        shared = tuple(int(i) for i in value.get("shared", ()))
        peak = int(value.get("peak", 0))
        return Outcome(value["value"], error, gradients, changed, result, spoiled, shared, peak)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"expected an outcome: {error}") from None


def case_value(case: Case) -> dict[str, Any]:
    """Convert a case to a value that `pack` accepts."""
    return {
        "shows": case.shows,
        "arguments": case.arguments,
        "refuse": case.refuse,
        "gradients": case.gradients,
        "tolerance": case.tolerance,
        "exact_zero": case.exact_zero,
        "only_nan": case.only_nan,
        "alias": case.alias,
        "layout": case.layout,
        "room": case.room,
        "says": case.says,
        "part": case.part,
        "robust": case.robust,
        "right": case.right,
    }
