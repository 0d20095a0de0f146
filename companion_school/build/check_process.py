"""The process in which a learner's file is examined (`check`): a line of JSON for each part, in a file.

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

from companion_school.build.isolated_modules import World
from companion_school.build.parts import OPEN, Part, parts, references
from companion_school.build.stages import STAGES, Stage
from companion_school.build.workspace import read_sources
from companion_school.checking.call import Result, copied, in_this_process
from companion_school.checking.examine import AnswerKey, Verdict, examine, key_of
from companion_school.checking.operator_watch import forbidden_fault, forbidden_uses

_GPU = "_on_a_GPU"
_LATER = "it is tried once the parts above are right"


def main(arguments: list[str]) -> int:
    """Examine parts of a stage, and write what was found; the exit code."""
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
            found = examined(part, sources, files, seed)
            wrong |= found["result"] != Result.RIGHT.value
            tell(**found)
            # Of several parts that are wrong, the first is looked into: the others often follow from it.
            if not looked and found["lies_in"] is None and found["result"] in ("wrong", "crashed"):
                looked = True
                tell(place=where(stage, folder))
    return 0


def unreadable(stage: Stage, sources: Mapping[str, str], wanted: list[Part]) -> str | None:
    """Why a learner's files cannot be examined: one is no Python, or uses what it must not."""
    for number in (*stage.needs, stage.number):
        text = sources.get(STAGES[number].module, "")
        without = {name for part in wanted for name in part.without} if number == stage.number else set()
        try:
            used = forbidden_uses(text, without, sources)
        except (SyntaxError, ValueError) as error:
            where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            said = error.msg if isinstance(error, SyntaxError) else str(error)
            return f"{STAGES[number].file}{where}: it is no Python: {said}"
        if used and number == stage.number:
            until = f" (from stage {OPEN} on everything goes)" if "companion" not in used else ""
            return f"{forbidden_fault(used)}{until}"
    return None


def examined(part: Part, sources: Mapping[str, str], files: Mapping[str, str], seed: int = 0) -> dict[str, Any]:
    """What is to be said of a part: its result, what is wrong, and in which stage the fault lies."""
    key = key_of(part.exercise(), seed)
    verdict = _tried(part, key, sources, files)
    found: dict[str, Any] = {"part": part.name, "result": verdict.result.value, "told": "", "lies_in": None}
    if verdict.result is Result.RIGHT:
        said = part.remark(World(sources, part.stage.module, files)) if part.remark else None
        return found | {"told": said or ""}
    earlier = lies_in(part, key, sources, files)
    if earlier is not None:
        other = STAGES[earlier]
        told = (
            f"With the reference of stage {earlier} in place of your {other.file} it is right: the fault lies there.\n"
            f'Check that stage first: check("{other.id}"), or companion build check {earlier}'
        )
        return found | {"told": told, "lies_in": earlier}
    if verdict.result is Result.MISSING:
        return found | {"told": verdict.fault.replace("the function", "it")}
    told = str(verdict)
    if verdict.result is Result.CRASHED and (line := raised_at(part, key, sources, files)) is not None:
        told += f"\n  in {line}"
    return found | {"told": told}


def lies_in(part: Part, key: AnswerKey, sources: Mapping[str, str], files: Mapping[str, str]) -> int | None:
    """The earlier stage whose reference, in place of the learner's file, makes a part right; None if none does.

    Of several that are at fault, the first.
    """
    right = references(part.stage)
    needs = part.stage.needs
    if not needs or _tried(part, key, {**sources, **_of(right, needs)}, files).result is not Result.RIGHT:
        return None
    for number in needs:
        if _tried(part, key, {**sources, **_of(right, (number,))}, files).result is Result.RIGHT:
            return number
    for at, number in enumerate(needs):  # several are at fault: the references up to which are not enough?
        if _tried(part, key, {**sources, **_of(right, needs[at + 1 :])}, files).result is not Result.RIGHT:
            return number
    return needs[0]


def raised_at(part: Part, key: AnswerKey, sources: Mapping[str, str], files: Mapping[str, str]) -> str | None:
    """The line of the learner's files in which the first case that raises does so, with its text."""
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


def _of(right: Mapping[str, str], numbers: tuple[int, ...]) -> dict[str, str]:
    return {STAGES[number].module: right[STAGES[number].module] for number in numbers}


def _tried(part: Part, key: AnswerKey, sources: Mapping[str, str], files: Mapping[str, str]) -> Verdict:
    return examine(key, in_this_process(part.answer(sources, files), part.watched))


def where(stage: Stage, folder: Path) -> str | None:
    """Where the learner's stream leaves the right one, if that can be said."""
    from companion_school.build import first_difference  # only where something is wrong

    try:
        return first_difference.where(stage.number, folder, itself=True)
    except BaseException:  # a word more, and no reason to end, whatever the learner's code raises
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
