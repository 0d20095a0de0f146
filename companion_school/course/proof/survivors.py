"""Mutation testing of the checks: find mutants of the references that pass a check.

A mutant that passes either reveals a missing test case or is equivalent: it computes the same results as the reference
for every input that the statement allows. If the answer to an exercise is one fixed result, every mutant that passes is
equivalent. For the other exercises, `equivalent.toml` lists the equivalent mutants, with reasons. Listed mutants that
no longer pass are also reported.
"""

from __future__ import annotations

import json
import resource
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from multiprocessing import get_context
from pathlib import Path

from companion.ground.display import count, table
from companion.ground.time_limit import OutOfTime, at_most
from companion.ground.waiting import counted
from companion_school.checking.call import in_this_process
from companion_school.checking.examine import AnswerKey, examine, key_of
from companion_school.checking.exercise import Answer
from companion_school.course.points import is_constant
from companion_school.course.proof.mutants import mutants
from companion_school.exercises.catalogue import exercises, find_exercise

SEEDS = (0, 1, 2)
"""The public seed, which is used for readers, and seeds such as a grader may use."""

WANTED = 0.95
"""Minimum share of mutants, not counting equivalent ones, that the checks must kill."""

# CPU seconds per mutant; memory limit in bytes, beyond what the process uses at its start
_SECONDS, _MEMORY = 1.0, 3 * 2**30


@dataclass(frozen=True)
class Tally:
    """Results for the mutants of one exercise.

    Attributes:
        exercise: Exercise number.
        made: Number of mutants.
        survivors: Changes that pass the check on the public seed and are not equivalent.
        equivalent: Changes that pass and are declared equivalent, or belong to an exercise with one fixed result.
        by_lot: Changes that pass with some seeds and fail with others.
        stale: Changes that are declared equivalent but do not pass or do not exist.
    """

    exercise: str
    made: int = 0
    survivors: tuple[str, ...] = ()
    equivalent: tuple[str, ...] = ()
    by_lot: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()

    @property
    def killed(self) -> int:
        """The number of mutants that the check rejects."""
        return self.made - len(self.survivors) - len(self.equivalent)


@dataclass(frozen=True)
class Report:
    """Tallies of all exercises.

    `holds` is True if enough mutants are killed, every mutant that passes is equivalent, and no declaration is stale.
    """

    tallies: tuple[Tally, ...] = field(default=())

    @property
    def made(self) -> int:
        return sum(tally.made for tally in self.tallies)

    @property
    def killed(self) -> int:
        return sum(tally.killed for tally in self.tallies)

    @property
    def holds(self) -> bool:
        faults = any(tally.survivors or tally.stale for tally in self.tallies)
        return not faults and self.killed >= WANTED * sum(tally.made - len(tally.equivalent) for tally in self.tallies)


@cache
def declared() -> Mapping[str, Mapping[str, str]]:
    """Return the changes that are declared equivalent, with their reasons, by exercise."""
    return tomllib.loads(files(__package__).joinpath("equivalent.toml").read_text(encoding="utf-8"))


def survey(ids: Iterable[str] | None = None, *, jobs: int = 2) -> Report:
    """Try the mutants of some or all exercises.

    Raises:
        ValueError: An exercise does not exist.
    """
    chosen = [find_exercise(id).id for id in (exercises() if ids is None else ids)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin) as pool:
        found = counted(pool.map(tally, chosen), total=len(chosen), unit="exercise")
        return Report(tuple(found))


def tally(id: str) -> Tally:
    """Try the mutants of one exercise."""
    exercise = find_exercise(id)
    keys = [replace(key_of(exercise, seed), mistakes=()) for seed in SEEDS]
    known = declared().get(id, {})
    made = 0
    survivors: list[str] = []
    equivalent: list[str] = []
    by_lot: list[str] = []
    for mutant in mutants(exercise):
        made += 1
        passes = [_passes(keys[0], mutant.answer)]
        if passes[0] is not None:
            passes += [_passes(key, mutant.answer) for key in keys[1:]]
        if passes[0]:
            (equivalent if is_constant(exercise) or mutant.change in known else survivors).append(mutant.change)
        if len(set(passes)) > 1:
            by_lot.append(mutant.change)
    stale = [change for change in known if change not in equivalent]
    return Tally(id, made, *(tuple(changes) for changes in (survivors, equivalent, by_lot, stale)))


def _begin() -> None:
    import torch

    torch.set_num_threads(1)
    if sys.platform == "linux":
        with suppress(OSError, ValueError):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MEMORY,) * 2)


def _passes(key: AnswerKey, answer: Answer) -> bool | None:
    """Return True if an answer is right and robust, or None if it exceeds the time limit."""
    try:
        with at_most(_SECONDS):
            return examine(key, in_this_process(answer)).is_robust
    except OutOfTime:
        return None
    except (RecursionError, MemoryError):
        return False


def as_text(report: Report) -> str:
    """Format a table with one row per exercise, followed by the survivors and the stale declarations."""
    rows: list[Sequence[str]] = []
    for one in report.tallies:
        numbers = (one.made, one.killed, len(one.equivalent), len(one.survivors), len(one.by_lot))
        rows.append((one.exercise, *(f"{number or '.'}" for number in numbers)))
    lines = [table(rows, ("", "mutants", "killed", "equivalent", "pass", "by lot"), indent=0)]
    for one in report.tallies:
        lines += [f"{one.exercise}: passes the check: {change}" for change in one.survivors]
        lines += [f"{one.exercise}: passes on some seeds only: {change}" for change in one.by_lot]
        lines += [f"{one.exercise}: declared in equivalent.toml, but does not pass: {change}" for change in one.stale]
    same = sum(len(one.equivalent) for one in report.tallies)
    lines.append(f"\n{report.killed} of {count(report.made, 'mutant')} killed, {same} compute the same")
    lines.append("everything is as expected" if report.holds else "NOT as expected")
    return "\n".join(lines)


def as_json(report: Report) -> str:
    """Return the report as JSON."""
    rows = [
        {
            "exercise": one.exercise,
            "mutants": one.made,
            "killed": one.killed,
            "equivalent": len(one.equivalent),
            "pass": list(one.survivors),
            "by lot": list(one.by_lot),
            "declared, but does not pass": list(one.stale),
        }
        for one in report.tallies
    ]
    total = {"mutants": report.made, "killed": report.killed, "as it must be": report.holds}
    return json.dumps(total | {"exercises": rows}, indent=1, ensure_ascii=False)
