"""The learning rate is counted in updates and ends with the last one."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion.training.schedule import warmup_cosine


@given(st.integers(1, 300), st.integers(0, 100), st.floats(1e-5, 1.0), st.floats(0, 1))
def test_it_climbs_to_the_peak_and_falls_to_the_last_value_at_the_last_update(updates, warmup, peak, share) -> None:
    rates = [
        warmup_cosine(k, updates=updates, warmup=warmup, peak=peak, last=share * peak) for k in range(1, updates + 1)
    ]
    assert rates[-1] == pytest.approx(share * peak, abs=1e-12)
    top = min(warmup, updates // 5)
    assert all(a < b for a, b in pairwise(rates[:top]))
    assert all(a >= b - 1e-12 for a, b in pairwise(rates[max(top - 1, 0) :]))
    assert max(rates) <= peak * (1 + 1e-12)
    if top:
        assert rates[top - 1] == peak and rates[0] == pytest.approx(peak / top)


def test_half_way_down_the_cosine_is_half_way() -> None:
    assert warmup_cosine(60, updates=110, warmup=10, peak=1.0, last=0.2) == pytest.approx(0.6)
    quarter = 0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2
    assert warmup_cosine(35, updates=110, warmup=10, peak=1.0, last=0.2) == pytest.approx(quarter)


def test_an_update_outside_the_run_is_refused() -> None:
    for update in (0, 11):
        with pytest.raises(ValueError, match=f"update={update}: expected a whole number from 1 to updates=10"):
            warmup_cosine(update, updates=10, warmup=2, peak=1.0, last=0.0)
