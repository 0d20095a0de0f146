"""Whatever comes from outside, made wrong at random, works or is refused (see `oracle`): a fixed thousand of cases, and
with `make fuzz` as many others as you like, each fault in its smallest form."""

import os
from collections import Counter

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase

from fuzz import commands, files, published, python, runs
from fuzz.oracle import Kind

KINDS = [*python.KINDS, *files.KINDS, *published.KINDS, *commands.KINDS, *runs.KINDS]
TIMES = int(os.environ.get("FUZZ_TIMES", 0))
"""How many times as many; 0 for the fixed thousand, the same on every machine."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.share or TIMES], ids=lambda kind: kind.name)
def test_it_works_or_is_refused_in_a_sentence(unchecked, kind: Kind) -> None:
    counts: Counter[str] = Counter()

    @hypothesis.settings(
        max_examples=(kind.share or 10) * (TIMES or 1),
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if TIMES else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(kind.cases)
    def each(case) -> None:
        counts[kind.attempt(case)] += 1

    (each if TIMES else hypothesis.seed(0)(each))()
    assert counts["refused"], "nothing was tried"
    print(f"{kind.name}: {counts['works']:,} worked, {counts['refused']:,} were refused")


def test_there_are_a_thousand() -> None:
    assert sum(kind.share for kind in KINDS) >= 1000
