"""The race: bits for each byte of unseen text, after so many minutes of training on this machine.

The text is the course's own (`corpora.first_edition`), divided as `companion train` divides it. What is measured is the
learner's `race.py`, and it is measured here: every token of the held-out documents is scored once, the first of a
document with log2 of the number of tokens, and the tokens must give the text back.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from companion.data.corpora import Document, first_edition, split
from companion.data.yardsticks import Yardstick, yardsticks
from companion.ground.atomic import write_atomic
from companion.ground.display import table
from companion.ground.processor import processor
from companion_school.build.isolated_modules import World
from companion_school.build.keep import keep
from companion_school.build.parts import references
from companion_school.build.race_score import bits_per_byte
from companion_school.build.stages import STAGES
from companion_school.build.stubs import is_untouched, plain_race, stub
from companion_school.build.workspace import read_sources

BOARD, PICTURE, KEPT = "race.json", "race.png", "race"
STAGE = STAGES[11]
_LATE, _SECONDS = 1.2, 5.0  # of its time, and seconds besides, a race may take
PLAIN = "yours, stages 1 to 6"
"""What a race is called whose race.py is not written yet."""


@dataclass(frozen=True)
class Result:
    """One race: whose, how long it was to train and did, and what came out."""

    name: str
    minutes: float
    bits_per_byte: float
    seconds: float
    machine: str
    on: str

    @property
    def is_late(self) -> bool:
        """Whether it took longer than it was given: its figure cannot be compared."""
        return self.seconds > _LATE * 60 * self.minutes + _SECONDS

    @property
    def time(self) -> str:
        """The minutes that it had, and what it took if that was more."""
        return f"{self.minutes:g} min" + (f", but took {self.seconds:.0f} s" if self.is_late else "")


MEASURED = (
    Result("the companion, `companion train`", 1.0, 1.878, 60.0, "two cores", "2026-11-24"),
    Result("the course's race.py", 1.0, 1.855, 60.0, "two cores", "2026-11-24"),
    Result("the course's stages 1 to 6", 5.0, 1.980, 300.0, "a fifth of a core", "2026-11-27"),
)
"""Measured once, on a server; a machine of another speed has others (`--reference` measures there). The stages 1 to 6
raced on a core that others used too, and had 65 of its 300 seconds."""


@cache
def texts() -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    """What is trained on, and what is held out."""
    divided = split(first_edition())
    return divided.train, divided.held_out


@dataclass(frozen=True)
class Run:
    """What one race gave.

    bits:     per byte of the held-out text.
    seconds:  that it took.
    spent:    the seconds of it that the tokenizer took, by function.
    runner:   what the race returned: the model, its merges and its context.
    """

    bits: float
    seconds: float
    spent: Mapping[str, float]
    runner: Any

    def __str__(self) -> str:
        parts = [f"{name} {seconds:.0f} s" for name, seconds in self.spent.items() if seconds >= 0.5]
        left = self.seconds - sum(self.spent.values())
        told = f"It took {self.seconds:.0f} s: {', '.join([*parts, f'everything else {left:.0f} s'])}."
        if self.spent["learn"] > 0.3 * self.seconds:
            told += " Learning the merges ate much of the race: join a pair only in the pieces where it occurs, and"
            told += " count again only what changed (stage 1)."
        return told


def run(code: World, minutes: float) -> Run:
    """Run one race with these files.

    Raises:
        ValueError: for what is no result (`bits_per_byte`).
    """
    train, held_out = texts()
    with _timed(code["tokenizer"], "learn", "encode") as spent:
        start = time.monotonic()
        runner = code.race("\n\n".join(document.text for document in train), 60 * minutes)
        seconds, during = time.monotonic() - start, dict(spent)
    return Run(bits_per_byte(code, runner, [document.text for document in held_out]), seconds, during, runner)


@contextmanager
def _timed(module: Any, *names: str) -> Iterator[dict[str, float]]:
    """Measure how many seconds functions of a module take, for files that import them from now on."""
    spent, before = dict.fromkeys(names, 0.0), {name: getattr(module, name, None) for name in names}

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                return call(*args, **kwargs)
            finally:
                spent[name] += time.monotonic() - began

        return timed

    for name, call in before.items():
        if callable(call):
            setattr(module, name, watched(name, call))
    try:
        yield spent
    finally:
        for name, call in before.items():
            if callable(call):
                setattr(module, name, call)


def race(folder: Path, minutes: float, name: str | None = None, *, reference: bool = False) -> str:
    """Run a race with the files of a folder, keep it, draw it, and give the table.

    As long as race.py is not written, the stages 1 to 6 race as they are.

    reference:  with the course's files. Raises `ValueError` as `run`, or if a file that is needed is not written.
    """
    sources = references(STAGE) if reference else read_sources(folder)
    files = {} if reference else {module: str(folder / f"{module}.py") for module in sources}
    is_plain = is_untouched(STAGE.number, sources.get(STAGE.module, stub(STAGE.number)))
    if is_plain:
        sources, files = sources | {STAGE.module: plain_race()}, files | {STAGE.module: "plain_race.py"}
    code = World(sources, STAGE.module, files)
    try:
        made = run(code, minutes)
    except (NotImplementedError, ModuleNotFoundError) as error:
        needs = "the stages 1 to 6, or a race.py" if is_plain else "all that your race.py uses"
        raise ValueError(f"{folder}: expected {needs}; something is not written yet: {error}") from None
    told = name or ("the course's race.py, here" if reference else PLAIN if is_plain else "yours")
    new = Result(told, minutes, made.bits, made.seconds, processor(), date.today().isoformat())
    before = read_board(folder / BOARD)
    runs = [*before, new]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / BOARD, json.dumps([asdict(one) for one in runs], indent=1))
    marks = yardsticks(*texts())
    draw(folder / PICTURE, runs, marks)
    saved = "" if reference else f"\n{_kept(folder, code, made, before)}"
    return f"{board(runs, marks, new)}\n\n{made}{saved}\n{folder / PICTURE}: the same as a picture"


def _kept(folder: Path, code: World, made: Run, before: Sequence[Result]) -> str:
    """Save the model of a race if it is the best of the learner's so far; what became of it, in a sentence."""
    best = min((one.bits_per_byte for one in before), default=math.inf)
    if made.bits >= best:
        return f"The model is not kept: an earlier one, with {best:.3f} bits per byte, is better."
    try:
        keep(folder / KEPT, code, made.runner.model, made.runner.merges, int(made.runner.context))
    except AttributeError:
        return "The model is not kept: it is no Transformer of stage 5, which the course's commands could read."
    except ValueError as error:
        return f"The model is not kept: {error}"
    return f"The model is kept: companion generate --checkpoint {folder / KEPT}"


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
    rows = [(one.bits_per_byte, one.name, one.time, "<- now" if one is new else one.on)
            for one in (*MEASURED, *runs)]  # fmt: skip
    rows += [(mark.bits_per_byte, mark.name, "", "") for mark in marks]
    lines = [(f"{bits:.3f}", name, minutes, when) for bits, name, minutes, when in sorted(rows, key=lambda row: row[0])]
    return "bits per byte of held-out text, the fewest first\n\n" + table(lines, left=(1, 2, 3), width=None)


