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
