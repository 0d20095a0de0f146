"""Check the fields of configurations, and convert them from JSON.

A value is rejected in the same way whether it comes from Python or from a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints


def shown(value: object) -> str:
    """Return a value's repr for a message, shortened if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # raised for numbers with thousands of digits, and for endless nesting
        return f"a very long {type(value).__name__}"
    return cut(text)


def plain(text: str) -> str:
    """Escape a file name or a flag's text for a message.

    Characters that terminals do not show are escaped. The middle of a long text is left out rather than its end,
    because the end of a path identifies the file.
    """
    text = repr(text)[1:-1]
    return text if len(text) <= 100 else f"{text[:30]}...{text[-67:]}"


def cut(text: str, most: int = 80) -> str:
    """Shorten `text` to a single line of at most `most` characters, for use in a message."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def why(error: BaseException) -> str:
    """Return a library's error message, cut to at most 200 characters because some libraries repeat the whole file."""
    return cut(str(error) or type(error).__name__, 200)


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Check a condition on an argument.

    Raises:
        ValueError: If the condition is false. The message names the argument, its value and what was expected.
    """
    if not condition:
        raise ValueError(f"{name}={shown(value)}: expected {expected}")


def require_whole(name: str, value: object, least: int = 1) -> None:
    """Check that an argument is an integer of at least `least`.

    Raises:
        ValueError: If `value`, the argument called `name`, is anything else.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole and value >= least, name, value, f"a whole number >= {least}")  # type: ignore[operator]


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether `value` is a finite number that fits in a float; booleans do not count as numbers."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def require_number(name: str, value: object, expected: str = "a finite number") -> float:
    """Return an argument as a float.

    Raises:
        ValueError: If `value`, the argument called `name`, is not a finite number.
    """
    if not is_number(value):
        raise ValueError(f"{name}={shown(value)}: expected {expected}")
    return float(value)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return a class's annotations, cached because resolving them takes longer than all the checks."""
    return get_type_hints(kind)


def require_share(name: str, value: object) -> float:
    """Return an argument as a float after checking that it is a probability.

    Raises:
        ValueError: If `value`, the argument called `name`, is not a probability.
    """
    if not is_number(value) or not 0 <= value <= 1:
        raise ValueError(f"{name}={shown(value)}: expected a probability in [0, 1]")
    return float(value)


def require_types(config: Any) -> None:
    """Check that the fields of a dataclass have their annotated types.

    The check is as strict as JSON: 1 is not a `bool` and True is not a number, a `float` may be an integer but must be
    finite, and a string must be one of the choices of its `Literal`. The limits of sizes are checked by the dataclass
    itself. An integer above 2^53 in a `float` field becomes a float.

    Raises:
        ValueError: If a field has the wrong type. The message names the first such field.
    """
    kind: Any = type(config)
    for name, hint in _hints(kind).items():
        value = getattr(config, name, None)
        if get_origin(hint) in (UnionType, Union):
            if value is None:
                continue
            (hint,) = [h for h in get_args(hint) if h is not type(None)]
        if get_origin(hint) is Literal:
            choices = get_args(hint)
            known = isinstance(value, str) and value in choices
            require(known, f"{type(config).__name__}.{name}", value, "one of " + ", ".join(map(repr, choices)))
        elif hint is float:
            number = require_number(name, value)
            if abs(number) > 2**53:  # larger floats are whole numbers anyway
                object.__setattr__(config, name, number)
        elif hint is bool:
            require(isinstance(value, bool), name, value, "True or False")
        elif hint == tuple[bool, ...]:
            fits = isinstance(value, tuple) and all(isinstance(part, bool) for part in value)
            require(fits, name, value, "a tuple of True and False")
        elif hint == tuple[float, ...]:
            fits = isinstance(value, tuple) and all(map(is_number, value))
            require(fits, name, value, "a tuple of finite numbers")
        elif is_dataclass(hint):
            called = getattr(hint, "__name__", "")
            require(isinstance(value, hint), name, value, f"{'an' if called[:1] in 'AE' else 'a'} {called}")  # type: ignore[arg-type]


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: If the text is not JSON, is nested too deeply, has a number with thousands of digits, contains a
            field twice, or has a field whose name cannot be shown in a message.
    """
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object. Duplicate fields raise `ValueError`, because all but the last would be lost silently."""
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the field {shown(twice)} occurs twice")
    for name in value:
        if not name.isprintable() or len(name) > 500:
            raise ValueError(f"a field has the name {shown(name)}, which cannot be printed")
    return value


def build(kind: Any, data: Any, where: str) -> Any:
    """Make an instance of the dataclass `kind` from JSON data, checking each field against its annotation.

    Raises:
        ValueError: If a field is unknown, missing or invalid. The message names the field, with the prefix `where`.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: expected an object with the fields of {kind.__name__}, got {shown(data)}")
    hints = _hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ValueError(f"{where}.{unknown[0]}: unknown field; expected one of {', '.join(hints)}")
    values = {}
    for f in fields(kind):
        if f.name in data:
            values[f.name] = _value(hints[f.name], data[f.name], f"{where}.{f.name}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None


def _value(hint: Any, value: Any, where: str) -> Any:
    if get_origin(hint) in (UnionType, Union):
        if value is None:
            return None
        (hint,) = [h for h in get_args(hint) if h is not type(None)]
    if is_dataclass(hint):
        return build(hint, value, where)
    if get_origin(hint) is Literal:
        return value  # the dataclass itself checks choices, with its own message
    if get_origin(hint) is tuple:
        return tuple(value) if isinstance(value, list) else value  # the dataclass itself checks the elements
    fits = isinstance(value, (int, float)) if hint is float else isinstance(value, hint)
    if not fits or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{where}={shown(value)}: expected {hint.__name__}")
    return value
