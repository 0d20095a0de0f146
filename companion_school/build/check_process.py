"""The process that checks a learner's file (see `check`). It appends its messages to a file as lines of JSON.

python -m companion_school.build.check_process FOLDER STAGE SEED LINES PART ...
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from companion.ground.time_limit import OutOfTime, at_most
from companion_school.build.isolated_modules import World
from companion_school.build.parts import OPEN, Part, parts
from companion_school.build.stage_at_fault import lies_in, tried
from companion_school.build.stages import STAGES, Stage
from companion_school.build.workspace import read_sources
from companion_school.checking.call import Result, copied
from companion_school.checking.examine import AnswerKey, key_of
from companion_school.checking.operator_watch import forbidden_fault, forbidden_uses

_GPU = "_on_a_GPU"
_LATER = "it will be checked once the parts above are right"
_NAMED = "\n  most likely: "


def main(arguments: list[str]) -> int:
    """Check parts of a stage, write the results to a file, and return the exit code."""
    folder, stage, seed, lines = Path(arguments[0]), STAGES[int(arguments[1])], int(arguments[2]), Path(arguments[3])
    torch.set_num_threads(1)
    with lines.open("a", encoding="utf-8") as out:

        def tell(**message: object) -> None:
            out.write(json.dumps(message) + "\n")
            out.flush()

        try:
            sources = read_sources(folder)
        except ValueError as error:
            tell(fault=str(error))
            return 0
        files = {module: str(folder / f"{module}.py") for module in sources}
        wanted = [part for part in parts(stage.number) if part.name in arguments[4:]]
        if (fault := unreadable(stage, sources, wanted)) is not None:
            tell(fault=fault)
            return 0
        looked = wrong = False
        for part in wanted:
            tell(begin=part.name)
            if wrong and part.name.endswith(_GPU):
                tell(part=part.name, result=Result.MISSING.value, told=_LATER, lies_in=None)
                continue
            try:
                with at_most(part.seconds):
                    found = examined(part, sources, files, seed)
            except OutOfTime:
                told = f"it did not finish within {part.seconds:g} seconds"
                found = {"part": part.name, "result": Result.TIMEOUT.value, "told": told, "lies_in": None}
            wrong |= found["result"] != Result.RIGHT.value
            tell(**found)
            # Locate the first difference only for the first wrong part, because later faults often follow from it.
            if not looked and found["lies_in"] is None and found["result"] in ("wrong", "crashed"):
                looked = True
                tell(place=where(stage, folder, guess=_NAMED not in found["told"]))
    return 0


def unreadable(stage: Stage, sources: Mapping[str, str], wanted: list[Part]) -> str | None:
    """Return the reason why a learner's files cannot be checked, such as invalid Python or forbidden names, or None."""
    for number in (*stage.needs, stage.number):
        text = sources.get(STAGES[number].module, "")
        without = {name for part in wanted for name in part.without} if number == stage.number else set()
        try:
            used = forbidden_uses(text, without, sources)
        except (SyntaxError, ValueError) as error:
            where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            said = error.msg if isinstance(error, SyntaxError) else str(error)
            return f"{STAGES[number].file}{where}: it is not valid Python: {said}"
        if used and number == stage.number:
            until = f" (from stage {OPEN} onwards every name is allowed)" if "companion" not in used else ""
            return f"{forbidden_fault(used)}{until}"
    return None


def examined(part: Part, sources: Mapping[str, str], files: Mapping[str, str], seed: int = 0) -> dict[str, Any]:
    """Check one part and return its result as the fields of a `check.Found`.

    Args:
        part: The part to check.
        sources: Text of each of the learner's files, by module name.
        files: Path of each file, by module name.
        seed: Seed of the test cases.
    """
    key = key_of(part.exercise(), seed)
    verdict = tried(part, key, sources, files)
    found: dict[str, Any] = {"part": part.name, "result": verdict.result.value, "told": "", "lies_in": None}
    if verdict.result is Result.RIGHT:
        said = part.remark(World(sources, part.stage.module, files)) if part.remark else None
        return found | {"told": said or ""}
    line = raised_at(part, key, sources, files) if verdict.result is Result.CRASHED else None
    raised = f"\n  in {line}" if line else ""
    earlier = lies_in(part, key, sources, files)
    if earlier is not None:
        other = STAGES[earlier]
        told = (
            f"With the reference of stage {earlier} instead of your {other.file} it is right, so the fault is there.\n"
            f'Check that stage first: check("{other.id}"), or companion build check {earlier}. If it passes, your '
            f"{other.file} lacks something that only this part needs."
        )
        if verdict.result is Result.CRASHED:
            told += f"\nWith your {other.file}: {verdict.fault}{raised}"
        return found | {"told": told, "lies_in": earlier}
    if verdict.result is Result.MISSING:
        return found | {"told": verdict.fault.replace("the function", "it")}
    return found | {"told": f"{verdict}{raised}"}


def raised_at(part: Part, key: AnswerKey, sources: Mapping[str, str], files: Mapping[str, str]) -> str | None:
    """Return the location and text of the learner's line that first raises an exception in the test cases, or None."""
    answer, names = part.answer(sources, files), {file: f"{module}.py" for module, file in files.items()}
    for case in key.cases:
        try:
            answer(*(copied(value, case.gradients) for value in case.arguments))
        except Exception as error:
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in names]
            if not frames:
                return None
            last = frames[-1]
            return f"{names[last.filename]}, line {last.lineno}: {(last.line or '').strip()[:120]}"
    return None


def where(stage: Stage, folder: Path, guess: bool = True) -> str | None:
    """Describe the first tensor that differs from the reference, or return None if no difference was found.

    Args:
        stage: The stage.
        folder: The learner's folder.
        guess: Whether to suggest a fix. Pass False if the test cases have already identified a known mistake, which is
            more informative than a fix guessed from one tensor.
    """
    from companion_school.build import first_difference  # imported late: only needed when something is wrong

    try:
        return first_difference.where(stage.number, folder, itself=True, guess=guess)
    except BaseException:  # the sentence is optional, so exceptions in the learner's code must not end the check
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
