"""Partial credit: determine which groups of an exercise's cases an answer passes, and whether it is robust.

An answer that fails the first group earns nothing. Without this rule, an answer could earn points by rejecting every
input, or by handling only empty inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from .call import Call, Outcome, Result
from .examine import AnswerKey, Verdict, marked_faults, rounds, verdict_of

ROBUST = -1
"""Group number of the robust cases."""


def examine_groups(key: AnswerKey, call: Call) -> list[Verdict]:
    """Examine an answer on all cases, without stopping at a fault, and return one verdict per group.

    All verdicts are right if and only if the verdict of `examine` is right. If there is a fault that costs only the
    robust mark, the first such fault is part of a right verdict. A key without groups counts as one group.
    """
    groups = key.groups or (0,) * len(key.cases)
    failed: dict[int, Verdict] = {}
    for index, again in rounds(key):
        outcome = call(key.cases[index], again)
        for is_robust, fault in marked_faults(key, index, again, outcome):
            group = ROBUST if is_robust else groups[index]
            if group not in failed:
                failed[group] = verdict_of(key, call, index, again, outcome, fault)
    right = Verdict(Result.RIGHT, robust=failed.get(ROBUST))
    return [failed.get(group, right) for group in range(max(groups, default=0) + 1)]


def earned(verdicts: Sequence[Verdict]) -> list[bool]:
    """Return whether each group earns its points, which requires that it and the first group are right."""
    return [verdict.is_right and verdicts[0].is_right for verdict in verdicts]


def group_numbers(key: AnswerKey) -> list[int]:
    """Return the group number of each case, or `ROBUST` for a robust case."""
    groups = key.groups or (0,) * len(key.cases)
    return [ROBUST if key.is_robust(index, "value") else group for index, group in enumerate(groups)]


def without_groups(key: AnswerKey, left_out: Collection[int]) -> AnswerKey:
    """Return the key without the cases of the groups in `left_out`. The remaining groups keep their numbers.

    Args:
        key: The key of an exercise.
        left_out: Numbers of the groups to leave out; `ROBUST` stands for the robust cases.
    """
    return with_cases(key, [index for index, group in enumerate(group_numbers(key)) if group not in left_out])


def with_cases(key: AnswerKey, kept: Sequence[int]) -> AnswerKey:
    """Return the key with only the cases at these indices."""

    def at_kept(gives: Callable[[int], Outcome]) -> Callable[[int], Outcome]:
        return lambda index: gives(kept[index])

    return replace(
        key,
        cases=tuple(key.cases[index] for index in kept),
        expected=at_kept(key.expected),
        mistakes=tuple((message, at_kept(gives)) for message, gives in key.mistakes),
        groups=tuple(key.groups[index] for index in kept) if key.groups else (),
    )
