"""The losses that balance experts, and the bias: their values and gradients."""

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from companion import FeedForwardConfig, MoE, MoEConfig, route, switch_loss, update_bias, z_loss


def routed(top_k=2, experts=5, shape=(3, 7), seed=0, attention_mask=None, gating="topk_softmax"):
    torch.manual_seed(seed)
    logits = torch.randn(*shape, experts, dtype=torch.float64, requires_grad=True)
    return logits, route(logits, top_k, gating)._replace(attention_mask=attention_mask)


def test_the_switch_loss_is_its_formula():
    logits, routing = routed()
    load = torch.bincount(routing.experts.flatten(), minlength=5) / (3 * 7 * 2)
    shares = logits.softmax(-1).flatten(0, 1).mean(0)
    torch.testing.assert_close(switch_loss(routing), 5 * (load * shares).sum())


def test_its_value_is_one_at_uniform_load_the_number_of_experts_at_collapse_and_can_be_below_one():
    even = route(9.0 * torch.eye(4).repeat(3, 1), 1)
    assert switch_loss(even).item() == pytest.approx(1)
    assert switch_loss(route(torch.zeros(6, 4), 2)).item() == pytest.approx(1)  # uneven load, uniform probabilities
    collapsed = route(torch.tensor([[40.0, 0.0, 0.0, 0.0]]).repeat(6, 1), 1)
    assert switch_loss(collapsed).item() == pytest.approx(4)
    # Two of three tokens barely prefer expert 0, and the third strongly prefers expert 1, so expert 0 has the most
    # choices and the lowest probability.
    below = route(torch.tensor([[0.01, 0.0], [0.01, 0.0], [-9.0, 0.0]]), 1)
    assert switch_loss(below).item() < 0.9


@pytest.mark.parametrize("loss", [switch_loss, z_loss])
@pytest.mark.parametrize("gating", ["topk_softmax", "softmax_topk", "sigmoid"])
@pytest.mark.parametrize("top_k", [1, 2])
def test_every_loss_has_a_gradient_at_the_router(loss, gating, top_k):
    torch.manual_seed(0)
    layer = MoE(6, FeedForwardConfig(7), MoEConfig(5, top_k, gating=gating, capacity=0.5))
    loss(layer(torch.randn(2, 9, 6))[1]).backward()
    assert layer.router.weight.grad.abs().max() > 1e-3
    assert layer.inner.grad is None  # only the router has one


def test_the_gradient_of_the_switch_loss_goes_through_the_probabilities_alone():
    logits, routing = routed()
    (got,) = torch.autograd.grad(switch_loss(routing), logits)
    load = routing.load.detach()
    (expected,) = torch.autograd.grad(5 * (load * logits.softmax(-1).flatten(0, 1).mean(0)).sum(), logits)
    torch.testing.assert_close(got, expected)
    # A step downhill moves probability from the expert that was chosen most to the one that was chosen least.
    after = (logits - got).softmax(-1).mean((0, 1)) - logits.softmax(-1).mean((0, 1))
    assert after[load.argmax()] < 0 < after[load.argmin()]


def test_the_z_loss_is_the_mean_square_of_the_log_of_the_partition_function():
    logits, routing = routed()
    torch.testing.assert_close(z_loss(routing), logits.exp().sum(-1).log().square().mean())
    assert z_loss(route(torch.zeros(3, 4), 1)).item() == pytest.approx(math.log(4) ** 2)


@pytest.mark.parametrize("loss", [switch_loss, z_loss])
def test_padding_is_left_out_whatever_it_holds(loss):
    torch.manual_seed(0)
    attention_mask = torch.rand(3, 7) < 0.6
    logits = torch.randn(3, 7, 5)
    padded = route(logits.masked_fill(~attention_mask[..., None], 1e4).requires_grad_(), 2)._replace(
        attention_mask=attention_mask
    )
    torch.testing.assert_close(loss(padded), loss(route(logits[attention_mask], 2)))
    assert loss(route(torch.zeros(2, 0, 5), 2)).item() == 0


