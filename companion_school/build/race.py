"""The race: bits per byte on held-out text after training on this machine for a fixed number of minutes.

Training uses the same stories as `companion build story`, and other stories are held out. The learner's `race.py`
trains a model, and this module scores it. Every token of the held-out documents is scored once. The first token of a
document costs log2 of the vocabulary size. Decoding the tokens must restore the text.
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
from unittest.mock import patch

import torch

from companion.data.baselines import Baseline, baselines
from companion.data.corpora import Document
from companion.data.stories import stories
from companion.ground.atomic import write_atomic
from companion.ground.display import table
from companion.ground.processor import processor
from companion_school.build.isolated_modules import World
from companion_school.build.parts import references
from companion_school.build.race_score import bits_per_byte
from companion_school.build.saved_model import save_model
from companion_school.build.stages import STAGES
from companion_school.build.story import STORIES
from companion_school.build.stubs import is_untouched, plain_race, stub
from companion_school.build.workspace import read_sources, unfinished

_NAMES = 26  # number of names that fit beside the plot
BOARD, PICTURE, KEPT = "race_on_stories.json", "race.png", "race"
HELD_OUT = 100
"""Number of held-out stories, on which each model is scored."""
STAGE = STAGES[11]
_LATE, _SECONDS = 1.2, 5.0  # a race is late if it takes longer than 1.2 times the requested time plus 5 seconds
PLAIN = "yours, stages 1 to 6"
"""Name of a race by a learner who has not written race.py."""


@dataclass(frozen=True)
class Result:
    """The result of one race.

    Attributes:
        name: Name in the table.
        minutes: Requested training time, in minutes.
        bits_per_byte: Score on the held-out text.
        seconds: Actual training time, in seconds.
        machine: Name of the GPU or processor that the model was trained on.
        on: Date of the race, in ISO format.
    """

    name: str
    minutes: float
    bits_per_byte: float
    seconds: float
    machine: str
    on: str

    @property
    def is_late(self) -> bool:
        """True if training took so long that the score is not comparable."""
        return self.seconds > _LATE * 60 * self.minutes + _SECONDS

    @property
    def time(self) -> str:
        """The requested minutes and, if the race was late, its duration."""
        return f"{self.minutes:g} min" + (f", but took {self.seconds:.0f} s" if self.is_late else "")


COURSES = "the course's race.py"
"""Name of a race with the course's files."""


@cache
def texts() -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    """Return the training documents and the held-out documents."""
    told = [Document(f"story {n}", story.text) for n, story in enumerate(stories(STORIES + HELD_OUT))]
    return tuple(told[:STORIES]), tuple(told[STORIES:])


@dataclass(frozen=True)
class Run:
    """The outcome of one race.

    Attributes:
        bits: Bits per byte on the held-out text.
        seconds: Duration of the race.
        spent: Seconds spent in each function of the tokenizer, by function name.
        runner: The learner's `Runner`, with the model, its merges and its context.
        on_gpu: True if the race allocated memory on a GPU.
    """

    bits: float
    seconds: float
    spent: Mapping[str, float]
    runner: Any
    on_gpu: bool = False

    def __str__(self) -> str:
        parts = [f"{name} {seconds:.0f} s" for name, seconds in self.spent.items() if seconds >= 0.5]
        left = self.seconds - sum(self.spent.values())
        told = f"It took {self.seconds:.0f} s: {', '.join([*parts, f'everything else {left:.0f} s'])}."
        if self.spent["learn"] > 0.3 * self.seconds:
            told += " Learning the merges took much of the race: join a pair only in the pieces where it occurs, and"
            told += " recount only what changed (stage 1)."
        return told


def run(code: World, minutes: float) -> Run:
    """Run one race with these files.

    Raises:
        ValueError: If the race returns no valid result (see `bits_per_byte`).
    """
    train, held_out = texts()
    allocated = _allocated()
    with _timed(code["tokenizer"], "learn", "encode") as spent:
        start = time.monotonic()
        runner = code.race("\n\n".join(document.text for document in train), 60 * minutes)
        seconds, during = time.monotonic() - start, dict(spent)
    bits = bits_per_byte(code, runner, [document.text for document in held_out])
    return Run(bits, seconds, during, runner, on_gpu=_allocated() > allocated)


