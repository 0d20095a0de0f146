"""Prove that the checks work by trying all known answers to every exercise and grading the hostile class."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context

import torch

from companion.ground.display import count, table
from companion.ground.waiting import counted
from companion_school.build.parts import parts
from companion_school.build.stages import STAGES
from companion_school.course.proof.hostile import run_hostile_class
from companion_school.course.proof.seeds import seed_trials
from companion_school.course.proof.verify import SEEDS, Trial, counts, trials
from companion_school.exercises.catalogue import exercises, find_exercise

PLURALS = {
    "reference": "references",
    "variant": "right in another way",
    "stub": "stubs",
    "mistake": "known mistakes",
    "hostile": "hostile students",
    "bounded": "right for some sizes only",
}
MUST = {
    "reference": "pass",
    "variant": "pass",
    "stub": "are reported as not written yet",
    "mistake": "are caught by name",
    "hostile": "earn nothing and end as expected",
    "bounded": "are not right and robust",
}
EACH = ("reference", "variant", "stub", "mistake")
"""Kinds of answers that are tried for every exercise."""
ON_MANY_SEEDS = ("reference", "variant", "bounded")
"""Kinds of answers that `prove_on_seeds` tries."""


@dataclass(frozen=True)
class Proof:
    """The results of a series of trials.

    Attributes:
        exercises: Number of exercises tried.
        trials: All trials and their results.
        kinds: Kinds of answers that the run had to cover.
        seeds: Number of seeds per exercise.
    """

    exercises: int
    trials: tuple[Trial, ...]
    kinds: tuple[str, ...] = (*EACH, "hostile")
    seeds: int = len(SEEDS)

    @property
    def faults(self) -> list[Trial]:
        """The trials with an unexpected result."""
        return [trial for trial in self.trials if trial.fault is not None]

    @property
    def holds(self) -> bool:
        """True if there were no faults and every kind of answer was tried."""
        return not self.faults and {*self.kinds} <= {trial.kind for trial in self.trials}


def prove(ids: Iterable[str] | None = None, *, jobs: int = 2) -> Proof:
    """Try the known answers to all exercises and grade the hostile class, or try only the given exercises.

    Args:
        ids: Numbers of exercises (default: all exercises, plus the hostile class).
        jobs: Number of parallel processes.

    Raises:
        ValueError: An exercise does not exist.
    """
    whole = ids is None
    chosen = [find_exercise(id).id for id in (exercises() if ids is None else ids)]
    found: list[Trial] = []
    with (
        ThreadPoolExecutor(1) as beside,  # in parallel, because a dozen hostile answers just run into the time limit
        _processes(jobs) as pool,
    ):
        of_hostile = beside.submit(run_hostile_class, jobs) if whole else None
        for done in counted(pool.map(_trials, chosen), total=len(chosen), unit="exercise"):
            found += done
        if of_hostile is not None:
            found += of_hostile.result()
    return Proof(len(chosen), tuple(found), (*EACH, "hostile") if whole else _tried(EACH, found))


def prove_on_seeds(ids: Iterable[str] | None, seeds: int, *, jobs: int = 2) -> Proof:
    """Try correct answers on many hidden seeds, and answers that are correct only for some sizes.

    Args:
        ids: Numbers of exercises, and stages of *Your own transformer*, as in "build.3" (default: all exercises and
            stages).
        seeds: Number of hidden seeds to draw.
        jobs: Number of parallel processes.

    Raises:
        ValueError: An exercise or stage does not exist.
    """
    wanted = [*exercises(), *(stage.id for stage in STAGES.values())] if ids is None else [*ids]
    chosen: list[str] = []
    for id in wanted:
        stage = next((stage for stage in STAGES.values() if stage.id == id), None)
        chosen += [part.exercise().id for part in parts(stage.number)] if stage else [find_exercise(id).id]
    with _processes(jobs) as pool:
        tried = pool.map(_seed_trials, chosen, [seeds] * len(chosen))
        found = [trial for done in counted(tried, total=len(chosen), unit="exercise") for trial in done]
    return Proof(len(chosen), tuple(found), ON_MANY_SEEDS if ids is None else _tried(ON_MANY_SEEDS, found), seeds)


def _processes(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,))


def _tried(kinds: Sequence[str], trials: Iterable[Trial]) -> tuple[str, ...]:
    """Return the kinds of answers that a run must cover. For a single exercise, a second correct answer is optional."""
    found = {trial.kind for trial in trials}
    return tuple(kind for kind in kinds if kind in found or kind == "reference")


def _seed_trials(id: str, seeds: int) -> list[Trial]:
    if not id.startswith("build."):
        return list(seed_trials(find_exercise(id), seeds))
    known = (part.exercise() for number in STAGES for part in parts(number))
    return list(seed_trials(next(each for each in known if each.id == id), seeds, strict=False))


def _trials(id: str) -> list[Trial]:
    return list(trials(find_exercise(id)))


def as_text(proof: Proof) -> str:
    """Format the counts, one line per kind of answer, followed by the faults."""
    lines = [f"{count(proof.exercises, 'exercise')}, each on {count(proof.seeds, 'seed')}"]
    tallies = counts(proof.trials)
    rows = []
    for kind in proof.kinds:
        row = tallies.get(kind, {"tried": 0, "as expected": 0})
        rows.append((f"{row['as expected']} of {row['tried']}", PLURALS[kind], MUST[kind]))
    lines.append(table(rows, left=(1, 2)))
    for trial in proof.faults:
        lines.append(f"\n{trial.exercise}, {trial.kind} {trial.name!r}, seed {trial.seed}: {trial.fault}")
    wrong = len(proof.faults)
    lines.append("\neverything is as expected" if proof.holds else f"\nNOT as expected: {count(wrong, 'fault')}")
    return "\n".join(lines)


def as_json(proof: Proof) -> str:
    """Return the counts and faults as JSON."""
    said = {"exercises": proof.exercises, "seeds": proof.seeds, "counts": counts(proof.trials)}
    said |= {"faults": [asdict(trial) for trial in proof.faults], "as it must be": proof.holds}
    return json.dumps(said, indent=1, ensure_ascii=False)
