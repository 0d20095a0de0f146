"""Whether every check does what it must: what is right passes, stubs do not, each known mistake is caught by name."""

from __future__ import annotations

import doctest
import inspect
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from companion_school.checking.call import Result, in_this_process
from companion_school.checking.examine import KnownMistake, examine, key_of
from companion_school.checking.exercise import Answer, Exercise
from companion_school.checking.operator_watch import forbidden_uses
from companion_school.course.points import is_constant

SEEDS = (0, 1, 2, 3, 4)
VARIANTS, MISTAKES, LONGEST_TITLE, MOST_WORDS = 2, 4, 38, 90
"""What an exercise must have: so many other right answers and known mistakes, a title of so many letters at most, and
an idea of so many words."""


@dataclass(frozen=True)
class Trial:
    """One answer that was examined. `fault`: what should not have come out, or None."""

    exercise: str
    kind: str
    name: str
    seed: int
    fault: str | None


def missing(exercise: Exercise) -> Iterator[str]:
    """What an exercise has not and must have, a sentence each."""
    if (number := len(exercise.variants)) < VARIANTS:
        yield f"expected at least {VARIANTS} other right answers (`variant`), got {number}"
    if (number := len(exercise.mistakes)) < MISTAKES:
        yield f"expected at least {MISTAKES} known mistakes, got {number}"
    for known in exercise.mistakes:
        if known.message[0].isupper() or known.message.endswith("."):
            yield f"a mistake's message is told after a colon, without capital and full stop: {known.message!r}"
    if len(exercise.title) > LONGEST_TITLE or not exercise.title[0].isupper():
        yield f"expected a title of at most {LONGEST_TITLE} letters that begins with a capital, got {exercise.title!r}"
    for hint in exercise.hints:
        if not hint.endswith((".", "?")):
            yield f"a hint ends in a full stop or a question mark: {hint!r}"
    if (number := words(exercise.idea)) > MOST_WORDS:
        yield f"expected the idea in at most {MOST_WORDS} words, above the star, got {number}"
    yield from _example_faults(exercise)


def words(idea: str) -> int:
    """The words of a statement's idea: a formula or a piece of code is one; tables and the example are none."""
    text = re.sub(r"^```.*?^```|^\|.*?$", "", idea, flags=re.DOTALL | re.MULTILINE)
    for one in (r"\$\$.*?\$\$", r"\$[^$]*\$", r"`[^`]*`"):
        text = re.sub(one, "x", text, flags=re.DOTALL)
    return sum(1 for word in text.split() if re.search(r"\w", word))


def _example_faults(exercise: Exercise) -> Iterator[str]:
    """What is wrong with the tiny example of a statement: it must be there, and give what the reference gives."""
    if is_constant(exercise):
        return  # its result would be the answer
    if exercise.example is None:
        yield "expected a tiny example in its statement, a block ```python that begins with >>>"
        return
    names = {"torch": torch, "math": math, exercise.name: exercise.reference}
    test = doctest.DocTestParser().get_doctest(exercise.example, names, exercise.id, None, None)
    told: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=told.append)
    yield from (f"its example: {' '.join(text.split())}" for text in told)


def trials(exercise: Exercise, seeds: Sequence[int] = SEEDS) -> Iterator[Trial]:
    """Examine everything that is known about an exercise, on each seed; and whether it has what it must have."""
    for lack in missing(exercise):
        yield Trial(exercise.id, "form", lack, seeds[0], lack)
    right = [("reference", 1, exercise.reference)]
    right += [("variant", number, answer) for number, answer in enumerate(exercise.variants, 1)]
    said = [forbidden_uses(as_answer(answer, exercise.name), exercise.forbidden) for _, _, answer in right]
    for seed in seeds:
        key = key_of(exercise, seed)
        watched = exercise.forbidden if seed == seeds[0] else ()  # the same operators run on every other
        for (kind, number, answer), used in zip(right, said, strict=True):
            verdict = examine(key, in_this_process(answer, watched))
            fault = None if verdict.is_robust else f"should be right and robust, but:\n{verdict}"
            fault = f"uses {', '.join(used)}, which the exercise forbids" if used else fault
            yield Trial(exercise.id, kind, f"{kind} {number}", seed, fault)
        blank = examine(key, in_this_process(stub(exercise)))
        fault = None if blank.result is Result.MISSING else f"should be missing, but:\n{blank}"
        yield Trial(exercise.id, "stub", "stub", seed, fault)
        for known, (_, gives) in zip(exercise.mistakes, key.mistakes, strict=True):
            verdict = examine(key, KnownMistake(key, known.answer, gives)).strict  # told under either mark
            if verdict.is_right:
                fault = "should be caught, but passes"
            elif verdict.mistake != known.message:
                named = verdict.mistake or "no mistake"
                fault = f"should be named, but the check names {named!r}:\n{verdict}"
            else:
                fault = None
            yield Trial(exercise.id, "mistake", known.message, seed, fault)


def as_answer(answer: Answer, name: str) -> str:
    """A known answer as a student writes it: under the exercise's name, without its decorator."""
    text = textwrap.dedent(inspect.getsource(answer))
    return re.sub(r"\A.*?^def \w+", f"def {name}", text, count=1, flags=re.DOTALL | re.MULTILINE)


def stub(exercise: Exercise) -> Any:
    """The function as it is handed out."""
    names: dict[str, Any] = {"torch": torch}
    exec(compile(exercise.stub, f"exercise {exercise.id}", "exec"), names)  # our own text
    return names[exercise.name]


def counts(found: Iterable[Trial]) -> dict[str, dict[str, int]]:
    """For each kind of answer: how many were tried (once each, on all seeds), and how many came out as they must."""
    answers: dict[tuple[str, str, str], bool] = {}
    for trial in found:
        key = trial.exercise, trial.kind, trial.name
        answers[key] = answers.get(key, True) and trial.fault is None
    result: dict[str, dict[str, int]] = {}
    for (_, kind, _), good in answers.items():
        row = result.setdefault(kind, {"tried": 0, "as expected": 0})
        row["tried"] += 1
        row["as expected"] += good
    return result
