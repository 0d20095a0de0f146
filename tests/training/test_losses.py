"""Sums over tokens, never means of means; and bits per byte."""

import math

import pytest
import torch
import torch.nn.functional as F

from companion.training.losses import IGNORE, bits_per_byte, cross_entropy_sum


def test_the_sum_is_minus_ln_p_over_the_scored_positions() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)], [1.0, 1.0], [9.0, 0.0]]])
    total, count = cross_entropy_sum(logits, torch.tensor([[1, 0, IGNORE]]))
    assert count.item() == 2
    assert total.item() == pytest.approx(-math.log(3 / 4) - math.log(1 / 2))


def test_ignored_positions_get_no_gradient_and_a_batch_without_targets_is_zero() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    targets = torch.tensor([[1, IGNORE, 4], [IGNORE, IGNORE, IGNORE]])
    cross_entropy_sum(logits, targets)[0].backward()
    assert logits.grad is not None
    scored = logits.grad.abs().sum(-1) > 0
    assert torch.equal(scored, targets != IGNORE)
    total, count = cross_entropy_sum(logits, torch.full((2, 3), IGNORE))
    assert total.item() == 0 and count.item() == 0


def test_half_precision_logits_are_scored_in_fp32() -> None:
    logits, targets = torch.randn(3, 7, 11), torch.randint(11, (3, 7))
    half = logits.bfloat16()
    total, _ = cross_entropy_sum(half, targets)
    assert total.dtype == torch.float32
    wanted = F.cross_entropy(half.float().flatten(0, 1), targets.flatten(), reduction="sum")
    assert total.item() == pytest.approx(wanted.item())


def test_bits_per_byte_of_uniform_bytes_is_eight_and_of_nothing_is_refused() -> None:
    assert bits_per_byte(10 * math.log(256), 10) == pytest.approx(8)
    with pytest.raises(ValueError, match="bytes=0: expected"):
        bits_per_byte(1.0, 0)


# label smoothing


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_label_smoothing_is_pytorchs(smoothing: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 11, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(11, (3, 5))
    targets[0, 2:], targets[2] = IGNORE, IGNORE
    total, count = cross_entropy_sum(logits, targets, smoothing=smoothing)
    theirs = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing
    )
    torch.testing.assert_close(total, theirs)
    assert count.item() == 7
    ours, wanted = (torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (total, theirs))
    torch.testing.assert_close(ours, wanted)


def test_the_gradient_of_label_smoothing_is_p_minus_q_and_its_least_value_the_entropy_of_q() -> None:
    torch.manual_seed(1)
    logits, targets = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True), torch.randint(7, (2, 3))
    q = 0.9 * F.one_hot(targets, 7) + 0.1 / 7
    cross_entropy_sum(logits, targets, smoothing=0.1)[0].backward()
    torch.testing.assert_close(logits.grad, logits.softmax(-1).detach() - q)
    least, _ = cross_entropy_sum(q.log(), targets, smoothing=0.1)
    torch.testing.assert_close(least, -(q * q.log()).sum())


def test_a_smoothing_that_is_no_share_is_refused() -> None:
    for smoothing in (-0.1, 1.0):
        with pytest.raises(ValueError, match=f"smoothing={smoothing}: expected a share"):
            cross_entropy_sum(torch.zeros(1, 1, 2), torch.zeros(1, 1, dtype=torch.long), smoothing=smoothing)
