"""Convert published tensors to our names, and back. Every tensor must be used, and no tensor may be missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from companion.files.models import raise_faults
from companion.files.published.mxfp4 import dequantized


class StateDictMapper:
    """Published tensors that are moved to our names, each exactly once.

    Args:
        given: The tensors, keyed by their published names. When a tensor is moved, it is removed from this mapping.
        folder: The folder that error messages name.
    """

    def __init__(self, given: dict[str, Tensor], folder: Path) -> None:
        self.given, self.folder = given, folder
        self.moved: dict[str, Tensor] = {}
        self.source: dict[str, str] = {}  # the name of each moved tensor in the file
        self.missing: list[str] = []
        self.awaited: set[str] = set()  # parts of missing tensors, which are not reported themselves

    def move(self, old: str, *new: str, transpose: bool = False) -> None:
        """Move `old` to `new`. With several new names, divide the rows of `old` equally among them."""
        if old not in self.given:
            self._absent(old)
            return
        tensor = self.given.pop(old)
        self._deal(old, tensor, new, (1, 0) if transpose and tensor.ndim == 2 else tuple(range(tensor.ndim)))

    def pairs(self, old: str, new: str, parts: Iterable[str] = ("weight", "bias")) -> None:
        """Call `move` for each of a layer's parameters."""
        for part in parts:
            self.move(f"{old}.{part}", f"{new}.{part}")

    def split(self, old: str, parts: Mapping[str, int]) -> None:
        """Replace `old` with the tensors named in `parts`, each of which gets the given number of rows."""
        self.groups(old, 1, parts)

    def groups(self, old: str, count: int, parts: Mapping[str, int]) -> None:
        """Replace `old` with the tensors named in `parts`.

        The rows of `old` form `count` groups, and each group has the given number of rows for each part. Each part
        collects its rows from all groups, one group after another.
        """
        if old not in self.given:
            self._absent(old)
            self.awaited |= set(parts)
            return
        tensor, wanted = self.given.pop(old), sum(parts.values())
        if tensor.ndim == 0 or tensor.shape[0] != count * wanted:
            rows = " + ".join(map(str, parts.values())) if count == 1 else f"{count} times {wanted}"
            raise ValueError(f"{self.folder}: {old} is {tuple(tensor.shape)}: expected {rows} rows")
        dealt = tensor.unflatten(0, (count, wanted)).split_with_sizes(list(parts.values()), 1)
        for name, part in zip(parts, dealt, strict=True):
            self.given[name] = part.flatten(0, 1).clone()

    def joined(self, old: Mapping[str, tuple[int, ...]], new: str, *width: int) -> None:
        """Concatenate several tensors.

        Args:
            old: The names and published shapes of the tensors. A file may have more or fewer axes of size 1.
            new: The name of the result, whose shape is (rows, *width).
            width: The shape of a row (default: the result is a vector).
        """
        absent = [name for name in old if name not in self.given]
        for name in absent:
            self._absent(name)
        if absent:
            return
        tensors = [self.given.pop(name) for name in old]
        for name, tensor in zip(old, tensors, strict=True):
            if _longer_axes(tensor.shape) != _longer_axes(old[name]):
                raise ValueError(f"{self.folder}: {name} is {tuple(tensor.shape)}: expected {old[name]}")
        self._moves(new, _cat([tensor.reshape(-1, *width) for tensor in tensors]), next(iter(old)))

    def columns(self, old: str, *new: str, in_turn: bool = False) -> None:
        """Divide the last axis of `old` equally among `new`, into contiguous or (with `in_turn`) interleaved parts."""
        if old not in self.given:
            self._absent(old)
            return
        tensor = self.given.pop(old)
        if tensor.ndim == 0 or tensor.shape[-1] % len(new):
            wanted = f"a last axis that can be divided into {len(new)} parts, {', '.join(new)}"
            raise ValueError(f"{self.folder}: {old} is {tuple(tensor.shape)}: expected {wanted}")
        parts = [tensor[..., i :: len(new)] for i in range(len(new))] if in_turn else tensor.chunk(len(new), -1)
        for name, part in zip(new, parts, strict=True):
            self._moves(name, part.contiguous(), old)

    def unpack(self, old: str) -> None:
        """Dequantize `old` if the file stores it in MXFP4, as blocks and scales.

        The result has the dtype of the layer's bias, or bf16 without a bias.
        """
        names = f"{old}_blocks", f"{old}_scales"
        there = [name for name in names if name in self.given]
        if not there:
            return
        absent = [name for name in names if name not in there]
        if absent:
            raise_faults(self.folder, [f"missing {absent[0]}, without which {there[0]} cannot be used"])
        blocks, scales = (self.given.pop(name) for name in names)
        fits = blocks.ndim == 4 and blocks.shape[:3] == scales.shape
        if not fits or blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
            expected = "bytes, (expert, row, block, byte), with a scale for each block"
            raise ValueError(f"{self.folder}: {names[0]} is {tuple(blocks.shape)}: expected {expected}")
        bias = self.given.get(f"{old}_bias")
        self.given[old] = dequantized(blocks, scales, torch.bfloat16 if bias is None else bias.dtype)

    def experts(self, old: str, *new: str) -> None:
        """Divide a tensor (expert, out, in) equally along `out` into the `new` tensors, each (expert, in, out)."""
        if old not in self.given:
            self._absent(old)
            return
        tensor = self.given.pop(old)
        if tensor.ndim != 3:
            raise ValueError(f"{self.folder}: {old} is {tuple(tensor.shape)}: expected (expert, out, in)")
        self._deal(old, tensor, new, (0, 2, 1), axis=2)

    def stack(self, old: Sequence[str], new: str) -> None:
        """Stack the matrices (out, in) of all experts into one tensor (expert, in, out)."""
        absent = [name for name in old if name not in self.given]
        for name in absent:
            self._absent(name)
        if absent:
            return
        tensors = [self.given.pop(name) for name in old]
        for name, tensor in zip(old, tensors, strict=True):
            if tensor.ndim != 2 or tensor.shape != tensors[0].shape:
                raise ValueError(
                    f"{self.folder}: {name} is {tuple(tensor.shape)}: expected {tuple(tensors[0].shape)}, "
                    "as for the first expert"
                )
        self._moves(new, torch.stack([tensor.T for tensor in tensors]), old[0])

    def same(self, names: Sequence[str], new: str) -> None:
        """Move a tensor that the file may store under any of `names`, or under several if all copies are equal."""
        found = {name: self.given.pop(name) for name in names if name in self.given}
        if not found:
            self._absent(names[0])
            return
        (first, tensor), *others = found.items()
        for name, other in others:
            same = (tensor.shape, tensor.dtype) == (other.shape, other.dtype)
            if not same or not (tensor.is_meta or torch.equal(tensor, other)):
                raise ValueError(f"{self.folder}: {name} differs from {first}: expected one tied table")
        self._moves(new, tensor, first)

    def vocabulary(self, old: str, *, tied: bool) -> None:
        """Move the token embedding `old` and the output head, which a tied model may store a second time."""
        if tied:
            self.same([old, "lm_head.weight"], "embedding.weight")
        else:
            self.move(old, "embedding.weight")
            self.move("lm_head.weight", "unembedding.weight")

    def from_row(self, first: int, old: str, new: str) -> None:
        """Move `old`, leaving out the rows before `first`, which no token reads."""
        self.move(old, new)
        if (table := self.moved.get(new)) is not None and table.ndim:
            self.moved[new] = table[first:].clone()

    def row(self, old: str, new: str) -> None:
        """Move a vector that the file may store as a matrix of one row."""
        self.move(old, new)
        if (vector := self.moved.get(new)) is not None and vector.ndim == 2 and vector.shape[0] == 1:
            self.moved[new] = vector[0]

    def must_be_more_than(self, name: str, count: int) -> None:
        """Raise `ValueError` if a setting requires more layers, experts or the like than there are tensors."""
        if count > len(self.given):
            raise_faults(self.folder, [f"{name}={count}, expected at most the number of tensors, {len(self.given)}"])

    def drop(self, computed: Callable[[str], bool]) -> None:
        """Drop the tensors whose names `computed` accepts: our models compute them or do not need them."""
        self.given = {name: tensor for name, tensor in self.given.items() if not computed(name)}

    def finish(self) -> dict[str, Tensor]:
        """Return the tensors, keyed by our names.

        Raises:
            ValueError: If the file lacks a tensor that was to be moved, or if it has tensors that were neither moved
                nor dropped. The message lists the first of them by their published names. If the file has a missing
                tensor under a longer or shorter name, the message names only this tensor and explains the difference.
        """
        if cause := self._elsewhere():
            raise ValueError(f"{self.folder}: {cause}")
        faults = [f"missing {name}" for name in self.missing]
        faults += [f"unexpected {name} {tuple(tensor.shape)}" for name, tensor in self.given.items()]
        raise_faults(self.folder, faults)
        return self.moved

    def _elsewhere(self) -> str | None:
        """Explain missing tensors if the file has the same tensors under longer or shorter names."""
        for wanted in self.missing:
            if (name := wanted.removeprefix("model.")) in self.given:
                return (
                    f"found {name} in place of {wanted}: the tensors are those of a model without its head; "
                    "expected a model with its head"
                )
            if name := next((name for name in self.given if name.endswith(f".{wanted}")), ""):
                return (
                    f"found {name} in place of {wanted}: expected no {name.removesuffix(wanted)!r} before it; the "
                    "tensors are a part of a larger model, such as the text model in a vision-language model"
                )
        return None

    def _absent(self, name: str) -> None:
        """Record that a tensor is missing. Give up after a thousand missing tensors, because the number of layers must
        then be wrong."""
        if name not in self.awaited:
            self.missing.append(name)
        if len(self.missing) >= 1000:
            self.finish()

    def _deal(self, old: str, tensor: Tensor, new: Sequence[str], order: tuple[int, ...], axis: int = 0) -> None:
        """Permute the axes to `order`, then divide `axis` equally among the `new` names."""
        if len(new) > 1 and (tensor.ndim == 0 or tensor.shape[order[axis]] % len(new)):
            raise ValueError(
                f"{self.folder}: {old} is {tuple(tensor.shape)}: expected an axis that can be divided into "
                f"{len(new)} parts, {', '.join(new)}"
            )
        parts = tensor.permute(order).chunk(len(new), dim=axis) if len(new) > 1 else [tensor.permute(order)]
        for name, part in zip(new, parts, strict=True):
            self._moves(name, part.contiguous(), old)

    def _moves(self, new: str, tensor: Tensor, old: str) -> None:
        self.moved[new], self.source[new] = tensor, old