@pytest.mark.parametrize("loss", [switch_loss, z_loss])
def test_the_shares_of_unequal_parts_add_up_to_the_whole_batch_and_their_mean_does_not(loss):
    logits, whole = routed(shape=(4, 6))
    logits.grad = None
    loss(whole).backward()
    expected = logits.grad.clone()
    logits.grad = None
    parts = [route(part, 2) for part in (logits[:1], logits[1:])]
    together = sum(loss(part, whole.counts) for part in parts)
    together.backward()
    torch.testing.assert_close(together, loss(whole))
    torch.testing.assert_close(logits.grad, expected)
    assert abs(sum(loss(part) for part in parts).item() / 2 - loss(whole).item()) > 1e-3


def test_half_precision_logits_are_summed_in_fp32():
    logits = torch.randn(3, 500, 5).bfloat16()
    for loss in (switch_loss, z_loss):
        assert loss(route(logits, 2)).dtype == torch.float32
        torch.testing.assert_close(loss(route(logits, 2)), loss(route(logits.float(), 2)))


def test_the_bias_rises_for_the_underloaded_and_falls_for_the_overloaded():
    layer = MoE(6, FeedForwardConfig(7), MoEConfig(4, 2, balanced=True))
    update_bias(layer, torch.tensor([10, 0, 6, 8]), 0.001)  # the mean is 6
    torch.testing.assert_close(layer.bias, torch.tensor([-0.001, 0.001, 0.0, -0.001]))
    update_bias(layer, torch.tensor([10, 0, 0, 2]), 0.01)
    torch.testing.assert_close(layer.bias, torch.tensor([-0.011, 0.011, 0.01, 0.009]))
    assert "bias" in layer.state_dict() and "bias" not in dict(layer.named_parameters())


def test_the_bias_is_moved_by_its_update_alone_and_balances_a_collapsed_router():
    torch.manual_seed(0)
    layer = MoE(6, FeedForwardConfig(7), MoEConfig(8, 2, balanced=True))
    with torch.no_grad():
        layer.router.weight[:2] += 1.0
    x = torch.rand(4, 50, 6)
    before = layer(x)[1].effective_experts.item()
    layer(x)[0].sum().backward()
    assert (layer.bias == 0).all() and layer.bias.grad is None  # a forward and a backward pass do not change it
    for _ in range(200):
        update_bias(layer, layer(x)[1].counts, 0.005)
    assert before < 3 and layer(x)[1].effective_experts > 7


def test_recomputing_activations_counts_once_and_gives_the_same_gradients():
    gradients, counts = [], []
    for recompute in (False, True):
        torch.manual_seed(0)
        layer = MoE(8, FeedForwardConfig(12), MoEConfig(4, 2, noise=0.3, capacity=0.8, balanced=True))
        x = torch.randn(2, 9, 8, requires_grad=True)
        torch.manual_seed(1)
        out, routing = checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)
        (out.square().sum() + switch_loss(routing) + z_loss(routing)).backward()
        counts.append(routing.counts)
        gradients.append([x.grad, *(p.grad for p in layer.parameters())])
        assert (layer.bias == 0).all()
    assert counts[0].sum() == 2 * 9 * 2 and torch.equal(*counts)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_what_does_not_fit_is_refused(unchecked):
    layer = MoE(6, FeedForwardConfig(7), MoEConfig(4, 2, balanced=True))
    with pytest.raises(ValueError, match="balanced=False: expected a layer with a balancing bias"):
        update_bias(MoE(6, FeedForwardConfig(7), MoEConfig(4, 2)), torch.ones(4, dtype=torch.long), 0.1)
    with pytest.raises(ValueError, match="counts of shape .3,.: expected one count for each of 4 experts"):
        update_bias(layer, torch.ones(3, dtype=torch.long), 0.1)
    with pytest.raises(ValueError, match="rate=-0.1: expected a number >= 0"):
        update_bias(layer, torch.ones(4, dtype=torch.long), -0.1)
    with pytest.raises(ValueError, match="counts of shape .1,.: expected one count for each of 5 experts"):
        switch_loss(routed()[1], torch.ones(1, dtype=torch.long))