def draw(file: Path, runs: Sequence[Result], marks: Sequence[Yardstick]) -> Any:
    """Draw the results against the minutes; the figure, which is written to `file`, too."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    shown = [*MEASURED, *runs]
    minutes = sorted({one.minutes for one in shown})
    axes.set(xscale="log", xlim=(minutes[0] / 2, 12 * minutes[-1]), xticks=minutes, xlabel="minutes of training",
             ylabel="bits per byte of held-out text")  # fmt: skip
    axes.set_xticks(minutes, [f"{at:g}" for at in minutes])
    axes.minorticks_off()
    for mark in marks:
        axes.axhline(mark.bits_per_byte, color="0.75", linewidth=1, zorder=0)
    named = [(mark.bits_per_byte, mark.name) for mark in marks]
    _name(axes, named, 0.99, color="0.4", ha="right", bbox={"color": "white", "pad": 1})
    for one in shown:
        known, last = one in MEASURED, one is shown[-1]
        color = "#0072B2" if known else "#D55E00" if last else "black"
        axes.plot(one.minutes, one.bits_per_byte, "s" if known else "o", color=color,
                  fillstyle="none" if one.is_late else "full")  # fmt: skip
    for at in minutes:
        named = [(one.bits_per_byte, one.name + ", late" * one.is_late) for one in shown if one.minutes == at]
        _name(axes, named, axes.transAxes.inverted().transform(axes.transData.transform((at, 2)))[0] + 0.015)
    axes.set_title("blue: the course, measured once; black: your races; orange: the last", fontsize=9, loc="left")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    return figure


def _name(axes: Any, rows: Sequence[tuple[float, str]], x: float, **look: Any) -> None:
    """Write names beside heights, none over another: from the lowest up, each at least a line above the one before."""
    low, high = axes.get_ylim()
    line, free = 0.042 * (high - low), -math.inf
    for bits, name in sorted(rows):
        free = max(bits, free + line)
        axes.text(x, free, f"{bits:.3f} {name}", transform=axes.get_yaxis_transform(), fontsize=8,
                  va="center_baseline", **look)  # fmt: skip
