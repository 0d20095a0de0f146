"""A linear layer with a parallel change of low rank."""

import copy

import pytest
import torch
from torch import nn

from companion.layers.low_rank import LowRank, low_rank_layers, without_adapters


def layer(bias: bool = True, alpha: float = 6.0) -> LowRank:
    torch.manual_seed(1)
    return LowRank(nn.Linear(7, 5, bias=bias), 3, alpha)


@pytest.mark.parametrize("bias", [True, False])
def test_it_is_the_layer_it_stands_for_until_it_has_learned(bias):
    torch.manual_seed(0)
    plain = nn.Linear(7, 5, bias=bias)
    made, x = LowRank(plain, 2, 4.0), torch.randn(4, 7)
    assert torch.equal(made(x), plain(x)) and made.weight is plain.weight
    assert not made.weight.requires_grad and made.down.shape == (2, 7) and made.up.shape == (5, 2)
    assert {name for name, p in made.named_parameters() if p.requires_grad} == {"down", "up"}


def test_the_change_is_alpha_over_rank_times_b_a_and_can_be_merged():
    made, x = layer(), torch.randn(4, 7)
    nn.init.normal_(made.up)
    wanted = x @ (made.weight + 6.0 / 3 * made.up @ made.down).T + made.bias
    torch.testing.assert_close(made(x), wanted)
    torch.testing.assert_close(x @ made.matrix().T + made.bias, wanted)
    assert torch.linalg.matrix_rank(made.matrix() - made.weight) == 3


def test_where_b_is_zero_b_alone_has_a_gradient():
    made = layer()
    made(torch.randn(4, 7)).square().sum().backward()
    assert made.up.grad.abs().max() > 0 and made.down.grad.abs().max() == 0 and made.weight.grad is None


def test_it_can_be_switched_off_and_is_what_it_was_afterwards():
    model = nn.Sequential(layer(), nn.Tanh(), nn.Linear(5, 2))
    nn.init.normal_(model[0].up)
    x, before = torch.randn(4, 7), copy.deepcopy(model)
    with pytest.raises(KeyError), without_adapters(model):
        assert torch.equal(model[0](x), nn.functional.linear(x, model[0].weight, model[0].bias))
        raise KeyError
    assert torch.equal(model(x), before(x)) and list(low_rank_layers(model)) == ["0"]


@pytest.mark.parametrize(("rank", "alpha", "name"), [(0, 1.0, "rank=0"), (2, 0.0, "alpha=0.0"), (1.5, 1.0, "rank=1.5")])
def test_ranks_and_scales_that_cannot_be_are_named(rank, alpha, name, unchecked):
    with pytest.raises(ValueError, match=name):
        LowRank(nn.Linear(3, 2), rank, alpha)
