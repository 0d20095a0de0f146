"""Mixture of experts: routing, the plain loop, and where gradients go."""

import pytest
import torch

from companion import FeedForward, FeedForwardConfig, MoE, MoEConfig, route


def moe(activation="relu", experts=5, top_k=2, d_model=6, d_ff=7):
    torch.manual_seed(0)
    return MoE(d_model, FeedForwardConfig(d_ff, activation), MoEConfig(experts, top_k)).double()


def test_routing_equals_softmax_over_all_cut_and_renormalised():
    torch.manual_seed(0)
    logits = torch.randn(3, 4, 5, dtype=torch.float64)
    routing = route(logits, 2)
    best, experts = logits.softmax(-1).topk(2)
    assert torch.equal(routing.experts, experts)
    torch.testing.assert_close(routing.weights, best / best.sum(-1, keepdim=True))
    assert routing.counts.sum() == 3 * 4 * 2


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_the_loop_equals_every_expert_on_every_token_weighted(activation, top_k):
    layer = moe(activation, top_k=top_k)
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    out, routing = layer(x)
    dense = torch.zeros(2, 3, 5, dtype=torch.float64).scatter(-1, routing.experts, routing.weights)
    expected = sum(dense[..., e, None] * layer.expert(e, x.flatten(0, 1)).view(2, 3, 6) for e in range(5))
    torch.testing.assert_close(out, expected)
    for a, b in zip(
        torch.autograd.grad(out.sum(), [x, layer.inner, layer.outer], retain_graph=True),
        torch.autograd.grad(expected.sum(), [x, layer.inner, layer.outer]),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_an_expert_is_an_ordinary_feed_forward_network(activation):
    layer = moe(activation)
    twin = FeedForward(6, FeedForwardConfig(7, activation)).double()
    with torch.no_grad():
        twin.inner.weight.copy_(layer.inner[3].T)
        twin.outer.weight.copy_(layer.outer[3].T)
        if layer.gate is not None:
            twin.gate.weight.copy_(layer.gate[3].T)
    x = torch.randn(4, 6, dtype=torch.float64)
    torch.testing.assert_close(layer.expert(3, x), twin(x))


def test_experts_that_were_not_chosen_get_exactly_no_gradient():
    layer = moe()
    out, routing = layer(torch.randn(1, 2, 6, dtype=torch.float64))
    out.sum().backward()
    for e, count in enumerate(routing.counts.tolist()):
        assert (layer.inner.grad[e].abs().max() > 0) == (count > 0)
    assert layer.router.weight.grad.abs().max() > 0


def test_no_tokens_and_bad_sizes():
    out, routing = moe()(torch.zeros(2, 0, 6, dtype=torch.float64))
    assert out.shape == (2, 0, 6)
    assert routing.counts.tolist() == [0] * 5
    with pytest.raises(ValueError, match="top_k=6: expected a number from 1 to the 5 experts"):
        route(torch.randn(2, 5), 6)
    with pytest.raises(ValueError, match=r"top_k=4: expected at most experts=3"):
        MoEConfig(3, 4)
    with pytest.raises(ValueError, match="bias=True"):
        MoE(6, FeedForwardConfig(7, "relu", bias=True), MoEConfig(2, 1))
