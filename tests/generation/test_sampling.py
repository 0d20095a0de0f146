"""The sampling distribution: temperature, top-k, top-p and min-p, alone and combined, and each setting everywhere."""

import math
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from companion.commands import generate as command
from companion.generation.sampling import Sampling, min_p, released, temperature, top_k, top_p

INF = math.inf
LOGITS = torch.tensor([[2.0, -1.0, 0.5, 2.5, 0.0], [0.0, 3.0, 3.0, -2.0, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(0), Sampling(0.7, top_k=3), Sampling(1.5, top_p=0.8), Sampling(2.0, top_k=4, top_p=0.5)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_probabilities_sum_to_one(sampling, dtype):
    p = sampling.probabilities(LOGITS.to(dtype))
    assert p.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum(-1), torch.ones(2, dtype=p.dtype))


def test_temperature_raises_probabilities_to_a_power():
    p = LOGITS.softmax(-1)
    for t in (0.5, 2.0):
        powered = p ** (1 / t)
        torch.testing.assert_close(temperature(LOGITS, t).softmax(-1), powered / powered.sum(-1, keepdim=True))
    assert torch.equal(temperature(LOGITS, 1.0), LOGITS)


def test_temperature_goes_from_greedy_to_uniform():
    greedy = temperature(LOGITS[:1], 0.0).softmax(-1)
    assert greedy.tolist() == [[0, 0, 0, 1, 0]]
    torch.testing.assert_close(temperature(LOGITS[:1], 1e-2).softmax(-1), greedy)
    torch.testing.assert_close(temperature(LOGITS, 1e9).softmax(-1), torch.full_like(LOGITS, 0.2))
    assert temperature(LOGITS[1:], 0.0).softmax(-1).tolist() == [[0, 1, 0, 0, 0]]  # the first of several equal ones


def test_top_k_keeps_the_k_largest_as_they_are():
    assert top_k(LOGITS[:1], 2).tolist() == [[2.0, -INF, -INF, 2.5, -INF]]
    # With or without ties
    assert [int((top_k(LOGITS, k) > -INF).sum(-1)[1]) for k in range(1, 7)] == [1, 2, 3, 4, 5, 5]
    assert torch.equal(top_k(LOGITS, 99), LOGITS)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8), st.floats(0.01, 1.0))
def test_top_p_keeps_the_smallest_set_that_reaches_p(values, p):
    logits = torch.tensor([values], dtype=torch.float64)
    probabilities = logits.softmax(-1)[0]
    kept = (top_p(logits, p) > -INF)[0]
    assert torch.equal(top_p(logits, p)[0][kept], logits[0][kept])
    mass = float(probabilities[kept].sum())
    assert mass >= p - 1e-12  # p is reached ...
    assert mass - float(probabilities[kept].min()) < p or p == 1  # ... but not without the last token that was kept
    assert bool((probabilities[~kept] <= probabilities[kept].min()).all())  # no excluded token is more probable


def test_top_p_keeps_the_token_that_crosses():
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    for p, kept in ((0.1, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (1.0, 3)):
        assert int((top_p(logits, p) > -INF).sum()) == kept


def test_the_order_is_temperature_top_k_top_p():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log()
    by_hand = top_p(top_k(temperature(logits, 0.5), 3), 0.6).softmax(-1)
    torch.testing.assert_close(Sampling(0.5, top_k=3, top_p=0.6).probabilities(logits), by_hand)
    # 0.16, 0.09 and 0.04 of 0.29: the first two have 0.86 together, and the first has 0.55, less than 0.6.
    torch.testing.assert_close(by_hand, torch.tensor([[0.64, 0.36, 0, 0]], dtype=torch.float64))
    # Without top_k first, 0.4 would be divided by the sum of all four; without the temperature, two would not reach
    # 0.8.
    assert int((Sampling(1.0, top_k=2, top_p=0.6).probabilities(logits) > 0).sum()) == 2
    assert int((Sampling(1.0, top_k=2, top_p=0.55).probabilities(logits) > 0).sum()) == 1  # 4/7 of the two
    assert int((Sampling(1.0, top_p=0.55).probabilities(logits) > 0).sum()) == 2  # 0.4 of all four


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampling(temperature=-0.1), "temperature=-0.1: expected a number >= 0"),
        (lambda: Sampling(temperature=INF), "temperature=inf: expected a number >= 0"),
        (lambda: Sampling(temperature=math.nan), "temperature=nan: expected"),
        (lambda: Sampling(top_k=-1), "top_k=-1: expected a whole number >= 0"),
        (lambda: top_k(LOGITS, 0), "top_k=0: expected a whole number >= 1"),
        (lambda: Sampling(top_p=0.0), "top_p=0.0: expected a fraction above 0 and at most 1"),
        (lambda: Sampling(top_p=1.1), "top_p=1.1: expected a fraction above 0 and at most 1"),
        (lambda: Sampling(temperature=0, top_p=2.0), "top_p=2.0: expected"),
    ],
)
def test_bad_sampling_is_refused_at_once(make, message):
    with pytest.raises(ValueError) as caught:
        make()
    assert message in str(caught.value)


