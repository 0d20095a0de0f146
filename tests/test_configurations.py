"""Random configurations, of all parts together: what a cache gives is what the whole text gives."""

import random

import pytest
import torch

from companion import (
    AttentionConfig,
    FeedForwardConfig,
    KVCache,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    Transformer,
    WindowConfig,
)
from companion.config.model import LatentConfig
from companion.layers import rolling

TOKENS = 19


def attention_of(draw):
    heads, window = draw.choice([2, 4, 6]), None
    if draw.random() < 0.5:
        window = WindowConfig(draw.randint(1, 6), draw.choice([(True,), (True, False), (False, True, True)]))
    both = {"score_cap": draw.choice([None, 3.0]), "score_width": draw.choice([None, 5.0]), "window": window}
    if draw.random() < 0.25:
        latent = LatentConfig(draw.choice([4, 7]), 4, draw.choice([None, 6]))
        return AttentionConfig(heads, d_head=draw.choice([3, 4]), d_v=draw.choice([None, 5]), latent=latent, **both)
    return AttentionConfig(
        heads,
        draw.choice([None, 2, heads // 2]),
        d_head=draw.choice([4, 8]),
        d_v=draw.choice([None, 5]),
        bias=draw.random() < 0.5,
        qk_norm=draw.choice([None, "head", "width", "unit"]),
        sinks=draw.random() < 0.6,
        gate=draw.choice([None, "head", "width"]),
        **both,
    )


def experts_of(draw):
    if draw.random() < 0.3:
        return None
    groups = draw.choice([1, 3])
    return MoEConfig(
        6,
        draw.choice([1, 2, 3]),
        draw.choice(["topk_softmax", "softmax_topk", "sigmoid", "sigmoid_topk"]),
        shared=draw.choice([0, 1]),
        balanced=draw.random() < 0.5,
        router_bias=draw.random() < 0.5,
        groups=groups,
        top_groups=min(groups, 2),
        group_best=draw.choice([1, 2]),
        scale=draw.choice([1.0, 2.5]),
        weighted=draw.choice(["output", "input"]),
        pattern=draw.choice([(True,), (False, True), (True, True, False)]),
    )


def model_of(seed):
    draw = random.Random(seed)
    attention = attention_of(draw)
    rotary = attention.qk_norm == "unit" or draw.random() < 0.7
    share = 0.5 if attention.latent is None and rotary and draw.random() < 0.4 else 1.0
    order = PositionConfig(
        "rotary" if rotary else draw.choice(["learned", "none"]),
        share=share,
        pattern=draw.choice([(True,), (True, False)]) if rotary else (True,),
    )
    config = ModelConfig(
        vocab=23,
        d_model=12,
        layers=draw.choice([2, 3, 4]),
        context=32,
        attention=attention,
        feed_forward=FeedForwardConfig(
            draw.choice([8, 10]), draw.choice(["relu", "swiglu", "swiglu_clamped"]), draw.random() < 0.5
        ),
        positions=order,
        norm=NormConfig(placement=draw.choice(["pre", "both", "after"])),
        moe=experts_of(draw),
    )
    torch.manual_seed(seed)
    model = Transformer(config).double().eval()
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.copy_(torch.randn_like(tensor) * 0.4)
    return model, draw


@torch.no_grad()
def same_from_a_cache(seed):
    """The text whole, in random pieces with some taken back and written again, and in rows of unequal lengths."""
    model, draw = model_of(seed)
    tokens = torch.randint(23, (3, TOKENS))
    wanted = model(tokens).logits
    cache, at = KVCache.create(model.config, 3, 24, dtype=torch.float64), 0
    while at < TOKENS:
        out = model(tokens[:, at : at + draw.choice([1, 1, 2, 5, 8])], cache=cache)
        torch.testing.assert_close(out.logits, wanted[:, at : at + out.logits.shape[1]], rtol=1e-9, atol=1e-9)
        at, cache = at + out.logits.shape[1], out.cache
        if draw.random() < 0.3:
            back = draw.randint(1, min(2, at))
            at, cache = at - back, cache.rewind(torch.full((3,), at - back))
    lengths = torch.tensor([draw.randint(1, 12) for _ in range(3)])
    cache = model(tokens[:, : int(lengths.max())], cache=KVCache.create(model.config, 3, 24, dtype=torch.float64)).cache
    cache = cache.rewind(lengths)
    for step in range(TOKENS - 12):
        rows, places = torch.arange(3), lengths + step
        out = model(tokens[rows, places][:, None], cache=cache)
        cache = out.cache
        torch.testing.assert_close(out.logits[:, 0], wanted[rows, places], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ten", range(12))
def test_what_a_cache_gives_is_what_the_whole_text_gives(ten, monkeypatch):
    monkeypatch.setattr(rolling, "BACK", 12)
    for seed in range(10 * ten, 10 * ten + 10):
        same_from_a_cache(seed)
