"""Try an answer on every case of its exercise, and say what is wrong with it.

The answer runs in this process (`in_this_process`) or in another that shares nothing with it (the grader's): `examine`
sees only what it gave, as an `Outcome`.
"""

from __future__ import annotations

import inspect
import warnings
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Protocol

import torch

from .compare import MOST_NUMBERS, describe, difference
from .exercise import Answer, Case, Exercise
from .forbidden import forbidden_fault
from .laws import holds_nan, law_cases
from .memory import copied, identical, overwrite, shared_with, with_python_numbers
from .refusals import refusal_cases
from .watch import Watch

LONGEST_INPUT = 400  # characters
KEPT = 8  # earlier results that are looked at again
_AGAIN = "after other inputs, with tensors in another memory layout, its former results written into"


class Result(Enum):
    """How an examination can end."""

    RIGHT = "right"
    WRONG = "wrong"
    MISSING = "missing"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    REFUSED = "refused"


@dataclass(frozen=True)
class Outcome:
    """What one call gave.

    value:      what was returned.
    error:      the type of what was raised, and its message; None if nothing was.
    gradients:  where the case asks: of each floating tensor among the arguments; None where there is none.
    changed:    the arguments, by position, that the call wrote into.
    spoiled:    the call changed what an earlier one had returned.
    shared:     the arguments, by position, with which the result shares memory.
    peak:       where the case asks: the most bytes that the call took at once, beside its arguments.
    result:     MISSING where nothing is written yet, TIMEOUT where the call did not end, CRASHED where it took its
                process along; else None.
    """

    value: Any = None
    error: tuple[str, str] | None = None
    gradients: tuple[torch.Tensor | None, ...] | None = None
    changed: tuple[int, ...] = ()
    result: Result | None = None
    spoiled: bool = False
    shared: tuple[int, ...] = ()
    peak: int = 0


class Call(Protocol):
    """An answer, wherever it runs. `again`: the second call, on arguments that lie in memory in another order."""

    def __call__(self, case: Case, again: bool = False, /) -> Outcome: ...


@dataclass(frozen=True)
class Verdict:
    """What an examination found.

    result:   right, wrong, ...
    shows:    the property that failed.
    input:    the smallest input that shows it, by argument name.
    fault:    expected and got, shapes first.
    mistake:  the message of the known mistake that the answer makes, if it makes one.
    """

    result: Result
    shows: str = ""
    input: str = ""
    fault: str = ""
    mistake: str | None = None

    def __str__(self) -> str:
        if self.result is Result.RIGHT:
            return "right"
        lines = [self.shows, f"  with {self.input}" if self.input else "", f"  {self.fault}"]
        if self.mistake:
            lines.append(f"  most likely: {self.mistake}")
        return "\n".join(line for line in lines if line.strip())


@dataclass(frozen=True)
class AnswerKey:
    """What there is to know about an exercise in order to examine answers to it.

    names:     of the answer's arguments.
    cases:     smallest first.
    expected:  what a right answer gives on the case of this index.
    mistakes:  each known mistake's message, and what it gives.
    groups:    the number of each case's group (`credit`); empty where all earn their points together.
    """

    names: tuple[str, ...]
    cases: tuple[Case, ...]
    expected: Callable[[int], Outcome]
    mistakes: tuple[tuple[str, Callable[[int], Outcome]], ...]
    groups: tuple[int, ...] = ()


def key_of(exercise: Exercise, seed: int = 0) -> AnswerKey:
    """The key that an exercise's reference and known mistakes give: each is called as it is needed, once a case."""
    own = tuple(exercise.inputs(seed))
    right = [in_this_process(answer) for answer in (exercise.reference, *exercise.variants)]
    cases = (*own, *law_cases(exercise, own, right[0]), *refusal_cases(own, right))

    def gives(answer: Answer) -> Callable[[int], Outcome]:
        call = in_this_process(answer)
        return cache(lambda index: call(cases[index]))

    return AnswerKey(
        tuple(inspect.signature(exercise.reference).parameters),
        cases,
        gives(exercise.reference),
        tuple((known.message, gives(known.answer)) for known in exercise.mistakes),
        tuple(exercise.group_of(case) for case in cases) if exercise.groups else (),
    )


def examine(key: AnswerKey, call: Call) -> Verdict:
    """Try an answer on the key's cases, in their order, up to the first that it fails.

    Then once more, the last case first: whatever the exercise, an answer gives the same for the same input, whatever it
    was called with in between, however that lies in memory, and whatever was written into its earlier results.
    """
    for index, case in enumerate(key.cases):
        verdict = first_failure(key, call, index, call(case))
        if verdict is not None:
            return verdict
    for index in reversed(range(len(key.cases))):
        verdict = later_failure(key, index, call(key.cases[index], True))
        if verdict is not None:
            return verdict
    return Verdict(Result.RIGHT)


