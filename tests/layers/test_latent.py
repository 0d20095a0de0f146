"""Latent attention caches one small vector per token, and both ways to compute it give the same function."""

import math
from dataclasses import replace

import pytest
import torch
from models import drawn
from torch import nn

from companion import (
    AttentionConfig,
    FeedForwardConfig,
    KVCache,
    LatentAttention,
    LatentConfig,
    ModelConfig,
    PositionConfig,
    Transformer,
    WindowConfig,
    rotary_angles,
    rotate,
)
from companion.costs.account import cache_bytes, counted_flops
from companion.layers.latent import absorbs

HEADS = AttentionConfig(3, d_head=6, d_v=5, latent=LatentConfig(kv_lora_rank=7, d_rope=4, q_lora_rank=9))
PAIRS = PositionConfig("rotary", base=100.0, layout="interleaved")
CONFIG = ModelConfig(31, 14, 2, 40, HEADS, FeedForwardConfig(10), positions=PAIRS)


def layer_of(positions=PAIRS, **changes):
    torch.manual_seed(0)
    layer = LatentAttention(14, replace(HEADS, **changes), positions=positions).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def stream(tokens=11, batch=2):
    return torch.randn(batch, tokens, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(tokens))


def close(ours, theirs, atol=1e-12):
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)


def normed(x, gain):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain


def test_the_layer_is_its_equations_head_by_head():
    """DeepSeek-V2, eqs. 37 to 47, one head after the other, with keys and values computed from the latent."""
    layer, x = layer_of(), stream()
    c, shared = layer.down(x).split((7, 4), -1)
    c = normed(c, layer.latent_norm.weight)
    angles = rotary_angles(torch.arange(11), 4, 100.0, torch.float64)
    shared = rotate(shared[:, None], angles, "interleaved")[:, 0]
    queries = layer.query(normed(layer.query_down(x), layer.query_norm.weight)).view(2, 11, 3, 10)
    up, heads = layer.up.weight.view(3, 11, 7), []
    for head in range(3):
        key, value = c @ up[head, :6].T, c @ up[head, 6:].T
        plain, turned = queries[:, :, head].split((6, 4), -1)
        turned = rotate(turned[:, None], angles, "interleaved")[:, 0]
        scores = (plain @ key.mT + turned @ shared.mT) / math.sqrt(6 + 4)
        future = torch.ones(11, 11).triu(1).bool()
        heads.append(scores.masked_fill(future, -math.inf).softmax(-1) @ value)
    close(layer(x), layer.output(torch.cat(heads, -1)))


