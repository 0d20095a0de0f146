"""Search for leaks in files that students receive.

A leak is the code of a reference or a known mistake, a result that an exercise asks for, the instructor's secret, a
hidden seed or a hidden case. Student files are built from stubs and sealed keys, so they should contain no leaks. The
search verifies this for the finished files. It does not find leaks that are concealed deliberately.
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
"""Minimum number of characters, not counting spaces, in a line of code that counts as a leak."""
WORD = 8
"""Length in bytes of the prefix that is searched for in place of a longer string."""
_BITS = 20
_MARKERS = ("BEGINHIDDENTESTS", "BEGINSOLUTION")


def leaks(folder: Path, book: Sequence[Exercise], secret: bytes, *, public: Iterable[str] = ()) -> list[str]:
    """Return every leak in the contents and names of files in a folder, in the form "file: description".

    Args:
        folder: Folder to search, including subfolders.
        book: Exercises whose code, results and hidden cases must not leak. The other code in their lessons' modules
            must not leak either.
        secret: The instructor's secret.
        public: Texts that do not count as leaks, such as a student's own answer.
    """
    known = bare("\n".join([*public, *_known_to_all(book)]))
    guarded = _Pieces({text.encode(): what for text, what in _texts(book, secret) if text not in known})
    cases = _Pieces(dict(_hidden_cases(book, secret)))
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data, name = path.read_bytes(), path.relative_to(folder).as_posix()
        text = f"{name} {data.decode('utf-8', 'ignore')}"
        # Also search the text without tags, because syntax highlighting puts tags between the words of code.
        text = bare(text + html.unescape(re.sub(r"<[^<>]*>", "", text)))
        found += [f"{name}: {what}" for what in guarded.standing_in(text.encode())]
        found += [f"{name}: {what}" for what in cases.standing_in(data)]
        if path.suffix != ".py":  # the check package in the release itself contains the markers
            found += [f"{name}: {marker}" for marker in _MARKERS if marker in text]
    return found


class _Pieces:
    """Byte strings to search for, each with a description.

    There are thousands of strings, and sealed keys are megabytes long, so all strings are searched for at once. The
    first eight bytes of each string are read as an integer, and a bit table indexed by a hash of this integer rules out
    most positions quickly. The few strings that are shorter than eight bytes are searched for individually.
    """

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
        """Return the descriptions of all strings that occur in the data."""
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
    """Hash each number: multiply it by a large odd constant and use the upper bits, which depend on all its bits."""
    return ((words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _BITS)).astype(np.intp)


def bare(text: str) -> str:
    """Remove whitespace, quotes, backslashes and the escapes for line breaks and tabs from a text."""
    for gone in ("\\n", "\\t", "\\", "'", '"', "`"):
        text = text.replace(gone, "")
    return "".join(text.split())


def _texts(book: Sequence[Exercise], secret: bytes) -> Iterator[tuple[str, str]]:
    """Yield every text that must not leak, in the form that `bare` returns, and its description."""
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
                # Simple fractions, such as 1/2 or 2/3, occur in many inputs, so they reveal nothing.
                if not math.isclose(60 * number, round(60 * number)):
                    yield from ((f"{number:{form}}", f"the result of {exercise.id}") for form in (".4f", ".6g"))


def _hidden_cases(book: Sequence[Exercise], secret: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield the bytes of tensors that occur in hidden cases or their results but not in public cases."""
    for exercise in book:
        shown = {*_tensors(_cases(exercise, PUBLIC_SEED))}
        for seed in hidden_seeds(secret, exercise.id):
            yield from ((data, f"a hidden case of {exercise.id}") for data in _tensors(_cases(exercise, seed)) - shown)


def _cases(exercise: Exercise, seed: int) -> list[Any]:
    key = kept_key(exercise, seed)
    return [*(case.arguments for case in key.cases), *(key.expected(at).value for at in range(len(key.cases)))]


def _tensors(value: Any) -> set[bytes]:
    """Return the bytes of all distinctive tensors in a value.

    A tensor is distinctive if it has at least three different values that are neither integers nor NaN, so that no
    other computation would produce it by accident.
    """
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
    """Yield texts that every student has: statements, stubs, titles and the modules of the check package."""
    for exercise in book:
        yield from (exercise.statement, exercise.stub, exercise.title)
    for file in files("companion_school.checking").iterdir():
        if file.name.endswith(".py"):
            yield file.read_text(encoding="utf-8")
