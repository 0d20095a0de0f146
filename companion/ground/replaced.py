"""Replace some fields of a dataclass in compiled code."""

from __future__ import annotations

from typing import Any, TypeVar

Made = TypeVar("Made")


def replaced(old: Made, **changes: Any) -> Made:
    """Replace fields like `dataclasses.replace`, in a way that PyTorch can compile.

    PyTorch before 2.13 cannot return the result of `dataclasses.replace`, which reads the class from the object instead
    of calling `type`.
    """
    kind = type(old)
    fields: dict[str, Any] = {name: getattr(old, name) for name in kind.__dataclass_fields__}  # type: ignore[attr-defined]
    return kind(**(fields | changes))
