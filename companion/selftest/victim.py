"""The process that is killed: it trains like `companion train`, and dies when its plan says so.

`python -m companion.selftest.victim PLAN train ...`, the plan in JSON, runs `python -m companion train ...` as Python
would. `kills` takes the plan and the digest from here.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from companion.training.distributed.launch import launched
from companion.training.trainer import Trainer, Update

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows knows one way only
_OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}


@dataclass(frozen=True)
class Plan:
    """What a process of a run does besides training.

    notes:    a folder for what it tells: `pid-RANK`; `moment`, just before the kill.
    witness:  write the digest of the weights after each update to `digests`.
    number:   of the file operation in the run's folder that is the moment; 0: none.
    wait:     announce the moment and go on, for somebody else to do the killing; otherwise do it here, at once.
    """

    notes: str
    witness: bool = False
    number: int = 0
    wait: bool = False


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of named tensors on the CPU: of names and bytes."""
    made = hashlib.sha256()
    for name in sorted(tensors):
        made.update(name.encode() + b"\0" + tensors[name].detach().flatten().view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


def train(plan: Plan, arguments: list[str]) -> None:
    """Train as `companion` with these arguments does, and do what the plan says."""
    rank, notes = int(os.environ.get("RANK", 0)) if launched() else 0, Path(plan.notes)
    draft = notes / f"tmp-{rank}"
    draft.write_text(str(os.getpid()))
    draft.rename(notes / f"pid-{rank}")
    if plan.witness:
        update: Callable[[Trainer], Update] = Trainer.update

        def noting(self: Trainer) -> Update:
            made = update(self)
            weights = self.weights()
            if self.parallel.main:
                with open(notes / "digests", "a") as file:
                    file.write(f"{self.done} {digest(weights)}\n")
            return made

        Trainer.update = noting  # type: ignore[method-assign]
    if plan.number and rank == 0:
        _watch(plan, Path(arguments[arguments.index("--out") + 1]))
    sys.argv[1:] = arguments
    runpy.run_module("companion", run_name="__main__", alter_sys=True)


def _watch(plan: Plan, run: Path) -> None:
    """Kill this process, or announce it, before its `plan.number`-th file operation in the folder `run`."""
    count, told = 0, Path(plan.notes) / "moment"

    def hook(event: str, operands: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in _OPERATIONS or not operands or not isinstance(operands[0], str | bytes | os.PathLike):
            return
        path = Path(os.fsdecode(operands[0]))
        if path != run and run not in path.parents:
            return
        count += 1
        if count == plan.number:
            name = "run" if path == run else str(path.relative_to(run))
            draft = told.with_suffix(".tmp")
            draft.write_text(f"{event.removeprefix('os.').removeprefix('shutil.')} {_shown(name)}")
            draft.rename(told)
            if not plan.wait:
                os.kill(os.getpid(), KILL)

    sys.addaudithook(hook)


def _shown(name: str) -> str:
    """A path without the random part of a draft's name."""
    parts = [
        part.rsplit(".", 2)[0] if part.endswith(".tmp") and part.count(".") > 3 else part for part in name.split("/")
    ]
    return "/".join(parts)


if __name__ == "__main__":
    train(Plan(**json.loads(sys.argv[1])), sys.argv[2:])
