"""Verify a stage's check: right answers pass, known mistakes are named, and mutants are caught.

python -m companion_school.build.verify 2 --mutants
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.resources import files

from companion.ground.time_limit import OutOfTime, at_most
from companion_school.build.parts import Part, parts, references
from companion_school.build.stages import STAGES
from companion_school.build.stubs import names, reference
from companion_school.checking.call import Result, in_this_process
from companion_school.checking.examine import AnswerKey, KnownMistake, examine, key_of
from companion_school.checking.exercise import Answer
from companion_school.course.proof.mutants import changed_texts

SEEDS = (0, 1)
"""The seed that readers get, and another, in place of a grader's."""
_SECONDS = 20.0  # CPU time limit for one mutant on one part


def faults(part: Part, seeds: Sequence[int] = SEEDS, naming: Sequence[int] = SEEDS) -> Iterator[str]:
    """Yield a sentence for each fault in a part's check, and nothing if the check works.

    Args:
        part: The part.
        seeds: Seeds with which the reference and the variants must pass.
        naming: Subset of `seeds` with which the check must name each known mistake, which takes most of the time.
    """
    exercise = part.exercise()
    for seed in seeds:
        key = key_of(exercise, seed)
        for number, answer in enumerate([exercise.reference, *exercise.variants]):
            watched = part.watched if seed == seeds[0] else ()  # the code uses the same operators for every seed
            verdict = examine(key, in_this_process(answer, watched))
            if verdict.result is not Result.RIGHT:
                who = f"variant {number}" if number else "the reference"
                yield f"{part.stage.id} {part.name}, seed {seed}: {who} should pass, but:\n{verdict}"
        for known, (_, gives) in zip(exercise.mistakes, key.mistakes, strict=True) if seed in naming else ():
            verdict = examine(key, KnownMistake(key, known.answer, gives))
            if verdict.result is Result.RIGHT:
                yield f"{part.stage.id} {part.name}, seed {seed}: should be noticed: {known.message}"
            elif verdict.mistake != known.message:
                named = f"named as {verdict.mistake!r}" if verdict.mistake else "not named"
                yield f"{part.stage.id} {part.name}, seed {seed}: {named}: {known.message}\n{verdict}"


def equivalent(number: int) -> dict[str, str]:
    """Return the mutants of a stage that are declared equivalent, each with the reason why it is still right."""
    said = tomllib.loads(files("companion_school.build").joinpath("equivalent.toml").read_text("utf-8"))
    return dict(said.get(STAGES[number].module, {}))


def survivors(number: int) -> Iterator[tuple[str, bool]]:
    """Yield each mutant of a stage's reference as "definition: change", and whether it passes the check."""
    module, right = STAGES[number].module, references(STAGES[number])
    keys = [(part, key_of(part.exercise())) for part in parts(number)]
    for name in names(number):
        for change, _, text in changed_texts(reference(number), name):
            first = [pair for pair in keys if pair[0].name.split("_")[0] == name]
            passes = all(
                _passes(key, part.answer(right | {module: text}))
                for part, key in [*first, *(pair for pair in keys if pair not in first)]
            )
            yield f"{name}: {change}", passes


def _passes(key: AnswerKey, answer: Answer) -> bool:
    try:
        with at_most(_SECONDS):
            return examine(key, in_this_process(answer)).is_right
    except OutOfTime:
        return False


def main(arguments: list[str] | None = None) -> int:
    """Verify the checks of some stages, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m companion_school.build.verify", description=__doc__)
    parser.add_argument("stages", type=int, nargs="*", metavar="STAGE", help="by default all")
    parser.add_argument(
        "--mutants",
        action="store_true",
        help="test each reference solution with one deliberate change at a time (takes minutes)",
    )
    options = parser.parse_args(arguments)
    wrong = 0
    for number in options.stages or STAGES:
        found = [fault for part in parts(number) for fault in faults(part)]
        known = sum(len(part.mistakes) for part in parts(number))
        right = sum(len(part.variants) for part in parts(number))
        line = f"stage {number}: {len(parts(number))} parts, {known} mistakes, {right} variants"
        if options.mutants:
            tried = list(survivors(number))
            passed = [change for change, passes in tried if passes]
            found += [f"passes, but is not declared: {change}" for change in passed if change not in equivalent(number)]
            found += [f"declared, but does not pass: {change}" for change in equivalent(number) if change not in passed]
            line += f", {len(tried)} mutants, {len(passed)} of them right"
        print(line, *found, sep="\n  ", flush=True)
        wrong += len(found)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
