"""Compare two recorded runs of the same scene to find which tensors agree and which one is the first that differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from companion_school.build.trace import Log, Operation, Value

Find = Callable[[Log], Value | None]
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4}
HIDDEN = -1e4  # attention scores at or below this value are considered masked


@dataclass(frozen=True)
class Node:
    """One tensor of a run.

    Attributes:
        key: Unique name, which other nodes use to refer to it.
        says: Name of the tensor in messages, such as "the scores".
        find: Finds the tensor in a recorded run, or returns None.
        parents: Keys of the nodes from which this node is computed, nearest first.
        home: Names of the stub's functions that may compute the tensor, most likely first.
        place: Location in the model, such as "block 0", or "".
        scores: True for the input of a softmax, for which masked positions and a constant added to a whole row are
            ignored.
        inner: True for an intermediate result that no function or module returns, so that equivalent code need not
            compute it.
    """

    key: str
    says: str
    find: Find
    parents: tuple[str, ...] = ()
    home: tuple[str, ...] = ()
    place: str = ""
    scores: bool = False
    inner: bool = False


class State(Enum):
    """The result of comparing a learner's tensor with that of the reference."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNSEEN = "unseen"


@dataclass(frozen=True)
class Seen:
    """A node's values in both runs: `mine` is the learner's value, and `theirs` is the reference's."""

    state: State
    mine: Value | None = None
    theirs: Value | None = None


class Streams:
    """The nodes of a scene, whose values in the learner's recorded run are compared with those in the reference's run.

    A node is unseen if its tensor was not found in one of the runs; all other nodes are visible.
    """

    def __init__(self, nodes: Sequence[Node], mine: Log, theirs: Log) -> None:
        self.mine, self.theirs = mine, theirs
        self.nodes = {node.key: node for node in nodes}
        self.seen = {node.key: self._look(node) for node in nodes}

    def _look(self, node: Node) -> Seen:
        theirs = node.find(self.theirs)
        if theirs is None or theirs.content is None:
            return Seen(State.UNSEEN)
        mine = node.find(self.mine)
        if mine is not None and self._same(node, mine, theirs):
            return Seen(State.AGREES, mine, theirs)
        if mine is None or node.inner:
            other = self.mine_like(theirs)
            return Seen(State.AGREES, other, theirs) if other else Seen(State.UNSEEN, mine, theirs)
        return Seen(State.DIFFERS, mine, theirs)

    def _same(self, node: Node, mine: Value, theirs: Value) -> bool:
        a, b = mine.content, theirs.content
        if node.scores and isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.numel() == b.numel() and same_scores(a.reshape(b.shape), b)
        return same(a, b)

    def mine_like(self, theirs: Value) -> Value | None:
        """Find the tensor of the learner's run that has the same elements, in any layout; return None if there is
        none."""
        if not isinstance(theirs.content, Tensor) or theirs.content.numel() < 2:
            return None
        return self._pool.like(theirs.content)

    def is_known(self, tensor: Any) -> bool:
        """Return True if any tensor in the reference's run has the same elements, in any layout."""
        return isinstance(tensor, Tensor) and self._known.like(tensor) is not None

    @cached_property
    def _pool(self) -> Pool:
        return Pool(self.mine)

    @cached_property
    def _known(self) -> Pool:
        return Pool(self.theirs)

    def visible_parents(self, key: str) -> list[str]:
        """Return the keys of a node's parents, replacing each unseen parent with its own visible parents."""
        found: list[str] = []
        for parent in self.nodes[key].parents:
            if parent not in self.nodes:
                continue
            hidden = self.seen[parent].state is State.UNSEEN
            found += self.visible_parents(parent) if hidden else [parent]
        return list(dict.fromkeys(found))

    def ends(self) -> list[str]:
        """Return the keys of the final nodes, from which no other node is computed."""
        inner = {parent for node in self.nodes.values() for parent in node.parents}
        return [key for key in self.nodes if key not in inner]

    def parted(self) -> str | None:
        """Return the key of the first node that differs although its visible parents agree, or None.

        A node is considered only if a final node computed from it differs as well. If the learner's code raised an
        exception, final nodes may be missing. In that case, every differing node is considered unless a later node that
        depends on it agrees.
        """
        wrong = [key for key in self.ends() if self.seen[key].state is State.DIFFERS]
        if self.mine.error is not None:  # the run stopped early, possibly because of an earlier difference
            agreed = {key for key in self.nodes if self.seen[key].state is State.AGREES}
            absolved = {old for key in agreed for old in self._all_before(key)}
            wrong += [key for key, seen in self.seen.items() if seen.state is State.DIFFERS and key not in absolved]
        order = list(self.nodes)
        return min((self._first(key) for key in wrong), key=order.index, default=None)

    def _all_before(self, key: str) -> Iterator[str]:
        for parent in self.nodes[key].parents:
            if parent in self.nodes:
                yield parent
                yield from self._all_before(parent)

    def _first(self, key: str) -> str:
        order = {name: at for at, name in enumerate(self.nodes)}
        for parent in sorted(self.visible_parents(key), key=lambda name: order[name]):
            if self.seen[parent].state is State.DIFFERS:
                return self._first(parent)
        return key


