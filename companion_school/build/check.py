"""Check a stage: report what is right in the learner's file, what is wrong, and which file is at fault.

The learner's code runs in a separate process (`check_process`). That code may exit, print or hang. Anything that goes
wrong is attributed to the part that was running. Each part has a time limit. If a part crashes or takes too long, a new
process checks the remaining parts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from companion_school.build.parts import Part, parts
from companion_school.build.stages import Stage, following
from companion_school.build.workspace import note_passed
from companion_school.checking.call import Result
from companion_school.checking.notebook_answer import NotYet

_START_SECONDS = 300.0  # enough to import PyTorch on a slow or busy machine
# Limit on a part's elapsed time, as a multiple of its limit on processor time, because the machine may be busy.
_BUSY = 5
_RIGHT = Result.RIGHT.value
_LONGEST = 200  # maximum number of characters in a one-line message


@dataclass(frozen=True)
class Found:
    """The result of checking one part.

    Attributes:
        part: The part's name.
        result: The value of a `Result`, such as "right" or "wrong".
        told: A message that explains what is wrong, or a remark on a right answer.
        lies_in: The number of the earlier stage that is at fault, or None if the fault is in this file.
        place: A sentence about the first tensor that differs from the reference, or None if no search was made or it
            found nothing.
    """

    part: str
    result: str
    told: str = ""
    lies_in: int | None = None
    place: str | None = None

    @property
    def briefly(self) -> str:
        """The most informative line of the message: the likely mistake, or else the value that was returned."""
        lines = [line.strip() for line in self.told.splitlines()]
        if self.lies_in is not None or len(lines) == 1:
            return lines[0]
        # Prefer the exception to the likely mistake, because an earlier fault may happen to raise the same exception.
        raised = [line for line in lines if line.startswith("it raised")]
        likely = raised or [line for line in lines if line.startswith("most likely")]
        line = next((line for line in likely or lines[1:] if not line.startswith("with ")), "")
        return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


@dataclass(frozen=True)
class Report:
    """The result of checking a stage.

    Attributes:
        stage: The stage.
        found: The results of its parts.
        fault: The reason why the file cannot be checked at all, or None.
        real_model: The outcome of the check on a real model, as a sentence; empty if the stage has no such check.
        agrees: False if the check on the real model failed.
    """

    stage: Stage
    found: tuple[Found, ...]
    fault: str | None = None
    real_model: str = ""
    agrees: bool = True

    @property
    def is_right(self) -> bool:
        return self.fault is None and self.agrees and all(one.result == _RIGHT for one in self.found)

    @property
    def points(self) -> int:
        worth = {part.name: part.points for part in parts(self.stage.number)}
        return sum(worth[one.part] for one in self.found if one.result == _RIGHT)

    def __str__(self) -> str:
        title = f"{self.stage.id} {self.stage.file}"
        if self.fault is not None:
            return f"{title}: {self.fault}"
        lines, told = [f"{title}: {'right' if self.is_right else 'not yet'}."], False
        for one in self.found:
            part = next(part for part in parts(self.stage.number) if part.name == one.part)
            shows = f"right. {' '.join(part.shows.split())}" if one.result == _RIGHT else one.result
            lines.append(f"  {part.title}: {shows}")
            if one.told:  # later faults often follow from the first one, so they get a single line
                lines += [f"    {line}" for line in ([one.briefly] if told else one.told.splitlines()) if line]
                lines += [f"    {one.place}"] * bool(one.place)
                told = told or one.result not in (Result.MISSING.value, _RIGHT)
        return "\n".join([*lines, *[f"  {self.real_model}"] * bool(self.real_model)])


def examine_stage(
    stage: Stage, folder: Path, *, seed: int = 0, done: Callable[[Found], None] = lambda _: None
) -> Report:
    """Check a stage's file together with the learner's files for earlier stages.

    Args:
        stage: The stage to check.
        folder: The learner's folder.
        seed: Seed of the test cases.
        done: Called with the result of each part as soon as it is known.

    Raises:
        ValueError: If the folder does not contain the stage's file.
    """
    wanted = parts(stage.number)
    if not (folder / stage.file).is_file():
        what = f"expected your file of stage {stage.number}, found none; `companion build start` writes its stub"
        raise ValueError(f"{folder / stage.file}: {what}")
    found: list[Found] = []
    while len(found) < len(wanted):
        left = [part for part in wanted if part.name not in {one.part for one in found}]
        before = len(found)
        fault = _run(stage, folder, left, seed, found, done)
        if fault is not None:
            return Report(stage, tuple(found), fault)
        if len(found) == before:  # the process ended without reporting anything
            found.append(Found(left[0].name, Result.CRASHED.value, "the process that ran it ended unexpectedly"))
    return Report(stage, tuple(found))


def _run(
    stage: Stage, folder: Path, left: Sequence[Part], seed: int, found: list[Found], done: Callable[[Found], None]
) -> str | None:
    """Check parts in a new process. If the file cannot be checked at all, return the reason."""

    def note(one: Found) -> None:
        found.append(one)
        done(one)

    with tempfile.TemporaryDirectory(prefix="companion-build-") as place:
        lines, said = Path(place) / "lines", Path(place) / "said"
        lines.touch()
        command = [
            sys.executable,
            "-m",
            "companion_school.build.check_process",
            str(folder.resolve()),
            str(stage.number),
        ]
        with said.open("wb") as errors, lines.open(encoding="utf-8") as reader:
            process = subprocess.Popen(
                [*command, str(seed), str(lines), *(part.name for part in left)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            try:
                fault, begun = _follow(process, reader, left, note, found)
            finally:
                process.kill()
                process.wait()
        if fault is not None:
            return fault
        words = said.read_text("utf-8", "replace").strip().splitlines()
        if begun is not None:
            last = f": {words[-1][:300]}" if words else "; does something in it call exit?"
            note(Found(begun.name, Result.CRASHED.value, f"the process that ran it ended unexpectedly{last}"))
        elif process.returncode > 0:
            return f"it cannot be checked: {words[-1][:300] if words else 'its process ended without a message'}"
    return None


def _follow(
    process: subprocess.Popen[bytes],
    reader: TextIO,
    left: Sequence[Part],
    note: Callable[[Found], None],
    found: list[Found],
) -> tuple[str | None, Part | None]:
    """Read the messages of the process until it ends or a part takes too long.

    Returns:
        The reason why the file cannot be checked at all, or None; and the part that was running when the process ended
        unexpectedly, or None.
    """
    begun: Part | None = None
    already = len(found)
    end, rest = time.monotonic() + _START_SECONDS, ""
    while True:
        ended = process.poll() is not None
        *whole, rest = (rest + reader.read()).split("\n")
        for line in whole:
            message: dict[str, Any] = json.loads(line)
            if "fault" in message:
                return str(message["fault"]), None
            if "place" in message:
                found[-1] = replace(found[-1], place=message["place"])
            elif "begin" in message:
                begun = next(part for part in left if part.name == message["begin"])
                end = time.monotonic() + _BUSY * begun.seconds
            else:
                note(Found(**message))
                begun, end = None, time.monotonic() + _START_SECONDS
        if ended:
            return None, begun
        if time.monotonic() > end:
            if begun is None and len(found) > already:  # only the search for the first difference is left
                return None, None
            took = f"it did not finish within {begun.seconds:g} seconds" if begun else "it did not start"
            note(Found((begun or left[0]).name, Result.TIMEOUT.value, took))
            return None, None
        time.sleep(0.05)


def with_real_model(report: Report, folder: Path) -> Report:
    """Return the report. If all parts of stage 10 are right, it includes the outcome of the check on SmolLM2."""
    from companion_school.build.real_model import STAGE, try_real_model  # imported late: only stage 10 loads a model

    if report.stage.number != STAGE or not report.is_right:
        return report
    agrees, said = try_real_model(folder)
    return replace(report, real_model=said, agrees=agrees)


def check_stage(stage: Stage, folder: Path) -> None:
    """Check a stage, record the result and print the report. `check("build.5")` calls this function.

    Raises:
        NotYet: If the stage is not right yet; the message is the report.
    """
    report = with_real_model(examine_stage(stage, folder), folder)
    note_passed(folder, stage, report.is_right)
    if not report.is_right:
        raise NotYet(str(report))
    print(report)
    after = following(stage)
    if after is not None:
        needs = ", ".join(f"{lesson:02d}" for lesson in after.lessons)
        several = "s" if len(after.lessons) > 1 else ""
        print(f"Next: stage {after.number}, {after.file}: {after.title}, with lesson{several} {needs}.")
