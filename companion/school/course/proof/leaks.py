"""Search what a student receives for what a student must not have: code of the references and of known mistakes,
results that exercises ask for, an instructor's secret, the hidden seeds and cases.

All that is handed out is made from stubs and sealed keys, so that nothing need be hidden in it; this looks whether that
is so, in the files as they are. It is no defence against whoever would hide something.
"""

from __future__ import annotations

import ast
import html
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import torch

from companion.school.checking.exercise import Exercise
from companion.school.course.seeds import hidden_seeds, is_constant

LONG = 24
"""Characters, spaces left out, in a line of code that says something."""
_MARKERS = ("BEGINHIDDENTESTS", "BEGINSOLUTION")


def leaks(folder: Path, book: Sequence[Exercise], secret: bytes, *, public: Iterable[str] = ()) -> list[str]:
    """Everything of the exercises' lessons, and of the secret, that stands in a folder's files or their names.

    public:  texts that are no leak, such as a student's own answer.
    """
    shown = [text for one in book for text in (one.statement, one.stub, one.title)]
    folder_of_checks = files("companion.school.checking")
    checks = [file.read_text("utf-8") for file in folder_of_checks.iterdir() if file.name.endswith(".py")]
    open_to_all = "\n".join([*public, *shown, *checks])
    known = {bare(line) for line in open_to_all.splitlines()}
    code = {line: what for line, what in _code(book) if line not in known}
    tokens = {token: what for token, what in _tokens(book, secret) if token not in open_to_all.encode()}
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data, name = path.read_bytes(), path.relative_to(folder).as_posix()
        text = f"{name}\n{data.decode('utf-8', 'ignore')}"
        text += "\n" + html.unescape(re.sub(r"<[^<>]*>", "", text))  # a page colours code word by word
        lines = {bare(line) for line in re.split(r"\n|\\n|`", text)}
        held = [*(code[line] for line in code.keys() & lines), *(tokens[token] for token in tokens if token in data)]
        if path.suffix != ".py":  # the checks that travel along name the markers
            held += [marker for marker in _MARKERS if any(marker in line for line in lines)]
        found += [f"{name}: {what}" for what in held]
        if secret in name.encode():
            found.append(f"{name}: the instructor's secret")
    return found


def bare(line: str) -> str:
    """A line without spaces, quotes and backslashes, and without the comma behind it that JSON puts there."""
    return re.sub(r"[\\'\"\s]", "", line).rstrip(",")


def _code(book: Sequence[Exercise]) -> Iterator[tuple[str, str]]:
    """Every line of the functions in the exercises' lessons, bare, and what it is."""
    for module in sorted({exercise.reference.__module__ for exercise in book}):
        source = inspect.getsource(sys.modules[module])
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                for line in source.splitlines()[body[0].lineno - 1 : node.end_lineno]:
                    if len(bare(line)) >= LONG:
                        yield bare(line), f"code of {module.rpartition('.')[2]}.py, line {node.lineno}"


def _tokens(book: Sequence[Exercise], secret: bytes) -> Iterator[tuple[bytes, str]]:
    """What is found as it stands: the secret, the hidden seeds, a drawn tensor of each, and results whose digits no
    input would have: a half or two thirds stands in many."""
    yield secret, "the instructor's secret"
    for exercise in book:
        for seed in hidden_seeds(secret, exercise.id):
            yield str(seed).encode(), f"a hidden seed of {exercise.id}"
            yield from ((data, f"a hidden case of {exercise.id}") for data in _drawn(exercise, seed))
        result = exercise.reference() if is_constant(exercise) else None
        for number in result.flatten().tolist() if isinstance(result, torch.Tensor) else [result]:
            if isinstance(number, float) and abs(60 * number - round(60 * number)) > 1e-6:
                yield from ((f"{number:{form}}".encode(), f"the result of {exercise.id}") for form in (".4f", ".6g"))


def _drawn(exercise: Exercise, seed: int) -> Iterator[bytes]:
    """The bytes of the first argument of a seed's cases that no other computation would hit upon, if there is one."""
    for case in exercise.inputs(seed):
        for value in case.arguments:
            drawn = isinstance(value, torch.Tensor) and value.is_floating_point() and value.isfinite().all()
            if drawn and len(value.unique()) >= 3 and not (value == value.round()).any():
                yield value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
                return
