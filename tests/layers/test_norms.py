"""Norms equal their formulas and PyTorch's."""

import pytest
import torch
import torch.nn.functional as F
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

from companion import LayerNorm, RMSNorm, rms_norm


def test_rms_norm_of_the_worked_vector():
    out = rms_norm(torch.tensor([2.0, 3.0, -1.0, 4.0], dtype=torch.float64), torch.ones(4, dtype=torch.float64), 0.0)
    assert out.tolist() == pytest.approx([x / 7.5**0.5 for x in (2, 3, -1, 4)])


def test_rms_norm_equals_pytorch_forward_and_backward():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    gain = torch.randn(6, dtype=torch.float64, requires_grad=True)
    ours, theirs = rms_norm(x, gain, 1e-5), F.rms_norm(x, (6,), gain, 1e-5)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    for a, b in zip(
        torch.autograd.grad(ours.pow(3).sum(), (x, gain)),
        torch.autograd.grad(theirs.pow(3).sum(), (x, gain)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_rms_norm_of_large_half_precision_numbers_stays_finite():
    x = torch.full((4,), 3e4, dtype=torch.float16)
    assert rms_norm(x, torch.ones(4, dtype=torch.float16), 1e-6).tolist() == [1, 1, 1, 1]


def test_a_layer_norm_without_a_bias_is_pytorchs():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    ours, theirs = LayerNorm(5, 1e-5, bias=False).double(), torch.nn.LayerNorm(5, 1e-5, bias=False).double()
    assert [name for name, _ in ours.named_parameters()] == ["weight"]
    with torch.no_grad():
        theirs.weight.copy_(torch.nn.init.normal_(ours.weight))
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-12, rtol=0)
    assert torch.autograd.gradcheck(ours, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_layer_in_half_precision_rounds_before_the_gain_as_its_formula_does(dtype):
    torch.manual_seed(0)
    norm = RMSNorm(70, 1e-5).to(dtype)
    with torch.no_grad():
        norm.weight.normal_()
    x = (100 * torch.randn(3, 5, 70)).to(dtype)
    assert torch.equal(norm(x), rms_norm(x, norm.weight, 1e-5))
    assert not torch.equal(norm(x), torch.nn.functional.rms_norm(x, (70,), norm.weight, 1e-5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gain_of_one_plus_the_weight_is_that_of_gemma(dtype):
    torch.manual_seed(0)
    ours, theirs = RMSNorm(64, 1e-6, unit_offset=True), Gemma2RMSNorm(64)
    assert torch.equal(ours.weight, torch.zeros(64))  # initially it is a norm without a gain
    with torch.no_grad():
        ours.weight.normal_(std=0.3)
        theirs.weight.copy_(ours.weight)
    x = torch.randn(5, 64).to(dtype)
    assert ours(x).dtype == dtype
    # If rounded once, after the gain, half precision is within half a unit, 2^-8, of the formula in float64, and so is
    # theirs. If also rounded before the gain, it would be further away.
    w = x.double()
    exact = w / (w.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + ours.weight.double())
    once = 2**-8 if dtype == torch.bfloat16 else 0
    for found in (ours(x), theirs(x)):
        assert ((found - exact).abs() <= (once + 1e-6) * exact.abs()).all()
    if once:
        twice = rms_norm(x, (1 + ours.weight).to(dtype), 1e-6)
        assert ((twice - exact).abs() > (once + 1e-6) * exact.abs()).any()


def test_layer_norm_uses_the_biased_variance_and_epsilon_inside_the_root():
    norm = LayerNorm(4, eps=1e-5)
    x = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    assert norm(x)[0, 0].item() == pytest.approx(0.75 / (0.1875 + 1e-5) ** 0.5, abs=1e-6)
    tiny = x * 1e-3  # here the position of epsilon matters
    assert norm(tiny)[0, 0].item() == pytest.approx(0.75e-3 / (0.1875e-6 + 1e-5) ** 0.5, abs=1e-6)


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_norms_treat_each_token_alone_and_count_their_parameters(kind):
    norm = kind(6)
    x = torch.randn(2, 5, 6)
    changed = x.clone()
    changed[1, 3] += torch.randn(6)
    moved = (norm(changed) - norm(x)).abs().amax(-1) > 0
    assert moved.nonzero().tolist() == [[1, 3]]
    assert sum(p.numel() for p in norm.parameters()) == (12 if kind is LayerNorm else 6)
