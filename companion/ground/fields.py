"""Fields of configurations: the sentence about one that cannot be, and how JSON becomes one.

What is refused here is refused alike whether it comes from Python or from a file.
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
    """A value as it is written in Python, cut short, for a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or what has no bottom
        return f"a very long {type(value).__name__}"
    return cut(text)


def plain(text: str) -> str:
    """The name of a file or a flag's text for a message: as it is, but for what no terminal shows, and without its
    middle where it is long: a path ends in what it names."""
    text = repr(text)[1:-1]
    return text if len(text) <= 100 else f"{text[:30]}...{text[-67:]}"


def cut(text: str, most: int = 80) -> str:
    """A text for a message: in one line, and at most so many of its characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def why(error: BaseException) -> str:
    """What a library says is wrong, for a message: some of them repeat the whole file."""
    return cut(str(error) or type(error).__name__, 200)


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Raises `ValueError` naming an argument, what it was and what was expected, unless the condition holds."""
    if not condition:
        raise ValueError(f"{name}={shown(value)}: expected {expected}")


def require_whole(name: str, value: object, least: int = 1) -> None:
    """Raises `ValueError` unless `value`, the argument called `name`, is a whole number of at least `least`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole and value >= least, name, value, f"a whole number >= {least}")  # type: ignore[operator]


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is a finite number that a float can hold; True is none."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def require_number(name: str, value: object, expected: str = "a finite number") -> float:
    """`value` as a number. Raises `ValueError` unless `value`, the argument called `name`, is a finite one."""
    if not is_number(value):
        raise ValueError(f"{name}={shown(value)}: expected {expected}")
    return float(value)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The annotations of a configuration's class; working them out takes longer than all the checks."""
    return get_type_hints(kind)


def require_share(name: str, value: object) -> float:
    """`value` as a number. Raises `ValueError` unless `value`, the argument called `name`, is a probability."""
    if not is_number(value) or not 0 <= value <= 1:
        raise ValueError(f"{name}={shown(value)}: expected a probability in [0, 1]")
    return float(value)


def require_types(config: Any) -> None:
    """Raises `ValueError` naming the first field of a dataclass whose value is not of its annotated type.

    As strict as JSON: 1 is no `bool` and True no number, a `float` may be a whole number but must be finite, and a
    string is one of the choices of its `Literal`. The limits of sizes are for the dataclass itself to check. A whole
    number that no tensor could hold becomes the float it stands for.
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
            if abs(number) > 2**53:  # beyond which a float is a whole number anyway
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
    """The value of a JSON text.

    Raises `ValueError` for what is not JSON, is nested too deeply, has a number of thousands of digits, one field
    twice, or a field whose name no message could show.
    """
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Of a field that stands in it twice all but the last would be lost without a word."""
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the field {shown(twice)} stands there twice")
    for name in value:
        if not name.isprintable() or len(name) > 500:
            raise ValueError(f"a field is called {shown(name)}")
    return value


def build(kind: Any, data: Any, where: str) -> Any:
    """`data` (from JSON) as an instance of the dataclass `kind`, checked field by field against its annotations."""
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
        return value  # the dataclass itself checks choices, with a message of its own
    if get_origin(hint) is tuple:
        return tuple(value) if isinstance(value, list) else value  # and what is in it
    fits = isinstance(value, (int, float)) if hint is float else isinstance(value, hint)
    if not fits or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{where}={shown(value)}: expected {hint.__name__}")
    return value