def first_failure(key: AnswerKey, call: Call, index: int, outcome: Outcome) -> Verdict | None:
    """What is wrong with what the first call on a case gave; None where nothing is."""
    case = key.cases[index]
    if outcome.result is Result.MISSING:
        return Verdict(Result.MISSING, "not written yet", fault="the function is still as it was handed out")
    fault = _fault(case, outcome, key.expected(index), key.names)
    if fault is None:
        return None
    if outcome.result is not None:
        return Verdict(outcome.result, case.shows, _input(key.names, case), fault)
    mistake = _known(key, call, index, outcome)
    unexpected = outcome.error is not None and not case.refuse and mistake is None
    result = Result.CRASHED if unexpected else Result.WRONG
    return Verdict(result, case.shows, _input(key.names, case), fault, mistake)


def later_failure(key: AnswerKey, index: int, outcome: Outcome) -> Verdict | None:
    """The same of the second call, whose first one gave what it should."""
    case = key.cases[index]
    fault = _fault(case, outcome, key.expected(index), key.names)
    if fault is None:
        return None
    said = f"right at first, and not when it was called again {_AGAIN}: {fault}"
    return Verdict(outcome.result or Result.WRONG, case.shows, _input(key.names, case), said)


def _fault(case: Case, outcome: Outcome, expected: Outcome, names: Sequence[str], told: bool = True) -> str | None:
    if outcome.result is Result.TIMEOUT:
        return "it did not end in the time it has"
    if outcome.result is Result.CRASHED:
        return "the process that ran it ended on the way" + (f": {outcome.error[1]}" if outcome.error else "")
    if outcome.result is Result.REFUSED:
        return outcome.error[1] if outcome.error else "it did what an answer may not do"
    if case.refuse:
        if outcome.error is None:
            return f"expected a ValueError, got {describe(outcome.value)}"
        kind, message = outcome.error
        if kind == "ValueError" and case.says not in message:
            return f"expected a ValueError whose message holds {case.says!r}, got one that says: {message}"
        return None if kind == "ValueError" else f"expected a ValueError, got {kind}: {message}"
    if case.only_nan and outcome.error is not None and outcome.error[0] == "ValueError":
        return None
    if outcome.error is not None:
        return f"it raised {outcome.error[0]}: {outcome.error[1]}"
    if case.only_nan:
        value = case.compared(outcome.value)
        return None if holds_nan(value) else f"expected NaN in the result, got {describe(value)}"
    value, wanted = case.compared(outcome.value), case.compared(expected.value)
    fault = difference(value, wanted, case.tolerance, exact_zero=bool(case.exact_zero), told=told)
    if fault is not None and not case.arguments and type(value) is type(wanted):
        return f"{describe(value)} is not it"  # the one answer there is stays the reader's to find
    if fault is None and outcome.changed:
        changed = ", ".join(names[i] for i in outcome.changed)
        return f"the result is right, but the call wrote into its argument {changed}; work on a copy"
    if fault is None and outcome.spoiled:
        return "the result is right, but the call changed what an earlier call had returned; give each its own memory"
    if fault is None and outcome.shared and not case.alias:
        shared = ", ".join(names[i] for i in outcome.shared)
        return f"the result is right, but it shares its memory with the argument {shared}; return a copy"
    if fault is None and case.room is not None and outcome.peak > case.room:
        return f"the result is right, but the call took {outcome.peak} bytes at once; expected at most {case.room}"
    if fault is None and case.gradients:
        return _gradient_fault(outcome, expected, case, names, told)
    return fault


def _gradient_fault(outcome: Outcome, expected: Outcome, case: Case, names: Sequence[str], told: bool) -> str | None:
    floating = [name for name, value in zip(names, case.arguments, strict=False) if _floating(value)]
    assert expected.gradients is not None
    for name, found, wanted in zip(
        floating, outcome.gradients or [None] * len(floating), expected.gradients, strict=True
    ):
        if wanted is None:
            continue
        if found is None:
            return f"the result is right, but no gradient flows back to {name}: something is detached on the way"
        fault = difference(found, wanted, case.tolerance, told=told)
        if fault:
            return f"the result is right, its gradient with respect to {name} is not: {fault}"
    return None


