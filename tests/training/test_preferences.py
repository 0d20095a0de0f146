"""Losses for preferences and for rewarded answers, compared with the formulas and with numbers from trl."""

import json
from pathlib import Path

import pytest
import torch

from companion.training.preferences import (
    divergence,
    group_advantages,
    policy_loss,
    preference_loss,
    target_log_probs,
)

TRL = json.loads((Path(__file__).parent / "trl.json").read_text())
"""What trl's own trainers made of these numbers: losses, and their gradients in the log-probabilities."""


@pytest.mark.parametrize("case", TRL["pairs"]["losses"], ids=lambda case: f"beta {case['beta']}")
def test_preferences_cost_what_trl_says(case):
    log_probs = torch.tensor(TRL["pairs"]["log_probs"], requires_grad=True)
    found = preference_loss(log_probs, torch.tensor(TRL["pairs"]["reference"]), beta=case["beta"])
    found.loss.mean().backward()
    torch.testing.assert_close(found.loss.mean(), torch.tensor(case["loss"]))
    torch.testing.assert_close(log_probs.grad, torch.tensor(case["gradient"]))


@pytest.mark.parametrize("case", TRL["policy"], ids=lambda c: f"{c['lengths']}-{c['beta']}-{c['deviation']}")
def test_answers_cost_what_trl_says(case):
    rewards = torch.tensor(TRL["rewards"]).view(-1, TRL["group"])
    advantages = group_advantages(rewards, deviation=case["deviation"]).flatten()
    torch.testing.assert_close(advantages, torch.tensor(case["advantages"]))
    log_probs = torch.tensor(TRL["log_probs"], requires_grad=True)
    scored = torch.arange(log_probs.shape[1]) < torch.tensor(TRL["lengths"])[:, None]
    found = policy_loss(
        log_probs,
        torch.tensor(TRL["old"]),
        torch.tensor(TRL["reference"]),
        advantages,
        scored,
        clip=0.2,
        beta=case["beta"],
        lengths=case["lengths"],
        longest=case["longest"],
    )
    found.loss.mean().backward()
    torch.testing.assert_close(found.loss.mean(), torch.tensor(case["loss"]))
    torch.testing.assert_close(log_probs.grad, torch.tensor(case["gradient"]))


def test_a_preference_is_the_likelihood_of_bradley_and_terry():
    log_probs, reference = torch.tensor([[-2.0, -3.0], [-1.0, -1.5]]), torch.tensor([[-2.5, -3.0], [-1.0, -4.0]])
    found = preference_loss(log_probs, reference, beta=0.3)
    rewards = 0.3 * (log_probs - reference)
    p = rewards[:, 0].exp() / rewards.exp().sum(-1)  # probability that the first answer is preferred
    torch.testing.assert_close(found.loss, -p.log())
    assert torch.equal(torch.stack([found.chosen, found.rejected], -1), rewards)
    same = preference_loss(reference, reference, beta=0.3).loss
    torch.testing.assert_close(same, torch.full((2,), 2.0).log())


def test_a_group_in_which_all_earn_the_same_teaches_nothing():
    rewards = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
    for deviation in (True, False):
        advantages = group_advantages(rewards, deviation=deviation)
        assert advantages[0].abs().max() == 0 and abs(advantages[1].sum()) < 1e-6
        assert advantages[1, 1] > 0 > advantages[1, 0]
    with pytest.raises(ValueError, match="at least two answers"):
        group_advantages(torch.ones(4, 1))


def test_the_estimate_of_the_divergence_is_right_on_average_and_never_negative():
    torch.manual_seed(0)
    p, q = torch.randn(2, 6).log_softmax(-1)
    every = divergence(p[:, None], q[:, None])
    assert (every >= 0).all()
    torch.testing.assert_close((p.exp() * every[:, 0]).sum(), (p.exp() * (p - q)).sum())


def test_in_the_first_step_the_gradient_is_that_of_reinforce_and_a_won_ratio_has_none():
    torch.manual_seed(0)
    log_probs = (-torch.rand(3, 4)).requires_grad_()
    advantages, scored = torch.tensor([1.0, -0.5, 2.0]), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    policy_loss(log_probs, log_probs.detach(), log_probs.detach(), advantages, scored).loss.sum().backward()
    wanted = -(advantages[:, None] * scored) / scored.sum(-1, keepdim=True)
    torch.testing.assert_close(log_probs.grad, wanted)
    log_probs.grad = None
    old = log_probs.detach() - 0.5  # probability ratios of 1.65
    found = policy_loss(log_probs, old, old, advantages, scored, clip=0.2)
    found.loss.sum().backward()
    assert log_probs.grad[0].abs().max() == 0 and log_probs.grad[1].abs().min() > 0
    assert found.clipped.tolist() == [1.0, 0.0, 1.0]


def test_a_place_that_is_not_scored_has_no_log_probability():
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 3, 5), torch.tensor([[1, -100, 4], [0, 2, -100]])
    found = target_log_probs(logits, targets)
    assert found[0, 1] == found[1, 2] == 0
    torch.testing.assert_close(found[1, 1], logits.log_softmax(-1)[1, 1, 2])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: preference_loss(torch.zeros(1, 2), torch.zeros(1, 2), beta=0.0), "beta=0.0: expected a number > 0"),
        (
            lambda: policy_loss(*(torch.zeros(1, 2),) * 3, torch.zeros(1), torch.ones(1, 2) > 0, lengths="constant"),
            "longest=None: expected the number of tokens",
        ),
    ],
)
def test_what_cannot_be_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
