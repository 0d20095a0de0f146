"""The algorithm of a check: an answer is called on every case of its exercise, and what is wrong is said.

    key_of          what is asked: the exercise's own cases, those of the laws, and what must be refused
    examine         each case is called once, then all once more in reverse, and the verdict is given
    call_faults     what is wrong with one call: its value; or else its type, memory and gradients
    _known          which known mistake gives the same

Each fault belongs to one of the two marks of an answer. *Right* has the idea: the first fault there ends the
examination. *Robust* stands what a lesson does not speak of: extremes, NaN, refusals, memory, and types; of its faults
the first is told to whoever is right, and costs no point. A fault belongs to robust where its case does
(`Case.is_robust`), or where it is of a kind that is not about the value (`exercise.KINDS`).

The answer runs in this process (`call.in_this_process`) or in another that shares nothing with it (the grader's):
here only what it gave is seen, as an `Outcome`.
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
from .exercise import Answer, Case, Exercise

LONGEST_INPUT = 400  # characters
_AGAIN = "after other inputs, with tensors in another memory layout, its former results written into"


@dataclass(frozen=True)
class Verdict:
    """What an examination found.

    result:   right, wrong, ... : the first of the two marks.
    shows:    the property that failed.
    input:    the smallest input that shows it, by argument name.
    fault:    expected and got, shapes first.
    mistake:  the message of the known mistake that the answer makes, if it makes one.
    robust:   of a right answer: the first thing that it does not stand; None where it is robust as well.
    printed:  the first lines that the answer printed while it was tried, and how many more there were.
    """

    result: Result
    shows: str = ""
    input: str = ""
    fault: str = ""
    mistake: str | None = None
    robust: Verdict | None = None
    printed: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the answer has the first mark."""
        return self.result is Result.RIGHT

    @property
    def is_robust(self) -> bool:
        """Whether the answer has both marks."""
        return self.is_right and self.robust is None

    @property
    def strict(self) -> Verdict:
        """The verdict of whoever asks for both marks as one: what is not robust is not right."""
        return self.robust if self.is_right and self.robust is not None else self

    def __str__(self) -> str:
        if self.is_right:
            return "right" if self.robust is None else f"right. What would make it robust:\n{self.robust}"
        lines = [self.shows, f"  with {self.input}" if self.input else "", f"  {self.fault}"]
        if self.mistake:
            lines.append(f"  most likely: {self.mistake}")
        return "\n".join(line for line in lines if line.strip())


# What is asked


@dataclass(frozen=True)
class AnswerKey:
    """What there is to know about an exercise in order to examine answers to it.

    names:     of the answer's arguments.
    cases:     smallest first.
    expected:  what a right answer gives on the case of this index.
    mistakes:  each known mistake's message, and what it gives.
    groups:    the number of each case's group (`credit`); empty where all earn their points together.
    right:     the kinds of faults that cost points here, beside a wrong value.
    """

    names: tuple[str, ...]
    cases: tuple[Case, ...]
    expected: Callable[[int], Outcome]
    mistakes: tuple[tuple[str, Callable[[int], Outcome]], ...]
    groups: tuple[int, ...] = ()
    right: Collection[str] = ()

    @cached_property
    def own_kinds(self) -> tuple[Callable[[int], str | None], ...]:
        """From a case's index, what is first wrong with what each known mistake gives there, found once."""
        return tuple(
            cache(lambda index, gives=gives: _first_kind(self, index, gives(index))) for _, gives in self.mistakes
        )

    def is_robust(self, index: int, kind: str) -> bool:
        """Whether a fault of this kind on the case of this index belongs to the robust ones."""
        if "all" in self.right:
            return False
        return self.cases[index].is_robust or (kind != "value" and kind not in self.right)


@dataclass(frozen=True, eq=False)
class KnownMistake:
    """A known mistake of a key as an answer. What it gives at first the key knows; it is not called again for that."""

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
    """The key that an exercise's reference and known mistakes give: each is called as it is needed, once a case."""
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
    )


class _CalledOnce:
    """What an answer gives on a case, for which it is called once: to see whether the case is one, and to compare."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._given: dict[tuple[int, bool, int | None], tuple[Case, Outcome]] = {}

    def __call__(self, case: Case) -> Outcome:
        at = self._place(case)
        if at not in self._given:
            self._given[at] = case, self._call(case)  # the case, so that no other's arguments come to lie there
        return self._given[at][1]

    def forget_all_but(self, cases: Iterable[Case]) -> None:
        """Of what was only tried nothing is asked any more."""
        for at in self._given.keys() - {*map(self._place, cases)}:
            del self._given[at]

    @staticmethod
    def _place(case: Case) -> tuple[int, bool, int | None]:
        return id(case.arguments), case.gradients, case.room  # all that a call depends on


def _apart(exercise: Exercise, cases: Iterable[Case]) -> Iterator[Case]:
    """The cases, where gradients are not what an exercise is about once without and, after all others, once with them.

    A tensor that wants gradients is no ordinary one: numpy does not take it, and nothing may be written into it. Of an
    answer that is read off, digits are asked: its tolerance is absolute, as a number that is cut off is not rounded.
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
    """The largest number, in size, of a number or a pair of numbers."""
    return max(abs(float(part)) for part in (value if isinstance(value, (list, tuple)) else [value]))


