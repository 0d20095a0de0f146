"""The cache as a value: slots, lengths, copies, and rejected arguments."""

import pytest
import torch

from companion import (
    Attention,
    AttentionConfig,
    FeedForwardConfig,
    KVCache,
    ModelConfig,
    PositionConfig,
    Transformer,
)

CONFIG = ModelConfig(
    vocab=11,
    d_model=12,
    layers=2,
    context=32,
    attention=AttentionConfig(heads=4, kv_heads=2, d_head=6, d_v=5),
    feed_forward=FeedForwardConfig(10),
)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Transformer(CONFIG).double().eval()


def tokens(batch, length):
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(length))


def empty(batch=3, slots=9, **kwargs):
    return KVCache.create(CONFIG, batch, slots, dtype=torch.float64, **kwargs)


def test_shapes_and_lengths(model):
    cache = empty()
    assert [k.shape for k in cache.keys] == [(3, 2, 9, 6)] * 2
    assert [v.shape for v in cache.values] == [(3, 2, 9, 5)] * 2
    with torch.no_grad():
        after = model(tokens(3, 4), cache=cache).cache
    assert (cache.lengths.tolist(), after.lengths.tolist()) == ([0] * 3, [4] * 3)


def test_what_does_not_fit_is_refused_and_nothing_is_written(model):
    with torch.no_grad():
        cache = model(tokens(3, 6), cache=empty()).cache
        before = [t.clone() for t in cache.keys + cache.values]
        with pytest.raises(ValueError, match="6 of 9 slots are filled, got 4 more tokens; expected at most 3"):
            model(tokens(3, 4), cache=cache)
    assert all(torch.equal(a, b) for a, b in zip(before, cache.keys + cache.values, strict=True))


@torch.no_grad()
def test_two_conversations_on_one_model_do_not_meet(model):
    a, b = tokens(1, 7), tokens(1, 8)[:, :7]
    caches, seen = [empty(1), empty(1)], [[], []]
    for t in range(7):
        for i, text in enumerate((a, b)):
            out = model(text[:, t : t + 1], cache=caches[i])
            caches[i] = out.cache
            seen[i].append(out.logits)
    for text, steps in zip((a, b), seen, strict=True):
        torch.testing.assert_close(torch.cat(steps, 1), model(text).logits, atol=1e-12, rtol=0)


@torch.no_grad()
def test_rewinding_is_as_if_it_had_never_been_seen(model):
    text = tokens(3, 8)
    cache = model(text[:, :5], cache=empty()).cache
    detour = model(tokens(3, 3), cache=cache).cache
    for back in (detour.rewind(5), detour.rewind(torch.tensor([5, 5, 5])), cache):
        out = model(text[:, 5:], cache=back)
        torch.testing.assert_close(out.logits, model(text).logits[:, 5:], atol=1e-12, rtol=0)
    with pytest.raises(ValueError, match=r"expected lengths from 0 to each row's current length, \[5, 5, 5\]"):
        cache.rewind(torch.tensor([5, 6, 5]))


@torch.no_grad()
def test_a_clone_follows_a_future_of_its_own(model):
    text, other = tokens(3, 8), tokens(3, 3)
    cache = model(text[:, :5], cache=empty()).cache
    model(other, cache=cache.clone())
    out = model(text[:, 5:], cache=cache)
    torch.testing.assert_close(out.logits, model(text).logits[:, 5:], atol=1e-12, rtol=0)


@torch.no_grad()
def test_select_reorders_and_repeats_rows(model):
    text = tokens(3, 5)
    rows = torch.tensor([2, 0, 0, 1])
    cache = model(text[:, :4], cache=empty()).cache.select(rows)
    out = model(text[rows, 4:], cache=cache)
    torch.testing.assert_close(out.logits, model(text).logits[rows, 4:], atol=1e-12, rtol=0)


@torch.no_grad()
def test_reading_whole_buckets_changes_nothing(model):
    text = tokens(2, 8)
    cache = empty(2, bucket=4)
    steps = []
    for t in range(8):
        out = model(text[:, t : t + 1], cache=cache)
        cache = out.cache
        steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, 1), model(text).logits, atol=1e-12, rtol=0)


def test_bad_uses_are_named(model):
    with pytest.raises(ValueError, match=r"under torch\.no_grad"):
        model(tokens(3, 2), cache=empty())
    with pytest.raises(ValueError, match="tokens has batch=2: expected 3"), torch.no_grad():
        model(tokens(2, 2), cache=empty())
    with pytest.raises(ValueError, match="slots=0"):
        empty(slots=0)


@torch.no_grad()
def test_rows_of_unequal_length_go_on_from_where_each_stands(model):
    text, lengths = tokens(3, 9), torch.tensor([2, 5, 3])
    cache = model(text[:, :5], cache=empty()).cache.rewind(lengths)  # padded to 5 tokens; then the padding is rewound
    rows = [text[i, n : n + 4] for i, n in enumerate(lengths.tolist())]
    out = model(torch.stack(rows), cache=cache)
    for i, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(out.logits[i], model(text[i : i + 1]).logits[0, n : n + 4], atol=1e-12, rtol=0)
    assert out.cache.lengths.tolist() == [6, 9, 7]


@torch.no_grad()
def test_a_layer_alone_counts_positions_from_its_cache():
    torch.manual_seed(0)
    layer = Attention(12, CONFIG.attention, positions=PositionConfig("rotary")).double()
    x, cache = torch.randn(3, 7, 12, dtype=torch.float64), empty()
    first = layer(x[:, :4], cache=cache.open(4)[0])
    rest = layer(x[:, 4:], cache=cache.advance(4).open(3)[0])
    torch.testing.assert_close(torch.cat((first, rest), 1), layer(x), atol=1e-12, rtol=0)
    with pytest.raises(ValueError, match="only under a causal mask"):
        Attention(12, CONFIG.attention, causal=False).double()(x, cache=cache.open(7)[0])
