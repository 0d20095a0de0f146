"""A process that trains as `companion` does and kills itself: `python victim.py PLAN train ... --out RUN ...`.

The plan is JSON. `digests` names a file for the digest of the weights after every update; `moment` is the number of the
file operation in the run's folder before which the process kills itself (0: never). Python's audit hooks count the
operations, so that the training code is unchanged.
"""

import hashlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path

import torch

from companion.training.trainer import Trainer

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has only this way, which is as abrupt
OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}


def digest(tensors):
    """Return the SHA-256 of named tensors on the CPU, over names and bytes."""
    made = hashlib.sha256()
    for name in sorted(tensors):
        made.update(name.encode() + b"\0" + tensors[name].detach().flatten().view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


def note_digests(file):
    update = Trainer.update

    def noting(self):
        made = update(self)
        with open(file, "a") as notes:
            notes.write(f"{self.done} {digest(self.weights())}\n")
        return made

    Trainer.update = noting


def die_before(moment, run):
    count = 0

    def hook(event, operands):
        nonlocal count
        if event in OPERATIONS and operands and isinstance(operands[0], str | bytes | os.PathLike):
            path = Path(os.fsdecode(operands[0]))
            count += path == run or run in path.parents
            if count == moment:
                os.kill(os.getpid(), KILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    plan, arguments = json.loads(sys.argv[1]), sys.argv[2:]
    if plan.get("digests"):
        note_digests(plan["digests"])
    if plan.get("moment"):
        die_before(plan["moment"], Path(arguments[arguments.index("--out") + 1]))
    sys.argv[1:] = arguments
    runpy.run_module("companion", run_name="__main__", alter_sys=True)
