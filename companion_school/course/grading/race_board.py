"""Score the races of a class, ranking the students' models by bits per byte on held-out text.

A race trains in the grader's sandbox and returns the merges of its tokenizer. This process encodes the held-out text
with those merges and the course's tokenizer. It sends windows of the text to the sandbox, one token longer each time,
receives logits for the next token, and computes the bits itself. A race therefore cannot report its own score, read the
text while it trains, or look ahead. One thing is not checked, as the leaderboard says: whether race.py itself contains
the held-out text.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from companion.ground.atomic import write_atomic
from companion.ground.fields import plain
from companion_school.build import isolated_modules, race
from companion_school.build.isolated_modules import World
from companion_school.build.parts import references
from companion_school.build.stubs import is_untouched
from companion_school.checking.call import Outcome, Result
from companion_school.checking.exercise import Case
from companion_school.course.grading.project import TAKEN, sources_of
from companion_school.course.grading.sandbox.parent import Limits, Program, Worker
from companion_school.course.grading.sandbox.wall import Wall
from companion_school.course.grading.submissions import Handed
from companion_school.course.grading.tables import as_csv, quoted

TRUST = "Scores are measured outside the races, on the assumption that no race.py contains the held-out text."
_MOST_MERGES, _LONGEST_CONTEXT = 2**15, 4096
_MOST_LOGITS = 2**17  # maximum number of elements in one reply
_BASELINE = "a baseline"


@dataclass(frozen=True)
class Raced:
    """Result of a student's race.

    Attributes:
        student: The student's name.
        bits_per_byte: The score; None if the race failed.
        seconds: Training time in seconds.
        told: The reason why there is no score, or a note that training took too long; empty if neither applies.
    """

    student: str
    bits_per_byte: float | None
    seconds: float
    told: str = ""


def run_races(
    handed: Sequence[Handed],
    minutes: float,
    memory_gib: float = 2.0,
    wall: Wall | None = None,
    done: Callable[[Raced], None] = lambda _: None,
) -> list[Raced]:
    """Run the races that students have written, one at a time.

    A race trains on the course's text with one thread. Scoring takes another minute or two.

    Args:
        handed: The submissions.
        minutes: Training time allowed for a race, in minutes.
        memory_gib: Memory limit in GiB.
        wall: Isolation of the races from the rest of the system.
        done: Called with each result as soon as it is ready.

    Returns:
        The results in order of bits per byte (lowest first), followed by the races that exceeded the time limit and
        then the failed races.
    """
    found = []
    with Worker(Limits(min(3600.0, 2 * 60 * minutes + 900), memory_gib), wall) as worker:
        for one in handed:
            sources, _ = sources_of(one)
            text = sources.get(race.STAGE.module)
            if text is None or text.startswith(TAKEN) or is_untouched(race.STAGE.number, text):
                continue
            found.append(_raced(worker, one.student, sources, 60.0 * minutes))
            done(found[-1])
    return sorted(found, key=lambda one: (one.bits_per_byte is None, one.told != "", one.bits_per_byte or 0.0))


def _raced(worker: Worker, student: str, sources: Mapping[str, str], seconds: float) -> Raced:
    """Run one race. A race that takes too long keeps its score, but is reported as late."""
    train, held_out = race.texts()

    def measured(call: Callable[[Case], Outcome]) -> Raced:
        trained = call(Case("", ("\n\n".join(document.text for document in train), seconds)))
        took = worker.seconds
        merges, context = _runner(_value(trained))
        bits = _bits(lambda ids: _value(call(Case("", (ids,)))), [one.text for one in held_out], merges, context)
        late = race.Result(student, seconds / 60, bits, took, "", "").is_late
        return Raced(student, bits, took, f"late: {took:.0f} seconds instead of {seconds:g}" * late)

    try:
        program = Program(_program(sources), "answer")
        return worker.talk(program, measured)
    except ValueError as error:
        return Raced(student, None, 0.0, plain(str(error))[:200])


def _value(outcome: Outcome) -> Any:
    if outcome.result is Result.TIMEOUT:
        raise ValueError("it did not return")
    if outcome.error is not None:
        kind, text = outcome.error
        raise ValueError(text if kind == "ValueError" else f"{kind}: {text}")
    if outcome.result is not None:
        raise ValueError("it exited its process")
    return outcome.value


def _runner(value: Any) -> tuple[list[tuple[int, int]], int]:
    match value:
        case [list() as merges, int(context)] if len(merges) <= _MOST_MERGES and 1 <= context <= _LONGEST_CONTEXT:
            pairs = [tuple(pair) for pair in merges if isinstance(pair, (list, tuple))]
            known = (
                len(pair) == 2 and all(type(token) is int and 0 <= token < 256 + at for token in pair)
                for at, pair in enumerate(pairs)
            )
            if len(pairs) == len(merges) and all(known):
                return pairs, context
    raise ValueError(
        f"race: expected a Runner with at most {_MOST_MERGES} merges (pairs of earlier tokens) and a context of 1 to "
        f"{_LONGEST_CONTEXT} tokens"
    )


def _bits(
    logits_of: Callable[[torch.Tensor], Any], texts: Sequence[str], merges: list[tuple[int, int]], context: int
) -> float:
    """Compute bits per byte. Every token is scored once; a text's first token costs log2 of the vocabulary size."""
    tokenizer = World(references(race.STAGE), race.STAGE.module)["tokenizer"]
    vocab = 256 + len(merges)
    ids = [torch.tensor(tokenizer.encode(text, merges)) for text in texts]
    bits = len(texts) * math.log2(vocab)
    windows = [one[start : start + context + 1] for one in ids for start in range(0, len(one) - 1, context)]
    for some in _groups(windows, max(1, _MOST_LOGITS // vocab)):
        bits += _bits_of(logits_of, some, vocab)
    return bits / sum(len(text.encode()) for text in texts)


def _groups(windows: list[torch.Tensor], most: int) -> Iterator[list[torch.Tensor]]:
    """Split the windows into groups of at most `most` windows, with the longest first in each group."""
    by_length = sorted(windows, key=len, reverse=True)
    count = -(-len(by_length) // most)
    yield from (by_length[start::count] for start in range(count))


def _bits_of(logits_of: Callable[[torch.Tensor], Any], windows: list[torch.Tensor], vocab: int) -> float:
    """Return the sum of the bits of all tokens except the first in each window, predicting one position at a time."""
    bits = 0.0
    for length in range(1, len(windows[0])):
        windows = [window for window in windows if len(window) > length]
        logits = logits_of(torch.stack([window[:length] for window in windows]))
        told = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        is_table = isinstance(logits, torch.Tensor) and logits.dim() == 2 and len(logits) == len(windows)
        if not is_table or logits.shape[1] < vocab or not logits.is_floating_point():
            raise ValueError(f"race: expected logits of shape (window, {vocab}) for {len(windows)} windows, got {told}")
        targets = torch.stack([window[length] for window in windows])
        nats = -logits.double().log_softmax(-1).gather(1, targets[:, None]).sum().item()
        if not math.isfinite(nats):
            raise ValueError("race: the model assigns some of the text a probability of zero or NaN")
        bits += nats / math.log(2)
    return bits


def _program(sources: Mapping[str, str]) -> str:
    """Return source code that defines `answer` for a student's race.

    Called with a text, `answer` trains and returns [merges, context]. Called with token ids (window, position), it
    returns the logits of the next token (window, vocabulary).
    """
    return (
        f"{inspect.getsource(isolated_modules)}\n\n"
        f"CODE = World({dict(sources)!r}, {race.STAGE.module!r})\nRUNNER = []\n\n\n"
        "def answer(given, seconds=0.0):\n"
        "    if isinstance(given, str):\n"
        "        RUNNER[:] = [CODE.race(given, seconds)]\n"
        "        for name in ('model', 'merges', 'context'):\n"
        "            if not hasattr(RUNNER[0], name):\n"
        "                raise ValueError(\n"
        "                    f'race: expected a Runner with model, merges and context; it has no {name}')\n"
        "        return [[tuple(pair) for pair in RUNNER[0].merges], int(RUNNER[0].context)]\n"
        "    with torch.no_grad():\n"
        "        return torch.cat([RUNNER[0].model(ids[None])[0, -1:].float() for ids in given])\n"
    )


def board(raced: Sequence[Raced]) -> list[list[str]]:
    """Return a table of the races and baselines, sorted by bits per byte. Only races within the limit are ranked."""
    rows = [(one.bits_per_byte, one.told != "", one.student, one.told) for one in raced]
    rows += [(mark.bits_per_byte, False, mark.name, _BASELINE) for mark in race.baselines(*race.texts())]
    rows.sort(key=lambda row: (row[0] is None, row[0] or 0.0))
    lines, place = [["place", "who", "bits per byte", "note"]], 0
    for bits, out, who, note in rows:
        placed = bits is not None and not out and note != _BASELINE
        place += placed
        lines.append([str(place) if placed else "", who, "" if bits is None else f"{bits:.3f}", note])
    return [*lines, ["", "", "", TRUST]]


def write_table(rows: Sequence[Sequence[str]], file: Path) -> None:
    """Write a table as CSV. Its first row holds the column names."""
    head, *others = rows
    write_atomic(file, as_csv(head, (dict(zip(head, map(quoted, row), strict=True)) for row in others)))
