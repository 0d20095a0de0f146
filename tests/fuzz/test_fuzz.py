"""A fixed thousand of cases of the fuzzers; `make fuzz` tries others, for as long as you like."""

import pytest

from fuzz.kinds import KINDS
from fuzz.oracle import Found, Kind, run


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.share], ids=lambda kind: kind.name)
def test_it_works_or_is_refused_in_a_sentence(unchecked, kind: Kind) -> None:
    found = Found()
    run(kind, kind.share, 0, found)
    assert not found.faults, "\n".join(found.faults[:5])
    assert found.counts["refused"], "nothing was tried"


def test_there_are_a_thousand() -> None:
    assert sum(kind.share for kind in KINDS) >= 1000
