"""What one answer of a submission earns: the mark of an exercise.

The tests, what they expect, and the decision are here; the student's code is in a process of its own (`sandbox/`).

Points: `points.parts`. The part for the public cases is earned by passing all of them; the part for the hidden cases
by passing all of those on two hidden seeds, and only where the public part is earned. An exercise with groups of cases
has such parts for each group (`checking/credit.py`). Whether a right answer is robust as well is found on the same runs
and costs nobody these points: where a robust case ends the process, all others are tried without such cases. The cases
come in an order that depends on the secret and the student, so that a call's number tells nothing about it. Public and
hidden cases run in processes that share nothing: what an answer saw of a hidden case cannot get into what is said about
a public one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from companion_school.checking.call import Call, Outcome, Result, in_this_process
from companion_school.checking.codec import same_as
from companion_school.checking.credit import ROBUST, earned, examine_groups, group_numbers, with_cases, without_groups
from companion_school.checking.examine import AnswerKey, Verdict, call_faults, examine, key_of
from companion_school.checking.exercise import Answer, Exercise
from companion_school.checking.operator_watch import forbidden_fault
from companion_school.course.grading.sandbox.parent import Found, Program, Run, Worker
from companion_school.course.grading.submissions import Handed
from companion_school.course.hidden_seeds import PUBLIC_SEED, hidden_seeds, keyed
from companion_school.course.points import Part, is_constant, parts
from companion_school.course.written.rubrics import Written

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
class Earned:
    """A part of an exercise's points, and whether its public and its hidden cases have earned theirs."""

    part: Part
    public: bool = False
    hidden: bool = False

    @property
    def points(self) -> float:
        """What the part came to."""
        return self.part.public * self.public + self.part.hidden * self.hidden

    @property
    def most(self) -> float:
        """What it could come to."""
        return self.part.public + self.part.hidden


@dataclass(frozen=True)
class Mark:
    """What one exercise of one submission came to.

    outcome:        one of `OUTCOMES`.
    public, hidden: what was found on these cases; None where they were not tried. The hidden one names no input, no
                    value and nothing that the student's code wrote.
    notes:          on how the answer was found.
    earned:         the points by the groups of cases; a single part where the exercise has none.
    robust:         the answer is right, and nothing was found that it does not stand, public or hidden.
    share:          what a robust answer is worth beside, as a share of the exercise's points.
    section, title: of a part of a project: the heading that it stands under, and its own.
    """

    exercise: Exercise
    outcome: str
    public: Verdict | None = None
    hidden: Verdict | None = None
    notes: tuple[str, ...] = ()
    earned: tuple[Earned, ...] = ()
    robust: bool = False
    share: float = 0.0
    section: str = ""
    title: str = ""

    @property
    def points(self) -> float:
        """What the exercise came to, the extra for a robust answer included."""
        return sum((part.points for part in self.earned), 0.0) + self.robust * self.extra

    @property
    def extra(self) -> float:
        """The points that a robust answer adds."""
        return self.share * self.exercise.points

    @property
    def most(self) -> float:
        """What the exercise could come to."""
        return self.exercise.points + self.extra

    @property
    def unstood(self) -> Verdict | None:
        """What a right answer does not stand; None where it is robust, or not right."""
        found = [verdict for verdict in (self.public, self.hidden) if verdict is not None]
        if not all(verdict.is_right for verdict in found):
            return None
        return next((verdict.robust for verdict in found if verdict.robust is not None), None)


