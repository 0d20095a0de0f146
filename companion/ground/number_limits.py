"""Types of numbers with limits, for flags and settings, and descriptions of these types for messages."""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from companion.ground.fields import cut, is_number, require

_LIMITS = {"above": operator.gt, "least": operator.ge, "below": operator.lt, "most": operator.le}


def _limited(base: type, words: str, **limits: float) -> Any:
    """Make a number type that raises `ValueError` outside its limits; `words` describes the type in messages."""

    def make(kind: Any, value: Any) -> object:
        part = base is int and isinstance(value, float) and not value.is_integer()
        if isinstance(value, bool) or part:
            raise ValueError(f"{value}: expected {words}")
        try:
            number = base(value)
        except OverflowError:  # an integer with hundreds of digits, which no float can hold
            raise ValueError(f"{value}: expected {words}") from None
        if not all(_LIMITS[limit](number, bound) for limit, bound in limits.items()):
            raise ValueError(f"{value}: expected {words}")
        return base.__new__(kind, number)

    def reduce(number: Any) -> object:
        return base, (base(number),)  # another process cannot look up this type by its name

    made = {"__new__": make, "__reduce__": reduce, "base": base, "words": words, "__module__": __name__}
    return type("Limited", (base,), made)


Count: TypeAlias = Annotated[int, _limited(int, "a whole number >= 1", least=1)]
CountFromZero: TypeAlias = Annotated[int, _limited(int, "a whole number >= 0", least=0)]
CountFromTwo: TypeAlias = Annotated[int, _limited(int, "a whole number >= 2", least=2)]
Positive: TypeAlias = Annotated[float, _limited(float, "a number > 0", above=0, below=math.inf)]
NonNegative: TypeAlias = Annotated[float, _limited(float, "a number >= 0", least=0, below=math.inf)]
PartOfOne: TypeAlias = Annotated[float, _limited(float, "a fraction above 0 and at most 1", above=0, most=1)]
Number: TypeAlias = Annotated[float, _limited(float, "a finite number", above=-math.inf, below=math.inf)]
InnerShare: TypeAlias = Annotated[float, _limited(float, "a share between 0 and 1, both excluded", above=0, below=1)]
Decay: TypeAlias = Annotated[float, _limited(float, "a number >= 0 and < 1", least=0, below=1)]
Probability: TypeAlias = Annotated[float, _limited(float, "a number from 0 to 1", least=0, most=1)]

_ALL = (Count, CountFromZero, CountFromTwo, Positive, NonNegative, PartOfOne, Number, InnerShare, Decay, Probability)
LIMITED: tuple[Any, ...] = tuple(get_args(quantity)[1] for quantity in _ALL)
"""All types of numbers with limits, as `kind_of` returns them."""

WORDS: dict[Any, str] = {
    **{int: "a whole number", float: "a number", bool: "true or false", str: "text"},
    **{kind: kind.words for kind in LIMITED},
}
"""Descriptions of expected values, by type."""


def kind_of(hint: Any) -> Any:
    """Return a flag's type without `None`. If a setting is annotated with a type that has limits, return that type."""
    if get_origin(hint) in (types.UnionType, Union):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return kind_of(kinds[0]) if len(kinds) == 1 else hint
    return get_args(hint)[1] if get_origin(hint) is Annotated else hint


def flag_type(hint: Any) -> Any:
    """Return the type of the flag that belongs to a setting with this annotation.

    An optional text accepts any text, even "null".
    """
    return kind_of(hint) | None if type(None) in get_args(hint) and kind_of(hint) is not str else kind_of(hint)


def choices(hint: Any) -> list[str]:
    """Return the values of a `Literal` as the user types them; the list is empty for any other type."""
    kind = kind_of(hint)
    return [str(value) for value in get_args(kind)] if get_origin(kind) is Literal else []


def expected(hint: Any) -> str:
    """Describe the values of this type."""
    if values := choices(hint):
        return f"one of {', '.join(values)}"
    return WORDS.get(kind_of(hint), "another value")


def check(values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Check the values of flags against the limits of their types.

    Raises:
        ValueError: If a value is outside the limits of its type. The message is about the first such value.
    """
    for flag, value in values.items():
        kind = kind_of(hints[flag])
        if value is None and type(None) not in get_args(hints[flag]) and (kind in WORDS or choices(kind)):
            raise ValueError(f"--{flag}: expected {expected(hints[flag])}, got nothing")
        if value is not None and kind in LIMITED and not _within_limits(kind, value):
            got = f"{value:g}" if isinstance(value, float) else cut(str(value))
            raise ValueError(f"--{flag} {got}: expected {expected(kind)}")


def require_limits(name: str, value: object, hint: Any) -> None:
    """Check that an argument is a number within its annotation's limits.

    Raises:
        ValueError: If `value`, the argument called `name`, is not a number within the limits.
    """
    kind = kind_of(hint)
    number = is_number(value) if issubclass(kind, float) else isinstance(value, int) and not isinstance(value, bool)
    require(number and _within_limits(kind, value), name, value, expected(kind))


def _within_limits(kind: Any, value: object) -> bool:
    try:
        kind(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


@cache
def _limits(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in fields(kind) if kind_of(hints[f.name]) in LIMITED}


def require_fields(config: Any) -> None:
    """Check that the numbers in a dataclass are within their annotations' limits.

    Raises:
        ValueError: If a number is outside its limits. The message names the first such field.
    """
    kind: Any = type(config)
    for name, hint in _limits(kind).items():
        value = getattr(config, name)
        if value is not None or type(None) not in get_args(hint):
            require_limits(name, value, hint)
