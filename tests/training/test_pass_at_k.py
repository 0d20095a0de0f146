"""pass@k equals the mean over all choices of k answers, and its expectation is the true probability."""

from __future__ import annotations

import itertools
import math

import pytest

from companion.training.pass_at_k import pass_at_k


@pytest.mark.parametrize("k", (1, 2, 3, 5))
@pytest.mark.parametrize("right", (0, 1, 4, 5))
def test_it_is_the_share_of_choices_that_contain_a_right_answer(right: int, k: int) -> None:
    answers = [True] * right + [False] * (5 - right)
    choices = list(itertools.combinations(answers, k))
    assert pass_at_k(5, right, k) == pytest.approx(sum(map(any, choices)) / len(choices))


@pytest.mark.parametrize("p", (0.1, 0.5))
def test_its_mean_is_the_probability_that_one_of_k_fresh_answers_is_right(p: float) -> None:
    drawn, k = 6, 4
    chance = [math.comb(drawn, right) * p**right * (1 - p) ** (drawn - right) for right in range(drawn + 1)]
    mean = sum(weight * pass_at_k(drawn, right, k) for right, weight in enumerate(chance))
    assert mean == pytest.approx(1 - (1 - p) ** k)


@pytest.mark.parametrize(
    ("given", "says"),
    (
        ((4, 5, 1), "right: expected 0 to 4"),
        ((4, -1, 1), "right: expected 0 to 4"),
        ((4, 1, 0), "k: expected 1 to 4"),
        ((4, 1, 5), "k: expected 1 to 4"),
    ),
)
def test_bad_input_is_named(given: tuple[int, int, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        pass_at_k(*given)
