"""Paired comparisons: counts by hand, enumeration, and the coverage of the interval."""

from __future__ import annotations

import itertools
import math

import pytest

from companion.training.paired import Paired

FIRST = [True, True, True, False, True, False]
SECOND = [True, False, False, True, True, False]


def test_questions_are_counted_by_who_was_right() -> None:
    found = Paired.of(FIRST, SECOND)
    assert found == Paired(both=2, only_first=2, only_second=1, neither=1)
    assert found.total == 6 and found.difference == pytest.approx(sum(FIRST) / 6 - sum(SECOND) / 6)


def test_the_standard_error_is_that_of_the_mean_of_the_differences() -> None:
    gains = [one - two for one, two in zip(FIRST, SECOND, strict=True)]
    mean = sum(gains) / 6
    variance = sum((gain - mean) ** 2 for gain in gains) / 6
    assert Paired.of(FIRST, SECOND).standard_error == pytest.approx(math.sqrt(variance / 6))
    assert Paired(3, 0, 0, 4).standard_error == 0


@pytest.mark.parametrize(("wins", "losses"), ((0, 0), (1, 0), (5, 0), (2, 2), (7, 3), (1, 6)))
def test_the_p_value_counts_all_outcomes_at_least_as_one_sided(wins: int, losses: int) -> None:
    outcomes = list(itertools.product((0, 1), repeat=wins + losses))
    gap = abs(wins - losses)
    extreme = [one for one in outcomes if abs(2 * sum(one) - len(one)) >= gap]
    assert Paired(4, wins, losses, 2).p_value == pytest.approx(len(extreme) / len(outcomes))


def test_the_p_value_does_not_depend_on_questions_on_which_both_agree() -> None:
    assert Paired(0, 9, 2, 0).p_value == Paired(500, 9, 2, 300).p_value == pytest.approx(0.0654, abs=1e-4)


@pytest.mark.parametrize(("first", "second"), ((0.1, 0.05), (0.03, 0.03), (0.2, 0.02)))
def test_the_interval_contains_the_true_difference_in_about_95_of_100_samples(first: float, second: float) -> None:
    total, covered = 60, 0.0
    for wins in range(total + 1):
        for losses in range(total + 1 - wins):
            agree = total - wins - losses
            ways = math.comb(total, wins) * math.comb(total - wins, losses)
            chance = ways * first**wins * second**losses * (1 - first - second) ** agree
            low, high = Paired(agree, wins, losses, 0).interval()
            covered += chance * (low <= first - second <= high)
    assert 0.93 < covered < 0.99


def test_a_wider_confidence_gives_a_wider_interval() -> None:
    pair = Paired(40, 12, 5, 9)
    (low, high), (lower, higher) = pair.interval(0.9), pair.interval(0.99)
    assert -1 <= lower < low < pair.difference < high < higher <= 1


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="second: expected 6 answers, as many as in first, got 5"):
        Paired.of(FIRST, SECOND[:-1])
    with pytest.raises(ValueError, match="add up to at least one question"):
        Paired.of([], [])
    with pytest.raises(ValueError, match="four non-negative numbers"):
        Paired(3, -1, 2, 0)
    with pytest.raises(ValueError, match="confidence=1"):
        Paired(1, 1, 1, 1).interval(1)
