"""Trials of an exercise's check: correct answers must pass, stubs must fail, and known mistakes must be named."""

from __future__ import annotations

import doctest
import inspect
import math
import re
import textwrap
from collections.abc import Iterable, Iterator
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
"""Requirements on an exercise: minimum numbers of right variants and of known mistakes, maximum length of the title in
characters, and maximum length of the idea in words."""


@dataclass(frozen=True)
class Trial:
    """Result of checking one answer. `fault` describes the result if it is unexpected; otherwise it is None."""

    exercise: str
    kind: str
    name: str
    seed: int
    fault: str | None


def missing(exercise: Exercise) -> Iterator[str]:
    """Yield a message for each requirement that an exercise does not meet."""
    if (number := len(exercise.variants)) < VARIANTS:
        yield f"expected at least {VARIANTS} other right answers (`variant`), got {number}"
    if (number := len(exercise.mistakes)) < MISTAKES:
        yield f"expected at least {MISTAKES} known mistakes, got {number}"
    for known in exercise.mistakes:
        if known.message[0].isupper() or known.message.endswith("."):
            yield (
                "a mistake's message follows a colon, so it must not begin with a capital or end in a full stop: "
                f"{known.message!r}"
            )
    if len(exercise.title) > LONGEST_TITLE or not exercise.title[0].isupper():
        yield (
            f"expected a title of at most {LONGEST_TITLE} characters that begins with a capital, got {exercise.title!r}"
        )
    for hint in exercise.hints:
        if not hint.endswith((".", "?")):
            yield f"a hint must end in a full stop or a question mark: {hint!r}"
    if (number := words(exercise.idea)) > MOST_WORDS:
        yield f"expected the idea in at most {MOST_WORDS} words, above the star, got {number}"
    yield from _example_faults(exercise)


def words(idea: str) -> int:
    """Count the words in the main part of a statement (its idea).

    A formula or piece of inline code counts as one word. Tables and examples are not counted.
    """
    text = re.sub(r"^```.*?^```|^\|.*?$", "", idea, flags=re.DOTALL | re.MULTILINE)
    for one in (r"\$\$.*?\$\$", r"\$[^$]*\$", r"`[^`]*`"):
        text = re.sub(one, "x", text, flags=re.DOTALL)
    return sum(1 for word in text.split() if re.search(r"\w", word))


def _example_faults(exercise: Exercise) -> Iterator[str]:
    if is_constant(exercise):
        return  # an example would give away the answer
    if exercise.example is None:
        yield "expected a tiny example in its statement, a block ```python that begins with >>>"
        return
    names = {"torch": torch, "math": math, exercise.name: exercise.reference}
    test = doctest.DocTestParser().get_doctest(exercise.example, names, exercise.id, None, None)
    told: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=told.append)
    yield from (f"its example: {' '.join(text.split())}" for text in told)


def trials(exercise: Exercise) -> Iterator[Trial]:
    """Check all known answers to an exercise with each of `SEEDS`, and check that it meets the requirements."""
    for lack in missing(exercise):
        yield Trial(exercise.id, "form", lack, SEEDS[0], lack)
    right = [("reference", 1, exercise.reference)]
    right += [("variant", number, answer) for number, answer in enumerate(exercise.variants, 1)]
    said = [forbidden_uses(as_answer(answer, exercise.name), exercise.forbidden) for _, _, answer in right]
    for seed in SEEDS:
        key = key_of(exercise, seed)
        watched = exercise.forbidden if seed == SEEDS[0] else ()  # the operators are the same for every seed
        for (kind, number, answer), used in zip(right, said, strict=True):
            verdict = examine(key, in_this_process(answer, watched))
            fault = None if verdict.is_robust else f"should be right and robust, but:\n{verdict}"
            fault = f"uses {', '.join(used)}, which the exercise forbids" if used else fault
            yield Trial(exercise.id, kind, f"{kind} {number}", seed, fault)
        blank = examine(key, in_this_process(stub(exercise)))
        fault = None if blank.result is Result.MISSING else f"should be missing, but:\n{blank}"
        yield Trial(exercise.id, "stub", "stub", seed, fault)
        for known, (_, gives) in zip(exercise.mistakes, key.mistakes, strict=True):
            # The feedback for either mark may mention the mistake.
            verdict = examine(key, KnownMistake(key, known.answer, gives)).strict
            if verdict.is_right:
                fault = "should be caught, but passes"
            elif verdict.mistake != known.message:
                named = verdict.mistake or "no mistake"
                fault = f"should be named, but the check names {named!r}:\n{verdict}"
            else:
                fault = None
            yield Trial(exercise.id, "mistake", known.message, seed, fault)


def as_answer(answer: Answer, name: str) -> str:
    """Return the source of a known answer as a student would write it, under the exercise's name and without
    decorators."""
    text = textwrap.dedent(inspect.getsource(answer))
    return re.sub(r"\A.*?^def \w+", f"def {name}", text, count=1, flags=re.DOTALL | re.MULTILINE)


def stub(exercise: Exercise) -> Any:
    """Return an exercise's stub as a function."""
    names: dict[str, Any] = {"torch": torch}
    exec(compile(exercise.stub, f"exercise {exercise.id}", "exec"), names)  # safe, because this package wrote the stub
    return names[exercise.name]


def counts(found: Iterable[Trial]) -> dict[str, dict[str, int]]:
    """For each kind of answer, count how many were tried and how many gave the expected result on all seeds."""
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
