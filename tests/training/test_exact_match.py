"""Shares of right answers and their confidence intervals."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion.training.exact_match import ExactMatch, wilson


@given(st.integers(1, 5000), st.data(), st.floats(0.5, 0.999))
def test_the_ends_of_the_interval_are_z_of_their_own_deviations_away(total: int, data, confidence: float) -> None:
    from statistics import NormalDist

    right = data.draw(st.integers(0, total))
    low, high = wilson(right, total, confidence)
    assert 0 <= low <= right / total <= high <= 1
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    for end in {low, high} - {0.0, 1.0}:
        assert abs(end - right / total) == pytest.approx(z * math.sqrt(end * (1 - end) / total), abs=1e-9)


def test_published_values_and_their_mirror() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)  # Newcombe 1998, table I, method 3
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert wilson(20, 20) == pytest.approx((1 - 0.1611, 1.0), abs=5e-5)


def test_it_covers_the_truth_as_often_as_it_says() -> None:
    """This is exact, over all outcomes of 200 answers of which each is right with probability p."""
    for p in (0.5, 0.9, 0.97):
        held = 0.0
        for k in range(201):
            low, high = wilson(k, 200)
            if low <= p <= high:
                held += math.comb(200, k) * p**k * (1 - p) ** (200 - k)
        assert held == pytest.approx(0.95, abs=0.025)


def test_answers_are_counted_by_digits_and_survive_json() -> None:
    counted = ExactMatch.of([(6, True), (2, False), (6, False), (6, True), (2, True)])
    assert counted.by_digits == {2: (1, 2), 6: (2, 3)} and (counted.right, counted.total) == (3, 5)
    assert counted.share == 0.6 and counted.scores == {"exact_match": 0.6}
    result = counted.result()
    assert (result["low"], result["high"]) == wilson(3, 5)
    assert ExactMatch.from_result(result) == counted
    table = counted.table().splitlines()
    assert [line.split()[:3] for line in table[1:]] == [["2", "digits", "1"], ["6", "digits", "2"], ["all", "3", "5"]]
    assert "23.07% to 88.24%" in table[-1]


def test_what_cannot_be_is_refused() -> None:
    for right, total in ((3, 2), (-1, 4), (0, 0)):
        with pytest.raises(ValueError, match="expected 0 <= right <= total"):
            wilson(right, total)
    with pytest.raises(ValueError, match="confidence=1"):
        wilson(1, 2, 1.0)
    with pytest.raises(ValueError, match="at least one, got none"):
        ExactMatch.of([])
