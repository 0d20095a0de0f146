"""What one submission earns, exercise by exercise.

The tests, what they expect, and the decision are here; the student's code is in a process of its own (`sandbox/`).

Points: `seeds.shares`. The part for the public cases is earned by passing all of them; the part for the hidden cases
by passing all of those on two hidden seeds, and only where the public part is earned. The cases come in an order that
depends on the secret and the student, so that a call's number tells nothing about it. Public and hidden cases run in
processes that share nothing: what an answer saw of a hidden case cannot get into what is said about a public one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from companion.checking.examine import AnswerKey, Outcome, Result, Verdict, examine, key_of
from companion.checking.exercise import Case, Exercise
from companion.checking.forbidden import forbidden_fault
from companion.course.grading.sandbox.parent import Found, Program, Run, Worker
from companion.course.grading.submissions import Handed
from companion.course.seeds import PUBLIC_SEED, hidden_seeds, is_constant, keyed, shares

UNREADABLE = "unreadable"
OUTCOMES = (*(result.value for result in Result), UNREADABLE)
"""How an exercise can end, in the CSV and in the feedback."""

_DISCREET = {
    Result.WRONG: "wrong on an input that is not shown",
    Result.MISSING: "not written for an input that is not shown",
    Result.CRASHED: "it raised an error, or ended its process, on an input that is not shown",
    Result.TIMEOUT: "it did not end in the time it has, on an input that is not shown",
    Result.REFUSED: "it did what an answer may not do, on an input that is not shown",
}
_one_by_one = threading.RLock()  # references share PyTorch's generator


@dataclass(frozen=True)
class Mark:
    """What one exercise of one submission came to.

    outcome:        one of `OUTCOMES`.
    public, hidden: what was found on these cases; None where they were not tried. The hidden one names no input, no
                    value and nothing that the student's code wrote.
    notes:          on how the answer was found.
    """

    exercise: Exercise
    outcome: str
    points: float
    public: Verdict | None = None
    hidden: Verdict | None = None
    notes: tuple[str, ...] = ()


class KeyRing:
    """The keys of the exercises for one instructor's secret; each is made once, for all students."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self._keys: dict[tuple[str, int], AnswerKey] = {}

    def public(self, exercise: Exercise) -> AnswerKey:
        """The key of the public cases."""
        return self._key(exercise, PUBLIC_SEED)

    def hidden(self, exercise: Exercise) -> list[AnswerKey]:
        """The keys of the hidden cases, of a seed each."""
        return [self._key(exercise, seed) for seed in hidden_seeds(self.secret, exercise.id)]

    def _key(self, exercise: Exercise, seed: int) -> AnswerKey:
        with _one_by_one:
            if (exercise.id, seed) not in self._keys:
                key = key_of(exercise, seed)
                mistakes = tuple((message, _locked(gives)) for message, gives in key.mistakes)
                self._keys[exercise.id, seed] = replace(key, expected=_locked(key.expected), mistakes=mistakes)
            return self._keys[exercise.id, seed]

    def shuffled(self, count: int, *what: str) -> list[int]:
        """0 ... count - 1 in an order that only the secret tells."""
        order = list(range(count))
        random.Random(keyed(self.secret, *what)).shuffle(order)
        return order


def _locked(gives: Callable[[int], Outcome]) -> Callable[[int], Outcome]:
    def get(index: int) -> Outcome:
        with _one_by_one:
            return gives(index)

    return get


