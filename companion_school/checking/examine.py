"""The algorithm of a check, which calls an answer on every case of its exercise and reports the faults.

    key_of          collect the exercise's own cases, the derived cases and the rejected inputs
    examine         call every case once, then all once more in reverse order, and give the verdict
    call_faults     find the faults of one call: its value, or else its type, memory and gradients
    _known          find the known mistake that gives the same results

An answer has two marks, and each fault costs one of them. A *right* answer implements the idea. The examination ends at
the first fault that costs this mark. A *robust* answer also copes with what a lesson does not mention: extreme values,
NaN, invalid inputs, memory and types. If the answer is right, the first fault that prevents the robust mark is still
reported, but no points are deducted. A fault costs only the robust mark if its case counts as robust
(`Case.is_robust`), or if its kind is not "value" (`exercise.KINDS`).

The answer runs either in this process (`call.in_this_process`) or in the grader's separate process. This module only
sees the `Outcome` of each call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from .call import Call, Outcome, Result, in_this_process, is_floating
from .compare import MOST_NUMBERS, describe, difference, far_off
from .derived_cases import holds_nan, law_cases, refusal_cases
from .exercise import Answer, Case, Exercise, as_given

LONGEST_INPUT = 400  # characters
_AGAIN = "after other inputs, with tensors in another memory layout and its earlier results overwritten"


@dataclass(frozen=True)
class Verdict:
    """The result of examining an answer, with the reasons for it.

    Attributes:
        result: The result for the first mark, such as right or wrong.
        shows: The property that was violated.
        input: The smallest input that shows the failure, by argument name.
        fault: Description of what was expected and what was returned, beginning with shapes.
        mistake: Message of the known mistake that the answer makes, if any.
        robust: Verdict on the first fault of a right answer that costs the robust mark; None if there is none.
        printed: The first lines that the answer printed while it ran, and the number of further lines.
        already: Description of what a wrong answer gets right; the grader fills it in.
    """

    result: Result
    shows: str = ""
    input: str = ""
    fault: str = ""
    mistake: str | None = None
    robust: Verdict | None = None
    printed: str = ""
    already: str = ""

    @property
    def is_right(self) -> bool:
        """True if the answer earns the mark *right*."""
        return self.result is Result.RIGHT

    @property
    def is_robust(self) -> bool:
        """True if the answer earns both marks."""
        return self.is_right and self.robust is None

    @property
    def strict(self) -> Verdict:
        """The verdict if only robust answers count as right."""
        return self.robust if self.is_right and self.robust is not None else self

    def __str__(self) -> str:
        if self.is_right:
            return "right" if self.robust is None else f"right. What would make it robust:\n{self.robust}"
        lines = [self.shows, f"  with {self.input}" if self.input else "", f"  {self.fault}"]
        if self.mistake:
            lines.append(f"  most likely: {self.mistake}")
        return "\n".join(line for line in lines if line.strip())


# The key of an exercise


@dataclass(frozen=True)
class AnswerKey:
    """All information needed to examine answers to an exercise.

    Attributes:
        names: Names of the answer's arguments.
        cases: The cases, in the order in which they are tried.
        expected: Function that returns the outcome of a right answer on the case with a given index.
        mistakes: For each known mistake, its message and a function that returns its outcome on the case with a given
            index.
        groups: Group number of each case (see `credit`); empty if the points are not divided among groups.
        right: Kinds of faults that cost points in this exercise, in addition to a wrong value.
        offered: Choices of a question; empty if any answer is accepted.
    """

    names: tuple[str, ...]
    cases: tuple[Case, ...]
    expected: Callable[[int], Outcome]
    mistakes: tuple[tuple[str, Callable[[int], Outcome]], ...]
    groups: tuple[int, ...] = ()
    right: Collection[str] = ()
    offered: Sequence[Any] = ()

    @cached_property
    def own_kinds(self) -> tuple[Callable[[int], str | None], ...]:
        """For each known mistake, a cached function that maps a case's index to the kind of its first fault."""
        return tuple(
            cache(lambda index, gives=gives: _first_kind(self, index, gives(index))) for _, gives in self.mistakes
        )

    def is_robust(self, index: int, kind: str) -> bool:
        """Return True if a fault of this kind on the case with this index costs only the robust mark."""
        if "all" in self.right:
            return False
        return self.cases[index].is_robust or (kind != "value" and kind not in self.right)


@dataclass(frozen=True, eq=False)
class KnownMistake:
    """A known mistake, called like an answer. The first call for a case returns the outcome recorded in the key."""

    key: AnswerKey
    answer: Answer
    gives: Callable[[int], Outcome]

    @cached_property
    def _index(self) -> dict[int, int]:
        return {id(case): at for at, case in enumerate(self.key.cases)}

    @cached_property
    def _call(self) -> Call:
        return in_this_process(self.answer)

    def __call__(self, case: Case, again: bool = False, /) -> Outcome:
        return self._call(case, again) if again else self.gives(self._index[id(case)])


