"""One part, in the process that `run.py` started for it: `python -m companion.bench.gpu.child PART FILE JSON`."""

from __future__ import annotations

import functools
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from companion.bench.gpu import pieces, whole
from companion.bench.gpu.figures import Record
from companion.bench.gpu.sizes import Setting, setting
from companion.costs.chips import Chip

PARTS: dict[str, Callable[[Setting, Record], None]] = {
    "ceiling": pieces.ceiling,
    "tests": pieces.tests,
    "training": whole.training,
    "decoding": whole.decoding,
    "cache": whole.cache_gain,
    "experts": pieces.experts,
    "processes": pieces.one_process,
    "attention": pieces.attention,
}


def main(part: str, file: str, told: str) -> int:
    """Run one part; what it finds goes to `file`. 1 if it failed."""
    options = json.loads(told)
    record = Record(Path(file))
    try:
        if options["rehearsal"]:
            # Traced, so that what cannot be compiled is found, but not turned into machine code, which takes minutes.
            torch.compile = functools.partial(torch.compile, backend="eager")
        chip = Chip(*options["chip"]) if options["chip"] else None
        PARTS[part](setting(options["rehearsal"], chip), record)
    except Exception as error:
        traceback.print_exc()
        record.end(" ".join(f"{type(error).__name__}: {error}".split())[:300])
        return 1
    record.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
