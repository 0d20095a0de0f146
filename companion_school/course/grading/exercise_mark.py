"""Mark an answer in a submission.

The test cases and the expected results stay in this process, which also decides the mark. The student's code runs in a
separate process (`sandbox/`).

`points.parts` splits the points of an exercise. An answer that passes all public cases earns the public points; if it
also passes all cases of two hidden seeds, it earns the hidden points. If an exercise has groups of cases, each group
has public and hidden points (`checking/credit.py`). The same runs show whether a correct answer is robust. Robustness
cases never affect these points: if a robustness case ends the process, the answer is run again without any of them.

Public cases run in their own order, smallest first, so a crash or a timeout is reported for the smallest input that
causes it. The order of hidden cases depends on the secret and the student, so the number of a call reveals nothing
about its case. Public and hidden cases run in separate processes, so nothing that an answer sees in hidden cases can
leak into the feedback on public cases.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from companion.ground.display import count
from companion_school.checking.call import Call, Outcome, Result, in_this_process
from companion_school.checking.codec import same_as
from companion_school.checking.compare import far_off
from companion_school.checking.credit import ROBUST, earned, examine_groups, group_numbers, with_cases, without_groups
from companion_school.checking.derived_cases import LIMIT, NAMES, ROOM
from companion_school.checking.examine import (
    NOT_OFFERED,
    AnswerKey,
    Verdict,
    call_faults,
    examine,
    key_of,
    marked_faults,
)
from companion_school.checking.exercise import Answer, Exercise
from companion_school.checking.operator_watch import forbidden_fault
from companion_school.course.grading.sandbox.parent import Found, Program, Run, Worker
from companion_school.course.grading.submissions import Handed
from companion_school.course.hidden_seeds import PUBLIC_SEED, hidden_seeds, keyed
from companion_school.course.points import Part, is_constant, parts
from companion_school.course.written.rubrics import Written

UNREADABLE = "unreadable"
OUTCOMES = (*(result.value for result in Result), UNREADABLE)
"""Possible outcomes of an exercise, as shown in marks.csv and in the feedback."""

NOT_IT = "it is not the right answer"
DISCREET = {
    Result.WRONG: "wrong on an input that is not shown",
    Result.MISSING: "not written for an input that is not shown",
    Result.CRASHED: "it raised an error, or its process ended, on an input that is not shown",
    Result.TIMEOUT: "it did not finish within its time limit on an input that is not shown",
    Result.REFUSED: "it did something that answers must not do, on an input that is not shown",
}
_MOST_NAMED = 6  # maximum number of kinds of cases that a page names
_one_by_one = threading.RLock()  # references run in several threads, which share PyTorch's random generator


@dataclass(frozen=True)
class Earned:
    """A part of an exercise's points, with flags that tell whether its public and its hidden points are earned."""

    part: Part
    public: bool = False
    hidden: bool = False

    @property
    def points(self) -> float:
        """Points earned."""
        return self.part.public * self.public + self.part.hidden * self.hidden

    @property
    def most(self) -> float:
        """Maximum points."""
        return self.part.public + self.part.hidden


@dataclass(frozen=True)
class Mark:
    """The result of one exercise in a submission.

    Attributes:
        exercise: The exercise.
        outcome: One of `OUTCOMES`.
        public: Verdict on the public cases, or None if they were not run or must not be shown.
        hidden: Verdict on the hidden cases, or None if they were not run. It contains no inputs, values or anything
            that the student's code wrote.
        notes: Remarks for the student on how the answer was found.
        earned: Points for each group of cases; a single entry if the exercise has no groups.
        robust: True if the answer is correct and no public or hidden case shows a fault that costs the robust mark.
        share: Extra points for a robust answer, as a fraction of the exercise's points.
        section: For a part of a project, the heading above it.
        title: For a part of a project, its own heading.
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
        """Points earned, including the extra points for a robust answer."""
        return sum((part.points for part in self.earned), 0.0) + self.robust * self.extra

    @property
    def extra(self) -> float:
        """Extra points that a robust answer earns."""
        return self.share * self.exercise.points

    @property
    def most(self) -> float:
        """Maximum points, including the extra points for a robust answer."""
        return self.exercise.points + self.extra

    @property
    def unstood(self) -> Verdict | None:
        """The first fault that costs a correct answer the robust mark, or None if the answer is robust or wrong."""
        found = [verdict for verdict in (self.public, self.hidden) if verdict is not None]
        if not all(verdict.is_right for verdict in found):
            return None
        return next((verdict.robust for verdict in found if verdict.robust is not None), None)


class KeyRing:
    """The exercises' answer keys for an instructor's secret. Each key is built once and used for all students."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        # The index includes the solution because all individual versions of a question share an exercise id.
        self._keys: dict[tuple[str, str, int], AnswerKey] = {}
        self._hidden: dict[str, list[AnswerKey]] = {}

    def public(self, exercise: Exercise) -> AnswerKey:
        """Return the key of the public cases."""
        return self._key(exercise, PUBLIC_SEED)

    def hidden(self, exercise: Exercise) -> list[AnswerKey]:
        """Return the keys of the hidden cases, one for each hidden seed, with the cases that `hidden_key` selects."""
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

    def order(self, *what: str) -> Callable[[int], list[int]]:
        """Return a function that shuffles the numbers 0 ... count - 1, depending on the secret and these words."""
        seed = keyed(self.secret, *what)
        return lambda count: random.Random(seed).sample(range(count), count)


