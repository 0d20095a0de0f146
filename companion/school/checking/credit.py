"""Partial credit: which groups of an exercise's cases an answer passes.

The first group is what an exercise begins with. An answer that fails it earns nothing, so that no answer is paid for
refusing everything, or for the empty input alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from .examine import AnswerKey, Call, Outcome, Result, Verdict, first_failure, later_failure


def examine_groups(key: AnswerKey, call: Call) -> list[Verdict]:
    """A verdict for each group, by its number: `examine` on all cases, without stopping at the first that fails.

    All are right if and only if `examine` says so. A key without groups is one group.
    """
    groups = key.groups or (0,) * len(key.cases)
    failed: dict[int, Verdict] = {}

    def note(index: int, verdict: Verdict | None) -> None:
        if verdict is not None:
            failed.setdefault(groups[index], verdict)

    for index, outcome in enumerate([call(case) for case in key.cases]):
        if groups[index] not in failed:
            note(index, first_failure(key, call, index, outcome))
    for index in reversed(range(len(key.cases))):
        outcome = call(key.cases[index], True)
        if groups[index] not in failed:
            note(index, later_failure(key, index, outcome))
    return [failed.get(group, Verdict(Result.RIGHT)) for group in range(max(groups, default=0) + 1)]


def earned(verdicts: Sequence[Verdict]) -> list[bool]:
    """Which groups earn their points: those that are right, if the first one is."""
    return [verdict.result is Result.RIGHT and verdicts[0].result is Result.RIGHT for verdict in verdicts]


def without_groups(key: AnswerKey, left_out: Collection[int]) -> AnswerKey:
    """The key without the cases of some groups; what is left keeps its numbers."""
    kept = [index for index, group in enumerate(key.groups) if group not in left_out]

    def at_kept(gives: Callable[[int], Outcome]) -> Callable[[int], Outcome]:
        return lambda index: gives(kept[index])

    return replace(
        key,
        cases=tuple(key.cases[index] for index in kept),
        expected=at_kept(key.expected),
        mistakes=tuple((message, at_kept(gives)) for message, gives in key.mistakes),
        groups=tuple(key.groups[index] for index in kept),
    )
