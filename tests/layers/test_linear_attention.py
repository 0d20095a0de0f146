"""All implementations of linear attention agree with each other, but not with `attend`."""

import math

import pytest
import torch
import torch.nn.functional as F
from heads import assert_same, heads

from companion import attend
from companion.costs.account import counted_flops
from companion.layers.linear_attention import linear_attention, linear_attention_step, positive_features


def quadratic(q, k, v, *, is_causal, attention_mask=None):
    """Compute the formula with its query-by-key matrix."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    weights = (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-2, -1)
    if is_causal:
        weights = weights.tril()
    if attention_mask is not None:
        weights = weights * attention_mask[:, None, None]
    return (weights / weights.sum(-1, keepdim=True)) @ v


@pytest.mark.parametrize("kv_head", [1, 2, 4])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_linear_attention_is_its_quadratic_formula(kv_head, is_causal, padded):
    q, k, v = heads(11, 11 if is_causal else 7, kv_head, grad=True)
    attention_mask = torch.arange(k.shape[2]) < torch.tensor([k.shape[2], 5, 1])[:, None] if padded else None
    ours = linear_attention(q, k, v, causal=is_causal, attention_mask=attention_mask, chunk=4)
    assert_same(ours, quadratic(q, k, v, is_causal=is_causal, attention_mask=attention_mask), (q, k, v))


@pytest.mark.parametrize("chunk", [1, 3, 11, 64])
def test_causal_linear_attention_does_not_depend_on_the_chunk(chunk):
    q, k, v = heads(11, 11, grad=True)
    assert_same(linear_attention(q, k, v, causal=True, chunk=chunk), quadratic(q, k, v, is_causal=True), (q, k, v))


def test_causal_linear_attention_is_a_recurrent_network():
    q, k, v = heads(9, 9)
    expected = linear_attention(q, k, v, causal=True)
    state, by_hand = None, torch.zeros(3, 2, 6, 9, dtype=q.dtype)
    kept = []
    for t in range(9):
        now = slice(t, t + 1)
        by_hand = by_hand + positive_features(k[:, :, t])[..., None] * F.pad(v[:, :, t], (0, 1), value=1)[..., None, :]
        out, state = linear_attention_step(q[:, :, now], k[:, :, now], v[:, :, now], state)
        kept.append((state, state.clone()))
        torch.testing.assert_close(state, by_hand)
        torch.testing.assert_close(out, expected[:, :, now])
        read = positive_features(q[:, :, t, None]) @ by_hand.repeat_interleave(2, dim=1)
        torch.testing.assert_close(out, read[..., :-1] / read[..., -1:])
    assert all(torch.equal(value, before) for value, before in kept)  # a later step changes no earlier state


def test_the_last_token_of_causal_linear_attention_sees_what_full_attention_sees():
    q, k, v = heads(9, 9)
    torch.testing.assert_close(linear_attention(q, k, v, causal=True)[:, :, -1], linear_attention(q, k, v)[:, :, -1])


def test_linear_attention_is_another_function_than_softmax_attention():
    q, k, v = heads()
    assert (linear_attention(q, k, v) - attend(q, k, v)).abs().max() > 0.1
    # Larger queries sharpen a softmax without limit; here the weights do not become sharper.
    assert attend(1e4 * q, k, v).sub(linear_attention(1e4 * q, k, v)).abs().max() > 0.1


def test_linear_attention_costs_what_its_docstring_says():
    for n in (64, 128):
        q, k, v = heads(n, n)
        state = 6 * (8 + 1)
        assert counted_flops(lambda x=(q, k, v): linear_attention(*x)) == 3 * 2 * n * state * (4 + 2)
        token_mask = counted_flops(lambda x=(q, k, v): linear_attention(*x, causal=True, chunk=16))
        among_themselves = 3 * 4 * 2 * n * 16 * (6 + 8 + 1)
        unread = 3 * 4 * 2 * 16 * state  # the first chunk has no state to read,
        unwritten = 3 * 2 * 2 * 16 * state  # and the state after the last chunk is not read
        assert token_mask == 3 * 2 * n * state * (4 + 2) - unread - unwritten + among_themselves


def test_positive_features_are_elu_plus_one_and_stay_positive():
    x = torch.linspace(-8, 8, 33, dtype=torch.float64, requires_grad=True)  # zero is one of them
    torch.testing.assert_close(positive_features(x), F.elu(x) + 1)
    ours, theirs = (torch.autograd.grad(f(x).sum(), x)[0] for f in (positive_features, F.elu))
    torch.testing.assert_close(ours, theirs)
    far = torch.tensor([-50.0])
    assert F.elu(far) + 1 == 0 and positive_features(far).item() == pytest.approx(math.exp(-50))


def test_linear_attention_over_padding_alone_is_zero_and_has_no_gradient():
    q, k, v = heads(grad=True)
    attention_mask = torch.tensor([True, False, True])[:, None].expand(3, 7)
    out = linear_attention(q, k, v, attention_mask=attention_mask)
    out.sum().backward()
    assert (out[1] == 0).all() and (out[0] != 0).all()
    assert all((x.grad[1] == 0).all() and x.grad.isfinite().all() for x in (q, k, v))


def test_linear_attention_refuses_bad_input(unchecked):
    q, k, v = heads()
    with pytest.raises(ValueError, match="k has key=7: expected 5"):
        linear_attention(q, k, v, causal=True)
    with pytest.raises(ValueError, match="chunk=0"):
        linear_attention(q, k, v, chunk=0)
    for call in (linear_attention, linear_attention_step):
        with pytest.raises(ValueError, match="kv_head=3: expected a divisor of head=4"):
            call(q, *heads(key=5, kv_head=3)[1:])


@pytest.mark.parametrize("is_causal", [False, True])
def test_sums_over_many_tokens_do_not_overflow_in_half_precision(is_causal):
    """A state stored in fp16 would be infinite after about 16,000 tokens."""
    q, k, v = (x.float().abs() + 2 for x in heads(30_000, 30_000))
    exact = linear_attention(q, k, v, causal=is_causal)
    half = linear_attention(q.half(), k.half(), v.half(), causal=is_causal)
    assert half.dtype == torch.float16 and half.isfinite().all()
    torch.testing.assert_close(half.float(), exact, rtol=5e-3, atol=0)
