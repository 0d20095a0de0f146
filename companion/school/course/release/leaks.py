"""Search what a student receives for what a student must not have.

Guarded are all code of the exercises' lessons (references, variants, known mistakes, how the cases are drawn), the
fixed results that exercises ask for, an instructor's secret, the hidden seeds, and the hidden cases with their results.
Code is found by its text, with spaces, quotes and line breaks left out, and by its syntax tree, under any names.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from companion.school.checking.exercise import Exercise
from companion.school.checking.sealed import kept_key
from companion.school.course.release.leaks_pieces import Piece, pieces
from companion.school.course.release.leaks_syntax import fragments, tree_fragments
from companion.school.course.seeds import PUBLIC_SEED, hidden_seeds, is_constant

LONG = 24
"""Characters, spaces left out, in a line of code that says something."""
_FIRST = 8


@dataclass(frozen=True)
class Leak:
    """Something guarded, and where it was found."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass
class Guarded:
    """What must not be found, and what it is: as trees, as text without spaces, as bytes. Complete once `of` made it:
    the first search prepares what it looks for."""

    trees: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    data: dict[bytes, str] = field(default_factory=dict)
    _known: dict[tuple[str, bytes, bool], list[str]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, book: Sequence[Exercise], secret: bytes | None = None, *, public: Iterable[str] = ()) -> Guarded:
        """What to guard of these exercises' lessons, and of a secret. `public`: texts that anybody has."""
        guarded = cls()
        for module in sorted({exercise.reference.__module__ for exercise in book}):
            guarded._add_code(module)
        for exercise in book:
            if is_constant(exercise):
                guarded._add_results(exercise)
        known = [*public, *_known_to_all(book)]
        for tree in {tree for text in known for tree in fragments(text)}:
            guarded.trees.pop(tree, None)
        everything = "\n".join(bare(text) for text in known)
        guarded.texts = {text: what for text, what in guarded.texts.items() if text not in everything}
        if secret is not None:
            guarded._add_secret(book, secret)
        return guarded

    def _add_code(self, module: str) -> None:
        source = inspect.getsource(sys.modules[module])
        lines = source.splitlines()
        short = module.rpartition(".")[2]
        self.texts[bare(f"{short}.py")] = f"the file of the references, {short}.py"
        for node in ast.parse(source).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            role = ast.unparse(node.decorator_list[0]).split("(")[0] if node.decorator_list else node.name
            what = f"code of {short}.py, line {node.lineno} ({node.name if role == 'exercise' else role})"
            body = node.body[1:] if ast.get_docstring(node) else node.body
            for statement in body:
                for tree in tree_fragments(statement):
                    self.trees.setdefault(tree, what)
            for line in lines[body[0].lineno - 1 : node.end_lineno]:
                if len(bare(line)) >= LONG:
                    self.texts.setdefault(bare(line), what)

    def _add_results(self, exercise: Exercise) -> None:
        for value in _numbers(exercise.reference()):
            if math.isclose(60 * value, round(60 * value)):  # a half or two thirds stands in many an input
                continue
            for text in _written(value):
                self.texts[text] = f"the result that exercise {exercise.id} asks for"

    def _add_secret(self, book: Sequence[Exercise], secret: bytes) -> None:
        self.data[secret] = "the instructor's secret"
        for exercise in book:
            shown = {_bytes(tensor) for tensor in _tensors(_cases(exercise, PUBLIC_SEED))}
            for seed in hidden_seeds(secret, exercise.id):
                what = f"the hidden seed of exercise {exercise.id}"
                self.texts |= {str(seed): what, f"{seed:x}": what}
                self.data[struct.pack("<q", seed)] = what
                for tensor in _tensors(_cases(exercise, seed)):
                    if tensor.is_floating_point() and tensor.numel() >= 3 and _bytes(tensor) not in shown:
                        self._add_hidden(tensor, f"a hidden case of exercise {exercise.id}")

    def _add_hidden(self, tensor: torch.Tensor, what: str) -> None:
        first = tensor.flatten()[:3].tolist()
        if len({*first}) == 1 or any(
            number.is_integer() or len(re.sub(r"\D", "", repr(number))) < 6 for number in first
        ):
            return  # round numbers, infinities, constants: too common to be a trace
        self.data[_bytes(tensor)] = what
        for form in (".4g", ".4f"):
            shown = [format(number, form) for number in first]
            if not any(float(number).is_integer() for number in shown):  # 1e+04: many numbers are shown so
                self.texts[bare(", ".join(shown))] = what
        self.texts[repr(first[0])] = what

    @cached_property
    def _needles(self) -> tuple[_Needles, _Needles]:
        return _Needles({text.encode(): what for text, what in self.texts.items()}), _Needles(self.data)

    def held_by(self, piece: Piece) -> list[str]:
        """What of it a piece holds, and markers. The same text is searched once: a notebook says the same of every
        cell, and what one student receives another receives, too."""
        is_module = piece.where.endswith(".py")
        same = piece.text, piece.data, is_module
        if same not in self._known:
            self._known[same] = list(self._search(piece, is_module))
        return self._known[same]

    def _search(self, piece: Piece, is_module: bool) -> Iterator[str]:
        texts, data = self._needles
        text = bare(piece.text)
        yield from texts.found_in(text.encode("utf-8", "surrogatepass"))
        yield from data.found_in(piece.data)
        if not is_module and ("BEGINHIDDENTESTS" in text or "BEGINSOLUTION" in text):
            yield "a marker of hidden tests or of a solution"
        yield from (self.trees[tree] for tree in fragments(piece.text) if tree in self.trees)