# How an answer is examined


def examine(key: AnswerKey, call: Call) -> Verdict:
    """Try an answer on the key's cases, in their order, up to the first that shows that it is not right.

    Then once more, the last case first: whatever the exercise, an answer gives the same for the same input, whatever it
    was called with in between, however that lies in memory, and whatever was written into its earlier results.
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
    """Each case's index, and whether its call is the second one: all once, and then all once more in reverse."""
    yield from ((index, False) for index in range(len(key.cases)))
    yield from ((index, True) for index in reversed(range(len(key.cases))))


def marked_faults(key: AnswerKey, index: int, again: bool, outcome: Outcome) -> Iterator[tuple[bool, str]]:
    """What is wrong with a call on a case: whether that belongs to robust, and a sentence.

    again:  it is the second call on this case.
    """
    for kind, fault in call_faults(key.cases[index], outcome, key.expected(index), key.names):
        everywhere = outcome.result in (Result.REFUSED, Result.MISSING)  # whatever the case, it is not an answer
        yield not everywhere and key.is_robust(index, "again" if again and kind == "value" else kind), fault


def verdict_of(key: AnswerKey, call: Call, index: int, again: bool, outcome: Outcome, fault: str) -> Verdict:
    """The verdict on a call with this fault."""
    case = key.cases[index]
    if outcome.result is Result.MISSING:
        return Verdict(Result.MISSING, "not written yet", fault=missing(outcome))
    if again:
        said = f"right at first, and not when it was called again {_AGAIN}: {fault}"
        return Verdict(outcome.result or Result.WRONG, case.shows, _input(key.names, case), said)
    if outcome.result is not None:
        return Verdict(outcome.result, case.shows, _input(key.names, case), fault)
    mistake = _known(key, call, index, outcome)
    unexpected = outcome.error is not None and not case.refuse and mistake is None
    result = Result.CRASHED if unexpected else Result.WRONG
    return Verdict(result, case.shows, _input(key.names, case), fault, mistake)


# What is wrong with one call


def missing(outcome: Outcome) -> str:
    """Return what is said of a function in which nothing is written yet."""
    return outcome.error[1] if outcome.error else "the function is still as it was handed out"


def call_faults(
    case: Case, outcome: Outcome, expected: Outcome, names: Sequence[str], told: bool = True
) -> Iterator[tuple[str, str]]:
    """What is wrong with what a call gave, the kind of it and a sentence; nothing where nothing is.

    Where the value is wrong, nothing else is said of the call.
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
    """What is wrong with the value, or with the error in its place; types and digits are asked elsewhere."""
    if outcome.result is Result.TIMEOUT:
        return "it did not end in the time it has"
    if outcome.result is Result.CRASHED:
        return "the process that ran it ended on the way" + (f": {outcome.error[1]}" if outcome.error else "")
    if outcome.result is Result.REFUSED:
        return outcome.error[1] if outcome.error else "it did what an answer may not do"
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
        return f"{describe(value)} is not it"  # the one answer there is stays the reader's to find
    return difference(value, wanted, case.tolerance, exact_zero=zero) if told else fault


def _refusal_fault(case: Case, outcome: Outcome) -> str | None:
    if outcome.error is None:
        return f"expected a ValueError, got {describe(outcome.value)}"
    kind, message = outcome.error
    if kind == "ValueError" and case.says not in message:
        return f"expected a ValueError whose message holds {case.says!r}, got one that says: {message}"
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
            yield kind, f"the result is right, its gradient with respect to {name} is not: {fault}"


# Which mistake it is


def _known(key: AnswerKey, call: Call, index: int, outcome: Outcome) -> str | None:
    """The known mistake that gives the same as the answer: on this case, on half of the others that either fails, and
    on half of all others.

    Of several, the one that gives the same most often, first on what the answer fails and then on what it does not.
    Cases that must be refused count for the latter only: a mistake seldom knows what to refuse, and an answer may.
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
        return alike[0][0]  # it alone, which is like itself on every other case
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
    """How often both are true."""
    return sum(a and b for a, b in zip(first, second, strict=True))


def _first_kind(key: AnswerKey, index: int, outcome: Outcome) -> str | None:
    """The kind of the first thing that is wrong with what a call on this case gave; None where nothing is."""
    faults = call_faults(key.cases[index], outcome, key.expected(index), key.names, told=False)
    return next((kind for kind, _ in faults), None)


def same(first: Outcome, second: Outcome, case: Case) -> bool:
    """Whether two calls on a case gave the same."""
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
    except TypeError:  # what a mistake returns need not be anything that can be expected
        return False


def _input(names: Sequence[str], case: Case) -> str:
    """The arguments by name; where that would be a long line, large tensors by their shape alone."""
    for most in (MOST_NUMBERS, 4, 0):
        named = zip(names, case.arguments, strict=False)
        line = ", ".join(f"{name} = {describe(value, most)}" for name, value in named)
        if len(line) <= LONGEST_INPUT:
            break
    return line
