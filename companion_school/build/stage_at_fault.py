"""If a part of a stage is wrong, find the stage at fault: the stage itself or an earlier one that it uses."""

from __future__ import annotations

from collections.abc import Mapping

from companion_school.build.parts import Part, references
from companion_school.build.stages import STAGES
from companion_school.checking.call import Result, in_this_process
from companion_school.checking.examine import AnswerKey, Verdict, examine


def lies_in(part: Part, key: AnswerKey, sources: Mapping[str, str], files: Mapping[str, str]) -> int | None:
    """Return the number of the earlier stage at fault, or None if the fault is in the stage's own file.

    An earlier stage is at fault if the part becomes right once the learner's file for that stage is replaced with its
    reference. If several stages are at fault together, the first one is returned.
    """
    right = references(part.stage)
    needs = part.stage.needs
    if not needs or tried(part, key, {**sources, **_of(right, needs)}, files).result is not Result.RIGHT:
        return None
    for number in needs:
        if tried(part, key, {**sources, **_of(right, (number,))}, files).result is Result.RIGHT:
            return number
    for at, number in enumerate(needs):  # several stages are at fault, so find the first whose file breaks the part
        if tried(part, key, {**sources, **_of(right, needs[at + 1 :])}, files).result is not Result.RIGHT:
            return number
    return needs[0]


def tried(part: Part, key: AnswerKey, sources: Mapping[str, str], files: Mapping[str, str]) -> Verdict:
    """Examine a part with these sources and return the verdict."""
    return examine(key, in_this_process(part.answer(sources, files), part.watched))


def _of(right: Mapping[str, str], numbers: tuple[int, ...]) -> dict[str, str]:
    return {STAGES[number].module: right[STAGES[number].module] for number in numbers}
