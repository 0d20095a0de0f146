"""Tiled attention equals `attend`, forward and backward, and stores only a small part of what it computes."""

from functools import partial

import pytest
import torch
from heads import assert_same, heads, some_mask
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from companion import attend
from companion.costs.account import counted_flops
from companion.layers.kernels.tiled import tiled_attention
from companion.layers.masks import both, padding, window


@settings(max_examples=60, deadline=None)
@given(
    query=st.integers(1, 9),
    key=st.integers(1, 9),
    kv_head=st.sampled_from([1, 2, 4]),
    tile=st.tuples(st.integers(1, 10), st.integers(1, 10)),
    is_causal=st.booleans(),
    masking=st.sampled_from(["none", "bool", "padding", "predicate"]),
)
def test_tiled_attention_is_exact_for_any_tile(query, key, kv_head, tile, is_causal, masking):
    q, k, v = heads(query, key, kv_head, grad=True)
    mask = {
        "none": None,
        "bool": some_mask(query, key),
        "padding": (torch.arange(key) < torch.tensor([key, 1, 0])[:, None])[:, None, None],
        "predicate": both(window(3), padding(torch.tensor([key, 2, 4]))),
    }[masking]
    expected = attend(q, k, v, mask=mask, causal=is_causal, backend="reference")
    assert_same(tiled_attention(q, k, v, mask=mask, causal=is_causal, tile=tile), expected, (q, k, v))


def test_tiled_attention_is_exact_in_single_and_half_precision():
    q, k, v = heads(33, 41, dtype=torch.float32, grad=True)
    assert_same(tiled_attention(q, k, v, causal=True, tile=(8, 5)), attend(q, k, v, causal=True), (q, k, v), atol=2e-6)
    q, k, v = (x.detach().bfloat16() for x in (q, k, v))
    expected = attend(*(x.float() for x in (q, k, v)))
    out = tiled_attention(q, k, v, tile=(8, 5))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, atol=1e-6, rtol=2**-8)  # rounded once, at the end


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_of_tiled_attention_are_right(is_causal):
    q, k, v = (x[1:2].detach().requires_grad_() for x in heads(3, 4))
    mask = some_mask(3, 4)[1:2]  # its middle query sees nothing
    assert torch.autograd.gradcheck(lambda *x: tiled_attention(*x, mask=mask, causal=is_causal, tile=(2, 3)), (q, k, v))


def test_tiled_attention_gives_zeros_and_no_gradient_where_nothing_is_seen():
    q, k, v = heads(9, 7, grad=True)  # causal: the first two of nine queries see none of the seven keys
    out = tiled_attention(q, k, v, mask=some_mask(9, 7), causal=True, tile=(4, 3))
    assert (out[:, :, :2] == 0).all() and (out[1, :, 4] == 0).all()
    assert (out[0, :, 8] != 0).any()
    out.sum().backward()
    assert (q.grad[:, :, :2] == 0).all() and (q.grad[1, :, 4] == 0).all()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_tiled_attention_survives_scores_that_exp_does_not():
    q, k, v = heads(grad=True)
    assert_same(
        tiled_attention(q * 1e3, k, v, tile=(2, 2)), attend(q * 1e3, k, v, backend="reference"), (q, k, v), atol=1e-9
    )


def saved_numbers(run):
    """Return the number of elements that autograd stores for the backward pass."""
    storages = {}

    def pack(x):
        storages[x.untyped_storage().data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = run()
    assert out.requires_grad
    return sum(storages.values())


class Largest(TorchDispatchMode):
    """Record the largest number of elements in any tensor that is computed."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor):
                self.numbers = max(self.numbers, x.numel())
        return out


def test_tiled_attention_saves_its_inputs_its_output_and_one_number_a_query():
    for n in (64, 128):
        q, k, v = heads(n, n, grad=True)
        linear = q.numel() + k.numel() + v.numel() + 3 * 4 * n * 8 + 3 * 4 * n
        assert saved_numbers(lambda x=(q, k, v): tiled_attention(*x, causal=True, tile=(16, 16))) == linear
        assert saved_numbers(lambda x=(q, k, v): attend(*x, causal=True, backend="reference")) > 3 * 4 * n * n


def test_nothing_in_tiled_attention_grows_with_the_square_of_the_length():
    found = {}
    for n in (64, 128):
        q, k, v = heads(n, n, grad=True)
        with Largest() as largest:
            tiled_attention(q, k, v, mask=window(20), causal=True, tile=(8, 8)).sum().backward()
        found[n] = largest.numbers
    # The output; a tile of scores has 3 * 4 * 8 * 8 elements
    assert found == {64: 3 * 4 * 64 * 8, 128: 3 * 4 * 128 * 8}


def test_operations_of_tiled_attention_are_those_of_its_docstring():
    q, k, v = heads(24, 40, grad=True)
    one_way = 3 * 4 * 2 * 24 * 40
    forward = counted_flops(lambda: tiled_attention(q, k, v, tile=(5, 7)))
    assert forward == one_way * (6 + 8) == counted_flops(lambda: attend(q, k, v, backend="reference"))
    out = tiled_attention(q, k, v, tile=(5, 7))
    assert counted_flops(lambda: out.sum().backward()) == one_way * (3 * 6 + 2 * 8)


def test_tiles_in_which_nobody_may_look_are_skipped():
    q, k, v = heads(32, 32)
    tiles = {"all": 8 * 8, "causal": 8 * 9 // 2, "window": 8 + 7}
    pairs = 3 * 4 * 2 * (6 + 8) * 4 * 4
    assert counted_flops(lambda: tiled_attention(q, k, v, tile=(4, 4))) == tiles["all"] * pairs
    assert counted_flops(lambda: tiled_attention(q, k, v, causal=True, tile=(4, 4))) == tiles["causal"] * pairs
    assert counted_flops(lambda: tiled_attention(q, k, v, mask=window(5), tile=(4, 4))) == tiles["window"] * pairs


def test_tiled_attention_refuses_what_it_cannot_do(unchecked):
    q, k, v = heads()
    with pytest.raises(ValueError, match="mask is float64 .*expected a tensor of True and False"):
        tiled_attention(q, k, v, mask=torch.zeros(3, 1, 5, 7, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"shape \(5, 7\): expected four axes, \(batch, head, query, key\)"):
        tiled_attention(q, k, v, mask=torch.ones(5, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"tile=\(0, 4\)"):
        tiled_attention(q, k, v, tile=(0, 4))
    with pytest.raises(ValueError, match="kv_head=3: expected a divisor of head=4"):
        tiled_attention(q, *heads(kv_head=3)[1:])


@pytest.mark.parametrize("constant", [True, False])
def test_second_derivatives_are_those_of_the_formula(constant):
    """The gradient of the loss may be a constant, alone or beside a term with a second derivative."""
    q, k, v = heads(grad=True)
    mask = some_mask(5, 7)

    def seconds(way):
        out = way(q, k, v, mask=mask)
        loss = (out * torch.arange(8, dtype=torch.float64)).sum() if constant else out.square().sum()
        first = torch.autograd.grad(loss + q.pow(3).sum(), (q, k), create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), (q, k, v))

    for ours, theirs in zip(seconds(tiled_attention), seconds(partial(attend, backend="reference")), strict=True):
        torch.testing.assert_close(ours, theirs)
