"""Partial credit: which groups of an exercise's right cases an answer passes, and whether it is robust besides.

The first group is what an exercise begins with. An answer that fails it earns nothing, so that no answer is paid for
refusing everything, or for the empty input alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from .call import Call, Outcome, Result
from .examine import AnswerKey, Verdict, marked_faults, rounds, verdict_of

ROBUST = -1
"""Stands for the robust cases, where groups go by their numbers."""


def examine_groups(key: AnswerKey, call: Call) -> list[Verdict]:
    """A verdict for each group, by its number: `examine` on all cases, without stopping at the first that fails.

    All are right if and only if `examine` says so; what is not robust is told in the first. A key without groups is one
    group.
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
    """Which groups earn their points: those that are right, if the first one is."""
    return [verdict.is_right and verdicts[0].is_right for verdict in verdicts]


def group_numbers(key: AnswerKey) -> list[int]:
    """The number of each case's group; `ROBUST` for the robust ones."""
    groups = key.groups or (0,) * len(key.cases)
    return [ROBUST if key.is_robust(index, "value") else group for index, group in enumerate(groups)]


def without_groups(key: AnswerKey, left_out: Collection[int]) -> AnswerKey:
    """The key without the cases of some groups, or without the robust ones; what is left keeps its numbers."""
    return with_cases(key, [index for index, group in enumerate(group_numbers(key)) if group not in left_out])


def with_cases(key: AnswerKey, kept: Sequence[int]) -> AnswerKey:
    """The key with these of its cases, by their indices."""

    def at_kept(gives: Callable[[int], Outcome]) -> Callable[[int], Outcome]:
        return lambda index: gives(kept[index])

    return replace(
        key,
        cases=tuple(key.cases[index] for index in kept),
        expected=at_kept(key.expected),
        mistakes=tuple((message, at_kept(gives)) for message, gives in key.mistakes),
        groups=tuple(key.groups[index] for index in kept) if key.groups else (),
    )