def key_of(exercise: Exercise, seed: int = 0) -> AnswerKey:
    """Create the key of an exercise. The reference and the mistakes are run when needed, once per case."""
    own = tuple(_apart(exercise, exercise.inputs(seed)))
    reference = _CalledOnce(in_this_process(exercise.reference))
    right: list[Callable[[Case], Outcome]] = [reference, *(in_this_process(answer) for answer in exercise.variants)]
    cases = (*own, *law_cases(exercise, own, reference, right[1:]), *refusal_cases(own, right))
    if why := exercise.right.get("refusals"):
        cases = tuple(replace(case, right=why) if case.refuse and not case.robust else case for case in cases)
    reference.forget_all_but(cases)

    def gives(answer: Answer) -> Callable[[int], Outcome]:
        call = in_this_process(answer)
        return cache(lambda index: call(cases[index]))

    return AnswerKey(
        tuple(inspect.signature(exercise.reference).parameters),
        cases,
        lambda index: reference(cases[index]),
        tuple((known.message, gives(known.answer)) for known in exercise.mistakes),
        tuple(exercise.group_of(case) for case in cases) if exercise.groups else (),
        tuple(exercise.right),
        exercise.offered,
    )


class _CalledOnce:
    """Cache the reference's outcomes, which are needed both to select cases and to judge answers."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._given: dict[tuple[int, bool, int | None], tuple[Case, Outcome]] = {}

    def __call__(self, case: Case) -> Outcome:
        at = self._place(case)
        if at not in self._given:
            self._given[at] = case, self._call(case)  # keep the case alive, so that its id is not reused
        return self._given[at][1]

    def forget_all_but(self, cases: Iterable[Case]) -> None:
        """Drop the outcomes of cases that were not selected."""
        for at in self._given.keys() - {*map(self._place, cases)}:
            del self._given[at]

    @staticmethod
    def _place(case: Case) -> tuple[int, bool, int | None]:
        return id(case.arguments), case.gradients, case.room  # everything that affects a call


def _apart(exercise: Exercise, cases: Iterable[Case]) -> Iterator[Case]:
    """Yield all cases without gradients, then repeat those that ask for gradients as *robust* cases.

    A tensor that requires gradients is special: numpy rejects it, and it cannot be modified in place. In exercises
    about gradients, the cases are not changed. If the answer takes no arguments, the tolerance is made absolute, so
    that a truncated number is not accepted as a rounded one.
    """
    later = []
    for case in cases:
        if case.tolerance and not case.arguments:
            case = replace(case, tolerance=case.tolerance / (1 + _largest(exercise.reference())))
        if case.gradients and not {"gradients", "all"} & {*exercise.right}:
            later.append(replace(case, robust=case.robust or "gradients are not what the exercise is about"))
            case = replace(case, gradients=False)
        yield case
    yield from later


def _largest(value: Any) -> float:
    """Return the absolute value of a number, or the largest absolute value in a list or tuple of numbers."""
    return max(abs(float(part)) for part in (value if isinstance(value, (list, tuple)) else [value]))


# The examination


def examine(key: AnswerKey, call: Call) -> Verdict:
    """Try an answer on the key's cases in order, up to the first case that shows that the answer is not right.

    If there is none, all cases run once more in reverse order. An answer must give the same result for the same input,
    regardless of other calls, the memory layout, and anything written into earlier results.
    """
    robust: Verdict | None = None
    endless = set()
    for index, again in rounds(key):
        if index in endless:
            continue
        outcome = call(key.cases[index], again)
        if outcome.result is Result.TIMEOUT:
            endless.add(index)
        for is_robust, fault in marked_faults(key, index, again, outcome):
            if not is_robust:
                return verdict_of(key, call, index, again, outcome, fault)
            robust = robust or verdict_of(key, call, index, again, outcome, fault)
    return Verdict(Result.RIGHT, robust=robust)


def rounds(key: AnswerKey) -> Iterator[tuple[int, bool]]:
    """Yield (index, again) for all cases in order, then once more for all cases in reverse order."""
    yield from ((index, False) for index in range(len(key.cases)))
    yield from ((index, True) for index in reversed(range(len(key.cases))))


def marked_faults(key: AnswerKey, index: int, again: bool, outcome: Outcome) -> Iterator[tuple[bool, str]]:
    """Find the faults of a call on a case, and the mark that each of them costs.

    Args:
        key: The key of the exercise.
        index: Index of the case.
        again: True if this is the second call on the case.
        outcome: The outcome of the call.

    Yields:
        A flag that is True if the fault costs only the robust mark, and a sentence that describes the fault.
    """
    for kind, fault in call_faults(key.cases[index], outcome, key.expected(index), key.names):
        everywhere = outcome.result in (Result.REFUSED, Result.MISSING)  # an answer with this fault fails on every case
        yield not everywhere and key.is_robust(index, "again" if again and kind == "value" else kind), fault


def verdict_of(key: AnswerKey, call: Call, index: int, again: bool, outcome: Outcome, fault: str) -> Verdict:
    """Return the verdict on a call that has the given fault."""
    case = key.cases[index]
    if outcome.result is Result.MISSING:
        return Verdict(Result.MISSING, "not written yet", fault=missing(outcome))
    if again:
        said = f"right at first, but not when it was called again {_AGAIN}: {fault}"
        return Verdict(outcome.result or Result.WRONG, case.shows, _input(key.names, case), said)
    if outcome.result is not None:
        return Verdict(outcome.result, case.shows, _input(key.names, case), fault)
    if outcome.error is None and (other := not_offered(outcome.value, key.offered)):
        return Verdict(Result.WRONG, case.shows, fault=other)
    mistake = _known(key, call, index, outcome)
    unexpected = outcome.error is not None and not case.refuse and mistake is None
    result = Result.CRASHED if unexpected else Result.WRONG
    return Verdict(result, case.shows, _input(key.names, case), fault, mistake)


NOT_OFFERED = "expected one of the choices"


def not_offered(value: Any, offered: Sequence[Any]) -> str:
    """Return the message for a value that is not one of a question's choices, or "" if no message is needed."""
    if not offered or as_given(value) in offered:
        return ""
    choices = ", ".join(map(repr, offered[:12])) + ", ..." * (len(offered) > 12)
    return f"{NOT_OFFERED} {choices}; got {describe(value)}"


