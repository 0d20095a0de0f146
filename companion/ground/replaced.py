"""A dataclass with some fields changed, where a compiler looks on."""

from __future__ import annotations

from typing import Any, TypeVar

Made = TypeVar("Made")


def replaced(old: Made, **changes: Any) -> Made:
    """`dataclasses.replace`, as PyTorch compiles it: before 2.13 it cannot hand out what that one makes, because it
    asks the object and not `type` for its class."""
    kind = type(old)
    fields: dict[str, Any] = {name: getattr(old, name) for name in kind.__dataclass_fields__}  # type: ignore[attr-defined]
    return kind(**(fields | changes))
