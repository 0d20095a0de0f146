"""The race: bits for each byte of unseen text, after so many minutes of training on this machine.

The text is the course's own (`corpora.first_edition`), divided as `companion train` divides it. What is measured is the
learner's `race.py`, and it is measured here: every token of the held-out documents is scored once, the first of a
document with log2 of the number of tokens, and the tokens must give the text back.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import torch

from companion.data.corpora import Document, first_edition, split
from companion.data.yardsticks import Yardstick, yardsticks
from companion.ground.atomic import write_atomic
from companion.ground.processor import processor
from companion.ground.readable import table
from companion.school.build.folder import read_sources
from companion.school.build.parts import references
from companion.school.build.stages import STAGES
from companion.school.build.world import World

BOARD, PICTURE = "race.json", "race.png"
STAGE = STAGES[11]
_LATE = 1.2  # of its time, and seconds besides, a race may take
_SECONDS = 5.0
_WINDOWS = 16  # at once


@dataclass(frozen=True)
class Result:
    """One race: whose, how long it was to train and did, and what came out."""

    name: str
    minutes: float
    bits_per_byte: float
    seconds: float
    machine: str
    on: str


MEASURED = (
    Result("the companion, `companion train`", 1.0, 1.878, 60.0, "two cores", "2026-11-24"),
    Result("the course's race.py", 1.0, 1.855, 60.0, "two cores", "2026-11-24"),
)
"""Measured once, on two cores of a server; a machine of another speed has others (`--reference` measures there)."""


@cache
def texts() -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    """What is trained on, and what is held out."""
    divided = split(first_edition())
    return divided.train, divided.held_out


def run(code: World, minutes: float) -> tuple[float, float]:
    """One race with these files: bits per byte, and the seconds that the training took.

    Raises `ValueError` for what is no result: far too late, tokens that do not give the text back, other shapes, or
    logits that are no numbers.
    """
    train, held_out = texts()
    start = time.monotonic()
    runner = code.race("\n\n".join(document.text for document in train), 60 * minutes)
    seconds = time.monotonic() - start
    if seconds > _LATE * 60 * minutes + _SECONDS:
        raise ValueError(f"race.py: expected it back after {60 * minutes:g} seconds, it took {seconds:.0f}")
    return bits_per_byte(code, runner, held_out), seconds


def bits_per_byte(code: World, runner: Any, documents: Sequence[Document]) -> float:
    """What a race's model needs for each byte of these documents. Raises as `run`."""
    for name in ("model", "merges", "context"):
        if not hasattr(runner, name):
            raise ValueError(f"race: expected a Runner with model, merges and context; it has no {name}")
    tokenizer, model, context = code["tokenizer"], runner.model, int(runner.context)
    bits = 0.0
    for document in documents:
        ids = list(tokenizer.encode(document.text, runner.merges))
        if tokenizer.decode(ids, runner.merges) != document.text:
            raise ValueError(f"race: the tokens of {document.name} do not give its text back")
        vocab = 256 + len(runner.merges)
        bits += math.log2(vocab)
        bits += _nats(model, torch.tensor(ids), context, vocab) / math.log(2)
    return bits / sum(document.bytes for document in documents)


@torch.no_grad()
def _nats(model: Any, ids: torch.Tensor, context: int, vocab: int) -> float:
    """The sum of -ln p of all tokens but the first, in windows."""
    nats = 0.0
    for start in range(0, len(ids) - 1, context):
        window = ids[None, start : start + context + 1]
        logits = model(window[:, :-1])
        if not isinstance(logits, torch.Tensor) or logits.shape[:2] != window[:, 1:].shape or logits.shape[2] < vocab:
            told = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise ValueError(f"race: expected logits (1, token, {vocab}) of {window.shape[1] - 1} tokens, got {told}")
        # Each logit sees what is before it alone: a model that looks ahead would score for nothing.
        logs = logits.double().log_softmax(-1).gather(-1, window[:, 1:, None])
        nats -= logs.sum().item()
    if not math.isfinite(nats):
        raise ValueError("race: the model gives some of the text no probability, or a number that is none")
    _refuse_looking_ahead(model, ids[None, : min(len(ids), context)], vocab)
    return nats