def search(folder: Path, guarded: Guarded) -> list[Leak]:
    """Everything guarded that is in the files of a folder, in their names, or in anything coded inside them."""
    return list(dict.fromkeys(leaks(folder, guarded)))


def leaks(folder: Path, guarded: Guarded) -> Iterator[Leak]:
    """The same one after the other, as they are found, with repeats."""
    for piece in pieces(folder):
        yield from (Leak(piece.where, what) for what in guarded.held_by(piece))


class _Needles:
    """Bytes that are looked for all at once: only those whose first eight are somewhere in a haystack."""

    def __init__(self, needles: Mapping[bytes, str]) -> None:
        self.short = {needle: what for needle, what in needles.items() if len(needle) < _FIRST}
        self.by_beginning: dict[int, list[tuple[bytes, str]]] = {}
        for needle, what in needles.items():
            if needle not in self.short:
                self.by_beginning.setdefault(int.from_bytes(needle[:_FIRST], "little"), []).append((needle, what))
        self.likely = np.zeros(2**20, bool)
        self.likely[_slot(np.array([*self.by_beginning], np.uint64))] = True

    def found_in(self, haystack: bytes) -> Iterator[str]:
        """What each needle is that the haystack holds."""
        yield from (what for needle, what in self.short.items() if needle in haystack)
        found: set[int] = set()
        for start in range(min(_FIRST, len(haystack) - _FIRST + 1)):  # the eight bytes from there on, as one number
            beginnings = np.frombuffer(haystack, "<u8", (len(haystack) - start) // _FIRST, start)
            found.update(beginnings[self.likely[_slot(beginnings)]].tolist())
        for beginning in sorted(found & self.by_beginning.keys()):
            yield from (what for needle, what in self.by_beginning[beginning] if needle in haystack)


def _slot(beginnings: np.ndarray) -> np.ndarray:
    """A number below 2**20 for each, spread over all of these (Knuth, The Art of Computer Programming, 6.4)."""
    return (beginnings * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(44)


def bare(text: str) -> str:
    """A text without spaces, line breaks (also written out, as in a string), quotes and backslashes."""
    return re.sub(r"""\\[nt]|[\s\\'"`]+""", "", text)


def _known_to_all(book: Sequence[Exercise]) -> Iterator[str]:
    """What is in every student's hands: statements, first lines, and the modules that check."""
    for exercise in book:
        yield from (exercise.statement, exercise.stub, exercise.title)
    for file in files("companion.school.checking").iterdir():
        if file.name.endswith(".py"):
            yield file.read_text(encoding="utf-8")


def _cases(exercise: Exercise, seed: int) -> list[Any]:
    key = kept_key(exercise, seed)
    return [*(case.arguments for case in key.cases), *(key.expected(at).value for at in range(len(key.cases)))]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value.detach()
    elif isinstance(value, dict):
        yield from (tensor for part in value.values() for tensor in _tensors(part))
    elif isinstance(value, (list, tuple)):
        yield from (tensor for part in value for tensor in _tensors(part))


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        yield from (number for part in value for number in _numbers(part))
    elif isinstance(value, float):
        yield value


def _written(number: float) -> Iterator[str]:
    """How a result may stand in a text, where it has digits enough to be recognised."""
    for text in (f"{number:.4f}", f"{number:.4g}", f"{number:.6g}", repr(number), number.hex()):
        if len(re.sub(r"\D", "", text).strip("0")) >= 4:
            yield text


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().cpu().view(torch.uint8).flatten().tolist()) if tensor.dim() else b""
