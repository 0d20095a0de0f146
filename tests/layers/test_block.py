"""Blocks as in released models: the positions of norms, and what is normalized, capped, scaled and gated."""

import pytest
import torch
from models import drawn
from transformers import Gemma2Config, Gemma3TextConfig, Olmo2Config, Qwen3Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer
from transformers.models.gemma3.modeling_gemma3 import Gemma3Attention
from transformers.models.olmo2.modeling_olmo2 import Olmo2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from companion import (
    AttentionConfig,
    Block,
    FeedForwardConfig,
    KVCache,
    ModelConfig,
    NormConfig,
    WindowConfig,
    rotary_angles,
)
from companion.layers.attention import attend, attention_weights

SIZES = {
    "hidden_size": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 10,
    "num_hidden_layers": 2,
    "vocab_size": 31,
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "eos_token_id": 1,
}
PLAIN = AttentionConfig(4, 2, d_head=6)
MLP = {"mlp.gate_proj": "feed_forward.gate", "mlp.up_proj": "feed_forward.inner", "mlp.down_proj": "feed_forward.outer"}
HEADS = {
    f"self_attn.{short}_proj": f"attention.{name}"
    for short, name in zip("qkvo", ("query", "key", "value", "output"), strict=True)
}
NORMS = {"self_attn.q_norm": "attention.query_norm", "self_attn.k_norm": "attention.key_norm"}


def ours(names, theirs, seed=0, **changes):
    """Return our first block with the weights of theirs, after all of these are drawn anew."""
    config = ModelConfig(
        vocab=31,
        d_model=12,
        layers=2,
        context=64,
        **{"attention": PLAIN, "feed_forward": FeedForwardConfig(10), "norm": NormConfig(eps=1e-6)} | changes,
    )
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.5)
    state = {}
    for name, tensor in theirs.state_dict().items():
        layer, part = name.rsplit(".", 1)
        state[f"{names[layer]}.{part}"] = tensor
    block = Block(config, causal=True).eval()
    missing, unexpected = block.load_state_dict(state, strict=False)
    assert not unexpected
    return block, missing


def at(tokens, base=10000.0):
    angles = rotary_angles(torch.arange(tokens), 6, base)
    return tuple(torch.cat((f(angles), f(angles)), dim=-1)[None] for f in (torch.cos, torch.sin))


def mask_of(tokens, width=None):
    near = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    if width is not None:
        near = near.triu(1 - width)
    return torch.zeros(1, 1, tokens, tokens).masked_fill(~near, torch.finfo(torch.float32).min)


@torch.no_grad()
def test_norms_on_both_sides_caps_and_a_gelu_gate_as_in_gemma2():
    config = Gemma2Config(**SIZES, query_pre_attn_scalar=9, attn_logit_softcapping=2.0, sliding_window=4)
    theirs = Gemma2DecoderLayer(config, 0).eval()
    names = MLP | HEADS
    names |= {"input_layernorm": "attention_norm", "post_attention_layernorm": "attention_out_norm"}
    names |= {"pre_feedforward_layernorm": "feed_forward_norm", "post_feedforward_layernorm": "feed_forward_out_norm"}
    attention = AttentionConfig(4, 2, d_head=6, score_width=9.0, softcap=2.0, window=WindowConfig(4))
    block, missing = ours(
        names,
        theirs,
        attention=attention,
        feed_forward=FeedForwardConfig(10, "geglu_tanh"),
        norm=NormConfig("rms", "both", 1e-6, unit_offset=True),
    )
    assert not missing
    x = 2 * torch.randn(3, 9, 12)
    wanted = theirs(x, position_embeddings=at(9), attention_mask=mask_of(9, 4))
    torch.testing.assert_close(block(x)[0], wanted, atol=2e-5, rtol=1e-5)
    block.attention.softcap = None
    assert not torch.allclose(block(x)[0], wanted, atol=1e-2)


@torch.no_grad()
def test_a_norm_behind_each_sublayer_and_over_all_heads_as_in_olmo2():
    theirs = Olmo2DecoderLayer(Olmo2Config(**SIZES, rms_norm_eps=1e-6), 0).eval()
    names = MLP | HEADS | NORMS
    names |= {"post_attention_layernorm": "attention_norm", "post_feedforward_layernorm": "feed_forward_norm"}
    attention = AttentionConfig(4, 2, d_head=6, qk_norm="width")
    block, missing = ours(names, theirs, attention=attention, norm=NormConfig("rms", "after", 1e-6))
    assert not missing
    assert block.attention.query_norm.weight.shape == (24,) and block.attention.key_norm.weight.shape == (12,)
    x = torch.randn(3, 9, 12)
    wanted = theirs(x, position_embeddings=at(9), attention_mask=mask_of(9))
    torch.testing.assert_close(block(x)[0], wanted, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "config", "offset"),
    [
        (Qwen3Attention, Qwen3Config(**SIZES), False),
        (Gemma3Attention, Gemma3TextConfig(**SIZES, query_pre_attn_scalar=6), True),
    ],
    ids=["qwen3", "gemma3"],
)
@torch.no_grad()
def test_a_norm_over_each_head(layer, config, offset):
    theirs = layer(config, 1).eval()
    names = {old.removeprefix("self_attn."): new for old, new in (HEADS | NORMS).items()}
    attention = AttentionConfig(4, 2, d_head=6, qk_norm="head")
    block, _ = ours(names, theirs, attention=attention, norm=NormConfig("rms", eps=1e-6, unit_offset=offset))
    x = torch.randn(3, 9, 12)
    wanted, _ = theirs(x, position_embeddings=at(9), attention_mask=mask_of(9))
    torch.testing.assert_close(block.attention(x), wanted, atol=1e-5, rtol=1e-5)
    again = block.attention(5 * x)  # scores do not grow with the stream; apart from epsilon they stay the same
    torch.testing.assert_close(again, 5 * wanted, atol=1e-3, rtol=1e-3)