def test_min_p_keeps_what_is_probable_enough_and_always_the_best():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert min_p(logits, 0.25).isfinite().tolist() == [True, True, True, False]
    assert min_p(logits, 1).isfinite().tolist() == [True, False, False, False]
    assert torch.equal(min_p(logits, 0), logits)
    for wrong in (-0.1, 1.1, math.nan, True):
        with pytest.raises(ValueError, match="min_p="):
            min_p(logits, wrong)


def some(rule):
    """Return a value that has an effect: 3 for a number of tokens, one half for any other number."""
    return 3 if int in get_args(get_type_hints(Sampling)[rule.name]) else 0.5


@pytest.mark.parametrize("rule", fields(Sampling), ids=lambda rule: rule.name)
def test_every_field_is_a_step_and_a_flag_and_is_said(rule):
    """If `probabilities` ignored a field, folders and flags could set it without any effect."""
    chosen = Sampling(**{rule.name: some(rule)})
    assert not torch.allclose(chosen.probabilities(LOGITS), Sampling().probabilities(LOGITS))
    name = rule.name.replace("_", "-")
    assert f"{name} {some(rule)}" in str(chosen) and rule.name in command.DRAWING
    flags = command.parser().parse_args([f"--{name}", str(some(rule))])
    assert flags[rule.name] == some(rule) and rule.metadata["help"]
    assert Sampling(**{rule.name: rule.metadata["left_out"]}) is not None  # a valid value of the field


def test_a_top_k_of_zero_is_none_and_the_defaults_of_released_code_are_another_distribution():
    assert Sampling(top_k=0) == Sampling() and released() == Sampling(1.0, 50, 1.0)
    logits = torch.zeros(1, 60)
    assert (
        int((released().probabilities(logits) > 0).sum()) == 50
        and int((Sampling().probabilities(logits) > 0).sum()) == 60
    )


def kept(p, keep):
    """Return the distribution restricted to the kept tokens and renormalized."""
    total = sum(p[i] for i in keep)
    return [p[i] / total if i in keep else 0.0 for i in range(len(p))]


def nucleus(p, least):
    order = sorted(range(len(p)), key=lambda i: -p[i])
    return order[: next(n for n in range(1, len(p) + 1) if sum(p[i] for i in order[:n]) >= least)]


BY_HAND = {
    "temperature": (0.5, lambda p: kept([x**2 for x in p], range(len(p)))),
    "top_k": (2, lambda p: kept(p, sorted(range(len(p)), key=lambda i: -p[i])[:2])),
    "top_p": (0.8, lambda p: kept(p, nucleus(p, 0.8))),
    "min_p": (0.2, lambda p: kept(p, [i for i, x in enumerate(p) if x >= 0.2 * max(p)])),
}
"""For each rule a value, and the distribution that it makes of a list of probabilities, in plain Python."""


@pytest.mark.parametrize("rule", [field.name for field in fields(Sampling)])
def test_every_rule_is_applied_as_its_formula_says(rule):
    """This fails for a field of `Sampling` without a row in `BY_HAND`, because every rule needs its own formula."""
    value, by_hand = BY_HAND[rule]
    logits = torch.tensor([[2.0, -1.0, 0.5, 2.5, 0.0]], dtype=torch.float64)
    expected = torch.tensor([by_hand(logits.softmax(-1)[0].tolist())], dtype=torch.float64)
    torch.testing.assert_close(Sampling(**{rule: value}).probabilities(logits), expected)
    assert not torch.equal(expected, Sampling(1.0).probabilities(logits)), "the value changes nothing"
