"""Attention equals its formula, PyTorch's operators, and itself however it is called."""

import math

import pytest
import torch
import torch.nn.functional as F
from heads import Largest
from torch import nn
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

from companion import (
    Attention,
    AttentionConfig,
    FeedForwardConfig,
    KVCache,
    ModelConfig,
    PositionConfig,
    Transformer,
    attend,
    attention_weights,
)
from companion.layers import masks
from companion.layers.kernels import fused as kernel
from companion.layers.masks import materialize, window

BACKENDS = ["reference", "sdpa"]


def heads(query=5, key=7, kv_head=2, dtype=torch.float64, grad=False):
    """Return q, k and v in which all sizes differ: batch 3, head 4, d_head 6, d_v 8."""
    g = torch.Generator().manual_seed(query * 100 + key)
    shapes = [(3, 4, query, 6), (3, kv_head, key, 6), (3, kv_head, key, 8)]
    return [torch.randn(s, generator=g, dtype=dtype).requires_grad_(grad) for s in shapes]


def some_mask(query=5, key=7):
    mask = torch.rand(3, 1, query, key, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[..., 0] = True
    return mask


def test_attend_is_the_formula_entry_by_entry():
    q, k, v = heads(kv_head=2)
    out = attend(q, k, v, backend="reference")
    b, h, i = 1, 3, 2  # query head 3 uses key-value head 1
    scores = [sum(q[b, h, i, c] * k[b, 1, j, c] for c in range(6)) / math.sqrt(6) for j in range(7)]
    total = sum(math.exp(s) for s in scores)
    for c in range(8):
        expected = sum(math.exp(s) / total * v[b, 1, j, c].item() for j, s in enumerate(scores))
        assert out[b, h, i, c].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kv_head", [1, 2, 4])
@pytest.mark.parametrize("masking", ["none", "bool", "float", "causal", "causal and bool", "causal and float"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_attend_equals_pytorch_forward_and_backward(kv_head, masking, backend):
    q, k, v = heads(kv_head=kv_head, grad=True)
    mask = some_mask() if "bool" in masking else None
    if "float" in masking:
        mask = torch.randn(1, 4, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    out = attend(q, k, v, mask=mask, causal="causal" in masking, backend=backend)
    bias = torch.zeros(3, 4, 5, 7, dtype=torch.float64)
    if mask is not None:
        bias = bias.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else bias + mask
    if "causal" in masking:  # the 5 queries are the last five of 7 tokens
        bias = bias.masked_fill(torch.ones(5, 7).triu(diagonal=7 - 5 + 1).bool(), -math.inf)
    wide = [x.repeat_interleave(4 // kv_head, dim=1) for x in (k, v)]
    expected = F.scaled_dot_product_attention(q, *wide, attn_mask=bias)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    upstream = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(3))
    ours = torch.autograd.grad((out * upstream).sum(), (q, k, v))
    theirs = torch.autograd.grad((expected * upstream).sum(), (q, k, v))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_right(backend, causal):
    q, k, v = heads(query=3, key=4, grad=True)
    mask = some_mask(3, 4)
    assert torch.autograd.gradcheck(lambda *x: attend(*x, mask=mask, causal=causal, backend=backend), (q, k, v))


def test_causal_is_aligned_with_the_last_key():
    q, k, v = heads(query=1)
    torch.testing.assert_close(attend(q, k, v, causal=True), attend(q, k, v))
    torch_aligns_top_left = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert not torch.allclose(torch_aligns_top_left, attend(q, k, v, causal=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["bool", "float"])
def test_a_query_that_may_look_nowhere_gives_zeros_and_no_gradient(backend, dtype):
    q, k, v = heads(grad=True)
    mask = some_mask()
    mask[1, :, 2] = False
    wanted = mask if dtype == "bool" else torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, -math.inf)
    out = attend(q, k, v, mask=wanted, backend=backend)
    assert (out[1, :, 2] == 0).all()
    assert (out[1, :, 1] != 0).any()
    out.sum().backward()
    assert (q.grad[1, :, 2] == 0).all()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_queries_than_keys_leave_the_first_queries_nothing_to_see(backend):
    q, k, v = heads(query=7, key=5)
    out = attend(q, k, v, causal=True, backend=backend)
    assert (out[:, :, :2] == 0).all()
    torch.testing.assert_close(out[:, :, 2], v[:, :, 0].repeat_interleave(2, dim=1))


def test_weights_are_distributions_and_the_output_is_inside_the_values():
    q, k, v = heads()
    weights = attention_weights(q, k, mask=some_mask())
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 5, dtype=q.dtype))
    assert (weights >= 0).all()
    assert (weights.masked_select(~some_mask().expand_as(weights)) == 0).all()
    out = attend(q, k, v)
    wide = v.repeat_interleave(2, dim=1)
    assert (out <= wide.amax(2, keepdim=True) + 1e-12).all()
    assert (out >= wide.amin(2, keepdim=True) - 1e-12).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_keeps_the_expectation_and_the_inputs(backend):
    q, k, v = heads(query=2, key=3, dtype=torch.float32)
    kept = [x.clone() for x in (q, k, v)]
    torch.manual_seed(0)
    runs = torch.stack([attend(q, k, v, dropout=0.3, backend=backend) for _ in range(3000)])
    assert runs.std(0).max() > 0.1
    torch.testing.assert_close(runs.mean(0), attend(q, k, v), atol=0.08, rtol=0)
    assert all(torch.equal(a, b) for a, b in zip(kept, (q, k, v), strict=True))


def test_bad_heads_and_backends_are_named(unchecked):
    q, k, v = heads(kv_head=3)
    with pytest.raises(ValueError, match="k has kv_head=3: expected a divisor of head=4, as in q"):
        attend(q, k, v)
    q, k, v = heads()
    with pytest.raises(ValueError, match="flash.*expected 'reference' or 'sdpa'"):
        attend(q, k, v, backend="flash")


def test_a_mask_without_a_head_axis_is_refused():
    # As many rows as heads, so that a wrong mask would broadcast
    q, k, v = (x[:4].repeat(2, 1, 1, 1)[:4] for x in heads(kv_head=4))
    mask = torch.ones(4, 5, 7, dtype=torch.bool).tril()
    for backend in BACKENDS:
        with pytest.raises(ValueError, match=r"mask has shape \(4, 5, 7\): expected four axes"):
            attend(q, k, v, mask=mask, backend=backend)


def copied(torch_layer: nn.MultiheadAttention, **kwargs) -> Attention:
    """Return our layer with the weights of PyTorch's."""
    d_model, h = torch_layer.embed_dim, torch_layer.num_heads
    ours = Attention(d_model, AttentionConfig(h, bias=True), **kwargs).to(torch_layer.in_proj_weight.dtype)
    with torch.no_grad():
        for name, weight, bias in zip(
            ("query", "key", "value"),
            torch_layer.in_proj_weight.chunk(3),
            torch_layer.in_proj_bias.chunk(3),
            strict=True,
        ):
            getattr(ours, name).weight.copy_(weight)
            getattr(ours, name).bias.copy_(bias)
        ours.output.load_state_dict(torch_layer.out_proj.state_dict())
    return ours


@pytest.mark.parametrize("kind", ["self", "causal", "cross", "padded"])
def test_the_layer_equals_nn_multihead_attention(kind):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours = copied(theirs, causal=kind == "causal")
    x = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    source = torch.randn(2, 7, 12, dtype=torch.float64) if kind == "cross" else None
    looked_at = x if source is None else source
    attention_mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    expected, _ = theirs(
        x,
        looked_at,
        looked_at,
        attn_mask=torch.ones(5, 5).triu(1).bool() if kind == "causal" else None,
        key_padding_mask=~attention_mask if kind == "padded" else None,
    )
    out = ours(x, source=source, mask=attention_mask[:, None, None] if kind == "padded" else None)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    for a, b in zip(
        torch.autograd.grad(out.square().sum(), [x, *ours.parameters()]),
        torch.autograd.grad(expected.square().sum(), [x, *copied(theirs).parameters()], allow_unused=True),
        strict=True,
    ):
        if b is not None:
            torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


def test_values_may_have_a_width_of_their_own():
    layer = Attention(10, AttentionConfig(heads=4, kv_heads=2, d_head=6, d_v=3))
    assert layer.value.weight.shape == (2 * 3, 10)
    assert layer.output.weight.shape == (10, 4 * 3)
    assert layer(torch.randn(2, 5, 10)).shape == (2, 5, 10)


def test_a_projected_source_gives_what_the_source_gives():
    torch.manual_seed(0)
    layer = Attention(12, AttentionConfig(4, 2, d_v=5), causal=False).double()
    x, source = torch.randn(3, 5, 12, dtype=torch.float64), torch.randn(3, 7, 12, dtype=torch.float64)
    kept = layer.project_source(source)
    torch.testing.assert_close(layer(x, cache=kept), layer(x, source=source))
    torch.testing.assert_close(layer(x[:, 2:3], cache=kept), layer(x, source=source)[:, 2:3])
    with pytest.raises(ValueError, match="source=None"):
        layer.project_source(None)


def test_unmasked_attention_is_permutation_equivariant_and_causal_attention_is_not():
    torch.manual_seed(0)
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    for causal in (False, True):
        layer = Attention(12, AttentionConfig(3), causal=causal).double()
        same = torch.allclose(layer(x[:, order]), layer(x)[:, order])
        assert same is not causal


def test_rotary_attention_depends_on_distance_alone():
    torch.manual_seed(0)
    layer = Attention(12, AttentionConfig(3, d_head=6), positions=PositionConfig("rotary")).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(x, positions=torch.arange(5) + 137), layer(x), atol=1e-10, rtol=0)
    assert not torch.allclose(layer(x, positions=torch.arange(5) * 2), layer(x))


def test_odd_rotary_width_is_refused():
    with pytest.raises(ValueError, match="d_head=5: expected an even width"):
        Attention(15, AttentionConfig(3), positions=PositionConfig("rotary"))


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mask_in_fp32_may_be_added_to_scores_in_half_precision(backend, dtype):
    q, k, v = (x.float() for x in heads())
    bias = torch.linspace(-3, 3, q.shape[2] * k.shape[2]).view(1, 1, q.shape[2], k.shape[2])
    half = attend(q.to(dtype), k.to(dtype), v.to(dtype), mask=bias, backend=backend)
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), attend(q, k, v, mask=bias), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_a_second_chunk_makes_no_mask_of_all_pairs_and_gives_the_same(monkeypatch, kv_heads):
    torch.manual_seed(2)
    q = torch.randn(2, 3, 70, 4, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, kv_heads, 200, 4, dtype=torch.float64) for _ in range(2))
    expected = attend(q, k, v, causal=True, backend="reference")
    monkeypatch.setattr(masks, "PAIRS", 2000)
    with Largest() as largest:
        found = attend(q, k, v, causal=True)
    assert largest.numbers < 70 * 200 / 2
    torch.testing.assert_close(found, expected)
    towards = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad((out * towards).sum(), q)[0] for out in (found, expected))
    torch.testing.assert_close(ours, theirs)
    capped = attend(q, k, v, causal=True, softcap=0.5, backend="reference")
    with Largest() as largest:
        torch.testing.assert_close(attend(q, k, v, causal=True, softcap=0.5), capped)
    assert largest.numbers < 2 * 3 * 2100


