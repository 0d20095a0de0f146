"""The contract of every lesson (README.md), which contains all rules for built notebooks. No cells are run.

faults = check(lesson, known_of(lesson, lessons()))
"""

from __future__ import annotations

import ast
import functools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from authoring import deeper_contract, lesson_contract, notebook_contract
from authoring.imports import LIBRARY
from authoring.lesson import Lesson, with_deeper
from authoring.markdown import equations
from authoring.notation import meanings
from authoring.notebook_contract import Fault, Known

_LOOSE = Path(__file__).with_name("not_compared.toml")
BESIDE_THE_MODEL = ("commands", "examples", "ground", "make", "page")
"""Folders and files of the library whose names lessons may redefine."""


@functools.cache  # cached, because it parses the whole package
def companion_names() -> Mapping[str, str]:
    """Return every public function and class of the library, with the module that defines it.

    The parts in `BESIDE_THE_MODEL` are omitted, because the lessons do not build them.
    """
    names = {}
    for path in sorted(LIBRARY.rglob("*.py")):
        if {*BESIDE_THE_MODEL} & {*path.relative_to(LIBRARY).with_suffix("").parts}:
            continue
        module = ".".join([LIBRARY.name, *path.relative_to(LIBRARY).with_suffix("").parts])
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                names[node.name] = module
    return names


def known_of(lesson: Lesson, course: Sequence[Lesson]) -> Known:
    """Return the data that the rules compare with a lesson."""
    others = [other for other in with_deeper(course) if other.notebook.exists() and other.name != lesson.name]
    return Known(
        companion_names(),
        tomllib.loads(_LOOSE.read_text(encoding="utf-8")).get(lesson.name, {}),
        {other.prefix: equations(other.built) for other in others},
        meanings(),
    )


def check(lesson: Lesson, known: Known) -> list[Fault]:
    """Return all faults of a lesson or a deeper notebook, in the order of their positions."""
    own = deeper_contract.RULES if lesson.is_deeper else lesson_contract.RULES
    faults = [fault for rule in (*own, *notebook_contract.COMMON) for fault in rule(lesson, known)]
    return sorted(faults, key=lambda fault: (fault.cell or 0, fault.line or 0))