class Pool:
    """All tensors of a recorded run, searchable by their elements."""

    def __init__(self, log: Log) -> None:
        made = [Value(step.value, 0, step.number) for step in log.operations]
        made += [value for call in log.calls for value in call.given]
        made += [leaf for step in log.operations for leaf in step.inputs if leaf.made is None]
        made += [value for value in log.marks.values()]
        self._by_size: dict[int, list[tuple[float, Value]]] = {}
        for value in made:
            if isinstance(value.content, Tensor):
                self._by_size.setdefault(value.content.numel(), []).append((_print(value.content), value))

    def like(self, tensor: Tensor) -> Value | None:
        """Return a tensor with the same elements, in any layout (axes permuted, merged or split), or None."""
        wanted = _print(tensor)
        for found, value in self._by_size.get(tensor.numel(), ()):
            if math.isclose(found, wanted, rel_tol=1e-4, abs_tol=1e-9) and same_numbers(value.content, tensor):
                return value
        return None


def same(mine: Any, theirs: Any) -> bool:
    """Return True if two values are equal or close; tensors must also have the same shape."""
    if isinstance(theirs, Value):
        return same(mine.content if isinstance(mine, Value) else mine, theirs.content)
    if isinstance(mine, Value):
        mine = mine.content
    if isinstance(theirs, tuple):
        return isinstance(mine, (tuple, list)) and len(mine) == len(theirs) and all(map(same, mine, theirs))
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        return mine.shape == theirs.shape and close(mine, theirs)
    if isinstance(theirs, Tensor) and theirs.ndim == 0 and isinstance(mine, (int, float)):
        return close(torch.tensor(float(mine)), theirs)
    if isinstance(mine, Tensor) and mine.numel() == 1 and isinstance(theirs, (int, float)):
        return close(mine.flatten()[0], torch.tensor(float(theirs), dtype=torch.float64))
    if isinstance(theirs, (int, float)) and isinstance(mine, (int, float)):
        return math.isclose(mine, theirs, rel_tol=1e-6, abs_tol=1e-12)
    return type(mine) is type(theirs) and bool(mine == theirs)


def close(mine: Tensor, theirs: Tensor) -> bool:
    """Return True if two tensors of the same shape agree within the tolerance of `mine`'s dtype."""
    a, b = _numbers(mine), _numbers(theirs)
    if torch.equal(a, b):
        return True
    allowed = _TOLERANCE.get(mine.dtype, 2e-2) if mine.dtype.is_floating_point else 1e-7
    finite = b[b.isfinite()]
    size = finite.abs().max().item() if finite.numel() else 1.0
    return bool(torch.isclose(a, b, rtol=allowed, atol=allowed * max(size, 1e-30), equal_nan=True).all())


def same_scores(mine: Tensor, theirs: Tensor) -> bool:
    """Return True if two softmax inputs agree at unmasked positions, up to a constant per row (the last axis)."""
    seen = (theirs > HIDDEN) & (mine > HIDDEN)

    def centred(x: Tensor) -> Tensor:
        x = _numbers(x).where(seen, 0)
        return (x - x.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)).where(seen, 0)

    return close(centred(mine).to(mine.dtype), centred(theirs))


def same_numbers(mine: Tensor, theirs: Tensor) -> bool:
    """Return True if one tensor equals the other, possibly with its axes permuted, merged or split."""
    flat = mine.flatten()
    if close(flat, theirs.flatten()):
        return True
    if theirs.ndim > 5 or theirs.numel() > 100_000:
        return False
    return any(close(flat, theirs.permute(axes).flatten()) for axes in permutations(range(theirs.ndim)))


def gap(mine: Any, theirs: Any) -> str:
    """Describe the difference between two values in words."""
    if not isinstance(theirs, Tensor):
        return f"{_short(mine)} instead of {_short(theirs)}"
    if not isinstance(mine, Tensor):
        if theirs.numel() == 1:
            return f"{_short(mine)} instead of {theirs.item():.4g}"
        return f"{_short(mine)} instead of a tensor {tuple(theirs.shape)}"
    if mine.shape != theirs.shape:
        return f"the shape is {tuple(mine.shape)} instead of {tuple(theirs.shape)}"
    if theirs.numel() == 1:
        return _beside(mine.item(), theirs.item())
    a, b = _numbers(mine), _numbers(theirs)
    wrong = ~torch.isclose(a, b, rtol=1e-6, atol=1e-6 * float(b[b.isfinite()].abs().max() if b.numel() else 1))
    wrong = wrong if wrong.any() else (a != b)
    first = tuple(int(index) for index in wrong.nonzero()[0])
    share = f"{int(wrong.sum())} of {wrong.numel()} numbers"
    if theirs.dtype == torch.bool:
        return f"{share}; the first, at {list(first)}, is {bool(mine[first])} instead of {bool(theirs[first])}"
    return f"{share}; the first, at {list(first)}, is {_beside(mine[first].item(), theirs[first].item())}"


def _beside(mine: float, theirs: float) -> str:
    """Format two numbers with four digits, or with more if that is necessary to tell them apart."""
    for digits in range(4, 17):
        if (a := f"{mine:.{digits}g}") != (b := f"{theirs:.{digits}g}"):
            break
    return f"{a} instead of {b}"


def operation(log: Log, value: Value | None) -> Operation | None:
    """Return the operation that computed a value, or None."""
    return None if value is None or value.made is None else log.operations[value.made]


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.item():.4g}" if value.numel() == 1 else f"a tensor {tuple(value.shape)}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple) and any(isinstance(part, Value) for part in value):
        return f"{len(value)} results"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float64) if not tensor.is_complex() else torch.view_as_real(tensor).double()


def _print(tensor: Tensor) -> float:
    """Return a fingerprint that does not depend on the order of the elements."""
    finite = _numbers(tensor).nan_to_num(0.0, 1.5, -2.5)
    return float((finite.abs() + (finite + 0.7) ** 2 + (1.3 * finite).sin()).sum())
