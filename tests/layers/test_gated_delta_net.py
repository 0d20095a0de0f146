"""Linear attention layers: one recurrence, computed token by token, in chunks, and from a cache."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from models import drawn
from torch.testing import assert_close

from companion import (
    AttentionConfig,
    Draft,
    FeedForwardConfig,
    KVCache,
    LinearAttention,
    LinearConfig,
    ModelConfig,
    MoEConfig,
    Transformer,
    WindowConfig,
    recurrence,
)
from companion.costs.account import cache_bytes, counted_flops, forward_flops
from companion.layers.gated_delta_net import ShortConvolution
from companion.layers.kernels import fla
from companion.layers.recurrent_cache import BACK, WHOLE

LINEAR = LinearConfig((True, False), heads=4, key_heads=2, d_head=3, d_v=5)
CONFIG = ModelConfig(
    vocab=17,
    d_model=12,
    layers=3,
    context=300,
    attention=AttentionConfig(3, window=WindowConfig(4), linear=LINEAR),
    feed_forward=FeedForwardConfig(9),
)
KINDS = {
    "gated delta, as in Qwen3-Next": {},
    "a decay by channel, as in Kimi Linear": {"decay": "channel", "rank": 2, "gate": "sigmoid", "key_heads": 4},
    "the delta rule alone, writes that turn round": {"decay": None, "negative": True, "gate": None},
    "a sum that fades, as in RetNet": {"rule": "sum", "decay": "fixed", "convolution": 1},
    "a sum that fades by the token, as in Mamba-2": {"rule": "sum"},
}


@pytest.fixture(params=KINDS)
def linear(request):
    return replace(LINEAR, **KINDS[request.param])


def config_of(linear, **changes):
    return CONFIG.with_(attention=replace(CONFIG.attention, linear=linear), **changes)


def close(ours, theirs, atol=1e-10):
    assert_close(ours, theirs, atol=atol, rtol=0)


def parts(tokens=150, rates=1, strong=True, heads=(4, 2)):
    torch.manual_seed(tokens)
    q = torch.randn(2, heads[0], tokens, 5, dtype=torch.float64)
    k = F.normalize(torch.randn(2, heads[1], tokens, 5, dtype=torch.float64), dim=-1)
    v = torch.randn(2, heads[1], tokens, 4, dtype=torch.float64)
    log_decay = None if rates is None else -torch.rand(2, heads[1], tokens, rates, dtype=torch.float64)
    strength = 2 * torch.rand(2, heads[1], tokens, dtype=torch.float64) if strong else None
    return [None if x is None else x.requires_grad_() for x in (q, k, v, log_decay, strength)]


def by_hand(q, k, v, log_decay, strength):
    """Compute equations (1) to (4) token by token."""
    state, outs = torch.zeros(*k.shape[:2], 5, 4, dtype=torch.float64), []
    for t in range(k.shape[2]):
        if log_decay is not None:
            state = log_decay[:, :, t, :, None].exp() * state
        write = v[:, :, t]
        if strength is not None:
            write = strength[:, :, t, None] * (write - torch.einsum("bhd,bhdv->bhv", k[:, :, t], state))
        state = state + k[:, :, t, :, None] * write[:, :, None]
        read = state.repeat_interleave(q.shape[1] // k.shape[1], 1)
        outs.append(torch.einsum("bhd,bhdv->bhv", q[:, :, t], read))
    return torch.stack(outs, 2), state


@pytest.mark.parametrize("strong", [True, False], ids=["delta", "sum"])
@pytest.mark.parametrize("rates", [None, 1, 5], ids=["no decay", "by head", "by channel"])
def test_chunks_of_any_size_are_the_recurrence_and_so_are_their_gradients(rates, strong):
    given = parts(90, rates, strong)
    inputs = [x for x in given if x is not None]
    out, state = by_hand(*given)
    weights = torch.randn(out.shape, dtype=out.dtype), torch.randn(state.shape, dtype=out.dtype)
    slopes = torch.autograd.grad((out * weights[0]).sum() + (state * weights[1]).sum(), inputs)
    for chunk in (1, 7, None):
        if chunk == 1 and not strong:
            continue
        read = recurrence(*given[:3], log_decay=given[3], strength=given[4], chunk=chunk)
        close(read.out, out)
        close(read.state, state)
        now = torch.autograd.grad((read.out * weights[0]).sum() + (read.state * weights[1]).sum(), inputs)
        for ours, theirs in zip(now, slopes, strict=True):
            close(ours, theirs)


def test_a_key_that_is_written_twice_holds_the_last_value_and_a_sum_holds_both():
    q = k = torch.tensor([[[[0.6, 0.8], [0.6, 0.8]]]])
    v = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    assert_close(recurrence(q, k, v, strength=torch.ones(1, 1, 2)).out[0, 0, 1], torch.tensor([0.0, 1.0]))
    assert_close(recurrence(q, k, v).out[0, 0, 1], torch.tensor([1.0, 1.0]))


def test_what_fades_fast_gives_no_infinities():
    q, k, v, _, strength = (None if x is None else x.detach().float() for x in parts(100))
    for rates in (1, 5):
        log_decay = torch.full((2, 2, 100, rates), -200.0)
        read = recurrence(q, k, v, log_decay=log_decay, strength=strength)
        assert read.out.isfinite().all() and read.state.isfinite().all()


def test_the_layer_is_its_equations():
    """Compute the layer head by head and token by token; two heads share each of its keys."""
    layer = drawn(CONFIG).double().decoder.blocks[0].attention
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    raw = torch.cat((layer.query(x), layer.key(x), layer.value(x)), -1)
    mixed = torch.zeros_like(raw)
    for t in range(6):
        for back in range(min(4, t + 1)):
            mixed[:, t] += layer.convolution.weight[:, 3 - back] * raw[:, t - back]
    q, k, v = F.silu(mixed).split((6, 6, 20), -1)
    heads = []
    for head in range(4):
        query, key = (y[..., 3 * (head // 2) : 3 * (head // 2) + 3] for y in (q, k))
        query, key = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (query, key))
        value = v[..., 5 * head : 5 * head + 5]
        fade = -layer.decay_rate[head].exp() * F.softplus(layer.decay(x)[..., head] + layer.decay_bias[head])
        strength = layer.strength(x)[..., head].sigmoid()
        state, out = torch.zeros(2, 3, 5, dtype=torch.float64), []
        for t in range(6):
            state = fade[:, t, None, None].exp() * state
            write = strength[:, t, None] * (value[:, t] - torch.einsum("bd,bdv->bv", key[:, t], state))
            state = state + key[:, t, :, None] * write[:, None]
            out.append(torch.einsum("bd,bdv->bv", query[:, t] / math.sqrt(3), state))
        heads.append(layer.norm(torch.stack(out, 1)) * F.silu(layer.gate(x)[..., 5 * head : 5 * head + 5]))
    close(layer(x), layer.output(torch.cat(heads, -1)), 1e-12)


SPLITS = [[200], [5, 1, 1, 100, 1, 1, 1, 40, *[1] * 50], [64, 64, 72]]


@torch.no_grad()
def test_any_split_of_a_long_text_reads_the_same(linear):
    model = drawn(config_of(linear)).double().eval()
    tokens = torch.randint(17, (2, 200), generator=torch.Generator().manual_seed(0))
    whole = model(tokens).logits
    for split in SPLITS:
        cache, outs = KVCache.create(model.config, 2, 200, dtype=torch.float64), []
        for part in tokens.split(split, 1):
            out = model(part, cache=cache)
            cache = out.cache
            outs.append(out.logits)
        close(torch.cat(outs, 1), whole)


@torch.no_grad()
def test_filler_touches_nothing_wherever_it_stands(linear):
    # A local layer counts slots, so padding would take room in its window.
    config = CONFIG.with_(attention=AttentionConfig(3, linear=linear))
    model = drawn(config).double().eval()
    tokens = torch.randint(17, (3, 90), generator=torch.Generator().manual_seed(1))
    attention_mask = torch.rand(3, 90, generator=torch.Generator().manual_seed(2)) > 0.3
    attention_mask[0, :30], attention_mask[1, 60:] = False, False
    places = (attention_mask.cumsum(1) - 1).clamp(min=0)
    together = model(tokens, attention_mask=attention_mask, positions=places).logits
    cache, outs = KVCache.create(model.config, 3, 90, dtype=torch.float64), []
    for start, end in ((0, 10), (10, 11), (11, 80), (80, 90)):
        out = model(
            tokens[:, start:end], attention_mask=attention_mask[:, :end], positions=places[:, start:end], cache=cache
        )
        cache = out.cache
        outs.append(out.logits)
    for row in range(3):
        alone = model(tokens[row][attention_mask[row]][None]).logits[0]
        close(together[row][attention_mask[row]], alone)
        close(torch.cat(outs, 1)[row][attention_mask[row]], alone)


def test_documents_of_one_row_are_read_as_if_alone(linear):
    model = drawn(config_of(linear)).double()
    lengths, tokens = [70, 1, 2, 60], torch.randint(17, (2, 133))
    document_ids = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths)).expand(2, -1)
    places = torch.cat([torch.arange(n) for n in lengths]).expand(2, -1)
    logits = model(tokens, document_ids=document_ids, positions=places).logits
    for part, ours in zip(tokens.split(lengths, 1), logits.split(lengths, 1), strict=True):
        close(ours, model(part).logits)


@torch.no_grad()
def test_a_cache_takes_back_what_it_says_and_refuses_the_rest():
    model = drawn(CONFIG).double().eval()
    tokens = torch.randint(17, (2, 120))
    whole = model(tokens).logits
    seen = model(tokens[:, :100], cache=KVCache.create(CONFIG, 2, 120, dtype=torch.float64)).cache
    wanted = torch.tensor([100 - BACK, 97])
    again = model(torch.stack([tokens[0, 84:104], tokens[1, 97:117]]), cache=seen.rewind(wanted))
    close(again.logits, torch.stack([whole[0, 84:104], whole[1, 97:117]]))
    older = model(tokens[:, 100:], cache=seen)  # a cache that is older than later steps
    close(older.logits, whole[:, 100:])
    with pytest.raises(
        ValueError, match=r"lengths=\[83, 97\]: expected .* linear layers store only the updates of the last 16 tokens"
    ):
        seen.rewind(torch.tensor([100 - BACK - 1, 97]))
    close(model(tokens[:, :5], cache=seen.rewind(0)).logits, whole[:, :5])
    short = model(tokens[:, :WHOLE], cache=KVCache.create(CONFIG, 2, 120, dtype=torch.float64)).cache
    close(model(tokens[:, 1:9], cache=short.rewind(1)).logits, whole[:, 1:9])


@torch.no_grad()
def test_long_prompts_of_unequal_lengths_are_told_by_a_token_mask():
    model = drawn(CONFIG).double().eval()
    tokens, lengths = torch.randint(17, (3, 130)), torch.tensor([130, 3, 90])
    token_mask = torch.arange(110) < lengths[:, None]
    empty = KVCache.create(CONFIG, 3, 130, dtype=torch.float64)
    seen = model(tokens[:, :110], token_mask=token_mask, cache=empty).cache
    with pytest.raises(ValueError, match="its rows end in padding .see token_mask."):
        model(tokens[:, :1], cache=seen)
    held = lengths.clamp(max=110)
    seen = seen.rewind(held)
    for step in range(20):
        rows = torch.stack([tokens[row, n + step] for row, n in enumerate(held.tolist())])[:, None]
        out = model(rows, cache=seen)
        seen = out.cache
        for row, n in enumerate(held.tolist()):
            close(out.logits[row, 0], model(tokens[row : row + 1, : n + step + 1]).logits[0, -1])


@torch.no_grad()
def test_rows_that_are_chosen_take_their_matrices_along():
    model = drawn(CONFIG).double().eval()
    tokens = torch.randint(17, (2, 80))
    seen = model(tokens[:, :70], cache=KVCache.create(CONFIG, 2, 80, dtype=torch.float64)).cache
    chosen = seen.select(torch.tensor([1, 1, 0]))
    close(model(tokens[[1, 1, 0], 70:], cache=chosen).logits, model(tokens).logits[[1, 1, 0], 70:])


def test_what_is_kept_is_as_large_after_any_number_of_tokens():
    none = config_of(replace(LINEAR, pattern=(False, True)), layers=1)
    assert KVCache.create(none, 1, 4).states is None  # the pattern ends before its first linear layer
    every = config_of(replace(LINEAR, pattern=(True,)))
    assert cache_bytes(every, 100) == cache_bytes(every, 10**9)
    cache = KVCache.create(every, 1, 250)
    with torch.no_grad():
        model = drawn(every).eval()
        for _ in range(50):
            cache = model(torch.zeros(1, 5, dtype=torch.long), cache=cache).cache
    states = cache.states
    assert sum(s.nbytes for s in (*states.matrices, *states.tails, *states.logs)) <= cache_bytes(every, 250)


@torch.no_grad()
def test_chunks_cost_what_is_counted(linear):
    model = drawn(config_of(linear))
    for tokens in (1, 16, 70, 130):
        x = torch.zeros(2, tokens, dtype=torch.long)
        assert counted_flops(lambda x=x: model(x)) == forward_flops(model.config, tokens, batch=2).total


def test_matrices_are_kept_in_single_precision_where_the_model_is_in_half():
    cache = KVCache.create(CONFIG, 1, 40, dtype=torch.bfloat16)
    states = cache.states
    assert {store.dtype for store in (*states.matrices, *states.tails, *states.logs)} == {torch.float32}
    model = drawn(CONFIG).bfloat16().eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 3, dtype=torch.long), cache=cache).logits.dtype == torch.bfloat16


def test_a_layer_fades_slowly_at_first():
    torch.manual_seed(0)
    layer = Transformer(CONFIG).decoder.blocks[0].attention
    step = F.softplus(layer.decay_bias)
    assert step.min() >= 1e-3 * 0.999 and step.max() <= 0.1 * 1.001
    assert layer.decay_rate.exp().min() >= 1 and layer.decay_rate.exp().max() <= 16


def test_what_makes_no_sense_is_refused_by_name():
    for name, change in (
        ("heads", {"heads": 0}),
        ("key_heads", {"key_heads": 3}),
        ("negative", {"rule": "sum", "negative": True}),
        ("rank", {"rank": 2, "gate": None}),
        ("pattern", {"pattern": (False,)}),
    ):
        with pytest.raises(ValueError, match=f"^{name}="):
            replace(LINEAR, **change)
    for stack in ("encoder", "encoder_decoder"):
        with pytest.raises(ValueError, match="^linear=.*only a decoder has linear layers"):
            CONFIG.with_(stack=stack, attention=AttentionConfig(3, linear=LINEAR))
    with pytest.raises(ValueError, match="^key_heads=2"):
        CONFIG.with_(attention=AttentionConfig(3, linear=LinearConfig(key_heads=2)))
    model, tokens = drawn(CONFIG), torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="^mask=.*linear layers have no pairs"):
        model(tokens, mask=torch.ones(4, 4, dtype=torch.bool)[None, None])
    with pytest.raises(ValueError, match="^document_ids=.*without a cache"), torch.no_grad():
        model(tokens, document_ids=tokens, cache=KVCache.create(CONFIG, 1, 4))
    with pytest.raises(ValueError, match="in-place writes would break the gradient"):
        model(tokens, cache=KVCache.create(CONFIG, 1, 4))
    with pytest.raises(ValueError, match="cache stores None for linear layers: expected"):
        model(tokens, cache=KVCache.create(CONFIG.with_(attention=AttentionConfig(3)), 1, 4))
    with pytest.raises(
        ValueError,
        match="^num_draft_tokens=17: expected at most 16, the number of tokens that a cache with linear layers",
    ):
        Draft("ngram", 17).check(model, 10)
    with pytest.raises(ValueError, match="^mask=.*no pairs of tokens"):
        LinearAttention(12, CONFIG.attention)(torch.zeros(1, 4, 12), mask=torch.ones(1, 1, 4, 4))


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_kernels_of_the_library_are_asked_in_its_layout(decay, monkeypatch):
    """The loop replaces them, with their layout (batch, token, head, ...)."""
    asked = []

    def kernel(q, k, v, g, beta, scale, output_final_state):
        asked.append(g.ndim)
        g = g[..., None] if g.ndim == 3 else g
        turned = (x.transpose(1, 2).double() for x in (scale * q, k, v, g))
        q, k, v, g = turned
        return recurrence(q, k, v, log_decay=g, strength=beta.mT.double(), chunk=1).out.transpose(1, 2), None

    layer = LinearAttention(12, replace(CONFIG.attention, linear=replace(LINEAR, decay=decay))).double()
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    attention_mask = torch.rand(2, 9) > 0.3
    expected = layer(x), layer(x, attention_mask=attention_mask)
    monkeypatch.setattr(fla, "serves", lambda x: True)
    monkeypatch.setattr(fla, "kernels", lambda: (kernel, kernel))
    close(layer(x), expected[0])
    close(layer(x, attention_mask=attention_mask), expected[1])
    assert asked == [3 if decay == "head" else 4] * 2


def test_a_convolution_is_pytorchs():
    torch.manual_seed(0)
    layer, x = ShortConvolution(6, 4), torch.randn(2, 9, 6)
    theirs = F.conv1d(F.pad(x.mT, (3, 0)), layer.weight[:, None], groups=6).mT
    assert_close(layer(x), theirs)
    assert_close(layer(x[:, 4:], x[:, 1:4]), theirs[:, 4:])


def test_experts_and_linear_layers_train_together():
    model = drawn(CONFIG.with_(moe=MoEConfig(4, 2)))
    model(torch.randint(17, (2, 80))).logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
