"""Files with the keys of exercises, so that answers can be examined without the reference solutions.

Each file contains the test cases and, for each case, the outcomes of a right answer and of every known mistake. It
contains no code. If the answer is a single fixed result ("read off the weight"), the file for students contains only
the known mistakes, and the types and shapes of the result. In this case, only the hidden check can decide whether an
answer is right.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .call import Call, Outcome, Result
from .codec import case_value, outcome_of, outcome_value, pack, same_as, unpack
from .compare import difference
from .credit import examine_groups
from .examine import AnswerKey, Verdict, examine, key_of, missing, not_offered, same
from .exercise import Case, Exercise


@dataclass(frozen=True)
class Sealed:
    """An exercise without its reference solution, as stored in a file.

    Attributes:
        id: Lesson and number, such as "2.3".
        title: Title of the exercise.
        name: Name of the function to write.
        forbidden: Names that an answer must not use.
        knows_answers: True if the key contains the right results; False if it contains only their types and shapes.
        key: Cases and outcomes.
        groups: Names of the groups of cases that earn points by themselves; empty if there are none.
        offered: Choices of a question; empty if any answer is accepted.
    """

    id: str
    title: str
    name: str
    forbidden: tuple[str, ...]
    knows_answers: bool
    key: AnswerKey
    groups: tuple[str, ...] = ()
    offered: tuple[Any, ...] = ()

    def examine(self, call: Call) -> Verdict:
        """Examine an answer. If the right results are not available, only check the type of the returned value and
        compare it with the known mistakes."""
        return examine(self.key, call) if self.knows_answers else _examine_kind(self.key, call, self.offered)

    def examine_group(self, number: int, call: Call) -> Verdict:
        """Examine an answer and return the verdict on one group.

        Args:
            number: Number of the group, counted from 1.
            call: The answer.

        Returns:
            The verdict on this group, or on the first group if that one fails.
        """
        verdicts = examine_groups(self.key, call)
        first = verdicts[0]
        return verdicts[number - 1] if first.result is Result.RIGHT else first


_kept: dict[tuple[str, int], tuple[Exercise, AnswerKey]] = {}


def kept_key(exercise: Exercise, seed: int) -> AnswerKey:
    """Return the key of an exercise (`examine.key_of`), cached because a release needs it several times."""
    kept = _kept.get((exercise.id, seed))
    if kept is None or kept[0] is not exercise:  # another exercise may have the same number
        kept = _kept[exercise.id, seed] = exercise, key_of(exercise, seed)
    return kept[1]


def seal(exercise: Exercise, seed: int, *, mistakes: bool = True, knows_answers: bool = True) -> bytes:
    """Serialize the key of an exercise so that `unseal` can read it.

    Args:
        exercise: The exercise.
        seed: Seed of the cases.
        mistakes: Whether to include the outcomes of the known mistakes, so that a check can name the mistake.
        knows_answers: Whether to include the right results; if false, include only their types and shapes.
    """
    key = kept_key(exercise, seed)
    indexes = range(len(key.cases))
    distinct: dict[Hashable, int] = {}
    outcomes: list[dict[str, Any]] = []

    def place(outcome: Outcome) -> int:
        value = outcome_value(outcome)
        at = distinct.setdefault(same_as(value), len(outcomes))
        if at == len(outcomes):
            outcomes.append(value)
        return at

    expected = [key.expected(index) for index in indexes]
    if not knows_answers:
        expected = [replace(outcome, value=kind_of(outcome.value)) for outcome in expected]
    return pack({
        "id": exercise.id,
        "title": exercise.title,
        "name": exercise.name,
        "forbidden": exercise.forbidden,
        "told": knows_answers,
        "names": key.names,
        "groups": [group.name for group in exercise.groups],
        "offered": list(exercise.offered),
        "group_of": list(key.groups),
        "right": list(key.right),
        "cases": [case_value(case) for case in key.cases],
        "expected": [place(outcome) for outcome in expected],
        "mistakes": [
            (message, [place(gives(index)) for index in indexes]) for message, gives in key.mistakes * mistakes
        ],
        "outcomes": outcomes,
    })  # fmt: skip


def unseal(data: bytes) -> Sealed:
    """Read a sealed exercise that `seal` wrote.

    Raises:
        ValueError: The bytes were not written by `seal`.
    """
    read = unpack(data)
    try:
        outcomes = [outcome_of(value) for value in read["outcomes"]]

        def gives(places: list[int]) -> Any:
            return lambda index: outcomes[places[index]]

        key = AnswerKey(
            tuple(read["names"]),
            tuple(Case(**value) for value in read["cases"]),
            gives(read["expected"]),
            tuple((message, gives(places)) for message, places in read["mistakes"]),
            tuple(int(number) for number in read.get("group_of", ())),  # keys of earlier releases lack it
            tuple(str(kind) for kind in read.get("right", ())),
        )
        forbidden = tuple(read["forbidden"])
        groups = tuple(read.get("groups", ()))
        offered = tuple(read.get("offered", ()))
        return Sealed(read["id"], read["title"], read["name"], forbidden, bool(read["told"]), key, groups, offered)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"expected a sealed exercise: {error}") from None


def kind_of(value: Any) -> Any:
    """Return a value with the same types and shapes but no content: zeros and empty strings."""
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype)
    if isinstance(value, Mapping):
        return {key: kind_of(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(kind_of(part) for part in value)
    return value if value is None else type(value)()


def _examine_kind(key: AnswerKey, call: Call, offered: Sequence[Any] = ()) -> Verdict:
    for index, case in enumerate(key.cases):
        outcome = call(case)
        if outcome.result is Result.MISSING:
            return Verdict(Result.MISSING, "not written yet", fault=missing(outcome))
        if outcome.error is not None or outcome.result is not None:
            fault = f"it raised {outcome.error[0]}: {outcome.error[1]}" if outcome.error else "it did not end"
            return Verdict(outcome.result or Result.CRASHED, case.shows, fault=fault)
        for message, gives in key.mistakes:
            if same(outcome, gives(index), case):
                return Verdict(Result.WRONG, case.shows, fault="that is not right", mistake=message)
        if other := not_offered(outcome.value, offered):
            return Verdict(Result.WRONG, case.shows, fault=other)
        if isinstance(outcome.value, float) and not math.isfinite(outcome.value):
            return Verdict(Result.WRONG, case.shows, fault=f"expected a finite number, got {outcome.value}")
        other_kind = difference(_kind_or_none(outcome.value), key.expected(index).value)
        if other_kind:
            return Verdict(Result.WRONG, case.shows, fault=f"the result is not of the right kind: {other_kind}")
    return Verdict(Result.RIGHT)


def _kind_or_none(value: Any) -> Any:
    try:
        return kind_of(value)
    except TypeError:  # no exercise expects a result of a type without an empty value
        return None
