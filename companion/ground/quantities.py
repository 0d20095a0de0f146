"""Numbers with limits, as the types of flags and settings, and how each is called in a message."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from companion.ground.fields import cut

if TYPE_CHECKING:
    PositiveInt: TypeAlias = int
    NonNegativeInt: TypeAlias = int
    Several: TypeAlias = int
    PositiveNumber: TypeAlias = float
    NonNegativeNumber: TypeAlias = float
    Share: TypeAlias = float
    OpenUnitInterval: TypeAlias = float
    BelowOne: TypeAlias = float
else:
    from jsonargparse.typing import NonNegativeInt, OpenUnitInterval, PositiveInt, restricted_number_type

    Several = restricted_number_type("Several", int, (">=", 2))
    PositiveNumber = restricted_number_type("PositiveNumber", float, [(">", 0), ("<", math.inf)])
    NonNegativeNumber = restricted_number_type("NonNegativeNumber", float, [(">=", 0), ("<", math.inf)])
    Share = restricted_number_type("Share", float, [(">", 0), ("<=", 1)])
    BelowOne = restricted_number_type("BelowOne", float, [(">=", 0), ("<", 1)])

# The same as annotations of a setting, which is a plain number.
Count: TypeAlias = Annotated[int, PositiveInt]
CountFromZero: TypeAlias = Annotated[int, NonNegativeInt]
CountFromTwo: TypeAlias = Annotated[int, Several]
Positive: TypeAlias = Annotated[float, PositiveNumber]
NonNegative: TypeAlias = Annotated[float, NonNegativeNumber]
PartOfOne: TypeAlias = Annotated[float, Share]
InnerShare: TypeAlias = Annotated[float, OpenUnitInterval]
Decay: TypeAlias = Annotated[float, BelowOne]

WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    PositiveInt: "a whole number >= 1",
    NonNegativeInt: "a whole number >= 0",
    Several: "a whole number >= 2",
    PositiveNumber: "a number > 0",
    NonNegativeNumber: "a number >= 0",
    Share: "a share above 0 and at most 1",
    OpenUnitInterval: "a share between 0 and 1, both excluded",
    BelowOne: "a number of at least 0 and below 1",
}
"""What is expected of a value, by its type."""


def kind_of(hint: Any) -> Any:
    """The type of a flag without its `None`: of an annotated setting, the one with the limits."""
    if get_origin(hint) in (types.UnionType, Union):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return kind_of(kinds[0]) if len(kinds) == 1 else hint
    return get_args(hint)[1] if get_origin(hint) is Annotated else hint


def flag_type(hint: Any) -> Any:
    """The type of the flag for a setting of this annotation. A text that may be left out is any text, "null" too."""
    return kind_of(hint) | None if type(None) in get_args(hint) and kind_of(hint) is not str else kind_of(hint)


def choices(hint: Any) -> list[str]:
    """The values of a `Literal`, as they are typed; none for any other type."""
    kind = kind_of(hint)
    return [str(value) for value in get_args(kind)] if get_origin(kind) is Literal else []


def expected(hint: Any) -> str:
    """What is expected of a value of this type, in words."""
    if values := choices(hint):
        return f"one of {', '.join(values)}"
    return WORDS.get(kind_of(hint), "another value")


def check(values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raise `ValueError` for the first of the `values`, by flag, that is outside the limits of its type."""
    for flag, value in values.items():
        kind = kind_of(hints[flag])
        if value is None and type(None) not in get_args(hints[flag]) and (kind in WORDS or choices(kind)):
            raise ValueError(f"--{flag}: expected {expected(hints[flag])}, got nothing")
        if value is None or kind not in WORDS or not hasattr(kind, "_restrictions"):
            continue
        try:
            kind(value)
        except (TypeError, ValueError, OverflowError):
            got = f"{value:g}" if isinstance(value, float) else cut(str(value))
            raise ValueError(f"--{flag} {got}: expected {expected(kind)}") from None