def _known(key: AnswerKey, call: Call, index: int, outcome: Outcome) -> str | None:
    """The known mistake that gives the same as the answer: on this case, on half of the others that it fails, and on
    half of all others.

    Of several, the one that gives the same most often, first on what fails and then on what does not. Cases that must
    be refused count for the latter only: a mistake seldom knows what to refuse, and an answer may.
    """
    alike = [known for known in key.mistakes if same(outcome, known[1](index), key.cases[index])]
    if not alike:
        return None
    others = [(at, case, call(case)) for at, case in enumerate(key.cases) if at != index]
    failed = [
        not case.refuse and _fault(case, gave, key.expected(at), key.names, told=False) is not None
        for at, case, gave in others
    ]
    best: tuple[int, int] | None = None
    name = None
    for message, gives in alike:
        agrees = [same(gave, gives(at), case) for at, case, gave in others]
        on_failed = sum(agree for agree, fails in zip(agrees, failed, strict=True) if fails)
        asked = [agree for agree, (_, case, _) in zip(agrees, others, strict=True) if not case.refuse]
        if 2 * on_failed < sum(failed) or 2 * sum(asked) < len(asked):
            continue
        if best is None or (on_failed, sum(agrees)) > best:
            best, name = (on_failed, sum(agrees)), message
    return name


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


# One call, in this process


def in_this_process(answer: Answer, forbidden: Collection[str] = (), watch: Watch | None = None) -> Call:
    """An answer that is called in this process, on copies of the arguments.

    forbidden:  what it must do without; or else a `watch` that looks for that.
    """
    watch = watch or Watch(forbidden)
    # What was returned, what was in it when that was last looked at, and whether it has been written into.
    earlier: deque[tuple[Any, Any, bool]] = deque(maxlen=KEPT)

    def call(case: Case, again: bool = False) -> Outcome:
        arguments = [copied(value, case.gradients, again and case.layout) for value in case.arguments]
        if again:  # whoever has a result may write into it
            for at, (value, _, written) in enumerate(earlier):
                if not written:
                    overwrite(value)
                    earlier[at] = value, _detached(value), True
        # The processor's generator alone: `torch.manual_seed` writes a traceback for each device that is not there.
        torch.default_generator.manual_seed(0)
        watch.measures = case.room is not None
        try:
            with warnings.catch_warnings(), watch:
                warnings.simplefilter("ignore")  # PyTorch's, of axes of size one, say nothing of the answer
                value = answer(*arguments)
        except NotImplementedError:
            return Outcome(result=Result.MISSING)
        except Exception as error:
            if watch.seen:
                return _refused(watch)
            kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__  # as `except` sees it
            return Outcome(error=(kind, str(error)))
        if watch.seen:
            return _refused(watch)
        if value is ... or (value is None and _is_empty(answer)):
            return Outcome(result=Result.MISSING)
        if strange := _without_plain_numbers(value):
            return Outcome(error=("TypeError", strange))
        value = with_python_numbers(value)
        pairs = enumerate(zip(arguments, case.arguments, strict=True))
        changed = tuple(i for i, (now, was) in pairs if not identical(now, was))
        gradients = _gradients(value, arguments) if case.gradients else None
        given = _detached(value)
        spoiled = any(not identical(now, was) for now, was, _ in earlier)
        earlier.append((value, given, False))
        shared = shared_with(value, arguments)
        peak = watch.peak if watch.measures else 0
        return Outcome(given, gradients=gradients, changed=changed, spoiled=spoiled, shared=shared, peak=peak)

    return call


def _refused(watch: Watch) -> Outcome:
    return Outcome(error=("Refused", forbidden_fault(watch.seen[:1])), result=Result.REFUSED)


def _is_empty(answer: Answer) -> bool:
    """A function whose body is `...` or `pass` alone."""
    code = getattr(answer, "__code__", None)
    return code is not None and code.co_names == () and set(code.co_consts) <= {None, ...}


def _without_plain_numbers(value: Any) -> str | None:
    """What is said of a result that holds a tensor whose numbers cannot be read one by one; None where all can.

    Asked before anything is done with the result: the first operation on a tensor of the meta device loads seconds'
    worth of PyTorch.
    """
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            return f"the result is a tensor on the device {value.device.type!r}, expected one on the processor"
        if value.layout != torch.strided:
            return f"the result is a tensor of the layout {value.layout}, expected torch.strided"
    elif isinstance(value, Mapping):
        return next((said for part in value.values() if (said := _without_plain_numbers(part))), None)
    elif isinstance(value, (list, tuple)):
        return next((said for part in value if (said := _without_plain_numbers(part))), None)
    return None


def _floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _detached(value: Any) -> Any:
    return copied(value, False)


def _gradients(value: Any, arguments: Sequence[Any]) -> tuple[torch.Tensor | None, ...]:
    """Of the results times fixed numbers, so that no part of the gradient cancels."""
    leaves = [argument for argument in arguments if _floating(argument)]
    parts = value if isinstance(value, (list, tuple)) else [value]
    results = [part for part in parts if _floating(part) and part.requires_grad]
    if not results:
        return tuple(None for _ in leaves)
    total = sum((result * _upstream(result)).sum() for result in results)
    assert isinstance(total, torch.Tensor)
    return tuple(torch.autograd.grad(total, leaves, allow_unused=True))


def _upstream(like: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1.0, 2.0, max(1, like.numel()), dtype=like.dtype).reshape(like.shape).cos()