def _cat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Concatenate without `torch.cat` on the device "meta", where it spends seconds loading PyTorch's compiler."""
    first = tensors[0]
    if len(tensors) == 1 or not first.is_meta:
        return first if len(tensors) == 1 else torch.cat(list(tensors), axis)
    shape = list(first.shape)
    shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
    return first.new_empty(shape)


def _longer_axes(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


class StateDictExporter(StateDictMapper):
    """The inverse of `StateDictMapper`, which lets a family's `place` function move our tensors to published names.

    Args:
        ours: The tensors, keyed by our names. Each tensor is taken exactly once.
        folder: The folder that error messages name.
    """

    def __init__(self, ours: Mapping[str, Tensor], folder: Path) -> None:
        super().__init__({}, folder)
        self.ours, self.back = dict(ours), {}  # type: dict[str, Tensor], dict[str, Tensor]
        self._grouped: dict[str, tuple[int, list[str]]] = {}

    def move(self, old: str, *new: str, transpose: bool = False) -> None:
        """Concatenate the rows of the `new` tensors into `old`."""
        tensor = _cat([self._taken(name) for name in new])
        self.back[old] = tensor.T if transpose and tensor.ndim == 2 else tensor

    def groups(self, old: str, count: int, parts: Mapping[str, int]) -> None:
        """Let `finish` assemble `old` from `parts`, where the rows of `old` form `count` groups."""
        self._grouped[old] = count, list(parts)

    def joined(self, old: Mapping[str, tuple[int, ...]], new: str, *width: int) -> None:
        """Divide the rows of `new` among the `old` tensors, in their published shapes."""
        counts = [prod(shape) // prod(width) for shape in old.values()]
        parts = zip(old.items(), self._taken(new).split_with_sizes(counts), strict=True)
        self.back |= {name: part.reshape(shape) for (name, shape), part in parts}

    def columns(self, old: str, *new: str, in_turn: bool = False) -> None:
        """Concatenate the `new` tensors along their last axis or, with `in_turn`, interleave them."""
        tensors = [self._taken(name) for name in new]
        self.back[old] = torch.stack(tensors, -1).flatten(-2) if in_turn else _cat(tensors, -1)

    def unpack(self, old: str) -> None:
        """Do nothing, because nothing is written in MXFP4."""

    def experts(self, old: str, *new: str) -> None:
        """Concatenate the `new` tensors, each (expert, in, out), along `out` into `old`, (expert, out, in)."""
        self.back[old] = _cat([self._taken(name) for name in new], -1).transpose(1, 2)

    def stack(self, old: Sequence[str], new: str) -> None:
        """Divide a tensor (expert, in, out) into one matrix (out, in) for each expert."""
        self.back |= {name: matrix.T for name, matrix in zip(old, self._taken(new), strict=True)}

    def same(self, names: Sequence[str], new: str) -> None:
        """Write a tied table once, under the first name in `names`."""
        self.back[names[0]] = self._taken(new)

    def from_row(self, first: int, old: str, new: str) -> None:
        """Put `first` rows of zeros before the rows of `new`."""
        table = self._taken(new)
        self.back[old] = _cat([table.new_zeros(first, *table.shape[1:]), table])

    def row(self, old: str, new: str) -> None:
        """Write a vector as a matrix of one row."""
        self.back[old] = self._taken(new)[None]

    def must_be_more_than(self, name: str, count: int) -> None:
        """Do nothing, because the model already exists."""

    def drop(self, computed: Callable[[str], bool]) -> None:
        """Do nothing, because our models have no such tensors."""

    def finish(self) -> dict[str, Tensor]:
        """Return the tensors, keyed by published names.

        Raises:
            ValueError: If any of our tensors has no published name. The message lists them.
        """
        for old, (count, names) in reversed(self._grouped.items()):
            parts = [self.back.pop(name).unflatten(0, (count, -1)) for name in names]
            self.back[old] = _cat(parts, 1).flatten(0, 1)
        raise_faults(self.folder, [f"{name} has no published name" for name in self.ours])
        return {name: tensor.contiguous() for name, tensor in self.back.items()}

    def _taken(self, name: str) -> Tensor:
        return self.ours.pop(name)