def run_everywhere(code: World, minutes: float) -> list[Run]:
    """Run a race, on the GPU if it uses one. In that case, run it on the CPU too, and return the GPU run last.

    Raises:
        ValueError: If the race returns no valid result (see `bits_per_byte`).
    """
    made = [run(code, minutes)]
    if made[0].on_gpu:
        with patch.object(torch.cuda, "is_available", return_value=False):
            made.insert(0, run(code, minutes))
    return made


def _allocated() -> int:
    """Return the total number of bytes that this process has allocated on the GPU so far."""
    return int(torch.cuda.memory_stats().get("allocated_bytes.all.allocated", 0))


@contextmanager
def _timed(module: Any, *names: str) -> Iterator[dict[str, float]]:
    """Measure the seconds spent in a module's functions by files that import these functions after this call."""
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


def race(
    folder: Path, minutes: float, name: str | None = None, *, alone: bool = False, say: Callable[[str], None] = print
) -> str:
    """Run a race with the files of a folder, save its result and its model, plot it, and return the table.

    If race.py is not written yet, a plain race that uses stages 1 to 6 is run instead. For comparison, the course's
    race.py is run for the same number of minutes, unless it has already been run today on this machine. A race that
    uses a GPU runs a second time on the processor, so the table has a row for each device.

    Args:
        folder: The learner's folder.
        minutes: Training time.
        name: Name of the run in the table.
        alone: Whether to skip the course's race.
        say: Function called with a progress message before each race.

    Raises:
        ValueError: If the race returns no valid result (see `run`), or a file that it needs is not written yet.
    """
    code, told = _learners(folder, name)
    before = read_board(folder / BOARD)
    say(f"{told} for {minutes:g} min ...")
    made = _of_learner(folder, code, minutes)
    new, runs = [_result(told, minutes, one) for one in made], list(before)
    if not alone and not any(_stands_beside(one, minutes) for one in before):
        say(f"{COURSES} for {minutes:g} min, for comparison (--alone skips it) ...")
        course = World(references(STAGE), STAGE.module)
        runs += [_result(COURSES, minutes, one) for one in run_everywhere(course, minutes)]
    runs += new
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / BOARD, json.dumps([asdict(one) for one in runs], indent=1))
    marks = baselines(*texts())
    draw(folder / PICTURE, runs, marks)
    best = min(made, key=lambda one: one.bits)
    return (
        f"{board(runs, marks, new)}\n{_about_gpu(made[-1])}\n\n" + "\n".join(map(str, made)) + "\n"
        f"{_kept(folder, code, best, before)}\n{folder / PICTURE}: the same as a picture"
    )


def _learners(folder: Path, name: str | None) -> tuple[World, str]:
    """Return the learner's files and the name of the run. If race.py is not written yet, the plain race replaces it."""
    sources = read_sources(folder)
    files = {module: str(folder / f"{module}.py") for module in sources}
    is_plain = is_untouched(STAGE.number, sources.get(STAGE.module, stub(STAGE.number)))
    if is_plain:
        sources, files = sources | {STAGE.module: plain_race()}, files | {STAGE.module: "plain_race.py"}
    return World(sources, STAGE.module, files), name or (PLAIN if is_plain else "yours")


def _of_learner(folder: Path, code: World, minutes: float) -> list[Run]:
    try:
        return run_everywhere(code, minutes)
    except (NotImplementedError, ModuleNotFoundError) as error:
        raise unfinished(folder, "stages 1 to 6, or all that your race.py uses,", error) from None


def _result(name: str, minutes: float, made: Run) -> Result:
    machine = torch.cuda.get_device_name() if made.on_gpu else processor()
    return Result(name, minutes, made.bits, made.seconds, machine, date.today().isoformat())


def _about_gpu(last: Run) -> str:
    """Return a sentence that says whether the race ran on a GPU and, if not, why."""
    if not torch.cuda.is_available():
        return "PyTorch found no GPU on this machine, so this race has no GPU row."
    name = torch.cuda.get_device_name()
    if last.on_gpu:
        return f"This race ran on the processor and on the GPU, {name}."
    return (
        f"This race did not use the GPU, {name}, so it has no GPU row. To use it, move the model and each batch to "
        'device = "cuda" if torch.cuda.is_available() else "cpu".'
    )


def _stands_beside(one: Result, minutes: float) -> bool:
    """Return True if this is a result of the course's race, run today on this machine for the same time."""
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
    here = one.machine == machine and one.on == date.today().isoformat()
    return one.name == COURSES and one.minutes == minutes and here and not one.is_late


