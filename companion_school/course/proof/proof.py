"""The proof that every check does what it must: all that is known about every exercise, and the hostile class."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context

from companion.ground.display import count, table
from companion.ground.waiting import counted
from companion_school.course.proof.verify import SEEDS, Trial, counts, trials
from companion_school.exercises.catalogue import exercises, find_exercise

PLURALS = {
    "reference": "references",
    "variant": "right in another way",
    "stub": "stubs",
    "mistake": "known mistakes",
    "hostile": "hostile students",
}
MUST = {
    "reference": "pass",
    "variant": "pass",
    "stub": "are told as not written yet",
    "mistake": "are caught by name",
    "hostile": "gain nothing, and end as they must",
}


@dataclass(frozen=True)
class Proof:
    """All that was tried. `holds`: every trial came out as it must.

    whole: everything there is, the hostile class included; otherwise some exercises alone.
    """

    exercises: int
    trials: tuple[Trial, ...]
    whole: bool = True

    @property
    def faults(self) -> list[Trial]:
        """The trials that came out otherwise than they must."""
        return [trial for trial in self.trials if trial.fault is not None]

    @property
    def holds(self) -> bool:
        """No fault; and something of every kind was tried, since nothing tried proves nothing."""
        return not self.faults and set(self.kinds) <= {trial.kind for trial in self.trials}

    @property
    def kinds(self) -> list[str]:
        """Of `MUST`, what was to be tried."""
        return [kind for kind in MUST if self.whole or kind != "hostile"]


def prove(
    ids: Iterable[str] | None = None, *, jobs: int = 2, hostile: Callable[[int], Iterable[Trial]] | None = None
) -> Proof:
    """Try everything, or some exercises alone.

    ids:      exercises; all by default, and then the hostile class as well.
    jobs:     processes at once.
    hostile:  runs the hostile class in so many processes; by default that of the grader.

    Raises `ValueError` for an exercise that does not exist.
    """
    whole = ids is None
    chosen = [find_exercise(id).id for id in (exercises() if ids is None else ids)]
    found: list[Trial] = []
    with (
        ThreadPoolExecutor(1) as beside,  # a dozen of the hostile class do nothing but wait for the end of their time
        ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_one_thread) as pool,
    ):
        of_hostile = beside.submit(hostile or _hostile_class(), jobs) if whole else None
        for done in counted(pool.map(_trials, chosen), total=len(chosen), unit="exercise"):
            found += done
        if of_hostile is not None:
            found += of_hostile.result()
    return Proof(len(chosen), tuple(found), whole)


def _hostile_class() -> Callable[[int], Iterable[Trial]]:
    from companion_school.course.proof.hostile import run_hostile_class

    return run_hostile_class


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _trials(id: str) -> list[Trial]:
    return list(trials(find_exercise(id)))


def as_text(proof: Proof) -> str:
    """The counts in a line each, and every fault."""
    lines = [f"{count(proof.exercises, 'exercise')}, each on {len(SEEDS)} seeds"]
    tallies = counts(proof.trials)
    rows = []
    for kind in proof.kinds:
        row = tallies.get(kind, {"tried": 0, "as expected": 0})
        rows.append((f"{row['as expected']} of {row['tried']}", PLURALS[kind], MUST[kind]))
    lines.append(table(rows, left=(1, 2)))
    for trial in proof.faults:
        lines.append(f"\n{trial.exercise}, {trial.kind} {trial.name!r}, seed {trial.seed}: {trial.fault}")
    wrong = len(proof.faults)
    lines.append("\neverything is as it must be" if proof.holds else f"\nNOT as it must be: {count(wrong, 'fault')}")
    return "\n".join(lines)


def as_json(proof: Proof) -> str:
    """The same counts and faults, as JSON."""
    said = {"exercises": proof.exercises, "seeds": len(SEEDS), "counts": counts(proof.trials)}
    said |= {"faults": [asdict(trial) for trial in proof.faults], "as it must be": proof.holds}
    return json.dumps(said, indent=1, ensure_ascii=False)