def test_a_norm_behind_a_sublayer_is_inside_the_residual():
    """Only one of two placements that look alike normalizes the stream itself."""
    x = torch.randn(2, 5, 12)
    for placement in ("post", "after"):
        config = ModelConfig(11, 12, 1, 8, AttentionConfig(3), FeedForwardConfig(8), norm=NormConfig("rms", placement))
        block = Block(config, causal=True)
        with torch.no_grad():
            for layer in (block.attention.output, block.feed_forward.outer):
                layer.weight.zero_()
            assert torch.equal(block(x)[0], x) == (placement == "after")


@torch.no_grad()
def test_the_first_block_may_have_no_norm_before_its_attention():
    config = ModelConfig(31, 12, 2, 16, PLAIN, FeedForwardConfig(10), norm=NormConfig("layer", first=False))
    first, second = (Block(config, causal=True, layer=layer).eval() for layer in (0, 1))
    assert first.attention_norm is None and second.attention_norm is not None
    x = torch.randn(2, 5, 12)
    between = x + first.attention(x)
    wanted = between + first.feed_forward(first.feed_forward_norm(between))
    torch.testing.assert_close(first(x)[0], wanted)


PARALLEL = {
    "parallel": lambda block, x: (
        block.attention(block.attention_norm(x)) + block.feed_forward(block.feed_forward_norm(x))
    ),
    "parallel_shared": lambda block, x: (
        block.attention(block.attention_norm(x)) + block.feed_forward(block.attention_norm(x))
    ),
}


def parallel(placement, **changes):
    heads = AttentionConfig(4, 2, d_head=6)
    return ModelConfig(
        31,
        12,
        3,
        16,
        heads,
        FeedForwardConfig(10, "gelu"),
        norm=NormConfig("layer", placement, 1e-5, bias=False),
        **changes,
    )


@pytest.mark.parametrize("placement", PARALLEL)
def test_attention_and_network_side_by_side_are_the_equation_with_its_gradient(placement):
    block = Block(parallel(placement, residual=0.5), causal=True).double().eval()
    torch.manual_seed(0)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(block(x)[0], x + 0.5 * PARALLEL[placement](block, x), atol=1e-12, rtol=0)
    assert (block.feed_forward_norm is None) == (placement == "parallel_shared")
    assert torch.autograd.gradcheck(lambda x: block(x)[0], x)


@pytest.mark.parametrize("placement", PARALLEL)
@torch.no_grad()
def test_a_parallel_model_is_the_same_from_a_cache_and_in_half_precision(placement):
    model = drawn(parallel(placement), std=0.3).eval()
    text = torch.randint(0, 31, (2, 9))
    wanted, cache, steps = model(text).logits, KVCache.create(model.config, 2, 9), []
    for piece in text.split([4, 1, 3, 1], 1):
        out = model(piece, cache=cache)
        cache = out.cache
        steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, 1), wanted, atol=1e-5, rtol=1e-5)
    half = model.bfloat16()(text).logits
    assert half.dtype == torch.bfloat16 and (half.float() - wanted).abs().max() < 0.05 * wanted.abs().max()


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_caps_and_widths_of_scores_are_the_formulas(kv_heads):
    q, k, v = (torch.randn(3, h, 5, 6, dtype=torch.float64, requires_grad=True) for h in (4, kv_heads, kv_heads))
    scores = q @ k.repeat_interleave(4 // kv_heads, 1).mT / 7.0**0.5
    capped = 0.5 * torch.tanh(scores / 0.5)
    weights = attention_weights(q, k, causal=True, score_width=7.0, softcap=0.5)
    triangle = torch.ones(5, 5, dtype=torch.bool).tril()
    torch.testing.assert_close(weights, capped.masked_fill(~triangle, -torch.inf).softmax(-1))
    for backend in ("sdpa", "reference"):
        out = attend(q, k, v, causal=True, score_width=7.0, backend=backend)
        wanted = scores.masked_fill(~triangle, -torch.inf).softmax(-1) @ v.repeat_interleave(4 // kv_heads, 1)
        torch.testing.assert_close(out, wanted)
        out = attend(q, k, v, causal=True, score_width=7.0, softcap=0.5, backend=backend)
        torch.testing.assert_close(out, weights @ v.repeat_interleave(4 // kv_heads, 1))
    for name in ("score_width", "softcap"):
        with pytest.raises(ValueError, match=f"{name}=0.0: expected a number > 0, or None"):
            attend(q, k, v, **{name: 0.0})


@pytest.mark.parametrize("part", ["query", "key", "output"])
def test_cross_attention_is_normalised_as_its_block_says(part):
    """Doubling the input of a norm must change nothing."""
    config = ModelConfig(
        vocab=31,
        d_model=12,
        layers=2,
        context=64,
        attention=AttentionConfig(4, 2, d_head=6, qk_norm="head"),
        feed_forward=FeedForwardConfig(10),
        norm=NormConfig(placement="both", eps=0.0),
        stack="encoder_decoder",
    )
    torch.manual_seed(0)
    block = Block(config, causal=True, cross=True).double().eval()
    x, source = torch.randn(2, 5, 12, dtype=torch.float64), torch.randn(2, 7, 12, dtype=torch.float64)
    with torch.no_grad():
        usual, _ = block(x, source=source)
        assert not torch.allclose(block(x, source=-source)[0], usual)
        getattr(block.cross, part).weight *= 2
        torch.testing.assert_close(block(x, source=source)[0], usual)
