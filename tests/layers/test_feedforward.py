"""Feed-forward networks equal their formulas entry by entry, with all widths different."""

import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import Gemma2Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP

from companion import FeedForward, FeedForwardConfig


@pytest.mark.parametrize(
    ("kind", "f"), [("relu", F.relu), ("gelu", F.gelu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"))]
)
def test_plain_networks_are_two_matrices_and_an_activation(kind, f):
    torch.manual_seed(0)
    ours = FeedForward(6, FeedForwardConfig(10, kind, bias=True)).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    w_in, w_out = ours.inner.weight.T, ours.outer.weight.T  # (d_model, d_ff), (d_ff, d_model)
    torch.testing.assert_close(ours(x), f(x @ w_in + ours.inner.bias) @ w_out + ours.outer.bias)
    assert sum(p.numel() for p in ours.parameters()) == 2 * 6 * 10 + 10 + 6


def test_relu_network_equals_a_sequential_of_pytorch():
    ours = FeedForward(6, FeedForwardConfig(10, "relu", bias=True))
    theirs = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 6))
    theirs[0].load_state_dict(ours.inner.state_dict())
    theirs[2].load_state_dict(ours.outer.state_dict())
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(ours(x), theirs(x))


def test_swiglu_has_three_matrices_and_no_bias():
    torch.manual_seed(0)
    ours = FeedForward(6, FeedForwardConfig(10, "swiglu")).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    gate = x @ ours.gate.weight.T
    expected = (gate * gate.sigmoid() * (x @ ours.inner.weight.T)) @ ours.outer.weight.T
    torch.testing.assert_close(ours(x), expected)
    assert sum(p.numel() for p in ours.parameters()) == 3 * 6 * 10


@pytest.mark.parametrize(("kind", "form"), [("geglu", "none"), ("geglu_tanh", "tanh")])
def test_geglu_is_gated_by_a_gelu(kind, form):
    torch.manual_seed(0)
    ours = FeedForward(6, FeedForwardConfig(10, kind, bias=True)).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    gate, inner = (x @ layer.weight.T + layer.bias for layer in (ours.gate, ours.inner))
    expected = (F.gelu(gate, approximate=form) * inner) @ ours.outer.weight.T + ours.outer.bias
    torch.testing.assert_close(ours(x), expected)
    theirs = Gemma2MLP(Gemma2Config(hidden_size=6, intermediate_size=10, num_attention_heads=2)).double()
    theirs.load_state_dict(
        {
            f"{name}_proj.weight": getattr(ours, to).weight
            for name, to in (("gate", "gate"), ("up", "inner"), ("down", "outer"))
        }
    )
    with torch.no_grad():
        for layer in (ours.gate, ours.inner, ours.outer):
            layer.bias.zero_()
    assert torch.allclose(ours(x), theirs(x)) == (kind == "geglu_tanh")


@pytest.mark.parametrize("kind", ["relu", "swiglu"])
def test_no_token_sees_another(kind):
    ours = FeedForward(6, FeedForwardConfig(10, kind))
    x = torch.randn(4, 6)
    jacobian = torch.autograd.functional.jacobian(ours, x)  # (token, d_model, token, d_model)
    for i in range(4):
        for j in range(4):
            assert (jacobian[i, :, j].abs().max() > 0) == (i == j)


@pytest.mark.parametrize("kind", ["relu", "gelu", "gelu_tanh", "silu", "swiglu"])
def test_every_network_can_be_saved_whole(kind):
    """A lambda in the module would prevent this."""
    network, file = FeedForward(6, FeedForwardConfig(10, kind)), io.BytesIO()
    torch.save(network, file)
    assert file.tell() > 4 * sum(p.numel() for p in network.parameters())
