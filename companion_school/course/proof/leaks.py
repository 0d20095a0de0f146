"""Search what a student receives for what a student must not have: code of the references and of known mistakes,
results that exercises ask for, an instructor's secret, the hidden seeds and cases.

All that is handed out is made from stubs and sealed keys, so that nothing need be hidden in it; this looks whether that
is so, in the files as they are. It is no defence against whoever would hide something.
"""

from __future__ import annotations

import ast
import html
import inspect
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from companion_school.checking.exercise import Exercise
from companion_school.checking.sealed_keys import kept_key
from companion_school.course.hidden_seeds import PUBLIC_SEED, hidden_seeds
from companion_school.course.points import is_constant

LONG = 24
"""Characters, spaces left out, in a line of code that says something."""
WORD = 8
"""Bytes by whose value a longer piece is looked for."""
_BITS = 20
_MARKERS = ("BEGINHIDDENTESTS", "BEGINSOLUTION")


def leaks(folder: Path, book: Sequence[Exercise], secret: bytes, *, public: Iterable[str] = ()) -> list[str]:
    """Everything of the exercises' lessons, and of the secret, that stands in a folder's files or their names.

    public:  texts that are no leak, such as a student's own answer.
    """
    known = bare("\n".join([*public, *_known_to_all(book)]))
    guarded = _Pieces({text.encode(): what for text, what in _texts(book, secret) if text not in known})
    cases = _Pieces(dict(_hidden_cases(book, secret)))
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data, name = path.read_bytes(), path.relative_to(folder).as_posix()
        text = f"{name} {data.decode('utf-8', 'ignore')}"
        text = bare(text + html.unescape(re.sub(r"<[^<>]*>", "", text)))  # a page colours code word by word
        found += [f"{name}: {what}" for what in guarded.standing_in(text.encode())]
        found += [f"{name}: {what}" for what in cases.standing_in(data)]
        if path.suffix != ".py":  # the checks that travel along name the markers
            found += [f"{name}: {marker}" for marker in _MARKERS if marker in text]
    return found


class _Pieces:
    """Pieces of bytes to be looked for, and what each is. They are thousands, and sealed keys have megabytes: all are
    looked for at once, by their first eight bytes as a number, and before that by a few bits that are made of it; the
    few that are shorter, one by one."""

    def __init__(self, pieces: Mapping[bytes, str]) -> None:
        self._pieces = pieces
        self._begin: defaultdict[int, list[bytes]] = defaultdict(list)
        for piece in pieces:
            if len(piece) >= WORD:
                self._begin[int.from_bytes(piece[:WORD], "little")].append(piece)
        self._short = [piece for piece in pieces if len(piece) < WORD]
        self._firsts = np.sort(np.fromiter(self._begin, "<u8", len(self._begin)))
        self._bits = np.zeros(1 << _BITS, bool)
        self._bits[_bits_of(self._firsts)] = True

    def standing_in(self, data: bytes) -> list[str]:
        """What those are that stand in the data."""
        held = {piece for piece in self._short if piece in data}
        firsts = self._firsts
        for shift in range(min(WORD, len(data) - WORD + 1) if len(firsts) else 0):
            words = np.frombuffer(data, "<u8", (len(data) - shift) // WORD, shift)
            likely = np.flatnonzero(self._bits[_bits_of(words)])
            near = np.minimum(np.searchsorted(firsts, words[likely]), len(firsts) - 1)
            for at in likely[firsts[near] == words[likely]].tolist():
                held |= {piece for piece in self._begin[int(words[at])] if data.startswith(piece, shift + WORD * at)}
        return [what for piece, what in self._pieces.items() if piece in held] if held else []


def _bits_of(words: Any) -> Any:
    """The first bits of each number times a large odd one, in which all of its own have a share."""
    return ((words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _BITS)).astype(np.intp)


def bare(text: str) -> str:
    """A text without spaces, line breaks (also written out, as in a string), quotes and backslashes."""
    for gone in ("\\n", "\\t", "\\", "'", '"', "`"):
        text = text.replace(gone, "")
    return "".join(text.split())


def _texts(book: Sequence[Exercise], secret: bytes) -> Iterator[tuple[str, str]]:
    """Every guarded text, bare, and what it is."""
    yield bare(secret.decode("utf-8", "ignore")), "the instructor's secret"
    for module in sorted({exercise.reference.__module__ for exercise in book}):
        source = inspect.getsource(sys.modules[module])
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                for line in source.splitlines()[body[0].lineno - 1 : node.end_lineno]:
                    if len(bare(line)) >= LONG:
                        yield bare(line), f"code of {module.rpartition('.')[2]}.py, line {node.lineno}"
    for exercise in book:
        yield from ((str(seed), f"a hidden seed of {exercise.id}") for seed in hidden_seeds(secret, exercise.id))
        if is_constant(exercise):
            for number in _numbers(exercise.reference()):
                if not math.isclose(60 * number, round(60 * number)):  # a half or two thirds stands in many an input
                    yield from ((f"{number:{form}}", f"the result of {exercise.id}") for form in (".4f", ".6g"))


def _hidden_cases(book: Sequence[Exercise], secret: bytes) -> Iterator[tuple[bytes, str]]:
    """The bytes of the hidden cases' tensors and results, but for those that public cases have too."""
    for exercise in book:
        shown = {*_tensors(_cases(exercise, PUBLIC_SEED))}
        for seed in hidden_seeds(secret, exercise.id):
            yield from ((data, f"a hidden case of {exercise.id}") for data in _tensors(_cases(exercise, seed)) - shown)


def _cases(exercise: Exercise, seed: int) -> list[Any]:
    key = kept_key(exercise, seed)
    return [*(case.arguments for case in key.cases), *(key.expected(at).value for at in range(len(key.cases)))]


def _tensors(value: Any) -> set[bytes]:
    """The bytes of those that no other computation would hit upon: several different numbers, none of them whole."""
    if isinstance(value, torch.Tensor):
        numbers = value.detach().flatten().double() if value.is_floating_point() else torch.empty(0)
        plain = numbers.isnan() | ((numbers == numbers.floor()) & numbers.isfinite())
        drawn = len(numbers) >= 3 and not plain.any() and len(numbers.unique()) >= 3
        dense = value.detach().clone(memory_format=torch.contiguous_format).flatten()
        return {dense.view(torch.uint8).numpy().tobytes()} if drawn else set()
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return set().union(*map(_tensors, parts))


def _numbers(value: Any) -> Iterator[float]:
    value = value.tolist() if isinstance(value, torch.Tensor) else value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else None
    if parts is not None:
        yield from (number for part in parts for number in _numbers(part))
    elif isinstance(value, float):
        yield value


def _known_to_all(book: Sequence[Exercise]) -> Iterator[str]:
    """What is in every student's hands: statements, first lines, and the modules that check."""
    for exercise in book:
        yield from (exercise.statement, exercise.stub, exercise.title)
    for file in files("companion_school.checking").iterdir():
        if file.name.endswith(".py"):
            yield file.read_text(encoding="utf-8")
