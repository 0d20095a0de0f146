"""Explain why a folder's tensors do not match its config.json, in terms of the file's own tensors and fields.

This code runs only after an error has been found. To find the field that determines a size, it changes each field in
turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from companion.config.model import ModelConfig
from companion.files.models import CONFIG, bare_model
from companion.files.published.checkpoint_folder import Fields
from companion.files.published.state_dict import StateDictExporter, StateDictMapper

Shapes = Mapping[str, tuple[int, ...]]
LARGEST, MOST = 20_000, 5000
"""Limits of the search for a responsible field: the largest product of layers and experts, and the largest number of
tensors. The search computes all shapes at least once for each field."""
TOLD = 4
"""The number of tensors that a message names. Every cause is represented once before any cause is represented twice."""


class Layout(Protocol):
    """The parts of a `Family` that decide which tensors a folder has."""

    @property
    def kind(self) -> str: ...
    @property
    def table(self) -> Mapping[str, Any]: ...
    @property
    def config(self) -> Callable[[Fields, Mapping[str, Tensor]], ModelConfig]: ...
    @property
    def place(self) -> Callable[[StateDictMapper, ModelConfig], Any]: ...
    @property
    def spelled(self) -> Callable[[str], str]: ...


def explained(
    error: str,
    family: Layout,
    fields: Fields,
    config: ModelConfig,
    there: Mapping[str, Tensor],
    mapper: StateDictMapper,
    called: Mapping[str, str],
) -> ValueError:
    """Return an error that explains why tensors could not be loaded into a model.

    Args:
        error: The original message, which may contain our names.
        family: The family of the folder.
        fields: The fields of its config.json.
        config: The configuration built from them.
        there: The tensors on the device "meta", keyed by the names that `mapper` received.
        mapper: The tensors that were moved, and those that were missing.
        called: For each tensor in `there`, its name in the file.
    """
    others = _Others(family, fields, there)
    counts = re.search(r": (missing|unexpected) (\S+?)(?=[ ;]|$)", error)
    wanted = None if counts else _shapes(family, config)
    got = {name: tuple(tensor.shape) for name, tensor in there.items()}
    wrong = [name for name in got if wanted and name in wanted and _sizes(got[name]) != _sizes(wanted[name])]
    if wanted and wrong:
        told = [(called[name], *others.mismatch(name, got[name], wanted)) for name in wrong]
        return ValueError(f"{mapper.folder}: the configuration does not match the weights: {_listed(told)}")
    is_spelled = any(name != other for name, other in called.items())
    spelled = {name: family.spelled(name) for name in mapper.missing} if is_spelled else {}
    names = {new: called.get(old, old) for new, old in mapper.source.items()} | {**called, **spelled}
    written = re.sub(r"[\w.]+\.[\w.]+\w", lambda found: names.get(found[0], found[0]), error)
    if counts:
        which = "the first of these" if "; " in error else "it"
        written += others.asking(counts[2], which, missing=counts[1] == "missing")
    if "tied table" in error and fields.given.get("tie_word_embeddings", True) is True:
        written += ", as tie_word_embeddings says"
    return ValueError(fields.as_written(written))


class _Others:
    """Search for the fields responsible for an error, by computing the shapes that other values would require."""

    def __init__(self, family: Layout, fields: Fields, there: Mapping[str, Tensor]) -> None:
        self.family, self.fields, self.there = family, fields, there
        self.deciding: dict[str, Shapes] | None = None

    def mismatch(self, name: str, got: tuple[int, ...], wanted: Shapes) -> tuple[str, str]:
        """Describe a tensor of the wrong shape.

        Returns:
            The description, and the part of the description that names the fields that determine the shape.
        """
        shape = wanted[name]
        if self.deciding is None:
            self.deciding = dict(self._deciding(wanted)) if len(self.there) <= MOST else {}
        axes = [axis for axis, size in enumerate(shape) if len(got) != len(shape) or size != got[axis]]
        sizes = {
            field: self.fields.take(field)
            for field, other in self.deciding.items()
            if any(other.get(name, shape)[axis : axis + 1] != shape[axis : axis + 1] for axis in axes)
        }
        asked = [
            f"{field}={size}{'' if field in self.fields.given else ', its default,'}" for field, size in sizes.items()
        ]
        if len(axes) == 1 and prod(sizes.values()) == shape[axes[0]]:
            cause = f"'s {' * '.join(asked)} asks"
        elif len(asked) > 1:
            cause = f"'s {', '.join(asked[:-1])} and {asked[-1]} ask"
        else:
            cause = f"'s {asked[0]} asks" if asked else " asks"
        return f"has shape {got}: {CONFIG}{cause} for {shape}", cause

    def asking(self, name: str, which: str, *, missing: bool) -> str:
        """Return a clause that names the field responsible for a missing or unexpected tensor.

        A field is responsible for a missing tensor if another value of the field does not require that tensor and makes
        no tensor in the folder unexpected. A field is responsible for an unexpected tensor if another value requires
        that tensor and leaves no tensor missing. If no single field is responsible, the clause is empty.

        Args:
            name: The tensor.
            which: The words that refer to the tensor in the clause.
            missing: Whether the tensor is missing rather than unexpected.
        """
        there, numbers = self.there.keys(), [int(digits) for digits in re.findall(r"\d+", name)]
        for field, value in self._values() if len(self.there) <= MOST else ():
            if isinstance(value, bool):
                tried: Sequence[Any] = [not value]
            else:  # layers and experts are numbered from 0, so the number of the missing one may be the right count
                tried = [n for n in (value - 1, *numbers) if 0 < n < value] if missing else [value + 1, 2 * value]
            for shapes in filter(None, (self._with(field, other) for other in tried)):
                fits = there <= shapes.keys() if missing else shapes.keys() <= there
                if fits and (name in shapes) != missing:
                    verb = "asks for" if missing else "has no place for"
                    return f"; {CONFIG}'s {field}={value} {verb} {which}"
        return ""

    def _deciding(self, wanted: Shapes) -> Iterator[tuple[str, Shapes]]:
        """Yield each field that affects a size, with the shapes that another value would require."""
        for field, value in self._values():
            if isinstance(value, bool):
                continue
            made = filter(None, (self._with(field, other) for other in (2 * value, value // 2, value + 1)))
            shapes = next(made, None)
            if shapes and any(shapes.get(one, shape) != shape for one, shape in wanted.items()):
                yield field, shapes

    def _values(self) -> Iterator[tuple[str, int]]:
        for name, policy in self.family.table.items():
            value = self.fields.given.get(name, policy.default)
            if policy.kind == "used" and isinstance(value, int):
                yield name, value

    def _with(self, field: str, value: int) -> Shapes | None:
        given = {**self.fields.given, field: value}
        try:
            changed = Fields(self.fields.path.parent, self.family.kind, self.family.table, given)
            return _shapes(self.family, self.family.config(changed, self.there))
        except (ValueError, TypeError, ArithmeticError, LookupError):
            return None


def _shapes(family: Layout, config: ModelConfig) -> Shapes | None:
    """Return the shapes of the tensors in a folder of this configuration, keyed by the names that `spelled` completes.

    Returns `None` if the family's tensors cannot be moved back to published names, or if the model is too large to try.
    """
    if config.layers * (1 if config.moe is None else config.moe.experts) > LARGEST:
        return None
    try:
        back = StateDictExporter(bare_model(config).state_dict(), Path())
        family.place(back, config)
        return {name: tuple(tensor.shape) for name, tensor in back.finish().items()}
    except (ValueError, TypeError, LookupError, RuntimeError):
        return None


def _sizes(shape: tuple[int, ...]) -> list[int]:
    """Return a shape without its axes of size 1, because files may have more or fewer of them."""
    return [size for size in shape if size != 1]


def _listed(told: Sequence[tuple[str, str, str]]) -> str:
    """List some of the tensors: one per cause first, then others."""
    causes = [cause for _, _, cause in told]
    order = sorted(range(len(told)), key=lambda i: causes[:i].count(causes[i]) if i < 200 else i)
    first = "; ".join(f"{told[i][0]} {told[i][1]}" for i in sorted(order[:TOLD]))
    return first + (f"; and {len(told) - TOLD} more" if len(told) > TOLD else "")
