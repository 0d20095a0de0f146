"""The learning rate depends on the number of the update, and the schedule ends with the last one."""

import math
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion.training.schedule import (
    inverse_sqrt,
    learning_rate,
    paper_peak,
    warmup_cosine,
    warmup_linear,
    warmup_stable_decay,
)


@pytest.mark.parametrize(
    "schedule", [warmup_cosine, warmup_linear, warmup_stable_decay, partial(warmup_stable_decay, shape="1-sqrt")]
)
@given(st.integers(1, 300), st.integers(0, 100), st.floats(1e-5, 1.0), st.floats(0, 1))
def test_it_climbs_to_the_peak_and_falls_to_the_last_value_at_the_last_update(
    schedule, updates, warmup, peak, share
) -> None:
    rates = [schedule(k, updates=updates, warmup=warmup, peak=peak, last=share * peak) for k in range(1, updates + 1)]
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


def test_the_linear_schedule_falls_by_equal_steps() -> None:
    rates = [warmup_linear(k, updates=25, warmup=5, peak=1.0, last=0.2) for k in range(5, 26)]
    assert [a - b for a, b in pairwise(rates)] == pytest.approx([0.04] * 20)


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (64, 7)])
def test_inverse_sqrt_is_the_schedule_of_the_paper(d_model: int, warmup: int) -> None:
    peak = paper_peak(d_model, warmup)
    for step in (1, 2, warmup - 1, warmup, warmup + 1, 5 * warmup, 100_000):
        wanted = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert inverse_sqrt(step, warmup=warmup, peak=peak) == pytest.approx(wanted, rel=1e-12)
    assert max(inverse_sqrt(k, warmup=warmup, peak=peak) for k in range(1, 3 * warmup)) == pytest.approx(peak)
    assert inverse_sqrt(1, warmup=0, peak=1.0) == 1.0  # without a warm-up the rate begins at its peak
    with pytest.raises(ValueError, match="update=0: expected a whole number >= 1"):
        inverse_sqrt(0, warmup=warmup, peak=peak)
    with pytest.raises(ValueError, match="d_model=0"):
        paper_peak(0, 4000)


def test_a_schedule_is_chosen_by_name(unchecked) -> None:
    run = {"updates": 100, "warmup": 10, "peak": 1.0, "last": 0.1}
    assert learning_rate("cosine", 70, **run) == warmup_cosine(70, **run)
    assert learning_rate("linear", 70, **run) == warmup_linear(70, **run)
    assert learning_rate("inverse_sqrt", 70, **run) == inverse_sqrt(70, warmup=10, peak=1.0)
    assert learning_rate("wsd", 95, **run, decay_share=0.1) == warmup_stable_decay(95, **run, share=0.1)
    with pytest.raises(ValueError, match="schedule='steps': expected 'cosine', 'linear', 'inverse_sqrt' or 'wsd'"):
        learning_rate("steps", 70, **run)


def test_an_update_outside_the_run_is_refused() -> None:
    for update in (0, 11):
        with pytest.raises(ValueError, match=f"update={update}: expected a whole number from 1 to updates=10"):
            warmup_cosine(update, updates=10, warmup=2, peak=1.0, last=0.0)


def test_warm_up_stable_decay_stays_at_its_peak_and_falls_in_the_last_share() -> None:
    run = {"updates": 200, "warmup": 10, "peak": 2.0, "last": 0.2, "share": 0.3}
    for shape, half in (("linear", 1.1), ("1-sqrt", 0.2 + 1.8 * (1 - math.sqrt(0.5)))):
        rates = [warmup_stable_decay(k, **run, shape=shape) for k in range(1, 201)]
        assert set(rates[9:140]) == {2.0} and rates[140] < 2.0  # it decays in 60 of 200 updates
        assert rates[169] == pytest.approx(half) and rates[199] == pytest.approx(0.2)
    # The part before the decay is the same for a run of any length.
    longer = [warmup_stable_decay(k, **run | {"updates": 900}) for k in range(1, 141)]
    assert longer == [warmup_stable_decay(k, **run) for k in range(1, 141)]
    with pytest.raises(ValueError, match="share=0: expected a fraction above 0"):
        warmup_stable_decay(3, **run | {"share": 0})
    with pytest.raises(ValueError, match="shape='cosine': expected 'linear' or '1-sqrt'"):
        warmup_stable_decay(3, **run, shape="cosine")