def mark(worker: Worker, exercise: Exercise, found: Found, keys: KeyRing, student: str) -> Mark:
    """Mark one exercise of one student: what was found under its name."""
    answer = found.answer

    def without_running(verdict: Verdict) -> Mark:
        return Mark(exercise, verdict.result.value, 0.0, verdict, None, answer.notes)

    if answer.program is None and answer.broken is not None:
        fault = f"the cell that defines {exercise.name} cannot be read: {answer.broken}"
        return without_running(Verdict(Result.CRASHED, fault=fault))
    if answer.program is None:
        return without_running(Verdict(Result.MISSING, fault=f"no cell defines a function {exercise.name}"))
    if found.used is None:
        return without_running(Verdict(Result.CRASHED, fault="its cells can be read, and not together"))
    if found.used:
        return without_running(Verdict(Result.REFUSED, fault=forbidden_fault(found.used)))

    program = Program(answer.program, exercise.name, exercise.forbidden)
    public_points, hidden_points = shares(exercise)
    public_key = keys.public(exercise)
    public = _try(worker, program, [public_key], keys, student, exercise.id, "public")
    if is_constant(exercise):  # the hidden cases would be the same, and the result is the answer
        hidden = _discreet(public, [public_key], public_key)
        earned = hidden_points if public.result is Result.RIGHT else 0.0
        return Mark(exercise, public.result.value, earned, None, hidden, answer.notes)
    if public.result is not Result.RIGHT:
        return Mark(exercise, public.result.value, 0.0, public, None, answer.notes)
    hidden_keys = keys.hidden(exercise)
    tried = _try(worker, program, hidden_keys, keys, student, exercise.id, "hidden")
    earned = public_points + (hidden_points if tried.result is Result.RIGHT else 0.0)
    return Mark(exercise, tried.result.value, earned, public, _discreet(tried, hidden_keys, public_key), answer.notes)


def _try(worker: Worker, program: Program, tried: Sequence[AnswerKey], keys: KeyRing, *what: str) -> Verdict:
    cases = [case for key in tried for case in key.cases]
    order = keys.shuffled(len(cases), *what)
    run = worker.run(program, cases, [*order, *reversed(order)])  # `examine` calls each case twice
    try:
        return _judged(tried, run)
    except Exception as error:  # of a kind that nobody thought of: somebody's result must not stop the class
        return Verdict(Result.CRASHED, fault=f"its result cannot be compared ({type(error).__name__})")


def _judged(tried: Sequence[AnswerKey], run: Run) -> Verdict:
    cases = [case for key in tried for case in key.cases]
    if run.stopped is not None:
        result, error = run.stopped.result or Result.CRASHED, run.stopped.error
        if result is Result.REFUSED:
            return Verdict(result, fault=error[1] if error else "it did what an answer may not do")
        if run.at is None:
            faults = {Result.TIMEOUT: "the code around it did not end in the time it has"}
            raised = f"the code around it raised {error[0]}: {error[1]}" if error else "its process ended on the way"
            return Verdict(result, "running the code that defines it", fault=faults.get(result, raised))
        key = AnswerKey(tried[0].names, (cases[run.at],), lambda _: Outcome(), ())
        stopped = replace(run.stopped, result=result)
        return examine(key, lambda *_: stopped)
    outcomes = {id(case): run.outcomes[index] for index, case in enumerate(cases)}

    def call(case: Case, again: bool = False) -> Outcome:
        return outcomes[id(case)][-1 if again else 0]

    for key in tried:
        verdict = examine(key, call)
        if verdict.result is not Result.RIGHT:
            return verdict
    return Verdict(Result.RIGHT)


def _discreet(found: Verdict, tried: Sequence[AnswerKey], public: AnswerKey) -> Verdict:
    """What a student may know about hidden cases: the property, in the public ones' words, and the mistake."""
    if found.result is Result.RIGHT:
        return found
    shows = ""
    for key in tried:
        if len(key.cases) == len(public.cases):
            pairs = zip(key.cases, public.cases, strict=True)
            shows = shows or next((known.shows for case, known in pairs if case.shows == found.shows), "")
    return Verdict(found.result, shows, fault=_DISCREET[found.result], mistake=found.mistake)


@dataclass(frozen=True)
class Graded:
    """One student's marks. `submission`: "read", or in a word why not; `fault`: in a sentence."""

    handed: Handed
    submission: str
    fault: str | None
    marks: tuple[Mark, ...]

    @property
    def points(self) -> float:
        """What the student has earned."""
        return sum(mark.points for mark in self.marks)

    @property
    def most(self) -> int:
        """What could be earned."""
        return sum(mark.exercise.points for mark in self.marks)