def _refuse_looking_ahead(model: Any, window: torch.Tensor, vocab: int) -> None:
    """Raises `ValueError` for a model whose logits change with the tokens that come after."""
    middle = window.shape[1] // 2
    other = window.clone()
    other[:, middle:] = (other[:, middle:] + 1) % vocab
    before, after = model(window)[:, :middle], model(other)[:, :middle]
    if middle and not torch.allclose(before.float(), after.float(), rtol=1e-2, atol=1e-2):
        raise ValueError("race: the logits of a token change with the tokens that come after it; that is no prediction")


def race(folder: Path, minutes: float, name: str | None = None, *, reference: bool = False) -> str:
    """Run a race with the files of a folder, keep it, draw it, and give the table.

    reference:  with the course's files. Raises `ValueError` as `run`, or if the folder has no race.py.
    """
    right, sources = references(STAGE), {} if reference else read_sources(folder)
    if not reference and STAGE.module not in sources:
        raise ValueError(f"{folder / STAGE.file}: expected your race, found no file; --reference runs the course's")
    files = {module: str(folder / f"{module}.py") for module in sources}
    code = World(right if reference else sources, STAGE.module, files)
    try:
        bits, seconds = run(code, minutes)
    except NotImplementedError as error:
        raise ValueError(f"{STAGE.file}: something is not written yet: {error}") from None
    told = name or ("the course's race.py, here" if reference else "yours")
    new = Result(told, minutes, bits, seconds, processor(), date.today().isoformat())
    runs = [*read_board(folder / BOARD), new]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / BOARD, json.dumps([asdict(one) for one in runs], indent=1))
    marks = yardsticks(*texts())
    draw(folder / PICTURE, runs, marks)
    return f"{board(runs, marks, new)}\n\n{folder / PICTURE}: the same as a picture"


def read_board(file: Path) -> list[Result]:
    """The races that a file keeps. Raises `ValueError` if it cannot be understood."""
    try:
        return [Result(**one) for one in json.loads(file.read_text("utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError):
        raise ValueError(f"{file}: expected the results of your races; move it away to begin anew") from None


def board(runs: Sequence[Result], marks: Sequence[Yardstick], new: Result | None = None) -> str:
    """All results in a table, the best first."""
    rows = [(one.bits_per_byte, one.name, f"{one.minutes:g} min", "<- now" if one is new else one.on)
            for one in (*MEASURED, *runs)]  # fmt: skip
    rows += [(mark.bits_per_byte, mark.name, "", "") for mark in marks]
    lines = [(f"{bits:.3f}", name, minutes, when) for bits, name, minutes, when in sorted(rows, key=lambda row: row[0])]
    return "bits per byte of held-out text, the fewest first\n\n" + table(lines, left=(1, 2, 3), width=None)


def draw(file: Path, runs: Sequence[Result], marks: Sequence[Yardstick]) -> Any:
    """Draw the results against the minutes; the figure, which is written to `file`, too."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for mark in marks:
        axes.axhline(mark.bits_per_byte, color="0.7", linewidth=1)
        axes.annotate(mark.name, (1, mark.bits_per_byte), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                      fontsize=7, color="0.4")  # fmt: skip
    for known in MEASURED:
        axes.plot(known.minutes, known.bits_per_byte, "s", label=known.name)
    axes.plot(
        [one.minutes for one in runs], [one.bits_per_byte for one in runs], "o", color="black", label="races here"
    )
    axes.set(xlabel="minutes of training", ylabel="bits per byte, held out", xscale="log")
    axes.legend(fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    return figure
