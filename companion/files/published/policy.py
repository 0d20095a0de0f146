"""The table of fields as values: what becomes of each field of a kind of model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from companion.files.published.table import TABLE

EVERY, WRITING = "every release", "writing"
"""The parts of the table that are no kind of model."""

Kind = Literal["taken", "must be", "must equal", "neutral", "writing"]
_REQUIRED = object()


@dataclass(frozen=True)
class Policy:
    """What becomes of a field.

    values:    of a must: those that may be.
    default:   what a file that leaves the field out means, where there is such a value.
    note:      where a taken value goes; who wrote a neutral field.
    """

    name: str
    kind: Kind
    note: str = ""
    values: tuple[Any, ...] = ()
    equals: str = ""
    default: Any = _REQUIRED

    @property
    def required(self) -> bool:
        return self.default is _REQUIRED


def alike(value: Any, other: Any) -> bool:
    """Whether two values of JSON are the same: 1 and 1.0 are, 1 and true are not."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


@cache
def policies(kind: str) -> dict[str, Policy]:
    """The rows of a kind of model, and those of every release that it does not have itself, by field."""
    parts = _parts()
    name, own = next((head, rows) for head, rows in parts.items() if head.partition(",")[0] == kind)
    parent = name.partition(", as ")[2].partition(" but")[0]
    if parent:
        return {**policies(parent), **own}
    return {**{name: Policy(name, "writing") for name in parts[WRITING]}, **parts[EVERY], **own}


def writing() -> dict[str, Policy]:
    """The rows of writing, by field."""
    return _parts()[WRITING]


def kinds() -> tuple[str, ...]:
    """The kinds of models that can be read, as `model_type` names them."""
    return tuple(head.partition(",")[0] for head in _parts() if head not in (EVERY, WRITING))


@cache
def _parts() -> dict[str, dict[str, Policy]]:
    parts: dict[str, dict[str, Policy]] = {}
    for line in filter(None, TABLE.splitlines()):
        if not line.startswith(" "):
            rows = parts.setdefault(line, {})
            continue
        name, _, rest = line.strip().partition(" ")
        says, _, note = rest.strip().partition("  ")
        rows[name] = _row(name, says, note.strip())
    return parts


def _row(name: str, says: str, note: str) -> Policy:
    says, _, default = says.partition(" = ")
    known = {"default": json.loads(default)} if default else {}
    if says.startswith("must be "):
        return Policy(name, "must be", note, values=tuple(map(json.loads, says[8:].split(" or "))))
    if says.startswith("must equal "):
        return Policy(name, "must equal", note, equals=says[11:], **known)
    assert says in ("taken", "neutral", "writing"), says
    return Policy(name, says, note, **known)  # type: ignore[arg-type]