# Faults of one call


def missing(outcome: Outcome) -> str:
    """Return the message for a function that is not written yet."""
    return outcome.error[1] if outcome.error else "the function has not been written yet"


def call_faults(
    case: Case, outcome: Outcome, expected: Outcome, names: Sequence[str], told: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield the kind (`exercise.KINDS`) and a description of each fault of a call.

    If the value is wrong, nothing else is reported.
    """
    fault = _value_fault(case, outcome, expected, told)
    if fault is not None:
        yield "value", fault
        return
    if case.refuse or outcome.error is not None:
        return
    wanted, value = case.compared(expected.value), case.compared(outcome.value)
    if not case.only_nan:
        exact = difference(value, wanted, case.tolerance, exact_zero=bool(case.exact_zero), told=told)
        if exact is not None:
            yield "type", exact
    if outcome.changed:
        changed = ", ".join(names[i] for i in outcome.changed)
        yield "memory", f"the result is right, but the call wrote into its argument {changed}; work on a copy"
    if outcome.spoiled:
        what = "the call changed what an earlier call had returned; give each its own memory"
        yield "memory", f"the result is right, but {what}"
    if outcome.shared and not case.alias:
        shared = ", ".join(names[i] for i in outcome.shared)
        yield "memory", f"the result is right, but it shares its memory with the argument {shared}; return a copy"
    if case.room is not None and outcome.peak > case.room:
        what = f"the call took {outcome.peak} bytes at once; expected at most {case.room}"
        yield "room", f"the result is right, but {what}"
    if case.gradients:
        yield from _gradient_faults(outcome, expected, case, names, told)


def _value_fault(case: Case, outcome: Outcome, expected: Outcome, told: bool) -> str | None:
    """Describe what is wrong with a call's value or error, ignoring types and precision, or return None."""
    if outcome.result is Result.TIMEOUT:
        return "it did not finish within its time limit" + "; expected a ValueError" * case.refuse
    if outcome.result is Result.CRASHED:
        return "its process ended unexpectedly" + (f": {outcome.error[1]}" if outcome.error else "")
    if outcome.result is Result.REFUSED:
        return outcome.error[1] if outcome.error else "it did something that answers must not do"
    if outcome.result is Result.MISSING:
        return missing(outcome)
    if case.refuse:
        return _refusal_fault(case, outcome)
    if case.only_nan and outcome.error is not None and outcome.error[0] == "ValueError":
        return None
    if outcome.error is not None:
        return f"it raised {outcome.error[0]}: {outcome.error[1]}"
    value, wanted = case.compared(outcome.value), case.compared(expected.value)
    if case.only_nan:
        return None if holds_nan(value) else f"expected NaN in the result, got {describe(value)}"
    zero = bool(case.exact_zero)
    fault = difference(value, wanted, case.tolerance, exact_zero=zero, told=False)
    if fault is None:
        return None
    if far_off(value, wanted, case.tolerance, exact_zero=zero) is None:
        return None
    if not case.arguments and type(value) is type(wanted):
        return f"{describe(value)} is not right"  # the expected value would give the answer away
    return difference(value, wanted, case.tolerance, exact_zero=zero) if told else fault


def _refusal_fault(case: Case, outcome: Outcome) -> str | None:
    if outcome.error is None:
        return f"expected a ValueError, got {describe(outcome.value)}"
    kind, message = outcome.error
    if kind == "ValueError" and case.says not in message:
        return f"expected a ValueError whose message contains {case.says!r}, got one that says: {message}"
    return None if kind == "ValueError" else f"expected a ValueError, got {kind}: {message}"


def _gradient_faults(
    outcome: Outcome, expected: Outcome, case: Case, names: Sequence[str], told: bool
) -> Iterator[tuple[str, str]]:
    floating = [name for name, value in zip(names, case.arguments, strict=False) if is_floating(value)]
    assert expected.gradients is not None
    for name, found, wanted in zip(
        floating, outcome.gradients or [None] * len(floating), expected.gradients, strict=True
    ):
        if wanted is None:
            continue
        if found is None:
            said = f"no gradient flows back to {name}: something is detached on the way"
            yield "gradients", f"the result is right, but {said}"
            continue
        fault = difference(found, wanted, case.tolerance, told=told)
        if fault is not None:
            kind = "type" if far_off(found, wanted, case.tolerance) is None else "gradients"
            yield kind, f"the result is right, but its gradient with respect to {name} is not: {fault}"


# Known mistakes


def _known(key: AnswerKey, call: Call, index: int, outcome: Outcome) -> str | None:
    """Return the message of the known mistake that explains an answer's wrong outcome on a case, or None.

    On this case, the mistake must have the same outcome as the answer, with the same kind of fault. The mistake must
    also agree with the answer on at least half of the other cases that the answer fails, on at least half of those that
    the mistake fails, and on at least half of them all. Cases that must be rejected do not count here, because a
    mistake seldom rejects anything, but an answer may. If several mistakes qualify, the function chooses the one that
    agrees on the most cases that the answer fails. Ties are decided by the number of all cases on which the mistakes
    agree.
    """
    kind = _first_kind(key, index, outcome)
    alike = [
        (message, gives, wrong)
        for (message, gives), wrong in zip(key.mistakes, key.own_kinds, strict=True)
        if same(outcome, gives(index), key.cases[index]) and wrong(index) == kind
    ]
    if not alike:
        return None
    if isinstance(call, KnownMistake) and all(gives is call.gives for _, gives, _ in alike):
        return alike[0][0]  # the answer is this mistake itself, so it agrees on every case
    others = [(at, case, call(case)) for at, case in enumerate(key.cases) if at != index]
    failed = [not case.refuse and _first_kind(key, at, gave) is not None for at, case, gave in others]
    best: tuple[int, int] | None = None
    name = None
    for message, gives, wrong in alike:
        agrees = [same(gave, gives(at), case) for at, case, gave in others]
        its_own = [not case.refuse and wrong(at) is not None for at, case, _ in others]
        asked = [not case.refuse for _, case, _ in others]
        if any(2 * _both(agrees, counted) < sum(counted) for counted in (failed, its_own, asked)):
            continue
        if best is None or (_both(agrees, failed), sum(agrees)) > best:
            best, name = (_both(agrees, failed), sum(agrees)), message
    return name


def _both(first: Sequence[bool], second: Sequence[bool]) -> int:
    return sum(a and b for a, b in zip(first, second, strict=True))


def _first_kind(key: AnswerKey, index: int, outcome: Outcome) -> str | None:
    """Return the kind of the first fault of a call on this case, or None if it has no fault."""
    faults = call_faults(key.cases[index], outcome, key.expected(index), key.names, told=False)
    return next((kind for kind, _ in faults), None)


def same(first: Outcome, second: Outcome, case: Case) -> bool:
    """Return True if two calls on the same case had the same outcome."""
    if first is second:
        return True
    if first.error or second.error:
        return first.error == second.error
    if first.result or second.result or first.changed != second.changed:
        return False
    try:
        if difference(case.compared(first.value), case.compared(second.value), case.tolerance, told=False):
            return False
        if not case.gradients:
            return True
        mine, theirs = first.gradients or (), second.gradients or ()
        return len(mine) == len(theirs) and all(
            (a is None) == (b is None) and (a is None or difference(a, b, case.tolerance, told=False) is None)
            for a, b in zip(mine, theirs, strict=True)
        )
    except TypeError:  # a mistake may return values that cannot be compared
        return False


def _input(names: Sequence[str], case: Case) -> str:
    """Describe the arguments by name. If the line would be too long, show only the shapes of large tensors."""
    for most in (MOST_NUMBERS, 4, 0):
        named = zip(names, case.arguments, strict=False)
        line = ", ".join(f"{name} = {describe(value, most)}" for name, value in named)
        if len(line) <= LONGEST_INPUT:
            break
    return line