class KeyRing:
    """The keys of the exercises for one instructor's secret; each is made once, for all students."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self._keys: dict[tuple[str, str, int], AnswerKey] = {}  # a solution may be a student's own
        self._hidden: dict[str, list[AnswerKey]] = {}

    def public(self, exercise: Exercise) -> AnswerKey:
        """The key of the public cases."""
        return self._key(exercise, PUBLIC_SEED)

    def hidden(self, exercise: Exercise) -> list[AnswerKey]:
        """The keys of the hidden cases, of a seed each: of those that are new, and that right answers agree on."""
        public = self.public(exercise)
        with _one_by_one:
            if exercise.id not in self._hidden:
                drawn = (self._key(exercise, seed) for seed in hidden_seeds(self.secret, exercise.id))
                self._hidden[exercise.id] = [hidden_key(key, public, exercise.variants) for key in drawn]
            return self._hidden[exercise.id]

    def _key(self, exercise: Exercise, seed: int) -> AnswerKey:
        with _one_by_one:
            if (exercise.id, exercise.solution, seed) not in self._keys:
                key = key_of(exercise, seed)
                mistakes = tuple((message, _locked(gives)) for message, gives in key.mistakes)
                key = replace(key, expected=_locked(key.expected), mistakes=mistakes)
                self._keys[exercise.id, exercise.solution, seed] = key
            return self._keys[exercise.id, exercise.solution, seed]

    def shuffled(self, count: int, *what: str) -> list[int]:
        """0 ... count - 1 in an order that only the secret tells."""
        order = list(range(count))
        random.Random(keyed(self.secret, *what)).shuffle(order)
        return order


def hidden_key(hidden: AnswerKey, public: AnswerKey, variants: Sequence[Answer]) -> AnswerKey:
    """A key with the hidden cases whose arguments no public case has: a table of the public ones is of no use there.

    They show what they do in the words of the public case in their place: no number that was drawn is told. A case on
    which one of the right answers that are known has a fault, as may come with a seed in fifty, is not asked.
    """
    known = {same_as(case.arguments) for case in public.cases}
    new = [index for index, case in enumerate(hidden.cases) if same_as(case.arguments) not in known]
    if len(hidden.cases) == len(public.cases):
        pairs = zip(hidden.cases, public.cases, strict=True)
        hidden = replace(hidden, cases=tuple(replace(case, shows=other.shows) for case, other in pairs))
    calls = [in_this_process(answer) for answer in variants]
    agreed = [index for index in new if not any(_has_fault(hidden, index, call) for call in calls)]
    return with_cases(hidden, agreed)


def _has_fault(key: AnswerKey, index: int, call: Call) -> bool:
    case = key.cases[index]
    return any(call_faults(case, call(case), key.expected(index), key.names, told=False))


def _locked(gives: Callable[[int], Outcome]) -> Callable[[int], Outcome]:
    def get(index: int) -> Outcome:
        with _one_by_one:
            return gives(index)

    return get


def mark(worker: Worker, exercise: Exercise, found: Found, keys: KeyRing, student: str, share: float = 0.0) -> Mark:
    """Mark one exercise of one student: what was found under its name. `share`: that of `Mark`."""
    return begin(worker, exercise, found, keys, student, share)()


def begin(
    worker: Worker, exercise: Exercise, found: Found, keys: KeyRing, student: str, share: float = 0.0
) -> Callable[[], Mark]:
    """Try the public cases of an exercise as `mark` does; what is returned tries the hidden ones and gives the mark."""
    answer, book = found.answer, parts(exercise)

    def made(outcome: str, public: Verdict | None, hidden: Verdict | None, *passed: Sequence[bool]) -> Mark:
        by_part = [*zip(*passed, strict=True)] or [(False, False)] * len(book)
        points = tuple(Earned(part, *both) for part, both in zip(book, by_part, strict=True))
        tried = [verdict for verdict in (public, hidden) if verdict is not None]
        robust = outcome == Result.RIGHT.value and all(verdict.is_robust for verdict in tried)
        return Mark(exercise, outcome, public, hidden, answer.notes, points, robust, share)

    def without_running(result: Result, fault: str) -> Callable[[], Mark]:
        return lambda: made(result.value, Verdict(result, fault=fault), None)

    if answer.program is None and answer.broken is not None:
        return without_running(Result.CRASHED, f"the cell that defines {exercise.name} cannot be read: {answer.broken}")
    if answer.program is None:
        return without_running(Result.MISSING, f"no cell defines a function {exercise.name}")
    if found.used is None:
        return without_running(Result.CRASHED, "its cells can be read, and not together")
    if found.used:
        return without_running(Result.REFUSED, forbidden_fault(found.used))

    program = Program(answer.program, exercise.name, exercise.forbidden)
    nothing = [False] * len(book)
    public_key = keys.public(exercise)
    public, passed = try_answer(worker, program, [public_key], nothing, keys, student, exercise.id, "public")
    if is_constant(exercise):  # the hidden cases would be the same, and the result is the answer
        hidden = _discreet(public, public_key)
        hidden = replace(hidden, fault="it is not the answer") if hidden.result is Result.WRONG else hidden
        return lambda: made(public.result.value, None, hidden, nothing, passed)
    if not passed[0]:
        return lambda: made(public.result.value, public, None)

    def finish() -> Mark:
        failed = [not ok for ok in passed]
        hidden_keys = keys.hidden(exercise)
        tried, hidden_passed = try_answer(worker, program, hidden_keys, failed, keys, student, exercise.id, "hidden")
        outcome = tried if public.is_right else public
        return made(outcome.result.value, public, _discreet(tried, public_key), passed, hidden_passed)

    return finish


def try_answer(
    worker: Worker, program: Program, wanted: Sequence[AnswerKey], failed: Sequence[bool], keys: KeyRing, *what: str
) -> tuple[Verdict, list[bool]]:
    """What is to be said of an answer, and which groups of cases earn their points.

    failed:  groups that are not tried: they have failed already.

    Where an answer ends its process or does not end, on a case of one group, the others are tried without it; where
    that is a robust case, all others are tried without these.
    """
    failed = [*failed]
    told: Verdict | None = None
    weak: Verdict | None = None
    while True:
        left_out = [group for group, has in enumerate(failed) if has] + [ROBUST] * (weak is not None)
        tried = [without_groups(key, left_out) if left_out else key for key in wanted]
        cases = [case for key in tried for case in key.cases]
        order = keys.shuffled(len(cases), *what)
        run = worker.run(program, cases, [*order, *reversed(order)])  # `examine` calls each case twice
        verdict, passed, stopped_at = _outcome_of(tried, run, len(failed))
        if stopped_at == ROBUST:
            weak = verdict
            continue
        if weak is not None and verdict.is_right:
            verdict = replace(verdict, robust=weak)
        told = told or verdict
        if stopped_at is None or stopped_at == 0 or len(failed) == 1:
            return told, [ok and not has for ok, has in zip(passed, failed, strict=True)]
        failed[stopped_at] = True


def _outcome_of(tried: Sequence[AnswerKey], run: Run, groups: int) -> tuple[Verdict, list[bool], int | None]:
    """The verdict, the groups that passed, and the group at whose case the run stopped."""
    at = None
    try:
        verdict = _judged(tried, run)
        if run.stopped is not None:
            if run.at is not None and run.stopped.result is not Result.REFUSED:
                at = [number for key in tried for number in group_numbers(key)][run.at]
            return verdict, [False] * groups, at
        if verdict.is_right:
            return verdict, [True] * groups, None
        call = _recorded(tried, run)
        by_key = [earned(_padded(examine_groups(key, call), groups)) for key in tried]
        return verdict, [all(oks) for oks in zip(*by_key, strict=True)], None
    except Exception as error:  # of a kind that nobody thought of: somebody's result must not stop the class
        fault = f"its result cannot be compared ({type(error).__name__})"
        return Verdict(Result.CRASHED, fault=fault), [False] * groups, None


def _padded(verdicts: Sequence[Verdict], groups: int) -> list[Verdict]:
    """The verdicts, with those of the last groups of which no case was tried."""
    return [*verdicts, *[Verdict(Result.RIGHT)] * (groups - len(verdicts))]


def _recorded(tried: Sequence[AnswerKey], run: Run) -> Callable[..., Outcome]:
    """The calls of a run, to be asked for again."""
    cases = [case for key in tried for case in key.cases]
    outcomes = {id(case): run.outcomes[index] for index, case in enumerate(cases)}
    return lambda case, again=False: outcomes[id(case)][-1 if again else 0]


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
        return examine(key, lambda *_: stopped).strict
    call = _recorded(tried, run)
    robust: Verdict | None = None
    for key in tried:
        verdict = examine(key, call)
        if not verdict.is_right:
            return verdict
        robust = robust or verdict.robust
    return Verdict(Result.RIGHT, robust=robust)


def _discreet(found: Verdict, public: AnswerKey) -> Verdict:
    """What a student may know about hidden cases: the property, in the public ones' words, and the mistake."""
    if found.is_right:
        robust = found.robust and replace(_discreet(found.robust, public), input="")
        return Verdict(Result.RIGHT, robust=robust)
    shows = found.shows if any(case.shows == found.shows for case in public.cases) else ""
    return Verdict(found.result, shows, fault=_DISCREET[found.result], mistake=found.mistake)


TO_MARK = "to mark"
"""How a written answer stands that nobody has marked yet."""


@dataclass(frozen=True)
class Text:
    """A student's written answer; empty where there is none."""

    item: Written
    text: str


@dataclass(frozen=True)
class Graded:
    """One student's marks.

    submission:  "read", or in a word why not.
    fault:       the same in a sentence.
    warning:     what has to be said of how the marks were made, where no wall stood between the code and the grader.
    """

    handed: Handed
    submission: str
    fault: str | None
    marks: tuple[Mark, ...]
    texts: tuple[Text, ...] = ()
    warning: str = ""

    @property
    def points(self) -> float:
        """What the student has earned, written answers aside."""
        return sum((mark.points for mark in self.marks), 0.0)
