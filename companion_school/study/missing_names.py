"""IPython extension for the course's kernel that adds advice to the errors of cells that use an unknown name.

A reopened notebook still shows its results, but the new kernel lacks its variables. A reader's copy that is older than
the course may use names that have changed since.
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any

OF_EXERCISES = ("check", "hint", "progress", "solution", "take_over")
FIRST = "Run the first code cell of this notebook, which imports {name}, and then this cell again."
ABOVE = (
    "If {name} is not misspelled, a cell further up defines it and has not run since the kernel started. "
    "Choose Run > Run All Above Selected Cell, and then run this cell again."
)
RENAMED = {
    "real": "attention_mask",
    "counted": "token_mask",
    "score_cap": "softcap",
    "logit_cap": "logit_softcap",
    "query_rank": "q_lora_rank",
    "later_heads": "medusa_heads",
    "last_share": "min_lr_ratio",
    "recompute": "activation_checkpointing",
    "yardsticks": "baselines",
    "ahead": "num_draft_tokens",
    "at_once": "batch_size",
    "streams": "generators",
    "companion.data.yardsticks": "companion.data.baselines",
}
"""Names of the library that have changed, with the new ones."""
NEW_NAME = "If this is a name of `companion`: {old} is now called {new}."


def load_ipython_extension(shell: Any) -> None:
    """Add a note to each NameError, and to errors about a name of the library that has changed."""
    shell.set_custom_exc((NameError, TypeError, ImportError), _explain)


def _explain(shell: Any, kind: type, error: Exception, trace: TracebackType, tb_offset: int | None = None) -> None:
    if advice := advice_on(error):
        error.add_note(advice)
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


def advice_on(error: Exception) -> str | None:
    """Return advice on an error of a cell, or `None` if there is none."""
    if isinstance(error, NameError):
        return (FIRST if error.name in OF_EXERCISES else ABOVE).format(name=error.name) if error.name else None
    named = re.findall(r"'([\w.]+)'", str(error))
    old = next((name for name in named if name in RENAMED), None)
    return None if old is None else NEW_NAME.format(old=old, new=RENAMED[old])
