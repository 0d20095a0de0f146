"""IPython extension for the course's kernel that lets each NameError say which cells to run first.

A reopened notebook still shows its results, but the new kernel lacks its variables.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

OF_EXERCISES = ("check", "hint", "progress", "solution", "take_over")
FIRST = "Run the first code cell of this notebook, which imports {name}, and then this cell again."
ABOVE = (
    "If {name} is not misspelled, a cell further up defines it and has not run since the kernel started. "
    "Choose Run > Run All Above Selected Cell, and then run this cell again."
)


def load_ipython_extension(shell: Any) -> None:
    """Add a note to each NameError that a cell raises."""
    shell.set_custom_exc((NameError,), _explain)


def _explain(shell: Any, kind: type, error: NameError, trace: TracebackType, tb_offset: int | None = None) -> None:
    if error.name:
        error.add_note((FIRST if error.name in OF_EXERCISES else ABOVE).format(name=error.name))
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
