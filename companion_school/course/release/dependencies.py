"""Dependencies of a reference: a reader's notebook provides only torch, math and the answers to earlier exercises."""

from __future__ import annotations

import builtins
import symtable
import sys
from collections.abc import Iterator

from companion_school.checking.exercise import Exercise

IMPORTED = frozenset({"torch", "math"})


def other_exercises(exercise: Exercise) -> list[str]:
    """Return the ids of the exercises whose answers the reference calls.

    Raises:
        ValueError: The reference uses a name other than torch, math, built-ins and exercises.
    """
    names = set(_globals(symtable.symtable(exercise.solution, f"exercise {exercise.id}", "exec")))
    there = vars(sys.modules[exercise.reference.__module__])
    found = []
    for name in sorted(names - IMPORTED - {exercise.name} - set(dir(builtins))):
        used = there.get(name)
        if not isinstance(used, Exercise):
            raise ValueError(
                f"exercise {exercise.id}: its solution needs {name}, which is not defined in a reader's notebook"
            )
        found.append(used.id)
    return found


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_global() or (table.get_type() == "module" and not symbol.is_assigned()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _globals(inner)
