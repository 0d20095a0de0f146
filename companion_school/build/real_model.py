"""Check stage 10 on a real model: the learner's code loads SmolLM2, and its logits are compared with transformers'.

python -m companion_school.build.real_model FOLDER MODEL   the process that runs the learner's code
"""

from __future__ import annotations

import subprocess
import sys
import time
from importlib import util
from pathlib import Path

import torch
from torch import Tensor

from companion.files.published.fetching import at_hand
from companion_school import records
from companion_school.build.isolated_modules import World
from companion_school.build.workspace import read_sources

STAGE = 10
CLOSE = 0.01
"""Largest difference between two logits that rounding can explain. A mistake changes logits by whole units."""
SECONDS = 300.0
ABSENT = (
    "SmolLM2 is not on this machine, so your file was tried with random weights only. "
    "Run `companion get smollm2` and check again, and your own code will load a real model."
)


def record() -> dict[str, list[list[float]] | list[int]]:
    """Return recorded results of transformers: a few `ids`, and their `logits` for the vocabulary's first tokens."""
    return records.read("smollm2")


def try_real_model(folder: Path) -> tuple[bool, str]:
    """Load SmolLM2 with the learner's files in a separate process.

    Args:
        folder: The learner's folder, where stage 10 has passed its check.

    Returns:
        A flag, and a sentence that explains it. The flag is False if the learner's code failed. It is True if the
        logits are right, and also if they could not be compared because the model is not on this machine or the machine
        is too busy.
    """
    found = at_hand("smollm2")
    if found is None:
        return True, ABSENT
    command = [sys.executable, "-m", "companion_school.build.real_model", str(folder.resolve()), str(found.folder)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return True, f"SmolLM2 was not ready after {SECONDS:.0f} seconds, so your logits were not compared with it."
    said = (ended.stdout if ended.returncode in (0, 1) else "").strip() or ended.stderr.strip()
    return ended.returncode == 0, (said.splitlines() or ["SmolLM2: the process that loaded it gave no message"])[-1]


def theirs(model: Path) -> tuple[Tensor, Tensor, str]:
    """Return token ids, the logits that transformers computes for them, and a phrase that names their source."""
    known = record()
    ids, logits = torch.tensor([known["ids"]]), torch.tensor(known["logits"])
    if util.find_spec("transformers") is None:
        return ids, logits, "those of transformers, as recorded,"
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(ids).logits[0]
    return ids, whole, "those of transformers"


def main(arguments: list[str]) -> int:
    """Load a model with the learner's files, compare its logits, and return the exit code."""
    folder, model = map(Path, arguments)
    torch.set_num_threads(1)
    sources = read_sources(folder)
    code = World(sources, "published", {module: str(folder / f"{module}.py") for module in sources})
    begin = time.monotonic()
    try:
        own = code.load(model)
    except Exception as error:  # the learner's code may raise any exception
        print(f"SmolLM2: your `load` raises {type(error).__name__}: {error}"[:500])
        return 1
    seconds = time.monotonic() - begin
    ids, expected, whose = theirs(model)
    with torch.no_grad():
        away = (own(ids)[0, :, : expected.shape[-1]] - expected).abs().amax(-1)
    if (wrong := (away > CLOSE).nonzero().flatten().tolist()) or not bool(away.isfinite().all()):
        at = wrong[0] if wrong else 0
        cause = "positions or the mask are wrong" if at else "a weight, a norm's eps or the head is wrong"
        print(f"SmolLM2: your logits differ from {whose} by {away[at]:.2f} from token {at} on; most likely {cause}")
        return 1
    print(
        f"SmolLM2: your own code loads it in {seconds:.1f} s, and its logits equal {whose} up to {away.max():.5f}. "
        "Notebook 10 lets it write and answer."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