def _kept(folder: Path, code: World, made: Run, before: Sequence[Result]) -> str:
    """Save the model of a race if it is the learner's best so far. Return a sentence about it."""
    best = min((one.bits_per_byte for one in before if one.name != COURSES), default=math.inf)
    if made.bits >= best:
        return f"The model was not saved: an earlier one, with {best:.3f} bits per byte, is better."
    try:
        save_model(folder / KEPT, code, made.runner.model, made.runner.merges, int(made.runner.context))
    except AttributeError:
        return "The model was not saved: the course's commands can read only a Transformer from stage 5."
    except ValueError as error:
        return f"The model was not saved: {error}"
    return f"The model was saved: companion generate --checkpoint {folder / KEPT}"


def read_board(file: Path) -> list[Result]:
    """Read the results stored in a file; return an empty list if the file does not exist.

    Raises:
        ValueError: If the file cannot be read or parsed.
    """
    try:
        return [Result(**one) for one in json.loads(file.read_text("utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError):
        raise ValueError(f"{file}: expected the results of your races; move the file elsewhere to start over") from None


def board(runs: Sequence[Result], marks: Sequence[Baseline], new: Sequence[Result] = ()) -> str:
    """Format all results as a table, best first, marking the results in `new` as the latest."""
    rows = [(one.bits_per_byte, one.name, one.time, one.machine, "<- now" if one in new else one.on) for one in runs]
    rows += [(mark.bits_per_byte, mark.name, "", "", "") for mark in marks]
    lines = [(f"{bits:.3f}", *rest) for bits, *rest in sorted(rows, key=lambda row: row[0])]
    return "bits per byte of held-out text, best first\n\n" + table(lines, left=(1, 2, 3, 4), width=None)


def draw(file: Path, runs: Sequence[Result], marks: Sequence[Baseline]) -> Any:
    """Plot scores against training minutes, with the names in a column beside the plot; save and return the figure.

    Args:
        file: Output file.
        runs: The results; the last one is highlighted.
        marks: Baselines, drawn as horizontal lines.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5))
    axes = figure.add_axes((0.08, 0.1, 0.5, 0.83))
    shown = [*sorted(runs[:-1], key=lambda one: one.bits_per_byte)[: _NAMES - len(marks) - 1], *runs[-1:]]
    minutes = sorted({one.minutes for one in shown})
    axes.set(xscale="log", xlim=(minutes[0] / 2, 2 * minutes[-1]), xlabel="minutes of training",
             ylabel="bits per byte of held-out text")  # fmt: skip
    axes.set_xticks(minutes, [f"{at:g}" for at in minutes])
    axes.minorticks_off()
    named = [(mark.bits_per_byte, mark.name, "0.4") for mark in marks]
    for bits, _, color in named:
        axes.axhline(bits, color=color, linewidth=0.5, zorder=0)
    for one in shown:
        color = "#D55E00" if one is runs[-1] else "#0072B2" if one.name == COURSES else "black"
        axes.plot(one.minutes, one.bits_per_byte, "o", color=color, fillstyle="none" if one.is_late else "full")
        named.append((one.bits_per_byte, f"{one.name}, {one.minutes:g} min{', late' * one.is_late}", color))
    _name(axes, sorted(named))
    axes.set_title("blue: the course; black: you; orange: your latest", fontsize=9, loc="left")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    return figure


def _name(axes: Any, rows: Sequence[tuple[float, str, str]]) -> None:
    """Place the names in a column on the right, near their values but without overlap, and draw connecting lines."""
    low, high = axes.get_ylim()
    step = 1 / _NAMES
    heights = [(bits - low) / (high - low) for bits, _, _ in rows]
    for at in range(1, len(heights)):  # move each name at least one line above the previous one
        heights[at] = max(heights[at], heights[at - 1] + step)
    limit = 1.0
    for at in reversed(range(len(heights))):  # move names that would stick out of the figure back down
        heights[at] = limit = min(heights[at], limit)
        limit -= step
    for (bits, name, color), height in zip(rows, heights, strict=True):
        start = (bits - low) / (high - low)
        axes.plot([1, 1.04], [start, height], color=color, linewidth=0.5, transform=axes.transAxes, clip_on=False)
        axes.text(1.05, height, f"{bits:.3f} {name}", transform=axes.transAxes, fontsize=8, va="center", color=color)