KINDS = {
    "as it is": {},
    "queries of the stream": {"latent": LatentConfig(7, 4)},
    "nothing turned": {"latent": LatentConfig(7, 0), "positions": PositionConfig("none")},
    "a shared key that is not turned": {"positions": PositionConfig("none")},
    "a window": {"window": WindowConfig(3)},
    "a gate": {"gate": "width"},
    "scores of another width, capped": {"score_width": 3.3, "softcap": 0.8},
    "wider than its latent": {"d_head": 12, "d_v": 16, "latent": LatentConfig(2, 6)},
}


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_expanded_is_absorbed(kind, backend):
    layer, x = layer_of(**KINDS[kind]), stream()
    mask = torch.rand(2, 1, 11, 11, generator=torch.Generator().manual_seed(1)) > 0.3
    mask[1, :, 4] = False  # a token that sees nothing
    by_head = torch.randn(2, 3, 11, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    results = []
    for who in (None, mask, by_head):
        one, other = (layer(x, mask=who, backend=backend, absorbed=form) for form in (False, True))
        close(one, other)
        upstream = torch.randn(one.shape, dtype=one.dtype, generator=torch.Generator().manual_seed(3))
        gradients = [torch.autograd.grad((y * upstream).sum(), list(layer.parameters())) for y in (one, other)]
        for a, b in zip(*gradients, strict=True):
            close(a, b, 1e-11)
        results.append(one)
    assert not torch.allclose(results[0], results[1]) and not torch.allclose(results[0], results[2])


@torch.no_grad()
def test_a_cache_keeps_latents_and_no_more():
    model = drawn(CONFIG).double()
    cache = KVCache.create(CONFIG, 3, 20, dtype=torch.float64)
    assert [tuple(store.shape) for store in cache.keys] == [(3, 1, 20, 7 + 4)] * 2 and cache.values == ()
    assert cache_bytes(CONFIG, 20, batch=3, dtype=torch.float64) == sum(store.nbytes for store in cache.keys)
    tokens = torch.randint(31, (3, 15), generator=torch.Generator().manual_seed(0))
    whole, parts = model(tokens).logits, []
    for part in tokens.split([6, 1, 1, 2, 5], 1):
        out = model(part, cache=cache)
        cache = out.cache
        parts.append(out.logits)
    close(torch.cat(parts, 1), whole)
    x = model.embedding(tokens)
    block = model.decoder.blocks[0]
    turn = block.attention.rotary.at(torch.arange(15), torch.float64)
    kept = cache.keys[0][:, :, :15]
    close(kept, block.attention.latents(block.attention_norm(x), turn))


@torch.no_grad()
def test_values_are_read_where_keys_are(monkeypatch):
    from companion.layers import latent

    read = []

    def attend(q, k, v, **asked):
        read.append((k.data_ptr(), v.data_ptr(), v.shape))
        return k.new_zeros(q.shape[0], q.shape[1], q.shape[2], v.shape[3])

    monkeypatch.setattr(latent, "attend", attend)
    layer, cache = layer_of(), KVCache.create(CONFIG, 2, 20, dtype=torch.float64)
    layer(stream(1), cache=cache.open(1)[0])
    assert read == [(cache.keys[0].data_ptr(), cache.keys[0].data_ptr(), (2, 1, 1, 7))]


@pytest.mark.parametrize("changes", [{}, {"d_head": 12, "d_v": 16, "latent": LatentConfig(2, 6)}])
@torch.no_grad()
def test_from_a_cache_the_cheaper_form_is_taken(changes):
    layer = layer_of(**changes)
    config = CONFIG.with_(attention=replace(HEADS, **changes))
    taken = set()
    for tokens in (1, 2, 3, 8, 30):
        for cached in (1, 4, 60, 100):
            cache = KVCache.create(config, 1, tokens + cached, dtype=torch.float64).advance(cached)

            def run(absorbed, cache=cache, tokens=tokens):
                return counted_flops(lambda: layer(stream(tokens, 1), cache=cache.open(tokens)[0], absorbed=absorbed))

            expanded, absorbed = run(False), run(True)
            assert run(None) == min(expanded, absorbed), (tokens, cached)
            assert absorbs(layer.sizes, tokens, tokens + cached) == (absorbed <= expanded)
            taken.add(absorbed <= expanded)
    assert taken == ({True, False} if not changes else {True})


class Sum(nn.Module):
    """A layer plus a second one, like a layer with an adapter."""

    def __init__(self, base):
        super().__init__()
        torch.manual_seed(4)
        self.base, self.more = base, nn.Linear(base.in_features, base.out_features, dtype=torch.float64)

    def forward(self, x):
        return self.base(x) + self.more(x)


def hooked(layer):
    layer.up.register_forward_hook(lambda _, given, out: 2 * out)


EDITS = {
    "an adapter": lambda layer: setattr(layer, "up", Sum(layer.up)),
    "a hook": hooked,
    "a bias": lambda layer: setattr(layer.up, "bias", nn.Parameter(torch.ones(33, dtype=torch.float64))),
}


@pytest.mark.parametrize("edit", EDITS)
@torch.no_grad()
def test_what_is_put_in_the_place_of_the_matrix_is_asked(edit):
    layer, x = layer_of(), stream()
    before = layer(x)
    EDITS[edit](layer)
    whole, cache = layer(x), KVCache.create(CONFIG, 2, 11, dtype=torch.float64)
    first = layer(x[:, :10], cache=cache.open(10)[0])
    close(torch.cat((first, layer(x[:, 10:], cache=cache.advance(10).open(1)[0])), 1), whole)
    assert not torch.allclose(whole, before)
    with pytest.raises(ValueError, match="up: expected a plain linear layer"):
        layer(x, absorbed=True)


def test_keys_and_values_begin_as_wide_as_without_a_latent():
    heads = AttentionConfig(8, d_head=32, latent=LatentConfig(kv_lora_rank=24, d_rope=16, q_lora_rank=40))
    config = ModelConfig(31, 256, 1, 40, heads, FeedForwardConfig(10))
    torch.manual_seed(0)
    latent, plain = (Transformer(config.with_(attention=replace(heads, latent=one))) for one in (heads.latent, None))
    x = torch.randn(4, 20, 256)
    with torch.no_grad():
        layer = latent.decoder.blocks[0].attention
        keys, values = layer.expand(layer.latents(x, None))
        q, k, v = plain.decoder.blocks[0].attention.project(x, torch.arange(20))
    for ours, theirs in ((layer.queries(x, None)[..., :32], q), (keys[..., :32], k), (values, v)):
        assert float(ours.std()) == pytest.approx(float(theirs.std()), rel=0.1)


def test_what_makes_no_sense_is_refused_by_name():
    for name, change in (
        ("kv_heads", {"kv_heads": 1}),
        ("bias", {"bias": True}),
        ("sinks", {"sinks": True}),
        ("qk_norm", {"qk_norm": "head"}),
    ):
        with pytest.raises(ValueError, match=rf"^{name}=.*with latent"):
            replace(HEADS, **change)
    for name, change in (
        ("kv_lora_rank", {"kv_lora_rank": 0}),
        ("d_rope", {"d_rope": -1}),
        ("q_lora_rank", {"q_lora_rank": 0}),
    ):
        with pytest.raises(ValueError, match=rf"^{name}=.*expected a whole number"):
            replace(HEADS.latent, **change)
    for name, change in (
        ("latent", {"stack": "encoder"}),
        ("partial_rotary_factor", {"positions": replace(PAIRS, partial_rotary_factor=0.5)}),
        ("d_rope", {"attention": replace(HEADS, latent=LatentConfig(7, 3))}),
        ("d_rope", {"attention": replace(HEADS, latent=LatentConfig(7, 0))}),
    ):
        with pytest.raises(ValueError, match=f"^{name}="):
            CONFIG.with_(**change)
    with pytest.raises(ValueError, match="only under a causal mask"):
        layer = LatentAttention(14, HEADS, causal=False).double()
        layer(stream(2), cache=KVCache.create(CONFIG, 2, 4, dtype=torch.float64).open(2)[0])
    with pytest.raises(
        ValueError, match="cache has layers=2, kv_head=1, d_head=11, d_v=0: expected layers=2, kv_head=3"
    ):
        plain = drawn(CONFIG.with_(attention=replace(HEADS, latent=None)))
        plain(torch.zeros(2, 3, dtype=torch.long), cache=KVCache.create(CONFIG, 2, 4))