@pytest.mark.parametrize("bucket", [1, 64])
def test_prefill_makes_no_table_of_all_pairs_also_when_steps_read_whole_buckets(bucket):
    feed_forward = FeedForwardConfig(8)
    model = Transformer(ModelConfig(5, 8, 1, 400, AttentionConfig(2), feed_forward)).eval()
    tokens = torch.randint(5, (2, 300))
    cache = KVCache.create(model.config, 2, 384, bucket=bucket)
    with torch.no_grad(), Largest() as largest:
        _, _, cache = model.features(tokens, cache=cache)
    assert largest.numbers <= 2 * 384 * 8 < 300 * 300
    assert cache.open(1)[0].visible == (301 if bucket == 1 else 320)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_holds_scores_and_masks_that_are_beyond_its_numbers(backend, dtype):
    q, k, v = (x.to(dtype) for x in heads())
    large = attend(200 * q, 200 * k, v, backend=backend)  # scores up to 10^5, although float16 ends at 65,504
    wanted = attend((200 * q).float(), (200 * k).float(), v.float())
    torch.testing.assert_close(large.float(), wanted, atol=0.05, rtol=0)
    mask = torch.zeros(1, 1, 5, 7).masked_fill(~some_mask()[:1], torch.finfo(torch.float32).min)
    mask[..., 1, :], mask[..., 3, :] = torch.finfo(torch.float32).min, -math.inf
    out = attend(q, k, v, mask=mask, backend=backend)
    assert out.isfinite().all() and (out[:, :, 3] == 0).all()
    # Masked in the same way everywhere, so it does not matter
    torch.testing.assert_close(out[:, :, 1], attend(q, k, v)[:, :, 1], atol=0.02, rtol=0)
    torch.testing.assert_close(out[:, :, 0], attend(q, k, v, mask=some_mask()[:1])[:, :, 0], atol=0.02, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("query", [5, 9])
def test_a_window_is_the_predicate_of_that_name_with_a_mask_or_without(monkeypatch, backend, query):
    q, k, v = heads(query=query, grad=True)
    both = some_mask(query) & materialize(window(3), 1, query, 7)
    for pairs in (2**22, 12):
        monkeypatch.setattr(masks, "PAIRS", pairs)
        found = attend(q, k, v, mask=some_mask(query), window=3, backend=backend)
        torch.testing.assert_close(found, attend(q, k, v, mask=both, backend="reference"), atol=1e-12, rtol=0)
        alone = attend(q, k, v, mask=window(3), backend="reference")
        torch.testing.assert_close(attend(q, k, v, window=3, backend=backend), alone, atol=1e-12, rtol=0)
        assert torch.autograd.grad(found.sum(), q)[0].isfinite().all()


SEEN = {
    "all": {},
    "causal": {"causal": True},
    "a window": {"causal": True, "window": 3},
    "a mask": {"mask": some_mask(7, 7)},
    "a mask of keys, and causal": {"mask": some_mask(1, 7), "causal": True},
    "numbers to add": {"mask": torch.linspace(-2, 2, 7).view(1, 1, 7, 1)},
    "another width": {"score_width": 3.0},
}


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize(("query", "kv_head"), [(7, 4), (7, 2), (3, 2), (1, 2)])
def test_a_sink_is_one_more_logit_of_each_row_that_has_no_value(seen, query, kv_head, monkeypatch):
    options = dict(SEEN[seen])
    if "mask" in options and options["mask"].shape[2] > 1:
        options["mask"] = options["mask"][:, :, -query:]
    q, k, v = heads(query, 7, kv_head, grad=True)
    sinks = torch.tensor([-1.0, 0.5, 2.0, 30.0], dtype=torch.float64, requires_grad=True)
    cut = {name: value for name, value in options.items() if name != "mask" or value.dtype == torch.bool}
    scores = q @ k.repeat_interleave(4 // kv_head, 1).mT / math.sqrt(options.get("score_width", 6))
    scores = scores if "mask" not in options or "mask" in cut else scores + options["mask"]
    allowed = attention_weights(torch.zeros_like(q), k, **cut) > 0  # the visible pairs
    scores = scores.masked_fill(~allowed, -math.inf)
    raised = scores.exp() / (scores.exp().sum(-1, keepdim=True) + sinks.exp().view(-1, 1, 1))
    expected = raised @ v.repeat_interleave(4 // kv_head, 1)
    towards = torch.randn_like(expected)
    grads = torch.autograd.grad((expected * towards).sum(), (q, k, v, sinks))
    for pairs, few in ((2**22, 0), (2**22, 16), (8, 0)):  # in one piece, as in decoding, and a few queries at a time
        monkeypatch.setattr(masks, "PAIRS", pairs)
        monkeypatch.setattr(kernel, "FEW", few)
        for backend in BACKENDS:
            found = attend(q, k, v, sinks=sinks, backend=backend, **options)
            torch.testing.assert_close(found, expected)
            for a, b in zip(torch.autograd.grad((found * towards).sum(), (q, k, v, sinks)), grads, strict=True):
                torch.testing.assert_close(a, b)


def test_a_row_that_sees_nothing_is_zero_beside_a_sink_too():
    q, k, v = heads()
    for backend in BACKENDS:
        out = attend(q, k, v, mask=torch.zeros(1, 1, 5, 7, dtype=torch.bool), sinks=torch.zeros(4), backend=backend)
        assert (out == 0).all()
    with pytest.raises(ValueError, match="sinks"):
        attend(q, k, v, sinks=torch.zeros(5))


def test_a_layer_with_sinks_is_that_of_gpt_oss():
    theirs = GptOssAttention(
        GptOssConfig(
            hidden_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=6, attn_implementation="eager"
        ),
        1,
    )
    ours = Attention(12, AttentionConfig(4, 2, d_head=6, bias=True, sinks=True))
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
    given = theirs.state_dict()
    ours.load_state_dict(
        {"sinks": given["sinks"]}
        | {f"{new}.{part}": given[f"{old}.{part}"] for new, old in names.items() for part in ("weight", "bias")}
    )
    x, still = torch.randn(2, 9, 12), (torch.ones(1, 9, 3), torch.zeros(1, 9, 3))
    later = torch.full((9, 9), -math.inf).triu(1)[None, None]
    for backend in BACKENDS:
        torch.testing.assert_close(ours(x, backend=backend), theirs(x, still, later)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gate", ["head", "width"])
def test_a_gate_multiplies_what_the_heads_found_before_the_output_matrix(gate):
    torch.manual_seed(0)
    layer = Attention(12, AttentionConfig(4, 2, d_head=6, d_v=5, gate=gate)).double()
    assert layer.gate.weight.shape == ({"head": 4, "width": 20}[gate], 12)
    x, merged = torch.randn(2, 9, 12, dtype=torch.float64), []
    handle = layer.output.register_forward_hook(lambda layer, given, out: merged.append(given[0]))
    layer(x)
    with torch.no_grad():
        opening = layer.gate(x).sigmoid()
        layer.gate.weight.zero_()
    layer(x)
    handle.remove()
    gated, half = merged  # a gate of zeros lets half of it through
    opening = opening if gate == "width" else opening.repeat_interleave(5, -1)
    torch.testing.assert_close(gated, 2 * half * opening)