def hidden_key(hidden: AnswerKey, public: AnswerKey, variants: Sequence[Answer]) -> AnswerKey:
    """Select the hidden cases to use.

    Cases with the same arguments as a public case are left out, because an answer could look up their results in a
    table. Cases are also left out if an answer known to be correct fails on them; about one seed in fifty yields such a
    case. Each remaining case gets the description of the public case at the same index, so that descriptions reveal no
    numbers drawn from the hidden seed.

    Args:
        hidden: The key of a hidden seed.
        public: The key of the public cases.
        variants: Other answers that are known to be correct.
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


def begin(
    worker: Worker, exercise: Exercise, found: Found, keys: KeyRing, student: str, share: float = 0.0
) -> Callable[[], Mark]:
    """Run an exercise's public cases, and return a function that runs the hidden cases and returns the mark.

    A grader calls `begin` for all exercises before it runs any hidden case.

    Args:
        worker: Runs the student's code.
        exercise: The exercise.
        found: What the submission contains under the exercise's function name.
        keys: The answer keys.
        student: The student's name, on which the order of the hidden cases depends.
        share: Extra points for a robust answer, as a fraction of the exercise's points.
    """
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
        return without_running(Result.MISSING, f"there is no function {exercise.name}")
    if found.used is None:
        return without_running(Result.CRASHED, "its cells are valid Python one by one, but not together")
    if found.used:
        return without_running(Result.REFUSED, forbidden_fault(found.used))

    program = Program(answer.program, exercise.name, exercise.forbidden)
    nothing = [False] * len(book)
    public_key = keys.public(exercise)
    public, passed = try_answer(worker, program, [public_key], nothing)
    if is_constant(exercise):  # with a single case, a public verdict would reveal whether the answer is right
        hidden = _discreet(public, public_key)
        if hidden.result is Result.WRONG:
            hidden = replace(hidden, fault=public.fault if public.fault.startswith(NOT_OFFERED) else NOT_IT)
        return lambda: made(public.result.value, None, hidden, nothing, passed)
    if not passed[0]:
        return lambda: made(public.result.value, public, None)

    def finish() -> Mark:
        failed = [not ok for ok in passed]
        hidden_keys = keys.hidden(exercise)
        order = keys.order(student, exercise.id, "hidden")
        tried, hidden_passed = try_answer(worker, program, hidden_keys, failed, order)
        outcome = tried if public.is_right else public
        return made(outcome.result.value, public, _discreet(tried, public_key), passed, hidden_passed)

    return finish


def try_answer(
    worker: Worker,
    program: Program,
    wanted: Sequence[AnswerKey],
    failed: Sequence[bool],
    order: Callable[[int], Sequence[int]] = range,
) -> tuple[Verdict, list[bool]]:
    """Run an answer on the cases of some keys, and determine which groups of cases it passes.

    If a case ends the process or runs out of time, the answer is run again without that case's group (or without all
    robustness cases if that case is one of them). If the case belongs to the first group, no group can earn points, and
    nothing is run again.

    Args:
        worker: Runs the student's code.
        program: The answer.
        wanted: The keys whose cases to run.
        failed: For each group, True if it has already failed and should not be run.
        order: Function that takes the number of cases and returns the order in which to run them (default: as given).

    Returns:
        The first verdict on the cases that decide the points, and for each group a flag that tells whether it passed.
    """
    failed = [*failed]
    told: Verdict | None = None
    weak: Verdict | None = None
    while True:
        left_out = [group for group, has in enumerate(failed) if has] + [ROBUST] * (weak is not None)
        tried = [without_groups(key, left_out) if left_out else key for key in wanted]
        cases = [case for key in tried for case in key.cases]
        first = order(len(cases))
        run = worker.run(program, cases, [*first, *reversed(first)])  # `examine` runs each case twice
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
    """Return the verdict, the groups that passed, and the group of the case that stopped the run, or None."""
    at = None
    try:
        verdict = _judged(tried, run)
        if not verdict.is_right and groups == 1:
            with suppress(Exception):  # this compares results that `examine` never reached
                verdict = replace(verdict, already=_already(tried[0], run))
        if run.stopped is not None:
            if run.at is not None and run.stopped.result is not Result.REFUSED:
                at = [number for key in tried for number in group_numbers(key)][run.at]
            return verdict, [False] * groups, at
        if verdict.is_right:
            return verdict, [True] * groups, None
        call = _recorded(tried, run)
        by_key = [earned(_padded(examine_groups(key, call), groups)) for key in tried]
        return verdict, [all(oks) for oks in zip(*by_key, strict=True)], None
    except Exception as error:  # unforeseen results must not stop the grading of the whole class
        fault = f"its result cannot be compared ({type(error).__name__})"
        return Verdict(Result.CRASHED, fault=fault), [False] * groups, None


def _already(key: AnswerKey, run: Run) -> str:
    """Say which kinds of cases or which results an answer already gets right, or return "" if there are none."""
    derived = {*NAMES.values(), LIMIT, ROOM}
    asked = [
        index
        for index, case in enumerate(key.cases)
        if index in run.outcomes and not (case.refuse or key.is_robust(index, "value") or case.shows in derived)
    ]
    right: dict[str, bool] = {}
    for index in asked:
        faults = marked_faults(key, index, False, run.outcomes[index][0])
        shows = key.cases[index].shows
        right[shows] = right.get(shows, True) and all(is_robust for is_robust, _ in faults)
    passed = [shows for shows, fine in right.items() if fine]
    if passed:
        named = "; ".join(passed[:_MOST_NAMED]) + "; ..." * (len(passed) > _MOST_NAMED)
        return f"{len(passed)} of {count(len(right), 'kind')} of public cases ({named})"
    pairs = [(run.outcomes[index][0].value, key.expected(index).value, key.cases[index].tolerance) for index in asked]
    several = min((len(wanted) if isinstance(wanted, tuple) else 0 for _, wanted, _ in pairs), default=0)
    alike = [len(value) == len(wanted) for value, wanted, _ in pairs if isinstance(value, (tuple, list)) and several]
    if len(alike) < len(pairs) or not all(alike):
        return ""
    fine = [
        at + 1
        for at in range(several)
        if all(far_off(value[at], wanted[at], tolerance) is None for value, wanted, tolerance in pairs)
    ]
    return f"{'results' if len(fine) > 1 else 'result'} {' and '.join(map(str, fine))} (of {several})" if fine else ""


def _padded(verdicts: Sequence[Verdict], groups: int) -> list[Verdict]:
    """Append "right" verdicts for the last groups if none of their cases ran, so that every group has a verdict."""
    return [*verdicts, *[Verdict(Result.RIGHT)] * (groups - len(verdicts))]


def _recorded(tried: Sequence[AnswerKey], run: Run) -> Callable[..., Outcome]:
    """Return a function that replays the outcomes recorded in a run."""
    cases = [case for key in tried for case in key.cases]
    outcomes = {id(case): run.outcomes[index] for index, case in enumerate(cases)}
    return lambda case, again=False: outcomes[id(case)][-1 if again else 0]


def _judged(tried: Sequence[AnswerKey], run: Run) -> Verdict:
    cases = [case for key in tried for case in key.cases]
    if run.stopped is not None:
        result, error = run.stopped.result or Result.CRASHED, run.stopped.error
        if result is Result.REFUSED:
            return Verdict(result, fault=error[1] if error else "it did something that answers must not do")
        if run.at is None:
            faults = {Result.TIMEOUT: "the code around it did not finish within the time limit"}
            raised = f"the code around it raised {error[0]}: {error[1]}" if error else "its process ended"
            return Verdict(result, "the cells that the answer needs run", fault=faults.get(result, raised))
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
    """Reduce a verdict on hidden cases to what a student may see: the property's public wording, and the mistake."""
    if found.is_right:
        robust = found.robust and replace(_discreet(found.robust, public), input="")
        return Verdict(Result.RIGHT, robust=robust)
    shows = found.shows if any(case.shows == found.shows for case in public.cases) else ""
    return Verdict(found.result, shows, fault=DISCREET[found.result], mistake=found.mistake)


TO_MARK = "to mark"
"""Outcome of a written answer that has not been marked yet."""


@dataclass(frozen=True)
class Text:
    """A student's written answer (possibly empty), and the outputs and pictures beside it (`answers.read_runs`)."""

    item: Written
    text: str
    beside: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Graded:
    """One student's marks.

    Attributes:
        handed: The submission.
        submission: State of the submission: "read", or the reason in one or two words why it could not be read.
        fault: The reason as a sentence; None if there is no problem.
        marks: Marks of the exercises, or of the parts of a project.
        texts: Written answers.
        warning: Warning shown with the marks if the student's code was not isolated from the grader; otherwise empty.
    """

    handed: Handed
    submission: str
    fault: str | None
    marks: tuple[Mark, ...]
    texts: tuple[Text, ...] = ()
    warning: str = ""
